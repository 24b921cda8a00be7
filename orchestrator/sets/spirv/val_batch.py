"""The service that runs spirv-val on one file after another, in a process of its own.

Each spirv-val inherits this process's limits on CPU time and memory. One interpreter serves many modules.
"""

from __future__ import annotations

import os
import subprocess
import time

import msgspec

from orchestrator.children.serving import Channel

_TEXT_CAP = 2000
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")


class Judge(msgspec.Struct, frozen=True, tag="judge"):
    """A request to run spirv-val on a file: the command, and its time limit in seconds."""

    command: tuple[str, ...]
    wall_s: float


class Judged(msgspec.Struct, frozen=True, tag="judged"):
    """Exit code or negative signal of spirv-val, None where it took too long; the start of its output."""

    status: int | None
    text: str


Request = Judge


def serve(channel: Channel[Judge, Judged]) -> None:
    """Answer requests until there are no more."""
    environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    for request in channel:
        channel.send(_judged(request, environment))


def _judged(request: Judge, environment: dict[str, str]) -> Judged:
    began = time.monotonic()
    try:
        done = subprocess.run(
            request.command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=request.wall_s,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return Judged(None, f"no answer after {time.monotonic() - began:.0f} s")
    except OSError as error:
        return Judged(127, str(error))
    return Judged(done.returncode, (done.stderr or done.stdout)[:_TEXT_CAP].decode("utf-8", "replace"))
