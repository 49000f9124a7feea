"""Which kvtune this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def kvtune_version() -> str:
    """The installed distribution's version; `0+source` where the packages are used without being installed."""
    try:
        return version("kvtune")
    except PackageNotFoundError:
        return "0+source"
