"""Runs the docstring examples of the core in an environment with only torch and numpy."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
import sys

from keystone_robotics.select import engine

#: The first two are those of pyproject.toml.
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
NOT_CORE = ("numba", "matplotlib", "scipy", "lerobot", "transformers", "rich", "tyro")


def main() -> int:
    """Number of failed examples, as an exit code."""
    present = [name for name in NOT_CORE if importlib.util.find_spec(name)]
    if present:
        sys.exit(f"expected only torch and numpy, but {', '.join(present)} can be imported")
    if engine.compiled_kernel() is not None:
        sys.exit("the compiled kernel loaded without numba")
    failed = attempted = 0
    for package in ("keystone_robotics.select", "keystone_robotics.sample", "keystone_robotics.monitor"):
        if not importlib.util.find_spec(package):
            continue
        root = sys.modules.get(package) or importlib.import_module(package)
        for module in pkgutil.walk_packages(root.__path__, package + "."):
            if module.name == "keystone_robotics.select.kernel":
                continue
            result = doctest.testmod(importlib.import_module(module.name), optionflags=FLAGS)
            failed, attempted = failed + result.failed, attempted + result.attempted
    for name in (
        "keystone_robotics",
        "keystone_robotics.errors",
        "keystone_robotics.attachment",
        "keystone_robotics.handle",
    ):
        result = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
        failed, attempted = failed + result.failed, attempted + result.attempted
    sys.stdout.write(f"{attempted - failed} of {attempted} examples passed on Python {sys.version.split()[0]}\n")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
