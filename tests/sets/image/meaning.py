"""What an image says of a pipeline, wherever in the image it stands: to compare images of other layouts."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np

from orchestrator.devices.image import CreateInfoImage
from orchestrator.registry import registry


class Meaning:
    """Reads pipelines of an image. A piece of the heap ends where the next begins that is pointed to."""

    def __init__(self, image: CreateInfoImage, of: Meaning | None = None) -> None:
        """Read an image, which may be part `of` another one: its buffer ends with the other's."""
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
        size = registry().struct("VkPipelineCreationFeedbackCreateInfo").size
        begins = [*self._targets.values(), *image.offsets.tolist(), *(each.offset for each in image.objects)]
        begins += [self._targets[at] + size for at in image.feedback_slots.tolist()]
        if of is not None:
            begins += [at + len(image.buffer) - of.begins[-1] for at in of.begins]
        self.begins: list[int] = np.unique([*begins, len(image.buffer)]).tolist()

    def pipeline(self, index: int) -> Any:
        """A pipeline's create info with all that it points to and refers to."""
        image = self._image
        begin = int(image.offsets[index])
        return self._piece(begin, begin + image.strides[image.kind_of(index)])

    def object(self, index: int) -> Any:
        """The create info of an object, likewise."""
        return self._up_to_next(self._image.objects[index].offset)

    def _up_to_next(self, begin: int) -> Any:
        return self._piece(begin, self.begins[bisect.bisect_right(self.begins, begin)])

    def _piece(self, begin: int, end: int) -> Any:
        slots = self._slots[bisect.bisect_left(self._slots, begin) : bisect.bisect_left(self._slots, end)]
        return (
            self._image.buffer[begin:end].tobytes().rstrip(b"\0"),
            [(at - begin, self._field(at)) for at in slots],
        )

    def _field(self, at: int) -> Any:
        if at in self._fields:
            return self._fields[at]
        return self._up_to_next(self._targets[at])
