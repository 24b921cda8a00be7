"""`CreateInfoImage`: all Vk*PipelineCreateInfo structures of a set in one relocatable buffer.

Tables say where its pointers and handles go. It holds no address of any process and no handle of any driver,
and refers to other things by index only, so it can be saved, loaded elsewhere and bound to several devices.

Layout of the buffer (64-bit little-endian ABI, the structure layouts of the Vulkan C headers):

    [graphics create infos, contiguous][compute ...][ray tracing ...]     one stride a kind
    [VkPipelineCreationFeedback per pipeline, contiguous]
    [everything that those point to; the create infos of samplers, layouts and render passes]

A pointer slot is the offset of an 8-byte pointer field; its target is an offset in the same buffer. A handle
slot is the offset of an 8-byte non-dispatchable handle field. There are three kinds of handle, because they
come to exist at different times: objects (samplers, layouts, render passes: before any pipeline), shader
modules (on demand, bounded in memory) and libraries (when they were created). Module and library slots are
grouped by the pipeline that holds them (CSR: start[i]..start[i+1]), so that they can be filled just before a
batch goes to the driver.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import frozen

Offsets = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]

PNEXT: Final = 8
"""Offset of pNext in every structure that begins with sType."""


def ranges(starts: Offsets, counts: npt.NDArray[np.integer[Any]]) -> Offsets:
    """The numbers of several ranges, one after the other, shape (sum of counts,)."""
    wide = counts.astype(np.int64)
    return np.repeat(starts - (np.cumsum(wide) - wide), wide) + np.arange(int(wide.sum()))


class PipelineKind(enum.StrEnum):
    """What a pipeline is, in the order of the arrays of an image."""

    GRAPHICS = "graphics"
    COMPUTE = "compute"
    RAY_TRACING = "ray_tracing"


KINDS: Final = tuple(PipelineKind)
"""Every kind, at its number in `CreateInfoImage.kinds`."""


class ObjectKind(enum.StrEnum):
    """An object that pipelines refer to and that is created before them."""

    SAMPLER_YCBCR_CONVERSION = "sampler_ycbcr_conversion"
    SAMPLER = "sampler"
    DESCRIPTOR_SET_LAYOUT = "descriptor_set_layout"
    PIPELINE_LAYOUT = "pipeline_layout"
    RENDER_PASS = "render_pass"
    RENDER_PASS_2 = "render_pass_2"


@frozen(eq=False)
class ImageObject:
    """An object to create before any pipeline, by its create info at `offset`.

    `dependencies` are the objects whose handles the create info holds; their indices are smaller.
    """

    kind: ObjectKind
    key: int
    offset: int
    dependencies: tuple[int, ...] = ()


class ImageModule(msgspec.Struct, frozen=True, eq=False):
    """A shader module that stages refer to, by its hash in the set; `code_size` in bytes.

    `load` gives its SPIR-V: a multiple of four bytes, little-endian words; RecordError if it cannot be read.
    Any thread may call it.
    """

    key: int
    code_size: int
    flags: int
    load: Callable[[], bytes]


@frozen(eq=False)
class CreateInfoImage:
    """All create infos of a set, relocatable. Immutable: a device binds its own copy of `buffer`.

    Pipelines are numbered 0..n-1 through the kinds in the order of `PipelineKind`. A library comes before
    the pipelines that link it.

    Attributes:
        buffer: The bytes, shape (size,), uint8, pointers and handles zero.
        pointer_slots: Offsets of pointer fields, shape (p,), multiples of 8.
        pointer_targets: What each points to, shape (p,), an offset in `buffer`.
        objects: Objects in creation order.
        object_slots: Offsets of object-handle fields, shape (o,).
        object_slot_object: Index in `objects` for each, shape (o,), ascending.
        modules: Shader modules.
        module_slots: Offsets of module-handle fields, shape (m,), grouped by pipeline.
        module_slot_module: Index in `modules` for each, shape (m,).
        module_slot_start: Where each pipeline's module slots begin, shape (n + 1,).
        library_slots: Offsets of library-handle fields, shape (l,), grouped by pipeline.
        library_slot_pipeline: Index of the library pipeline for each, shape (l,).
        library_slot_start: Where each pipeline's library slots begin, shape (n + 1,).
        object_start: Where each pipeline's entries in `object_index` begin, shape (n + 1,).
        object_index: Indices of the objects that each pipeline needs directly, grouped by pipeline.
        keys: Hash of each pipeline in the set, shape (n,), uint64.
        kinds: Kind of each pipeline, as a position in `PipelineKind`, shape (n,), uint8.
        offsets: Offset of each pipeline's create info, shape (n,); equal strides within a kind.
        strides: Size of one create info of each kind, bytes.
        counts: Number of pipelines of each kind.
        feedback_offset: Offset of the VkPipelineCreationFeedback array: one 16-byte entry a pipeline.
        feedback_slots: Offsets of the pNext field that chains each pipeline's feedback, shape (n,); a device
            without VK_EXT_pipeline_creation_feedback unlinks it with `feedback_next`.
        feedback_next: What that pNext points to when feedback is unlinked: an offset, or -1 for null, (n,).
        flags2_slots: Offset of each pipeline's VkPipelineCreateFlags2CreateInfo::flags (a 64-bit field that
            replaces the 32-bit one), or -1 where the pipeline has none, shape (n,).
        is_library: Whether a pipeline is a library that another one links or may link, shape (n,), bool.
    """

    buffer: npt.NDArray[np.uint8]
    pointer_slots: Offsets
    pointer_targets: Offsets
    objects: tuple[ImageObject, ...]
    object_slots: Offsets
    object_slot_object: Indices
    modules: tuple[ImageModule, ...]
    module_slots: Offsets
    module_slot_module: Indices
    module_slot_start: Offsets
    library_slots: Offsets
    library_slot_pipeline: Indices
    library_slot_start: Offsets
    object_start: Offsets
    object_index: Indices
    keys: npt.NDArray[np.uint64]
    kinds: npt.NDArray[np.uint8]
    offsets: Offsets
    strides: dict[PipelineKind, int]
    counts: dict[PipelineKind, int]
    feedback_offset: int
    feedback_slots: Offsets
    feedback_next: Offsets
    flags2_slots: Offsets
    is_library: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        """Number of pipelines."""
        return len(self.keys)

    @property
    def image(self) -> CreateInfoImage:
        """Itself: the image to bind, also of what `Device.prepare` takes beside one (`IdentifiedModules`)."""
        return self

    @property
    def links(self) -> npt.NDArray[np.bool_]:
        """Whether each pipeline links libraries, shape (n,)."""
        return np.diff(self.library_slot_start) > 0

    def first_of(self, kind: PipelineKind) -> int:
        """Index of the first pipeline of a kind (also where there is none of it)."""
        return sum(self.counts[each] for each in KINDS[: KINDS.index(kind)])

    def kind_of(self, index: int) -> PipelineKind:
        """Kind of one pipeline."""
        return KINDS[int(self.kinds[index])]

    def by_kind(
        self, indices: Indices, wanted: npt.NDArray[np.bool_]
    ) -> list[tuple[PipelineKind, npt.NDArray[np.intp]]]:
        """The places of the wanted ones of some pipelines, for each kind that has any."""
        kinds = self.kinds[indices]
        places = [(kind, np.flatnonzero(wanted & (kinds == number))) for number, kind in enumerate(KINDS)]
        return [(kind, chosen) for kind, chosen in places if chosen.size]

    def libraries_of(self, index: int) -> tuple[int, ...]:
        """Indices of the library pipelines that a pipeline links."""
        start, stop = self.library_slot_start[index], self.library_slot_start[index + 1]
        return tuple(self.library_slot_pipeline[start:stop].tolist())

    def all_libraries_of(self, indices: Iterable[int]) -> list[int]:
        """The libraries that pipelines link, and those that these link, each once, dependents last."""
        found: set[int] = set()
        below = {each for index in indices for each in self.libraries_of(index)}
        while below:
            found |= below
            below = {each for index in below for each in self.libraries_of(index)} - found
        return sorted(found)

    def modules_of(self, index: int) -> tuple[int, ...]:
        """Indices of the shader modules of a pipeline's stages, one entry a stage."""
        start, stop = self.module_slot_start[index], self.module_slot_start[index + 1]
        return tuple(self.module_slot_module[start:stop].tolist())

    def levels(self, indices: Indices) -> list[npt.NDArray[np.intp]]:
        """The places of some pipelines, level by level: libraries come before the pipelines that link them.

        A library that is not among the pipelines counts as created.
        """
        starts = self.library_slot_start
        if not (starts[indices + 1] > starts[indices]).any():
            return [np.arange(len(indices))]
        level: dict[int, int] = {}
        for index in sorted(indices.tolist()):  # a library has a smaller number than what links it
            level[index] = max((level.get(each, -1) for each in self.libraries_of(index)), default=-1) + 1
        found = np.array([level[index] for index in indices.tolist()])
        return [np.flatnonzero(found == each) for each in range(int(found.max()) + 1)]
