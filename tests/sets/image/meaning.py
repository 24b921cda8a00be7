"""What an image says of a pipeline, wherever in the image it stands: to compare images of other layouts.

Run as a module it prints a digest of all that is decoded of each archive, on a device that has everything
and on one that has nothing: `python -m tests.sets.image.meaning game.foz ...`. Two versions of the program
decode alike where they print the same.
"""

from __future__ import annotations

import bisect
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.image import CreateInfoImage
from orchestrator.registry import registry
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from tests.sets.needs.fake_capabilities import Bare


class Meaning:
    """Reads pipelines of an image. A piece of the heap ends where the next begins that is pointed to.

    Attributes:
        begins: Where pieces begin, ascending.
    """

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


def said(source: PipelineSet, capabilities: DeviceCapabilities) -> Iterator[Any]:
    """All that is decoded of a set for a device, piece by piece."""
    built = build_image(source, source.pipelines, capabilities)
    image, meaning = built.image, Meaning(built.image)
    for index, key in enumerate(image.keys.tolist()):
        yield image.kind_of(index).value, key, bool(image.is_library[index]), meaning.pipeline(index)
    for index, each in enumerate(image.objects):
        named = sorted((image.objects[at].kind.name, image.objects[at].key) for at in each.dependencies)
        yield each.kind.name, int(each.key), named, meaning.object(index)
    for module in image.modules:
        yield int(module.key), module.flags, module.code_size, module.load()
    for problem in built.problems:
        yield problem.job.key, problem.unsupported, problem.reason
    yield sorted(built.needs.features), sorted(built.needs.extensions)
    yield sorted(built.dependencies), source.damage


def main() -> None:
    """Print a line for each archive that is named."""
    for path in sys.argv[1:]:
        for name, capabilities in (("everything", AnyDevice()), ("nothing", Bare())):
            digest, count = hashlib.sha256(), 0
            with PipelineSet.open(path) as source:
                for each in said(source, capabilities):
                    digest.update(repr(each).encode())
                    count += 1
            sys.stdout.write(f"{Path(path).name} {name} {count} {digest.hexdigest()[:32]}\n")


if __name__ == "__main__":
    main()
