"""Plans beside a device's cache file: sets as they were decoded for it, so that the next run need not.

What a plan holds is the caller's; here it is bytes. A file is found by the content of its set, of which
its name has the first digits, and used where all of the content and the rules by which it was made agree.
The name has digits of the device's name too, so that each device finds its own first. Header,
little-endian, and then the bytes:

| offset | size | field                                                               |
|--------|------|---------------------------------------------------------------------|
|      0 |    8 | magic "ORCHPLN" and format version 1                                 |
|      8 |   16 | hash of what the plan was made of: the set's files, and which part   |
|     24 |   16 | hash of the rules that it was made by: program, registry, ABI        |
|     40 |   16 | xxh3_128 of everything behind the header                             |
|     56 |    8 | bytes behind the header                                              |

Guarantees: bytes are given out only where the hash proves that they are those that were written. A cache file
has a bounded number of plans, of bounded size together; the oldest go.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import field, frozen

from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    SaveError,
    content_hash128,
    content_hash128_of,
)
from orchestrator.stores.kinds import PLAN, cache_file_of

_HEADER: Final = struct.Struct("<7sB16s16s16sQ")
PLAN_MAGIC: Final = b"ORCHPLN"
"""How every plan begins."""
_VERSION: Final = 1
_HALF: Final = 4
"""Bytes of a hash of which a label has the digits; it has those of two."""

MOST_PLANS: Final = 64
"""Plans that a cache file has at most."""
MOST_BYTES: Final = PLAN.cap
"""Bytes that they have together, at most."""


@frozen
class PlanIdentity:
    """What a plan is of.

    Attributes:
        content: Hash of what it was made of, 16 bytes.
        rules: Hash of the rules that it was made by, 16 bytes.
        device: Hash of the name of the device that it was made for, 16 bytes; the file does not hold it.
    """

    content: bytes
    rules: bytes
    device: bytes = field(default=bytes(16), eq=False)

    @property
    def label(self) -> str:
        """What tells its file apart from those of other sets and devices."""
        return self.content[:_HALF].hex() + self.device[:_HALF].hex()


@frozen(eq=False)
class StoredPlan:
    """A plan that was read, and proven whole.

    Attributes:
        identity: What it is of.
        data: Its bytes.
    """

    identity: PlanIdentity
    data: memoryview


def find_plans(
    directory: Path, identity: PlanIdentity, operations: FileOperations = REAL_FILE_OPERATIONS
) -> tuple[Path, ...]:
    """Files of plans of a set in a directory of cache files, for a device of its name. Never raises.

    The newest first.
    """
    return _named(directory, identity.label, operations)


def find_plans_of_others(
    directory: Path, identity: PlanIdentity, operations: FileOperations = REAL_FILE_OPERATIONS
) -> tuple[Path, ...]:
    """As `find_plans`, for devices of other names."""
    half = 2 * _HALF
    content, device = identity.label[:half], identity.label[half:]
    return _named(directory, f"{content}(?!{device})[0-9a-f]{{{half}}}", operations)


def read_plan(
    path: Path,
    identity: PlanIdentity | None = None,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> tuple[StoredPlan | None, str]:
    """Read a plan: it or None, and why a file that is there was not used, or "". Never raises. Thread-safe.

    Args:
        path: The file.
        identity: What it must be of; None for anything.
        operations: The calls to use.
    """
    plan, problem = PLAN.read(path, _decode, operations)
    if plan is None or identity is None or plan.identity == identity:
        return plan, problem
    if plan.identity.content != identity.content:
        return None, "it was made of another set"
    return None, "another version of the program, or of its Vulkan registry, made it"


def save_plan(
    cache_file: Path,
    identity: PlanIdentity,
    parts: Sequence[bytes | memoryview],
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> Path:
    """Keep a plan beside a cache file, in place of the one of the same set; returns where. Thread-safe.

    Raises:
        SaveError: As `Kind.write`; also where it is larger than a plan may be.
    """
    size = sum(map(len, parts))
    if (total := _HEADER.size + size) > PLAN.cap:
        reason = f"it has {total} bytes, more than the {PLAN.cap} that are allowed"
        raise SaveError(PLAN.path(cache_file, identity.label), "checking the size", reason)
    head = _HEADER.pack(
        PLAN_MAGIC, _VERSION, identity.content, identity.rules, content_hash128_of(parts), size
    )
    path = PLAN.write(cache_file, lambda: (head, *parts), operations, label=identity.label)
    _bound(cache_file, operations)
    return path


def _decode(data: bytes) -> StoredPlan:
    if len(data) < _HEADER.size:
        raise ValueError(f"{len(data)} bytes are less than the header of {_HEADER.size}")
    magic, version, content, rules, expected, size = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if magic != PLAN_MAGIC or version != _VERSION:
        raise ValueError(f"at byte 0: not a plan of version {_VERSION}")
    if len(body) != size:
        raise ValueError(f"at byte 56: {size} bytes are declared, {len(body)} are there")
    if content_hash128(body) != expected:
        raise ValueError("at byte 40: the content does not have the hash that was saved with it")
    return StoredPlan(PlanIdentity(content, rules), body)


def _named(directory: Path, label: str, operations: FileOperations) -> tuple[Path, ...]:
    ending = rf"\.{label}{re.escape(PLAN.suffix)}"
    return tuple(path for path, _, _ in _plans(directory, ending, operations))


def _plans(directory: Path, ending: str, operations: FileOperations) -> list[tuple[Path, int, int]]:
    """Files whose names end so, a regular expression: path, time of change, size; the newest first."""
    ends = re.compile(rf"{ending}\Z")
    found = []
    with suppress(OSError):  # a directory that cannot be listed has none that could be used
        for name in operations.list_directory(directory):
            if ends.search(name) and not name.startswith("."):
                with suppress(OSError):  # gone since
                    status = operations.stat(directory / name)
                    found.append((directory / name, status.modified_ns, status.size))
    return sorted(found, key=lambda each: (-each[1], each[0]))


def _bound(cache_file: Path, operations: FileOperations) -> None:
    """Remove the oldest plans of a cache file, beyond what it may have."""
    total = 0
    every = _plans(cache_file.parent, re.escape(PLAN.suffix), operations)
    own = (each for each in every if cache_file_of(each[0]) == cache_file)
    for number, (path, _, size) in enumerate(own):
        total += size
        if number and (number >= MOST_PLANS or total > MOST_BYTES):
            with suppress(OSError):  # the next save tries again
                operations.unlink(path)
