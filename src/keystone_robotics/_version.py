"""The version of all distributions of this repository; their ``pyproject.toml`` read it from here."""

__version__ = "0.2.0"
