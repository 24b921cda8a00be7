"""The child's side of trials: whatever ends the process while it compiles one pipeline names its cause.

Nothing that it makes is kept; what the driver says of a pipeline is found out again by the run.
"""

from __future__ import annotations

from contextlib import closing, suppress

import numpy as np

from orchestrator.children.child import Channel
from orchestrator.devices import open_for_child
from orchestrator.devices.device import NO_SOURCE, Device
from orchestrator.devices.image import PipelineKind
from orchestrator.errors import OrchestratorError
from orchestrator.run.trial import Answer, Ready, Request, Setup, Survived, Try, Unready
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob


def serve(channel: Channel[Request, Answer]) -> None:
    """Open what `Setup` says, then try pipelines."""
    setup = channel.receive()
    if not isinstance(setup, Setup):
        raise TypeError("a trial begins with its setup")
    try:
        with PipelineSet.open(setup.archive) as source:
            device = open_for_child(
                setup.opener, setup.selector, setup.request, driver_caches=setup.driver_caches
            )
            channel.send(Ready())
            for request in channel:
                if isinstance(request, Try):
                    _try(source, device, PipelineJob(request.key, PipelineKind(request.kind)))
                    channel.send(Survived(request.key))
    except OrchestratorError as error:
        channel.send(Unready(str(error)))


def _try(source: PipelineSet, device: Device, job: PipelineJob) -> None:
    """Compile one pipeline and what it links."""
    built = build_image(source, [job], device.capabilities)
    with suppress(OrchestratorError), closing(device.prepare(built.image)) as prepared:
        device.create_pipelines(prepared, np.arange(len(built.image), dtype=np.int32), NO_SOURCE)
