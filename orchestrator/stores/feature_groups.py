"""For which applications a cache file was made: what its devices were opened as when pipelines were compiled.

A driver finds a pipeline in a cache only on a device that is, to it, the one that it was compiled on; what
that was is not in the driver's data. JSON, for people: nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from orchestrator.devices.request import DeviceRequest
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.kinds import FEATURE_GROUPS

MOST_GROUPS: Final = 1_000
"""More applications than any known set has; the newest are kept."""

_FORMAT: Final = 1


class MadeFor(msgspec.Struct, frozen=True):
    """What a device was opened as when pipelines of a cache file were compiled.

    `pipelines` is how many its last compile handed to the driver.
    """

    request: DeviceRequest
    pipelines: int


class _File(msgspec.Struct, frozen=True):
    format: int
    groups: list[MadeFor]


_decoder: Final = msgspec.json.Decoder(_File)


def read_feature_groups(
    cache_file: Path, operations: FileOperations = REAL_FILE_OPERATIONS
) -> tuple[tuple[MadeFor, ...], str]:
    """The groups of a cache file, and why what is there was not used, or "". Never raises."""
    path = FEATURE_GROUPS.path(cache_file)
    groups, problem = FEATURE_GROUPS.read(path, _decode, operations)
    return groups or (), f"{path}: {problem}" if problem else ""


def add_feature_groups(
    cache_file: Path,
    groups: Iterable[MadeFor],
    *,
    anew: bool = False,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> None:
    """Note what a cache file was made for, beside what is noted already.

    Of equal requests the newest counts. `anew` forgets what was noted: the cache file was begun again.

    Raises:
        SaveError: As `Kind.write`.
    """
    groups = list(groups)
    if not anew and set(groups) <= set(read_feature_groups(cache_file, operations)[0]):
        return  # as in every run that compiles nothing new; nothing is written then

    def make() -> tuple[bytes]:
        before = () if anew else read_feature_groups(cache_file, operations)[0]
        noted = {each.request: each for each in before}
        for each in groups:
            noted.pop(each.request, None)
            noted[each.request] = each
        return (msgspec.json.encode(_File(_FORMAT, list(noted.values())[-MOST_GROUPS:])),)

    FEATURE_GROUPS.write(cache_file, make, operations)


def _decode(data: bytes) -> tuple[MadeFor, ...]:
    read = _decoder.decode(data)
    if read.format != _FORMAT:
        raise ValueError(f"format {read.format} is not known ({_FORMAT} is)")
    return tuple(read.groups)
