# Purpose: what a set is made of: records of (tag, hash, payload), as in a Fossilize archive, wherever they
# lie (a mapped file, memory, several archives). Everything above reads sets through RecordSource.
"""Records: the common form of every pipeline set."""

from __future__ import annotations

import enum
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
