"""Plans beside a device's cache file: sets in decoded form, so that the next run need not decode them.

This module treats a plan as bytes. The name of a file has the first digits of a hash of the set and of the
device's name, so that each device finds its own plans first. A plan is used where the whole hash of the set
and the rules agree. Header, little-endian, and then the bytes:

| offset | size | field                                                               |
|--------|------|---------------------------------------------------------------------|
|      0 |    8 | magic "ORCHPLN" and format version 1                                 |
|      8 |   16 | hash of what the plan was made of: the set's files, and which part   |
|     24 |   16 | hash of the rules that it was made by: program, registry, ABI        |
|     40 |   16 | xxh3_128 of everything behind the header                             |
|     56 |    8 | bytes behind the header                                              |

Guarantees: a plan is used only if its hash proves it whole. A cache file has a bounded number of plans, of
bounded total size; those that were not used for longest are removed.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import field, frozen

from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    ReadError,
    content_hash128,
    content_hash128_of,
    read_head,
)
from orchestrator.stores.kinds import PLAN, cache_file_of

_HEADER: Final = struct.Struct("<7sB16s16s16sQ")
PLAN_MAGIC: Final = b"ORCHPLN"
"""First bytes of every plan."""
_VERSION: Final = 1
_DAY_NS: Final = 86_400 * 10**9
_HALF: Final = 4
"""Bytes of each of the two hashes in a label."""

MOST_PLANS: Final = 64
"""Most plans of a cache file."""
MOST_BYTES: Final = PLAN.cap
"""Most bytes of all plans of a cache file."""


@frozen
class PlanIdentity:
    """What a plan was made from.

    Attributes:
        content: Hash of the set's files and of the part that was decoded, 16 bytes.
        rules: Hash of the program, registry and ABI that made it, 16 bytes.
        device: Hash of the device's name, 16 bytes; the file does not hold it.
    """

    content: bytes
    rules: bytes
    device: bytes = field(default=bytes(16), eq=False)

    @property
    def label(self) -> str:
        """The part of the file name that differs between sets and devices."""
        return self.content[:_HALF].hex() + self.device[:_HALF].hex()


@frozen(eq=False)
class StoredPlan:
    """A plan that was read and proven whole, with its identity and its bytes."""

    identity: PlanIdentity
    data: memoryview


def find_plans(
    directory: Path, identity: PlanIdentity, operations: FileOperations = REAL_FILE_OPERATIONS
) -> tuple[Path, ...]:
    """Files of plans of a set for a device of this name, the newest first. Never raises."""
    return _named(directory, identity.label, operations)


def find_plans_of_others(
    directory: Path, identity: PlanIdentity, operations: FileOperations = REAL_FILE_OPERATIONS
) -> tuple[Path, ...]:
    """`find_plans` for devices of other names."""
    half = 2 * _HALF
    content, device = identity.label[:half], identity.label[half:]
    return _named(directory, f"{content}(?!{device})[0-9a-f]{{{half}}}", operations)


def has_plans(directory: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> bool:
    """Whether a directory has a plan of anything. Never raises."""
    with suppress(OSError):
        return any(each.endswith(PLAN.suffix) for each in operations.list_directory(directory))
    return False


def mark_used(path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> None:
    """Make a plan the newest one: it is removed last, and newer than the files of its set. Never raises."""
    with suppress(OSError):  # in a directory that may only be read
        operations.touch(path)


def read_plan(
    path: Path,
    identity: PlanIdentity | None = None,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> tuple[StoredPlan | None, str]:
    """Read a plan: it or None, and why an existing file was not used, or "". Never raises. Thread-safe.

    Args:
        path: The file.
        identity: The identity that it must have; None for any.
        operations: The calls to use.
    """
    plan, problem = PLAN.read(path, _decode, operations)
    if plan is None or identity is None or plan.identity == identity:
        return plan, problem
    if plan.identity.content != identity.content:
        return None, "it was made of another set"
    return None, "another version of the program, or of its Vulkan registry, made it"


def read_plan_head(
    path: Path,
    identity: PlanIdentity,
    size: int,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> bytes:
    """The first bytes of a plan, unproven; none where it has another identity. Never raises. Thread-safe.

    Args:
        path: The file.
        identity: The identity that it must have.
        size: How many.
        operations: The calls to use.
    """
    with suppress(ReadError):
        data = read_head(path, _HEADER.size + size, operations, trusted=True)
        if len(data) >= _HEADER.size:
            magic, version, content, rules, _, _ = _HEADER.unpack_from(data)
            if (magic, version) == (PLAN_MAGIC, _VERSION) and PlanIdentity(content, rules) == identity:
                return data[_HEADER.size :]
    return b""


def save_plan(
    cache_file: Path,
    identity: PlanIdentity,
    parts: Sequence[bytes | memoryview],
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> Path:
    """Save a plan beside a cache file, in place of one with the same label; returns the file. Thread-safe.

    Raises:
        SaveError: As `Kind.write`.
    """
    size = sum(map(len, parts))
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
    """Files whose names end with a regular expression: path, time of change, size; the newest first."""
    ends = re.compile(rf"{ending}\Z")
    tomorrow_ns = time.time_ns() + _DAY_NS  # a file server's clock may be ahead by less
    found = []
    with suppress(OSError):  # a directory that cannot be listed has no usable plans
        for name in operations.list_directory(directory):
            if ends.search(name) and not name.startswith("."):
                with suppress(OSError):  # gone since
                    status = operations.stat(directory / name)
                    changed_ns = status.modified_ns
                    if changed_ns > tomorrow_ns:  # of a clock that went wrong: it would stay the newest
                        changed_ns = 0
                    found.append((directory / name, changed_ns, status.size))
    return sorted(found, key=lambda each: (-each[1], each[0]))


def _bound(cache_file: Path, operations: FileOperations) -> None:
    """Remove the oldest plans of a cache file beyond the two bounds."""
    total = 0
    every = _plans(cache_file.parent, re.escape(PLAN.suffix), operations)
    own = (each for each in every if cache_file_of(each[0]) == cache_file)
    for number, (path, _, size) in enumerate(own):
        total += size
        if number and (number >= MOST_PLANS or total > MOST_BYTES):
            with suppress(OSError):  # the next save tries again
                operations.unlink(path)
