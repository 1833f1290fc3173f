"""``python -m keystone``: the command ``keystone``, of this Python and no other."""

from keystone.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
