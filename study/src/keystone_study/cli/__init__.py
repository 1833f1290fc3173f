"""The commands that the study adds to ``keystone``; named as entry points in pyproject.toml."""
