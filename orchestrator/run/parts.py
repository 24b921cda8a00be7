"""The images of a run, numbered through: those that came later behind the first.

Most runs have one, and then nothing is translated. Thread-safe: it only grows, and a worker is never given a
pipeline of an image before that was added.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from orchestrator.devices.device import (
    CallSplit,
    CreationBatch,
    Device,
    PipelineSource,
    PreparedPipelines,
    joined,
)
from orchestrator.devices.identifiers import missed

_Int32s = npt.NDArray[np.int32]


class PreparedParts:
    """Prepared images whose pipelines have numbers of their own all together.

    Attributes:
        first: The image that there was from the start.
    """

    def __init__(self, first: PreparedPipelines) -> None:
        """Begin with one image."""
        self.first = first
        self._parts = [first]
        self._firsts = np.zeros(1, np.int64)
        self._count = len(first.image)

    def add(self, prepared: PreparedPipelines) -> int:
        """Add an image; the number of its first pipeline. One thread."""
        number = self._count
        self._parts.append(prepared)
        self._firsts = np.append(self._firsts, number)
        self._count += len(prepared.image)
        return number

    def libraries_of(self, index: int) -> list[int]:
        """The libraries that a pipeline links."""
        part, own = self.part_of(index)
        return [index - own + each for each in part.image.libraries_of(own)]

    def part_of(self, index: int) -> tuple[PreparedPipelines, int]:
        """The image of a pipeline, and its number there."""
        place = int(np.searchsorted(self._firsts, index, "right")) - 1
        return self._parts[place], index - int(self._firsts[place])

    def items(self) -> Iterator[tuple[int, PreparedPipelines]]:
        """The images, each with the number of its first pipeline."""
        yield from zip(self._firsts.tolist(), self._parts, strict=True)

    @property
    def identified(self) -> bool:
        """Whether the code of any image may be lacking."""
        return any(each.identified is not None for each in self._parts)

    def missed(self, indices: _Int32s, batch: CreationBatch) -> npt.NDArray[np.bool_] | None:
        """Which of a batch were not found without their code, shape (k,); None for none."""
        if batch.all_created or not self.identified:
            return None
        if len(self._parts) == 1:
            return missed(self.first.identified, indices, batch)
        found = np.zeros(len(indices), np.bool_)
        for places, part, own in self._split(indices):
            lacks = missed(part.identified, own, batch.only(places))
            if lacks is not None:
                found[places] = lacks
        return found if found.any() else None

    def _split(self, indices: _Int32s) -> Iterator[tuple[npt.NDArray[np.intp], PreparedPipelines, _Int32s]]:
        """Pipelines by image: their places among those given, the image, their numbers there."""
        places = np.searchsorted(self._firsts, indices, "right") - 1
        for place in np.unique(places).tolist():
            chosen = np.flatnonzero(places == place)
            yield chosen, self._parts[place], (indices[chosen] - self._firsts[place]).astype(np.int32)

    def create(
        self,
        device: Device,
        indices: _Int32s,
        source: PipelineSource,
        *,
        keep: bool,
        fail_on_compile_required: bool = False,
        split: CallSplit | None = None,
    ) -> CreationBatch:
        """Create pipelines of any of the images; see `Device.create_pipelines`."""
        create = partial(
            device.create_pipelines,
            source=source,
            keep=keep,
            fail_on_compile_required=fail_on_compile_required,
            split=split,
        )
        if len(self._parts) == 1:
            return create(self.first, indices)
        return joined(
            device,
            len(indices),
            ((chosen, create(part, own)) for chosen, part, own in self._split(indices)),
        )
