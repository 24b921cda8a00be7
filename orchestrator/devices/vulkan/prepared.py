"""An image bound to a Vulkan device, with its shader modules.

A copy of the image's buffer gets real pointers and handles. An object that could not be created makes only
the pipelines that need it unusable, with the cause. Everything is destroyed once, in reverse order of
creation. Libraries stay alive with the prepared image, because pipelines that link them need them.

All modules are created at once if their SPIR-V fits a bound. Otherwise they are created when a batch needs
them, and those that no batch uses are destroyed when the bound is exceeded. A module always lives from
`acquire` to `release`, and workers share it.

Workers patch fields without a lock: those of different pipelines are disjoint, and no pipeline is in two
batches at the same time (the seam's rule).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from attrs import define

from orchestrator.devices.device import (
    SUCCESS,
    CreationBatch,
    Device,
    DriverObserver,
    DriverStep,
    Handles,
    PreparedPipelines,
)
from orchestrator.devices.identified import IdentifiedModules
from orchestrator.devices.image import (
    CreateInfoImage,
    ImageModule,
    ImageObject,
    Indices,
    ObjectKind,
    PipelineKind,
    ranges,
)
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.context import DeviceContext
from orchestrator.devices.vulkan.instance import new_struct
from orchestrator.errors import DriverError, OrchestratorError

MODULE_LIMIT: Final = 256 * 1024 * 1024
"""Bytes of SPIR-V that live as shader modules of an image, unless more are in use."""


@define(eq=False)
class _Live:
    handle: int
    size: int
    users: int = 0


class ShaderModules:
    """The modules of one image on one device. Thread-safe.

    Where `all_made`, all of them live until `close`, so that none has to be acquired; `any_made` where one
    was ever created.
    """

    def __init__(self, context: DeviceContext, modules: Sequence[ImageModule]) -> None:
        self._context = context
        self._modules = modules
        self._live: dict[int, _Live] = {}
        self._size = 0
        self._lock = threading.Lock()
        self.all_made = self.any_made = False

    def make_all(self, calling: Callable[[int], AbstractContextManager[None]]) -> dict[int, str]:
        """Create every module, if they fit, each within `calling`; returns the cause of each failure."""
        if sum(each.code_size for each in self._modules) > MODULE_LIMIT:
            return {}
        problems: dict[int, str] = {}
        for index in range(len(self._modules)):
            try:
                with calling(index):
                    self.acquire(index)
            except Exception as error:  # noqa: BLE001 - any error concerns only this module
                problems[index] = str(error)
        self.all_made = True
        return problems

    def acquire(self, index: int) -> int:
        """The handle of a module, alive until released."""
        with self._lock:
            live = self._live.get(index)
            if live is None:
                self.any_made = True
                module = self._modules[index]
                live = self._live[index] = _Live(self._create(module), module.code_size)
                self._size += live.size
            live.users += 1
            return live.handle

    def release(self, index: int) -> None:
        """End one use of a module."""
        with self._lock:
            self._live[index].users -= 1
            if self._size > MODULE_LIMIT:
                for unused in [each for each, live in self._live.items() if not live.users]:
                    live = self._live.pop(unused)
                    self._size -= live.size
                    self._destroy(live.handle)

    def handles(self) -> dict[int, int]:
        """Handles of the living modules, by index."""
        with self._lock:
            return {index: live.handle for index, live in self._live.items()}

    def close(self) -> None:
        """Destroy all modules. The caller guarantees that no batch uses them."""
        with self._lock:
            for live in self._live.values():
                self._destroy(live.handle)
            self._live.clear()
            self._size = 0

    def _create(self, module: ImageModule) -> int:
        info, words = _module_info(module)
        try:
            return self._context.create("vkCreateShaderModule", info)
        except DriverError as error:
            raise ModuleRefusedError(module.key, error) from None
        finally:
            del words

    def _destroy(self, handle: int) -> None:
        self._context.commands.vkDestroyShaderModule(self._context.handle, handle, self._context.allocator)


# Names of objects in their commands and create infos, and the version suffix of both.
_NAMES: Final = {
    ObjectKind.SAMPLER_YCBCR_CONVERSION: ("SamplerYcbcrConversion", ""),
    ObjectKind.SAMPLER: ("Sampler", ""),
    ObjectKind.DESCRIPTOR_SET_LAYOUT: ("DescriptorSetLayout", ""),
    ObjectKind.PIPELINE_LAYOUT: ("PipelineLayout", ""),
    ObjectKind.RENDER_PASS: ("RenderPass", ""),
    ObjectKind.RENDER_PASS_2: ("RenderPass", "2"),
}
_FAIL_ON_COMPILE_REQUIRED: Final = 0x100
# Pipelines that wait to be destroyed; some tens of kilobytes each on most drivers.
_MOST_DISCARDED: Final = 16_384
_FLAGS_WORD: Final = 4  # 32-bit creation flags: after sType, padding and pNext, in all three create infos
CAPTURE_STATISTICS: Final = 0x40  # VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR
CAPTURE_CODE: Final = 0x80  # VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR
_CAPTURE_DATA: Final = 0x8000_0000  # VK_PIPELINE_CREATE_2_CAPTURE_DATA_BIT_KHR
_FEEDBACK_WORDS: Final = 2  # VkPipelineCreationFeedback: flags (4 bytes and padding), duration


class VulkanPreparedPipelines(PreparedPipelines):
    """What `VulkanDevice.prepare` returns.

    Attributes:
        address: Address of the bound buffer.
        library_handles: Handles of the libraries created so far, by pipeline index, 0 for none.
        captured_libraries: The libraries again, created with the flag that captures statistics.
        identified_libraries: Libraries that were created from identifiers.
        has_libraries: Whether any pipeline links another.
        remaking: Held while libraries are created again from code.
    """

    def __init__(
        self,
        device: Device,
        context: DeviceContext,
        given: CreateInfoImage | IdentifiedModules,
        modules_on_demand: bool,
    ) -> None:
        super().__init__(device, given)
        image = self.image
        self.context = context
        self._words = np.zeros(-(-len(image.buffer) // 8), np.uint64)
        self._words.view(np.uint8)[: len(image.buffer)] = image.buffer
        self.address = int(self._words.ctypes.data)
        targets = image.pointer_targets.astype(np.uint64)
        self._words[image.pointer_slots >> 3] = targets + np.uint64(self.address)
        if not context.features.creation_feedback:
            self._unlink_feedback()
        start = image.feedback_offset // 8
        stop = start + _FEEDBACK_WORDS * len(image)
        self._feedback = self._words[start:stop].reshape(-1, _FEEDBACK_WORDS)
        self._feedback[:] = 0
        self._infos = {kind: self._infos_of(kind) for kind in PipelineKind}
        self.has_libraries = bool(image.library_slots.size)
        self._has_flags_2 = bool((image.flags2_slots >= 0).any())
        self._first = {kind: image.first_of(kind) for kind in PipelineKind}
        self.library_handles = np.zeros(len(image), np.uint64)
        self.captured_libraries = np.zeros(len(image), np.uint64)
        self._replaced: list[Handles] = []
        self._discarded: list[Handles] = []
        self._discarded_count = 0
        self._discard_lock = threading.Lock()
        self._handles: list[int] = [0] * len(image.objects)
        self._stages = None if self.identified is None else _IdentifiedStages(self._words, self.identified)
        self.identified_libraries = np.zeros(len(image), np.bool_)
        self.remaking = threading.Lock()
        self._modules = ShaderModules(context, image.modules)
        on_demand = modules_on_demand or self.identified is not None
        try:
            self.unusable = self._create_everything(device.observer, on_demand)
        except BaseException:
            self.destroy()  # nobody else knows of what was created
            raise

    def destroy(self) -> None:
        """See `PreparedPipelines.destroy`."""
        self.destroy_discarded()
        for libraries in (self.library_handles, self.captured_libraries, *self._replaced):
            self.context.destroy_pipelines(libraries)
        self._modules.close()
        commands = self.context.commands
        for entry, handle in reversed(list(zip(self.image.objects, self._handles, strict=True))):
            if handle:
                destroy = getattr(commands, f"vkDestroy{_NAMES[entry.kind][0]}")
                destroy(self.context.handle, handle, self.context.allocator)

    def create_infos(
        self,
        kind: PipelineKind,
        indices: Indices,
        *,
        fail_on_compile_required: bool,
        capture: int = 0,
    ) -> npt.NDArray[np.uint8]:
        """Contiguous create infos of pipelines of one kind, shape (n, stride), handles filled in.

        `capture` has flags that are set too; linked are libraries that were created with them.
        """
        image = self.image
        if self.has_libraries:
            handles = self.library_handles
            if capture:
                handles = np.where(self.captured_libraries, self.captured_libraries, handles)
            for index in indices:
                first, last = image.library_slot_start[index], image.library_slot_start[index + 1]
                slots = image.library_slots[first:last] >> 3
                self._words[slots] = handles[image.library_slot_pipeline[first:last]]
        flags = capture | _FAIL_ON_COMPILE_REQUIRED * fail_on_compile_required
        infos = self._infos[kind][indices - self._first[kind]]
        infos.view(np.uint32)[:, _FLAGS_WORD] |= np.uint32(flags)
        if self._has_flags_2:
            self._set_flags_2(indices, flags)
        self._feedback[indices] = 0  # drivers may give none for links, or with binaries
        return infos

    @contextmanager
    def one_info(self, index: int, *, capture: int = 0) -> Iterator[npt.NDArray[np.uint8]]:
        """A copy of the create info of one pipeline, shape (1, stride), while its modules exist."""
        own = np.array([index], np.int32)
        with self.modules(own):
            kind = self.image.kind_of(index)
            yield self.create_infos(kind, own, fail_on_compile_required=False, capture=capture)

    @contextmanager
    def modules(self, indices: Indices) -> Iterator[None]:
        """Let the modules of pipelines exist, and fill their fields."""
        if self._modules.all_made:
            yield
            return
        image = self.image
        if self._stages is not None:
            self._stages.leave(indices)
        acquired: list[int] = []
        try:
            for index in indices:
                for slot in range(image.module_slot_start[index], image.module_slot_start[index + 1]):
                    module = int(image.module_slot_module[slot])
                    self._words[image.module_slots[slot] >> 3] = self._modules.acquire(module)
                    acquired.append(module)
            yield
        finally:
            for each in acquired:
                self._modules.release(each)

    def _set_flags_2(self, indices: Indices, flags: int) -> None:
        # VkPipelineCreateFlags2CreateInfo replaces the others.
        slots_2 = self.image.flags2_slots[indices]
        slots_2 = slots_2[slots_2 >= 0] >> 3
        captures = CAPTURE_STATISTICS | CAPTURE_CODE
        cleared = self._words[slots_2] & ~np.uint64(_FAIL_ON_COMPILE_REQUIRED | captures)
        self._words[slots_2] = cleared | np.uint64(flags)

    def take_feedback(self, indices: Indices) -> tuple[npt.NDArray[np.uint32], Handles]:
        """Creation feedback of pipelines after their call: flags, and durations in ns."""
        entries = self._feedback[indices]
        return entries.view(np.uint32)[:, 0], entries[:, 1]

    def are_linkable(self, indices: Indices) -> npt.NDArray[np.bool_]:
        """Whether every library that each of some pipelines links exists, shape (n,)."""
        if not self.has_libraries:
            return np.ones(len(indices), np.bool_)
        linked = (list(self.image.libraries_of(index)) for index in indices.tolist())
        return np.array([self.library_handles[each].all() for each in linked], np.bool_)

    def keep_libraries(self, indices: Indices, handles: Handles, *, identified: bool = False) -> None:
        """Take over the handles of new libraries, and zero them in `handles`."""
        first = self.image.is_library[indices] & (self.library_handles[indices] == 0)
        self.library_handles[indices[first]] = handles[first]
        self.identified_libraries[indices[first]] = identified
        handles[first] = 0

    def libraries_of_identifiers(self, indices: Indices) -> Indices:
        """Libraries that some pipelines need and that were created from identifiers, dependents last."""
        if self._stages is None or not self.identified_libraries.any():
            return indices[:0]
        chosen = np.array(self.image.all_libraries_of(indices.tolist()), np.int32)
        return chosen[self.identified_libraries[chosen]]

    def replace_libraries(self, indices: Indices, batch: CreationBatch) -> None:
        """From now on link libraries created from code; the old ones may be in use and stay alive."""
        made = batch.results == SUCCESS
        old = self.library_handles[indices[made]]
        self.library_handles[indices[made]] = batch.handles[made]
        self.identified_libraries[indices[made]] = False
        self._replaced.append(old)

    def discard(self, handles: Handles) -> None:
        """Take over pipelines to destroy, many at a time, at the latest when this is.

        Every vkDestroyPipeline releases the GIL and takes it again, for which many workers would wait.
        """
        with self._discard_lock:
            self._discarded.append(handles)
            self._discarded_count += len(handles)
            full = self._discarded_count > _MOST_DISCARDED
        if full:
            self.destroy_discarded()

    def destroy_discarded(self) -> None:
        """Destroy all discarded pipelines."""
        with self._discard_lock:  # two workers may come at once; each takes its own list
            taken, self._discarded, self._discarded_count = self._discarded, [], 0
        for handles in taken:
            self.context.destroy_pipelines(handles)

    def without_modules(self, indices: Indices) -> None:
        """Clear the modules of pipelines that need none, unless all modules live until `close`.

        Identifiers leave their stages, too: with one, a pipeline must be created with
        VK_PIPELINE_CREATE_FAIL_ON_PIPELINE_COMPILE_REQUIRED_BIT
        (VUID-VkPipelineShaderStageModuleIdentifierCreateInfoEXT-pNext-06851).
        """
        if self._stages is not None:
            self._stages.leave(indices)
        if self._modules.all_made or not self._modules.any_made:
            return
        image = self.image
        for index in indices.tolist():
            first, last = image.module_slot_start[index], image.module_slot_start[index + 1]
            self._words[image.module_slots[first:last] >> 3] = 0

    def use_identifiers(self, indices: Indices) -> None:
        """Put identifiers into the stages of pipelines in place of modules, until modules are acquired."""
        if self._stages is not None:
            self._stages.enter(indices)

    def stage_identifiers(self, index: int) -> tuple[bytes, ...]:
        """vkGetShaderModuleIdentifierEXT of the module of each stage of a pipeline, in order."""
        found = []
        context = self.context
        for module in self.image.modules_of(index):
            handle = self._modules.acquire(module)
            try:
                answer = new_struct("VkShaderModuleIdentifierEXT")
                context.commands.vkGetShaderModuleIdentifierEXT(context.handle, handle, answer)
                found.append(bytes(answer.identifier[0 : answer.identifierSize]))
            finally:
                self._modules.release(module)
        return tuple(found)

    @contextmanager
    def capturing(self, infos: npt.NDArray[np.uint8], indices: Indices) -> Iterator[None]:
        """Set VK_PIPELINE_CREATE_2_CAPTURE_DATA_BIT_KHR in a copy of create infos, for one call."""
        slots = self.image.flags2_slots[indices]
        own = slots >= 0
        self._words[slots[own] >> 3] |= np.uint64(_CAPTURE_DATA)
        words = infos.view(np.uint64)
        flags = infos.view(np.uint32)[:, _FLAGS_WORD].astype(np.uint64) | np.uint64(_CAPTURE_DATA)
        # VkPipelineCreateFlags2CreateInfo: sType, pNext, flags.
        chained = np.zeros((len(infos), 3), np.uint64)
        chained[:, 0] = new_struct("VkPipelineCreateFlags2CreateInfo").sType
        chained[:, 1], chained[:, 2] = words[:, 1], flags
        at = np.uint64(chained.ctypes.data) + np.arange(len(infos), dtype=np.uint64) * np.uint64(24)
        words[:, 1] = np.where(own, words[:, 1], at)
        try:
            yield
        finally:
            self._words[slots[own] >> 3] &= ~np.uint64(_CAPTURE_DATA)

    def _infos_of(self, kind: PipelineKind) -> npt.NDArray[np.uint8]:
        image = self.image
        count, stride = image.counts[kind], image.strides[kind]
        if not count:
            return np.zeros((0, stride), np.uint8)
        first = int(image.offsets[image.first_of(kind)])
        return self._words.view(np.uint8)[first : first + count * stride].reshape(count, stride)

    def _unlink_feedback(self) -> None:
        following = self.image.feedback_next
        bound = following.astype(np.uint64) + np.uint64(self.address)
        self._words[self.image.feedback_slots >> 3] = np.where(following < 0, np.uint64(0), bound)

    def _create_everything(self, observer: DriverObserver, modules_on_demand: bool) -> dict[int, str]:
        image = self.image
        problems: dict[int, str] = {}
        slot_start = np.searchsorted(image.object_slot_object, np.arange(len(image.objects) + 1))
        for number, entry in enumerate(image.objects):
            broken = next((problems[each] for each in entry.dependencies if each in problems), None)
            if broken is not None:
                problems[number] = broken
                continue
            try:
                with observer.calling(DriverStep.OBJECT, image, np.array([number], np.int32)):
                    self._handles[number] = self._create_object(entry)
            except DriverError as error:
                problems[number] = f"{entry.kind.value} {entry.key:016x}: {error}"
                continue
            slots = image.object_slots[slot_start[number] : slot_start[number + 1]] >> 3
            self._words[slots] = self._handles[number]
        unusable = self._unusable_by(problems, image.object_start, image.object_index)
        broken_modules = {}
        if not modules_on_demand:
            broken_modules = self._modules.make_all(
                lambda index: observer.calling(DriverStep.MODULE, image, np.array([index], np.int32))
            )
        if self._modules.all_made:
            handles = self._modules.handles()
            table = np.array([handles.get(each, 0) for each in range(len(image.modules))], np.uint64)
            if table.size:
                self._words[image.module_slots >> 3] = table[image.module_slot_module]
            unusable |= self._unusable_by(broken_modules, image.module_slot_start, image.module_slot_module)
        return unusable

    def _unusable_by(
        self, problems: dict[int, str], start: npt.NDArray[np.int64], index: Indices
    ) -> dict[int, str]:
        # Pipelines that need something that could not be created, with the cause.
        if not problems:
            return {}
        positions = np.flatnonzero(np.isin(index, list(problems)))
        pipelines = np.searchsorted(start, positions, side="right") - 1
        return {
            int(pipeline): problems[int(index[position])]
            for pipeline, position in zip(pipelines, positions, strict=True)
        }

    def _create_object(self, entry: ImageObject) -> int:
        name, version = _NAMES[entry.kind]
        info = ffi.cast(f"Vk{name}CreateInfo{version} *", self.address + entry.offset)
        return self.context.create(f"vkCreate{name}{version}", info)

    def identifier_of_code(self, module: int) -> bytes:
        """vkGetShaderModuleCreateInfoIdentifierEXT of a module, without creating it."""
        context = self.context
        answer = new_struct("VkShaderModuleIdentifierEXT")
        info, words = _module_info(self.image.modules[module])
        context.commands.vkGetShaderModuleCreateInfoIdentifierEXT(context.handle, info, answer)
        del words
        return bytes(answer.identifier[0 : answer.identifierSize])


class _IdentifiedStages:
    # Puts identifiers into the stages of pipelines, and takes them out again. While the image is bound each
    # stage has its own VkPipelineShaderStageModuleIdentifierCreateInfoEXT; only two of its fields change.
    # Thread-safe for different pipelines, like all patching.

    def __init__(self, words: Handles, identified: IdentifiedModules) -> None:
        image = identified.image
        self._words = words
        self._identified = identified
        self._start = image.module_slot_start
        # module is the fourth 8-byte word of a stage's create info, pNext the second.
        self._slots = image.module_slots >> 3
        self._modules = image.module_slot_module
        self._following = words[self._slots - 2]
        # VkPipelineShaderStageModuleIdentifierCreateInfoEXT: sType, pNext, identifierSize, pIdentifier.
        self._infos = np.zeros((len(self._slots), 4), np.uint64)
        self._infos[:, 0] = new_struct("VkPipelineShaderStageModuleIdentifierCreateInfoEXT").sType
        self._infos[:, 1] = self._following
        at = np.uint64(identified.table.ctypes.data)
        stride = np.uint64(identified.table.strides[0])
        self._infos[:, 3] = at + self._modules.astype(np.uint64) * stride
        self._address = np.uint64(self._infos.ctypes.data)

    def enter(self, indices: Indices) -> None:
        chosen = self._of(indices)
        self._infos[chosen, 2] = self._identified.sizes[self._modules[chosen]]
        self._words[self._slots[chosen]] = 0
        self._words[self._slots[chosen] - 2] = self._address + chosen.astype(np.uint64) * np.uint64(32)

    def leave(self, indices: Indices) -> None:
        # The caller writes the modules.
        chosen = self._of(indices)
        self._words[self._slots[chosen] - 2] = self._following[chosen]

    def _of(self, indices: Indices) -> npt.NDArray[np.int64]:
        first = self._start[indices]
        return ranges(first, self._start[indices + 1] - first)


class ModuleRefusedError(OrchestratorError):
    """The driver refused a shader module."""

    def __init__(self, key: int, error: DriverError) -> None:
        super().__init__(f"shader module {key:016x}: {error}")


def _module_info(module: ImageModule) -> tuple[Any, Any]:
    # VkShaderModuleCreateInfo of a module, and the memory of its code, to be kept alive.
    code = module.load()
    words = ffi.from_buffer("uint32_t[]", code)
    info = new_struct("VkShaderModuleCreateInfo", flags=module.flags, codeSize=len(code), pCode=words)
    return info, words
