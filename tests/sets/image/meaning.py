"""What an image says of a pipeline, wherever in the image it stands: to compare images of other layouts."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np

from orchestrator.devices.image import CreateInfoImage


class Meaning:
    """Reads pipelines of an image. A piece of the heap ends where the next begins that is pointed to."""

    def __init__(self, image: CreateInfoImage) -> None:
        """Read an image."""
        self._image = image
        self._fields: dict[int, Any] = {}
        for slots, numbers, names in (
            (image.object_slots, image.object_slot_object, [(each.kind, each.key) for each in image.objects]),
            (image.module_slots, image.module_slot_module, [each.key for each in image.modules]),
            (image.library_slots, image.library_slot_pipeline, image.keys.tolist()),
        ):
            self._fields |= {
                at: names[number] for at, number in zip(slots.tolist(), numbers.tolist(), strict=True)
            }
        self._targets = dict(zip(image.pointer_slots.tolist(), image.pointer_targets.tolist(), strict=True))
        self._slots = sorted([*self._fields, *self._targets])
        begins = [*self._targets.values(), *image.offsets.tolist(), *(each.offset for each in image.objects)]
        self._begins = np.unique([*begins, len(image.buffer)]).tolist()

    def pipeline(self, index: int) -> Any:
        """A pipeline's create info with all that it points to and refers to."""
        image = self._image
        begin = int(image.offsets[index])
        return self._piece(begin, begin + image.strides[image.kind_of(index)])

    def _piece(self, begin: int, end: int) -> Any:
        slots = self._slots[bisect.bisect_left(self._slots, begin) : bisect.bisect_left(self._slots, end)]
        return (
            self._image.buffer[begin:end].tobytes().rstrip(b"\0"),
            [(at - begin, self._field(at)) for at in slots],
        )

    def _field(self, at: int) -> Any:
        if at in self._fields:
            return self._fields[at]
        target = self._targets[at]
        return self._piece(target, self._begins[bisect.bisect_right(self._begins, target)])
