"""For which applications a cache file was made: one small file beside it.

A driver finds a pipeline in a cache only on a device that is, to it, the one that it was compiled on; what that was is not
in the driver's data. So every compile notes what its devices were opened as. JSON: `{"format": 1, "groups": [...]}`, each
group a `MadeFor`. The name of the file is that of the cache file with another suffix.

Guarantees: reading never raises and is bounded. Adding is atomic, under the lock of the cache file's writers, so two processes lose
nothing of each other. It is for people: nothing is decided by it. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from orchestrator.devices.request import DeviceRequest
from orchestrator.stores.atomic_file import ensure_directory, read_capped, write_atomically
from orchestrator.stores.beside import FEATURE_GROUPS_SUFFIX, beside
from orchestrator.stores.errors import MissingFileError, ReadError, SaveError
from orchestrator.stores.file_operations import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.writer_lock import writer_lock

MOST_GROUPS: Final = 1_000
"""More applications than any known set has; the newest are kept."""

_MOST_BYTES: Final = 4 << 20
_FORMAT: Final = 1


class MadeFor(msgspec.Struct, frozen=True):
    """What a device was opened as when pipelines of a cache file were compiled.

    Attributes:
        request: It.
        pipelines: How many pipelines its last compile handed to the driver.
    """

    request: DeviceRequest
    pipelines: int


class _File(msgspec.Struct, frozen=True):
    format: int
    groups: list[MadeFor]


_decoder: Final = msgspec.json.Decoder(_File)


def feature_groups_path(cache_file: Path) -> Path:
    """Where the groups of a cache file are kept."""
    return beside(cache_file, FEATURE_GROUPS_SUFFIX)


def read_feature_groups(
    cache_file: Path, operations: FileOperations = REAL_FILE_OPERATIONS
) -> tuple[tuple[MadeFor, ...], str]:
    """The groups of a cache file, and why what is there was not used, or "". Never raises.

    Args:
        cache_file: The cache file; it need not be there.
        operations: The calls to use.
    """
    path = feature_groups_path(cache_file)
    try:
        read = _decoder.decode(read_capped(path, _MOST_BYTES, operations))
    except MissingFileError:
        return (), ""
    except ReadError as error:
        return (), str(error)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        return (), f"{path}: {error}"
    if read.format != _FORMAT:
        return (), f"{path}: format {read.format} is not known ({_FORMAT} is)"
    return tuple(read.groups), ""


def add_feature_groups(
    cache_file: Path,
    groups: Iterable[MadeFor],
    *,
    anew: bool = False,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> None:
    """Note what a cache file was made for, beside what is noted already.

    Args:
        cache_file: The cache file.
        groups: Groups; of equal requests the newest counts.
        anew: Forget what was noted: the cache file was begun again.
        operations: The calls to use.

    Raises:
        SaveError: It could not be written, or another process did not finish writing in time; what is there stays.
    """
    path, groups = feature_groups_path(cache_file), list(groups)
    if not anew and set(groups) <= set(read_feature_groups(cache_file, operations)[0]):
        return  # as in every run that compiles nothing new; nothing is written then
    ensure_directory(path.parent, operations)
    with writer_lock(cache_file, operations) as held:
        if not held:
            raise SaveError(path, "locking", "another process did not finish writing it in time")
        noted = (
            {} if anew else {each.request: each for each in read_feature_groups(cache_file, operations)[0]}
        )
        for each in groups:
            noted.pop(each.request, None)
            noted[each.request] = each
        newest = list(noted.values())[-MOST_GROUPS:]
        write_atomically(path, [msgspec.json.encode(_File(_FORMAT, newest))], operations)
