"""The images of a run, numbered through: those that came later behind the first.

Most runs have one, and then nothing is translated. Thread-safe: it only grows, and a worker is never given a
pipeline of an image before that was added.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from orchestrator.devices.device import CreationBatch, Device, PipelineSource, PreparedPipelines

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
        place = int(np.searchsorted(self._firsts, index, "right")) - 1
        first = int(self._firsts[place])
        return [first + each for each in self._parts[place].image.libraries_of(index - first)]

    def create(
        self,
        device: Device,
        indices: _Int32s,
        source: PipelineSource,
        *,
        keep: bool,
        fail_on_compile_required: bool = False,
    ) -> CreationBatch:
        """Create pipelines of any of the images; see `Device.create_pipelines`."""
        if len(self._parts) == 1:
            return device.create_pipelines(
                self.first, indices, source, keep=keep, fail_on_compile_required=fail_on_compile_required
            )
        places = np.searchsorted(self._firsts, indices, "right") - 1
        batch = CreationBatch.of_zeros(len(indices))
        try:
            for place in np.unique(places).tolist():
                chosen = np.flatnonzero(places == place)
                part = device.create_pipelines(
                    self._parts[place],
                    (indices[chosen] - self._firsts[place]).astype(np.int32),
                    source,
                    keep=keep,
                    fail_on_compile_required=fail_on_compile_required,
                )
                batch.put(chosen, part)
        except BaseException:
            # Nobody will learn of those that are there.
            device.destroy_pipelines(batch.handles)
            raise
        return batch
