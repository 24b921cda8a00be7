"""A set of compute pipelines of which some end the driver, each in a way that follows from its key alone."""

from __future__ import annotations

import enum
import os
import signal
import struct
import threading
from collections import Counter
from pathlib import Path

from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.sets.records import RecordTag

MEMORY_BYTES = 400 << 20
"""The limit under which a pipeline that wants memory does not get it."""


class Fate(enum.IntEnum):
    """What compiling a pipeline does to the process; all other numbers: nothing."""

    CRASH = 0
    ABORT = 1
    EXIT = 2
    HANG = 3
    MEMORY = 4


def fate_of(key: int) -> Fate | None:
    number = (key * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> 60
    return Fate(number) if number < len(Fate) else None


def open_chaos(request: DeviceRequest) -> SimulatedDevice:
    """Opens the device that does so."""
    return SimulatedDevice(SimulatedOptions(request=request, on_compile=_meet_fate))


def _meet_fate(key: int) -> None:
    match fate_of(key):
        case Fate.CRASH:
            signal.raise_signal(signal.SIGSEGV)
        case Fate.ABORT:
            os.abort()
        case Fate.EXIT:
            os._exit(key & 1)
        case Fate.HANG:
            threading.Event().wait()
        case Fate.MEMORY:
            try:
                bytearray(MEMORY_BYTES)
            except MemoryError:
                os.abort()  # as a driver that does not look at what malloc gives


# An empty compute shader with a specialization constant: SPIR-V 1.0, words by the specification's tables.
_MODULE = (
    (0x07230203, 0x00010000, 0, 7, 0),
    (2 << 16 | 17, 1),  # OpCapability Shader
    (3 << 16 | 14, 0, 1),  # OpMemoryModel Logical GLSL450
    (5 << 16 | 15, 5, 1, int.from_bytes(b"main", "little"), 0),  # OpEntryPoint GLCompute
    (6 << 16 | 16, 1, 17, 1, 1, 1),  # OpExecutionMode LocalSize 1 1 1
    (4 << 16 | 71, 5, 1, 0),  # OpDecorate SpecId 0
    (2 << 16 | 19, 2),  # OpTypeVoid
    (3 << 16 | 33, 3, 2),  # OpTypeFunction
    (4 << 16 | 21, 4, 32, 0),  # OpTypeInt 32
    (4 << 16 | 50, 4, 5, 0),  # OpSpecConstant
    (5 << 16 | 54, 2, 1, 0, 3),  # OpFunction
    (2 << 16 | 248, 6),  # OpLabel
    (1 << 16 | 253,),  # OpReturn
    (1 << 16 | 56,),  # OpFunctionEnd
)


def write_chaos(path: Path, count: int, hangs: int | None = None) -> dict[int, Fate | None]:
    """Write a set in which each fate strikes a sixteenth of the pipelines, or `hangs`; their fates by key."""
    words = [word for each in _MODULE for word in each]
    quota = Counter(dict.fromkeys(Fate, max(1, count // 16)))
    if hangs is not None:
        quota[Fate.HANG] = hangs
    good = count - quota.total()
    fates: dict[int, Fate | None] = {}
    with ArchiveWriter(path) as writer:
        sink = _Chosen(writer, quota, good, fates)
        builder = PipelineSetBuilder(sink)
        module = builder.shader_module(struct.pack(f"<{len(words)}I", *words))
        number = 0
        while len(fates) < count:
            builder.compute_pipeline("auto", module, specialization={0: number})
            number += 1
    return fates


class _Chosen:
    """Takes of the compute pipelines so many of each fate, and all other records."""

    def __init__(
        self, writer: ArchiveWriter, quota: Counter[Fate], good: int, fates: dict[int, Fate | None]
    ) -> None:
        self._writer, self._quota, self._good, self._fates = writer, quota, good, fates

    def add(self, tag: RecordTag, key: int, payload: bytes) -> None:
        if tag is RecordTag.COMPUTE_PIPELINE:
            fate = fate_of(key)
            left = self._good if fate is None else self._quota[fate]
            if not left:
                return
            if fate is None:
                self._good -= 1
            else:
                self._quota[fate] -= 1
            self._fates[key] = fate
        self._writer.add(tag, key, payload)
