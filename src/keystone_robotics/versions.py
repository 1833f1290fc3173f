"""Versions of installed packages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_versions(*packages: str) -> dict[str, str]:
    """The versions of those of the packages that are installed.

    >>> list(package_versions("torch", "no-such-package"))
    ['torch']
    """
    return {package: found for package in packages if (found := _version(package)) is not None}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
