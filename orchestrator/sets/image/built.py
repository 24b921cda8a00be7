"""What decoding a set gives: an image, what was left out of it and why, and where the code of its modules is.

It comes from the builder, or in bytes from another process or a plan, which need nothing of what decodes.
"""

from __future__ import annotations

import threading
import typing
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from attrs import define, field, frozen

from orchestrator.devices.identified import not_supplied
from orchestrator.devices.image import CreateInfoImage, ImageModule, ObjectKind, PipelineKind
from orchestrator.devices.request import Feature
from orchestrator.errors import OrchestratorError
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob, PipelineJobs

CREATE_INFOS = {
    PipelineKind.GRAPHICS: "VkGraphicsPipelineCreateInfo",
    PipelineKind.COMPUTE: "VkComputePipelineCreateInfo",
    PipelineKind.RAY_TRACING: "VkRayTracingPipelineCreateInfoKHR",
}
_MOST_CODE: Final = 256 << 20  # bytes of SPIR-V that are kept in memory
LIBRARY_DEPTH: Final = 32
"""How deep libraries may link libraries; captures stay below four. Recursion follows so many."""
YCBCR_CREATE_INFO: Final = "VkSamplerYcbcrConversionCreateInfo"
OBJECT_KINDS: Final = {
    "VkSamplerCreateInfo": ObjectKind.SAMPLER,
    "VkDescriptorSetLayoutCreateInfo": ObjectKind.DESCRIPTOR_SET_LAYOUT,
    "VkPipelineLayoutCreateInfo": ObjectKind.PIPELINE_LAYOUT,
    "VkRenderPassCreateInfo": ObjectKind.RENDER_PASS,
    "VkRenderPassCreateInfo2": ObjectKind.RENDER_PASS_2,
    YCBCR_CREATE_INFO: ObjectKind.SAMPLER_YCBCR_CONVERSION,
}


@frozen
class Needs:
    """What pipelines need of a device that has it."""

    features: frozenset[Feature] = frozenset()
    extensions: frozenset[str] = frozenset()


class Problem(msgspec.Struct, frozen=True):
    """A pipeline that is not in the image."""

    job: PipelineJob
    unsupported: bool
    reason: str


@frozen(eq=False)
class BuiltImage:
    """An image, and what of the pipelines asked for was left out of it."""

    image: CreateInfoImage  # the create infos
    problems: tuple[Problem, ...]  # what of the pipelines asked for is not in it, in the order met
    needs: Needs  # what the device has of what the pipelines asked for need, those of the problems included
    # Libraries that are in it because a pipeline links them, though nobody asked for them.
    dependencies: frozenset[PipelineJob] = frozenset()


@define(eq=False)
class ModuleCode:
    """SPIR-V of a set's modules on demand, the last 256 MiB of it kept. Thread-safe."""

    source: PipelineSet
    _kept: OrderedDict[int, bytes] = field(factory=OrderedDict)
    _size: int = 0
    _lock: threading.Lock = field(factory=threading.Lock)

    def load(self, key: int) -> bytes:
        """The SPIR-V of a module; KeyError where there is none, RecordError for damage."""
        with self._lock:
            code = self._kept.get(key)
            if code is not None:
                self._kept.move_to_end(key)
                return code
        code = self.source.module(key).code
        self.keep(key, code)
        return code

    def keep(self, key: int, code: bytes) -> None:
        """Keep what was decoded for something else."""
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = code
            self._size += len(code)
            while self._size > _MOST_CODE and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._size -= len(dropped)


class EncodedModule(msgspec.Struct, frozen=True, array_like=True):
    """A module of an image in another process or a plan; without code, it is read from the set again."""

    key: int
    code_size: int
    flags: int
    code: bytes


def encode_modules(modules: Iterable[ImageModule], most_code: int = _MOST_CODE) -> list[EncodedModule]:
    """Modules of an image with their code, up to a bound in bytes."""
    encoded = []
    for each in modules:
        code = b""
        if each.code_size <= most_code:
            with suppress(OrchestratorError):  # damaged, or a provider has it: whoever needs it says so
                code = each.load()
        most_code -= len(code)
        encoded.append(EncodedModule(each.key, each.code_size, each.flags, code))
    return encoded


def decode_modules(modules: Iterable[EncodedModule], code: ModuleCode) -> tuple[ImageModule, ...]:
    """The modules that were encoded, of the same set."""
    decoded = []
    for each in modules:
        # A provider has the code of a module without a size.
        load = partial(code.load if each.code_size else not_supplied, each.key)
        if each.code:
            code.keep(each.key, each.code)
        decoded.append(ImageModule(each.key, each.code_size, each.flags, load))
    return tuple(decoded)


_T = TypeVar("_T")


def encode_value(value: object) -> bytes:
    """A value in msgpack that may hold images without modules, pipelines and reasons."""
    return _encoder.encode(value)


def decode_value(data: bytes | memoryview, kind: type[_T]) -> _T:
    """The value of that type from what `encode_value` gave; ValueError where it is none."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=_decode)


def _encode(value: object) -> object:
    match value:
        case np.ndarray():
            return value.tobytes()
        case PipelineJobs():
            return value.keys.tobytes(), value.kinds.tobytes()
        case str():
            return str(value)  # a reason of another class
        case int() | np.integer():
            return int(value)
    raise NotImplementedError(type(value).__name__)


def _decode(kind: Any, value: Any) -> object:
    if kind is PipelineJobs:
        return PipelineJobs(np.frombuffer(value[0], np.uint64), np.frombuffer(value[1], np.uint8))
    _, element = typing.get_args(kind)  # of an array: its shape and type
    return np.frombuffer(value, typing.get_args(element)[0])


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=_encode, order="deterministic")
