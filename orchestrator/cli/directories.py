# Purpose: where verbs keep caches and profiles.
"""The directory for caches."""

from __future__ import annotations

from pathlib import Path


def usable_directory(given: Path | None) -> Path:
    """The directory for cache files, created if need be.

    Raises:
        SaveError: It cannot be created or written.
    """
    import os

    import platformdirs

    from orchestrator.stores.atomic_file import ensure_directory
    from orchestrator.stores.errors import SaveError

    directory = platformdirs.user_cache_path("orchestrator") if given is None else given
    ensure_directory(directory)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise SaveError(directory, "writing", "the directory belongs to someone else or forbids it")
    return directory
