"""Which version of the package this is."""

from __future__ import annotations


def version() -> str:
    """Version of the installed package; words where it runs from a checkout that nobody installed."""
    from importlib import metadata  # a sixth of what asking for help costs, and nothing else needs it then

    try:
        return metadata.version("orchestrator")
    except metadata.PackageNotFoundError:
        return "unknown (the package is not installed)"
