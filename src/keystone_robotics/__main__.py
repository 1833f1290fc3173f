"""``python -m keystone_robotics``: the command ``keystone`` of this Python."""

from keystone_robotics.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
