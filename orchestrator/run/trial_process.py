# Purpose: the process in which a pipeline is tried before a run gives it to the driver in its own. Run as
#   python -m orchestrator.run.trial_process
#
# Guarantees: stdout carries frames and nothing else: a driver that greets there is heard on stderr. One pipeline at a time
# is in the driver, so that a death names its cause. It ends when its stdin does, also amid a driver call: whoever
# started it is gone then.
# Assumptions: none of it leaves a core file, and nothing that it makes is kept.
"""Tries pipelines for a run (an internal entry point)."""

from __future__ import annotations

import os
import sys
import threading
from queue import SimpleQueue
from typing import BinaryIO

import numpy as np

from orchestrator.devices import open_for_child
from orchestrator.devices.device import Device
from orchestrator.devices.image import PipelineKind
from orchestrator.errors import OrchestratorError
from orchestrator.run.frames import FrameReader, pack_frame
from orchestrator.run.trial_messages import Ready, Request, Setup, Survived, Try, Unready
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.jobs import PipelineJob
from orchestrator.sets.pipeline_set import PipelineSet

_READ_SIZE = 1 << 16


def main() -> int:
    """Serve the process that started this one."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    requests: SimpleQueue[Request] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    setup = requests.get()
    if not isinstance(setup, Setup):
        return 2
    _limit(setup.memory_bytes)
    try:
        with PipelineSet.open(setup.archive) as source:
            device = open_for_child(
                setup.opener, setup.selector, setup.request, driver_caches=setup.driver_caches
            )
            answers.write(pack_frame(Ready()))
            _serve(requests, source, device, answers)
    except OrchestratorError as error:
        answers.write(pack_frame(Unready(str(error))))
    return 0


def _listen(requests: SimpleQueue[Request]) -> None:
    reader: FrameReader[Request] = FrameReader(Request)
    while data := os.read(sys.stdin.fileno(), _READ_SIZE):
        for request in reader.feed(data):
            requests.put(request)
    os._exit(0)


def _limit(memory_bytes: int) -> None:
    try:
        import resource
    except ImportError:
        return  # a system without such limits
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _serve(requests: SimpleQueue[Request], source: PipelineSet, device: Device, answers: BinaryIO) -> None:
    while True:
        request = requests.get()
        if isinstance(request, Try):
            _try(source, device, PipelineJob(request.key, PipelineKind(request.kind)))
            answers.write(pack_frame(Survived(request.key)))


def _try(source: PipelineSet, device: Device, job: PipelineJob) -> None:
    """Compile one pipeline and what it links; what the driver says is found out again by the run."""
    built = build_image(source, [job], device.capabilities)
    try:
        prepared = device.prepare(built.image)
    except OrchestratorError:
        return
    try:
        device.create_pipelines(prepared, np.arange(len(built.image), dtype=np.int32), None)
    except OrchestratorError:
        return
    finally:
        prepared.close()


if __name__ == "__main__":
    sys.exit(main())
