"""A process of a bisection (an internal entry point): a job as JSON on stdin, answers as lines of JSON on stdout.

Run as `python -m orchestrator.key_dependence.look_process`.

Guarantees: stdout carries answers and nothing else: a driver that greets there is heard on stderr. A job that cannot be done is an
answer too, with exit code 0; a crash is what it is.
Assumptions: one job a process. A driver reads its target and its environment once.
"""

from __future__ import annotations

import os
import sys

import msgspec

from orchestrator.errors import OrchestratorError
from orchestrator.key_dependence.looking import work
from orchestrator.key_dependence.messages import Job, Refused


def main() -> int:
    """Do the job that stdin holds."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    # Unbuffered: what began must be known when the driver dies of it.
    with os.fdopen(answers, "wb", buffering=0) as stream:
        try:
            for answer in work(job):
                stream.write(msgspec.json.encode(answer) + b"\n")
        except OrchestratorError as error:
            stream.write(msgspec.json.encode(Refused(kind=type(error).__name__, reason=str(error))) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
