"""Drivers that misbehave, for a child that compiles: simulated devices by functions that open them.

Each child imports this, so it imports little: no test, and nothing that only tests need.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.devices.binary_data import HeldBinaries
from orchestrator.devices.device import (
    CreationBatch,
    DriverStep,
    PipelineCache,
    PipelineCacheData,
    PreparedPipelines,
    is_empty_cache,
)
from orchestrator.devices.identified import IdentifiedModules
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import (
    DriverBugs,
    SimulatedDevice,
    SimulatedOptions,
    simulated_identity,
)
from orchestrator.devices.simulated.device import SimulatedPipelines
from orchestrator.errors import DriverError, NoDeviceError
from tests.run.small_sets import MARKER, compute_keys, opener

KEYS = compute_keys()[:12]
SHORT_S = 0.05


def opening(kind: type[SimulatedDevice]) -> Callable[[DeviceRequest], SimulatedDevice]:
    return lambda request: kind(SimulatedOptions(request=request))


open_good = opening(SimulatedDevice)


def open_deadly(request: DeviceRequest) -> SimulatedDevice:
    """Compiling some pipelines ends the process, each in its own way."""

    def on_compile(key: int) -> None:
        if key == KEYS[1]:
            signal.raise_signal(signal.SIGSEGV)
        if key == KEYS[4]:
            os._exit(0)
        if key == KEYS[7]:
            os._exit(7)

    bugs = DriverBugs(crash=[KEYS[9]])
    return SimulatedDevice(SimulatedOptions(request=request, bugs=bugs, on_compile=on_compile))


@opener
def open_writing_into_python(key: int) -> None:
    """Compiling one pipeline makes the interpreter raise what it never should."""
    if key == KEYS[3]:
        raise SystemError("unknown opcode")


def open_short_of_memory(request: DeviceRequest) -> SimulatedDevice:
    """Memory is too little to open a device; the error is the one that the marker names."""
    errors: dict[str, Exception] = {
        "python": MemoryError(),
        "interpreter": SystemError("returned NULL without setting an exception"),
        "driver": DriverError("vkCreateDevice", -1, "VK_ERROR_OUT_OF_HOST_MEMORY"),
    }
    raise errors[Path(os.environ[MARKER]).name]


@opener
def open_greedy(key: int) -> None:
    """A pipeline takes more memory than there is."""
    if key == KEYS[3]:
        raise MemoryError


class Filled(SimulatedDevice):
    """What was compiled leaves no memory for reading the cache, which trials do not do."""

    def pipeline_cache_data(self, cache: PipelineCache) -> PipelineCacheData:
        if self.compile_counts:
            raise MemoryError
        return super().pipeline_cache_data(cache)


open_filled = opening(Filled)


@opener
def open_slow_to_judge(key: int) -> None:
    """A pipeline that ends the first process that compiles it, and from which no other comes back."""
    if key == KEYS[3]:
        try:
            Path(os.environ[MARKER]).touch(exist_ok=False)
        except FileExistsError:
            threading.Event().wait()
        os.abort()


@opener
def open_late(_: int) -> None:
    """A pipeline that ends the process after the time is over."""
    time.sleep(2 * SHORT_S)
    os.abort()


def open_two_to_judge(request: DeviceRequest) -> SimulatedDevice:
    """Two are in the driver as a process dies. Alone one crashes, and the other never returns."""
    marker, entered = Path(os.environ[MARKER]), threading.Event()

    def on_compile(key: int) -> None:
        if marker.exists():
            if key == KEYS[1]:
                signal.raise_signal(signal.SIGSEGV)
        elif key == KEYS[1]:
            entered.set()
        else:
            entered.wait()
            marker.touch()
            os.abort()
        threading.Event().wait()

    return SimulatedDevice(SimulatedOptions(request=request, on_compile=on_compile))


@opener
def open_waiting(key: int) -> None:
    """One pipeline takes until a file is there."""
    while key == KEYS[5] and not Path(os.environ[MARKER]).exists():
        time.sleep(0.01)


@opener
def open_deadly_in_runs(key: int) -> None:
    """A pipeline ends each process that compiles with workers, which trials do not."""
    if key == KEYS[3] and threading.current_thread() is not threading.main_thread():
        os.abort()


def open_killed_often(request: DeviceRequest) -> SimulatedDevice:
    """Three processes are killed from outside, each when it has begun three pipelines more."""
    begun, lock = count(1), threading.Lock()

    def on_compile(key: int) -> None:
        with lock:  # no other thread comes to the next kill before this process has ended
            number = next(begun)
            marker = Path(f"{os.environ[MARKER]}-{number}")
            if number in (3, 6, 9) and not marker.exists():
                marker.touch()
                signal.raise_signal(signal.SIGKILL)

    return SimulatedDevice(SimulatedOptions(request=request, on_compile=on_compile))


class Choking(SimulatedDevice):
    """Loading a cache file ends the process, by a crash or by a kill from outside."""

    by = signal.SIGSEGV

    def create_pipeline_cache(self, initial_data: bytes = b"", **options: Any) -> PipelineCache:
        if not is_empty_cache(len(initial_data)):
            with self.observer.calling(DriverStep.LOAD):
                self.choke()
        return super().create_pipeline_cache(initial_data, **options)

    def choke(self) -> None:
        signal.raise_signal(self.by)


class KilledThrice(Choking):
    """Three processes are killed from outside while they load the file."""

    by = signal.SIGKILL

    def choke(self) -> None:
        with Path(os.environ[MARKER]).open("a+") as marker:
            marker.write("x")
            marker.seek(0)
            if len(marker.read()) > 3:
                return
        super().choke()


open_choking = opening(Choking)
open_killed_thrice = opening(KilledThrice)


class Spoiled(SimulatedDevice):
    """Compiling one pipeline spoils what is needed to close the device."""

    def close(self) -> None:
        if KEYS[5] in self.compile_counts:
            os.abort()
        super().close()


class Stuck(SimulatedDevice):
    """A device that does not come back from one step."""

    step: DriverStep

    def meet(self, step: DriverStep, *of: Any) -> None:
        if step is self.step:
            with self.observer.calling(step, *of):
                threading.Event().wait()

    def prepare(self, image: CreateInfoImage | IdentifiedModules, **options: Any) -> SimulatedPipelines:
        keys = image.image.keys.tolist()
        if KEYS[3] in keys:
            module = image.image.module_slot_module[keys.index(KEYS[3])]
            self.meet(DriverStep.MODULE, image.image, np.array([module], np.int32))
        return super().prepare(image, **options)

    def create_pipeline_cache(self, initial_data: bytes = b"", **options: Any) -> PipelineCache:
        self.meet(DriverStep.CACHE if is_empty_cache(len(initial_data)) else DriverStep.LOAD)
        return super().create_pipeline_cache(initial_data, **options)

    def merge_pipeline_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        self.meet(DriverStep.MERGE)
        super().merge_pipeline_caches(destination, sources)

    def pipeline_cache_data(self, cache: PipelineCache) -> PipelineCacheData:
        self.meet(DriverStep.READ)
        return super().pipeline_cache_data(cache)

    def close(self) -> None:
        if not self.observer.keeps_all:
            self.meet(DriverStep.DESTROY)
        super().close()


def stuck_in(step: DriverStep) -> Callable[[DeviceRequest], SimulatedDevice]:
    return opening(type(f"Stuck_{step.name}", (Stuck,), {"step": step}))


open_stuck_in_module = stuck_in(DriverStep.MODULE)
open_stuck_in_create = stuck_in(DriverStep.CACHE)
open_stuck_in_load = stuck_in(DriverStep.LOAD)
open_stuck_in_merge = stuck_in(DriverStep.MERGE)
open_stuck_in_read = stuck_in(DriverStep.READ)
open_stuck_in_close = stuck_in(DriverStep.DESTROY)


def open_never(request: DeviceRequest) -> SimulatedDevice:
    threading.Event().wait()
    return SimulatedDevice(SimulatedOptions(request=request))


open_spoiled = opening(Spoiled)


def open_newer(request: DeviceRequest) -> SimulatedDevice:
    """Another version of the driver, without the bugs."""
    return SimulatedDevice(SimulatedOptions(identity=simulated_identity(driver_version=2), request=request))


def open_with_a_bug(request: DeviceRequest) -> SimulatedDevice:
    raise ZeroDivisionError("a bug")


def open_nothing(request: DeviceRequest) -> SimulatedDevice:
    raise NoDeviceError("none here")


def open_and_die(request: DeviceRequest) -> SimulatedDevice:
    os.write(2, b"radv: some context\nassertion failed: \xff\n\n")
    os.abort()


def open_jealous(request: DeviceRequest) -> SimulatedDevice:
    """A driver that does not survive a second device beside the first one, as the first process finds."""
    marker = Path(os.environ[MARKER])
    if request.application.application_name == "two" and not marker.exists():
        marker.touch()
        os.abort()

    def on_compile(_: int) -> None:
        while not marker.exists():
            time.sleep(0.01)

    return SimulatedDevice(SimulatedOptions(request=request, on_compile=on_compile))


def open_locked(request: DeviceRequest) -> SimulatedDevice:
    """A driver in which a compile and the opening of a second device wait for each other."""
    if request.application.application_name == "two" and not Path(os.environ[MARKER]).exists():
        Path(os.environ[MARKER]).touch()
        LOCKED.set()
        threading.Event().wait()

    def on_compile(_: int) -> None:
        while not Path(os.environ[MARKER]).exists():
            time.sleep(0.01)
        if LOCKED.is_set():
            threading.Event().wait()

    return SimulatedDevice(SimulatedOptions(request=request, on_compile=on_compile))


LOCKED = threading.Event()


class Poisoned(SimulatedDevice):
    """Some binaries end the process that creates a pipeline from them, or keep it for ever."""

    def create_from_binaries(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        held: HeldBinaries,
        *,
        keep: bool = False,
    ) -> CreationBatch:
        given = {bytes(each.data) for each in self._binary_data(held.handles)}
        with self.observer.calling(DriverStep.FROM_BINARIES, prepared.image, indices):
            if b"poison" in given:
                os.abort()
            if b"glue" in given:
                threading.Event().wait()
        return super().create_from_binaries(prepared, indices, held, keep=keep)


open_poisoned = opening(Poisoned)
