"""The page of a run (`page`), the figure of a profile and the style of all figures; figures need the extra ``plot``."""
