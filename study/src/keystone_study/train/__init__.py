"""Training small policies on demonstrations of scripted experts. Needs the extra ``eval``."""
