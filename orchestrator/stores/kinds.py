"""The kinds of file that lie beside a device's cache file, under the same name with another ending.

Each is written under the lock of the cache file's writers, so that whoever has the lock knows that nobody
else writes any of them. Tidying goes by this table: a kind that is not in it is neither swept nor pruned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from orchestrator.stores.cache_file import CACHE_FILE_SUFFIX

CALIBRATION_SUFFIX: Final = ".calibration.json"
KEY_PROFILE_SUFFIX: Final = ".keys.json"
DURATIONS_SUFFIX: Final = ".durations"
FEATURE_GROUPS_SUFFIX: Final = ".groups"

BESIDE_SUFFIXES: Final = (CALIBRATION_SUFFIX, KEY_PROFILE_SUFFIX, DURATIONS_SUFFIX, FEATURE_GROUPS_SUFFIX)
"""The endings of all kinds."""


def beside(cache_file: Path, suffix: str) -> Path:
    """Where the file of a kind lies.

    Args:
        cache_file: The cache file; it need not be there.
        suffix: One of `BESIDE_SUFFIXES`.
    """
    return cache_file.with_name(cache_file.name.removesuffix(CACHE_FILE_SUFFIX) + suffix)


def cache_file_of(path: Path) -> Path:
    """The cache file that a file lies beside, whose writers' lock guards it; any other name is its own."""
    for suffix in BESIDE_SUFFIXES:
        if path.name.endswith(suffix):
            return path.with_name(path.name.removesuffix(suffix) + CACHE_FILE_SUFFIX)
    return path
