# Purpose: the unit of work: one pipeline of a set. Everything from here to the report speaks of these.
"""`PipelineJob`: a pipeline to compile."""

from __future__ import annotations

from attrs import frozen

from orchestrator.devices.image import PipelineKind
from orchestrator.sets.records import RecordTag

KIND_OF_TAG: dict[RecordTag, PipelineKind] = {
    RecordTag.GRAPHICS_PIPELINE: PipelineKind.GRAPHICS,
    RecordTag.COMPUTE_PIPELINE: PipelineKind.COMPUTE,
    RecordTag.RAY_TRACING_PIPELINE: PipelineKind.RAY_TRACING,
}
"""The kind of pipeline in the records of a tag, in the order of `PipelineKind`."""

TAG_OF_KIND: dict[PipelineKind, RecordTag] = {kind: tag for tag, kind in KIND_OF_TAG.items()}
"""The tag of the records that hold pipelines of a kind."""

PIPELINE_TAGS: tuple[RecordTag, ...] = tuple(KIND_OF_TAG)
"""Tags of records that hold pipelines, in the order of `PipelineKind`."""


@frozen(order=True)
class PipelineJob:
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
