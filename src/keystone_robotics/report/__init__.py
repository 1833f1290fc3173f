"""From stored rounds, profiles and comparisons to figures and pages. Needs the extra ``plot``."""
