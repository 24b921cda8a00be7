"""Starts the process that compiles, with the memory that it shares with this one; it can be begun ahead.

A program that will compile begins that process before it imports anything large (`server_ahead`): both
import at the same time. So this module imports little.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from orchestrator.children.starting import start_service
from orchestrator.errors import OrchestratorError
from orchestrator.process import compiling_environment, kill_group

SERVICE = "compile"


class StartedServer:
    """A process that waits to be told what to compile, and memory that it has, too, as descriptors."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.table = os.memfd_create("orchestrator-in-flight", os.MFD_CLOEXEC)  # of an `InFlightTable`
        self.payloads = os.memfd_create("orchestrator-payloads", os.MFD_CLOEXEC)  # for long messages
        try:
            self.process: subprocess.Popen[bytes] = start_service(
                SERVICE,
                environment=compiling_environment(os.environ | environment),
                descriptors=(self.table, self.payloads),
            )
        except BaseException:
            self.close_memory()
            raise

    def close_memory(self) -> None:
        """Close the descriptors."""
        os.close(self.table)
        os.close(self.payloads)


_ahead: list[StartedServer] = []


@contextmanager
def server_ahead() -> Iterator[None]:
    """Start a server for the first `started_server` of the block; it is ended if nobody takes it."""
    with suppress(OSError, OrchestratorError):  # `started_server` meets it again
        _ahead.append(StartedServer({}))
    try:
        yield
    finally:
        end_ahead()


def end_ahead() -> None:
    """End a server that nobody took, such as because its environment is not what a driver needs."""
    while _ahead:
        left = _ahead.pop()
        kill_group(left.process.pid)
        left.process.communicate()
        left.close_memory()


def started_server(environment: Mapping[str, str]) -> StartedServer:
    """A server; the one that was started ahead where nothing must be added to its environment.

    Raises:
        OSError: It cannot be started.
    """
    return _ahead.pop() if _ahead and not environment else StartedServer(environment)
