"""What every set is made of: records of (tag, hash, payload), wherever they lie, and pipelines to compile.

Everything above reads sets through `RecordSource`. What a source had to leave out it writes down in a
`DamageLog`: thread-safe, each thing once, and bounded, so that a hostile file of millions of bad records is
counted in full and described in part.
"""

from __future__ import annotations

import enum
import threading
from abc import abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

import msgspec

from orchestrator.devices.image import PipelineKind

FORMAT_VERSION = 6
"""The version of payloads that are written here."""
FORMAT_VERSIONS = (5, 6)
"""The versions of payloads that are read."""


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


class Closing(Protocol):
    """A context manager that closes what it is at the end of the block."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Damage(msgspec.Struct, frozen=True):
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


KIND_OF_TAG: dict[RecordTag, PipelineKind] = {
    RecordTag.GRAPHICS_PIPELINE: PipelineKind.GRAPHICS,
    RecordTag.COMPUTE_PIPELINE: PipelineKind.COMPUTE,
    RecordTag.RAY_TRACING_PIPELINE: PipelineKind.RAY_TRACING,
}
"""The kind of pipeline in the records of a tag, in the order of `PipelineKind`."""

TAG_OF_KIND: dict[PipelineKind, RecordTag] = {kind: tag for tag, kind in KIND_OF_TAG.items()}
"""The tag of the records that hold pipelines of a kind."""


class PipelineJob(msgspec.Struct, frozen=True, order=True):
    """A pipeline to compile.

    Attributes:
        key: Its 64-bit hash in the set.
        kind: What it is.
    """

    key: int
    kind: PipelineKind

    @property
    def tag(self) -> RecordTag:
        """The tag of its record."""
        return TAG_OF_KIND[self.kind]

    def __str__(self) -> str:
        return f"{self.kind.value} {self.key:016x}"
