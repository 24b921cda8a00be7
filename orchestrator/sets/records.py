"""Records: the common form of every pipeline set.

What a set is made of: records of (tag, hash, payload), as in a Fossilize archive, wherever they lie (a
mapped file, memory, several archives). Everything above reads sets through RecordSource.

A bounded list of what was found damaged.

Where a record source writes down what it had to leave out.

Guarantees: thread-safe; each thing is counted once however often it is met; memory is bounded: a hostile
file of millions of bad records is counted in full and described in part.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Sequence
from typing import Protocol

from attrs import frozen


class RecordTag(enum.IntEnum):
    """What a record holds; the numbers are those of the archive format."""

    APPLICATION_INFO = 0
    SAMPLER = 1
    DESCRIPTOR_SET_LAYOUT = 2
    PIPELINE_LAYOUT = 3
    SHADER_MODULE = 4
    RENDER_PASS = 5
    GRAPHICS_PIPELINE = 6
    COMPUTE_PIPELINE = 7
    APPLICATION_BLOB_LINK = 8
    RAY_TRACING_PIPELINE = 9
    BUCKET_INFO = 10


@frozen
class Damage:
    """Something in a set that could not be read and was left out.

    Attributes:
        offset: Byte offset in the file, or None.
        tag: Tag of the record, or None where even that is not known.
        key: Hash of the record, or None.
        reason: What is wrong and the likely cause.
    """

    offset: int | None
    tag: int | None
    key: int | None
    reason: str


class RecordSource(Protocol):
    """Gives records. Reads are thread-safe; nothing it returns may be changed."""

    @property
    def name(self) -> str:
        """Where the records come from, for messages: a path, or a word."""

    @property
    def damage(self) -> Sequence[Damage]:
        """What was found damaged so far; grows as payloads are read."""

    def keys(self, tag: RecordTag) -> Sequence[int]:
        """Hashes of all records of a tag, in the order of the set, each once."""

    def payload(self, tag: RecordTag, key: int) -> bytes:
        """The decompressed payload of a record.

        Raises:
            KeyError: There is no such record.
            RecordError: It is damaged.
        """


DETAILS_MAX = 10_000


class DamageLog:
    """Collects `Damage`; the first 10,000 entries with their details, all of them by count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Damage, None] = {}
        self._not_described = 0

    def add(self, damage: Damage) -> None:
        """Write something down, unless it stands there already."""
        with self._lock:
            if damage in self._entries:
                return
            if len(self._entries) < DETAILS_MAX:
                self._entries[damage] = None
            else:
                self._not_described += 1

    @property
    def entries(self) -> tuple[Damage, ...]:
        """What was described so far, in the order it was found."""
        with self._lock:
            return tuple(self._entries)

    def __len__(self) -> int:
        """How much was found, described or not."""
        with self._lock:
            return len(self._entries) + self._not_described
