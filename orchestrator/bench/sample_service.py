"""The child's side of a benchmark: does one job. One that cannot be done is an answer; a crash is a crash."""

from __future__ import annotations

from orchestrator.bench.jobs import Answer, Job, ProbeJob, Refused, SampleJob
from orchestrator.bench.take import fill, probe, take_sample
from orchestrator.children.child import Channel
from orchestrator.errors import OrchestratorError

Request = Job


def serve(channel: Channel[Job, Answer]) -> None:
    """Do the job that is asked for."""
    job = channel.receive()
    try:
        if isinstance(job, SampleJob):
            channel.send(take_sample(job))
        else:
            channel.send(probe(job) if isinstance(job, ProbeJob) else fill(job))
    except OrchestratorError as error:
        channel.send(Refused(kind=type(error).__name__, reason=str(error)))
