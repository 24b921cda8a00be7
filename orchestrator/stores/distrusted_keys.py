"""What is remembered, by device identity, of drivers whose keys do not tell pipelines of a kind apart.

Kept beside the cache file, so that the next run asks for no such keys, whatever set it has. Another driver,
or another version of it, begins anew. Thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

import msgspec

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.image import PipelineKind
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.kinds import DISTRUSTED_KEYS
from orchestrator.stores.profile_file import Profile, ProfileFile, ProfileIdentity
from orchestrator.version import VERSION


class DistrustedKeys(Profile, frozen=True, kw_only=True):
    """The kinds of pipelines of which two of different code had one key."""

    kinds: tuple[PipelineKind, ...]


_FILE = ProfileFile(DISTRUSTED_KEYS, DistrustedKeys)


def read_distrusted(
    directory: Path, identity: DeviceIdentity, operations: FileOperations = REAL_FILE_OPERATIONS
) -> tuple[frozenset[PipelineKind], str]:
    """What is remembered of a device's driver, and why a file there was not used, or "". Never raises."""
    loaded = _FILE.load(directory, identity, operations)
    return frozenset() if loaded.profile is None else frozenset(loaded.profile.kinds), loaded.problem


def remember_distrusted(
    directory: Path,
    identity: DeviceIdentity,
    kinds: Collection[PipelineKind],
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> Path:
    """Add kinds to what is remembered; returns where it is kept.

    Raises:
        SaveError: It could not be kept.
    """

    def make() -> tuple[bytes]:
        known, _ = read_distrusted(directory, identity, operations)  # under the lock: others add too
        made = DistrustedKeys(
            identity=ProfileIdentity.of(identity),
            device_name=identity.device_name,
            driver=" ".join(filter(None, (identity.driver_name, identity.driver_info))),
            made_at=time.time(),
            orchestrator=VERSION,
            kinds=tuple(kind for kind in PipelineKind if kind in known.union(kinds)),
        )
        return (msgspec.json.encode(made),)

    return DISTRUSTED_KEYS.write(cache_path(directory, identity), make, operations)
