"""The figure of a profile, and the style of all figures. Needs the extra ``plot``."""
