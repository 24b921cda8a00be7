"""A program that compiles in a supervised child and tells of each compile, to be killed at any moment.

python -m tests.supervise.kill_target ARCHIVE CACHE FIFO [loading|deaf]
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import trio

from orchestrator.devices.device import PipelineCache, is_empty_cache
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.run.options import CompileOptions, MergePolicy, SavePolicy, TrialLimits
from orchestrator.run.records import OutcomeStatus
from orchestrator.supervise.supervisor import compile_supervised
from tests.run.small_sets import compute_keys

FIFO = "ORCHESTRATOR_KILL_FIFO"
COUNT = 40
KEYS = compute_keys()[:COUNT]
CULPRIT = KEYS[17]


def open_telling(request: DeviceRequest) -> SimulatedDevice:
    """A device that tells of each compile before it takes place, and that one pipeline kills."""
    fifo = os.open(os.environ[FIFO], os.O_WRONLY)

    def on_compile(key: int) -> None:
        os.write(fifo, b".")
        if key == CULPRIT:
            signal.raise_signal(signal.SIGSEGV)

    return SimulatedDevice(SimulatedOptions(request=request, on_compile=on_compile))


class Loading(SimulatedDevice):
    """It tells that it is given a cache file, and does not come back."""

    def create_pipeline_cache(self, initial_data: bytes = b"", **options: Any) -> PipelineCache:
        if not is_empty_cache(len(initial_data)):
            os.write(os.open(os.environ[FIFO], os.O_WRONLY), b".")
            threading.Event().wait()
        return super().create_pipeline_cache(initial_data, **options)


def open_loading(request: DeviceRequest) -> SimulatedDevice:
    return Loading(SimulatedOptions(request=request))


def open_deaf(_: DeviceRequest) -> SimulatedDevice:
    """Tell of it, and let no thread of this process run any more."""
    os.write(os.open(os.environ[FIFO], os.O_WRONLY), b".")
    while True:
        ctypes.PyDLL(None).pause()  # which keeps the interpreter's lock


def main() -> None:
    archive, cache, os.environ[FIFO], *others = sys.argv[1:]
    opener = f"open_{others[0]}" if others else "open_telling"
    options = CompileOptions(
        mode="per-worker",
        workers=2,
        batch_limit=2,
        merge=MergePolicy(rolling=True, age_ns=1),
        save_policy=SavePolicy(growth_pipelines=4, pause_ns=1),
        trial_limits=TrialLimits(opener=f"{__spec__.name}:{opener}"),
    )
    report = trio.run(partial(compile_supervised, [archive], options, cache_directory=Path(cache)))
    counts = {status.value: count for status, count in report.counts().items()}
    failed = [[f"{each.key:016x}", each.reason] for each in report.failed]
    hits = [f"{each.key:016x}" for each in report.of_status(OutcomeStatus.CACHE_HIT)]
    print(json.dumps({"counts": counts, "failed": failed, "hits": hits}))


if __name__ == "__main__":
    main()
