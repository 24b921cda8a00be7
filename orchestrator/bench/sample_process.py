# Purpose: the process of one sample: a job as JSON on stdin, an answer as one line of JSON on stdout. Run as
#   python -m orchestrator.bench.sample_process
#
# Guarantees: stdout carries the answer and nothing else: a driver that greets there is heard on stderr. A job that cannot
# be done is an answer too, with exit code 0; a crash is what it is.
# Assumptions: one job a process. A driver reads its target from the environment once.
"""Takes one sample (an internal entry point)."""

from __future__ import annotations

import os
import sys

import msgspec

from orchestrator.bench.jobs import Answer, FillJob, Job, ProbeJob, Refused
from orchestrator.errors import OrchestratorError


def main() -> int:
    """Do the job that stdin holds."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    with os.fdopen(answers, "wb") as stream:
        stream.write(msgspec.json.encode(answer(job)) + b"\n")
    return 0


def answer(job: Job) -> Answer:
    """Do a job; what is wrong with it is an answer."""
    from orchestrator.bench.take import fill, probe, take_sample

    try:
        if isinstance(job, ProbeJob):
            return probe(job)
        return fill(job) if isinstance(job, FillJob) else take_sample(job)
    except OrchestratorError as error:
        return Refused(kind=type(error).__name__, reason=str(error))


if __name__ == "__main__":
    sys.exit(main())
