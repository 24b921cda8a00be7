"""`PipelineSet`: pipelines to compile, with everything they refer to, and what is wrong with it.

Guarantees: opening reads record headers only; the rest is decoded when first asked for and kept. Immutable,
apart from the damage that grows as payloads are read. Reads are thread-safe.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

from orchestrator.devices.identified import SpirvProvider
from orchestrator.devices.image import PipelineKind
from orchestrator.errors import RecordError, expect
from orchestrator.sets.archive.hashes import hash_u64, hash_values
from orchestrator.sets.archive.modules import ShaderModule, decode_module
from orchestrator.sets.archive.reader import (
    Archive,
    CombinedRecords,
    archives_of,
    is_unchecked,
    open_archives,
    record_offset,
)
from orchestrator.sets.records import (
    KIND_OF_TAG,
    Closing,
    Damage,
    DamageLog,
    FeatureGroup,
    PipelineJobs,
    RecordSource,
    RecordTag,
    UnknownContentError,
)

A_SET = "a set, such as PipelineSet.open(path) gives,"
"""What a function says that was given something else."""

_MODULE = RecordTag.SHADER_MODULE

if TYPE_CHECKING:
    from orchestrator.sets.archive.record_proof import Verified
    from orchestrator.sets.archive.writer import ArchiveWriter
    from orchestrator.sets.groups import Application


class PipelineSet(Closing):
    """A set of pipelines. Close it when it was opened from files, or use it as a context manager.

    Attributes:
        decoders: How many processes decode its first group; more than 1 only in a process that may fork.
        in_turn: Whether other processes compile it, too, and one at a time decodes it.
        names: Keys of pipelines by the name or tag that a manifest or a builder gives them.
    """

    def __init__(self, source: RecordSource, *, owned: Archive | CombinedRecords | None = None) -> None:
        """Use `PipelineSet.open` or `PipelineSet.from_records`."""
        self._source = source
        self._owned = owned
        self._log = DamageLog()
        self._left_out: Mapping[int, str] = {}
        self._provider: SpirvProvider | None = None
        self._files_hash: bytes | None = None
        self.decoders = 1
        self.in_turn = False
        self.names: Mapping[str, tuple[int, ...]] = {}

    @classmethod
    def open(cls, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Self:
        """Open an archive, or several as one set (a capture's base and the `name.N.foz` of its processes).

        Args:
            paths: One path, or several; of equal records the first path's wins.

        Raises:
            ArchiveError: An archive cannot be read as a whole.
            ValueError: There is no path.
        """
        several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        source = open_archives(several)
        return cls(source, owned=source)

    @classmethod
    def from_records(cls, source: RecordSource, names: Mapping[str, tuple[int, ...]] | None = None) -> Self:
        """Make a set of records that the caller has, and goes on to own; TypeError for anything else.

        `names` are keys of its pipelines by name, such as `PipelineSetBuilder.names`.
        """
        if not hasattr(source, "payload"):
            raise TypeError(f"records are expected here, such as MemoryRecords, not {type(source).__name__}")
        made = cls(source)
        made.names = names or {}
        return made

    @property
    def records(self) -> RecordSource:
        """What the set is made of."""
        return self._source

    @property
    def left_out(self) -> Mapping[int, str]:
        """Pipelines that no driver is to be given, by key, with the reason; see `leaving_out`."""
        return self._left_out

    def leaving_out(self, reasons: Mapping[int, str]) -> PipelineSet:
        """The same set, of which no driver is given some pipelines, by key, nor what only they refer to.

        They and what links them are problems of every group of it that is opened. The reasons replace those
        of this set; what is added to them later counts for groups that are opened later.
        """
        same = copy.copy(self)
        same._left_out = reasons
        same._owned = None
        return same

    @property
    def provider(self) -> SpirvProvider | None:
        """Who gives the code of shader modules that the records lack; see `supplied_by`."""
        return self._provider

    def supplied_by(self, provider: SpirvProvider) -> PipelineSet:
        """The same set, whose records may lack shader modules: their code is asked for when it is needed.

        A stage then names a module by a key of the application's. What a device lacks for such a shader, and
        whether its code is valid, is found out when the provider gives it.

        Args:
            provider: Gives the SPIR-V of a module by its key.

        Raises:
            TypeError: It is no provider.
        """
        expect(provider, SpirvProvider, "SpirvProvider")
        same = copy.copy(self)
        same._provider = provider
        same._owned = None
        return same

    @property
    def name(self) -> str:
        """The paths that the set comes from, or a word."""
        return self._source.name

    @cached_property
    def pipelines(self) -> PipelineJobs:
        """Each pipeline once, graphics, then compute, then ray tracing, each kind in the order of the set."""
        return PipelineJobs.of_records(self._source)

    def __len__(self) -> int:
        """Number of pipelines."""
        return sum(self.counts.values())

    @cached_property
    def counts(self) -> dict[PipelineKind, int]:
        """Number of pipelines of each kind."""
        return {kind: len(self._source.keys(tag)) for tag, kind in KIND_OF_TAG.items()}

    @cached_property
    def tag_counts(self) -> dict[RecordTag, int]:
        """Number of records of each tag, each (tag, hash) once."""
        return {tag: len(self._source.keys(tag)) for tag in RecordTag}

    @property
    def duplicates(self) -> int:
        """Records left out within the archives because one of the same name came before."""
        return sum(each.duplicates for each in archives_of(self._source))

    @cached_property
    def applications(self) -> tuple[Application, ...]:
        """The applications that the set was recorded from, as far as their records can be read."""
        from orchestrator.sets.groups import read_applications  # a plan has what comes of it

        return read_applications(self._source, self._log.add)

    @cached_property
    def groups(self) -> tuple[FeatureGroup, ...]:
        """The pipelines grouped by what their applications told the driver; at least one group."""
        from orchestrator.sets.groups import feature_groups

        return feature_groups(self._source, self._log.add)

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What was found damaged so far; grows as payloads are read."""
        return tuple(dict.fromkeys((*self._source.damage, *self._log.entries)))

    def note_damage(self, damage: Iterable[Damage]) -> None:
        """Write down what another process found that has the set open too."""
        for each in damage:
            self._log.add(each)

    def module(self, key: int) -> ShaderModule:
        """Read a shader module by its hash.

        Raises:
            KeyError: There is no such module.
            RecordError: It is damaged.
        """
        payload = self._source.payload(_MODULE, key)
        try:
            module = decode_module(key, payload)
            if is_unchecked(self._source, _MODULE, key):
                module.check_key()
        except UnknownContentError:
            raise
        except RecordError as error:
            offset = record_offset(self._source, _MODULE, key)
            self._log.add(Damage(offset, int(_MODULE), key, error.reason))
            raise RecordError(int(_MODULE), key, error.reason, offset) from error
        return module

    def hash_files(self, hash_bytes: Callable[[bytes | memoryview], bytes]) -> bytes:
        """A hash of the bytes of all its archives, always by the same function; empty where it has none."""
        if self._files_hash is None:
            found = [each.content_hash(hash_bytes) for each in archives_of(self._source)]
            self._files_hash = hash_bytes(b"".join(found)) if found else b""
        return self._files_hash

    @property
    def file_bytes(self) -> int:
        """Size of all its archives; 0 where it is made of something else."""
        return sum(each.size for each in archives_of(self._source))

    @property
    def is_changed(self) -> bool:
        """Whether a file of it was written since it was opened."""
        return any(each.is_changed for each in archives_of(self._source))

    def verify(self, progress: Callable[[int, int], object] = lambda _done, _total: None) -> Verified:
        """Read every record and recompute its key. What is wrong is in `damage` afterwards.

        Args:
            progress: Told now and then how many records were read, of how many. What it raises ends the
                reading.
        """
        from orchestrator.sets.archive.record_proof import prove_records  # a compile asks for none

        total = sum(self.tag_counts.values())
        return prove_records(self._source, self._log.add, lambda read: progress(read, total))

    def content_hash(self) -> int:
        """A 64-bit hash over the names (tag, hash) of all records, whatever their order, for reports."""
        return self._content_hash

    @cached_property
    def _content_hash(self) -> int:
        h = hash_values(())
        for tag in RecordTag:
            for key in sorted(self._source.keys(tag)):
                h = hash_u64(key, hash_values((int(tag),), h))
        return h

    def copy_to(self, writer: ArchiveWriter) -> int:
        """Write all records that can be read; returns how many were left out because they are damaged.

        Raises:
            ArchiveError: The writer's file cannot be written.
        """
        from orchestrator.sets.archive.writer import copy_records

        return copy_records(self._source, writer)

    def close(self) -> None:
        """Close the archives that `open` opened. Idempotent."""
        if self._owned is not None:
            self._owned.close()

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {kind.value}" for kind, count in self.counts.items())
        return f"<PipelineSet {self.name!r}: {counts}>"
