"""Clusters of processes of this machine: a scheduler, workers, and the program that compiles on them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import distributed
from attrs import define, field

from tests.cli.conftest import Done, run_program
from tests.drivers import REPOSITORY

PATIENCE_S = 240.0


@define(eq=False)
class Cluster:
    """A scheduler, and the workers that a test starts."""

    folder: Path
    prefix: tuple[str, ...] = ()  # of the command of each worker
    environment: Mapping[str, str] = field(factory=dict)
    program: str = "orchestrator"  # the module that workers and compiles run
    scheduler_options: tuple[str, ...] = ("--host", "127.0.0.1")
    security: distributed.Security | None = None
    address: str = ""
    scheduler: subprocess.Popen[bytes] | None = None
    workers: dict[str, subprocess.Popen[bytes]] = field(factory=dict)

    def start(self) -> None:
        """Start the scheduler."""
        file = self.folder / "scheduler.json"
        options: tuple[str, ...] = ("--port", "0", "--no-dashboard", "--dashboard-address", "127.0.0.1:0")
        options += ("--scheduler-file", str(file), *self.scheduler_options)
        self.scheduler = self._started("scheduler", ["-m", "dask", "scheduler", *options], {})
        until(file.exists)
        until(lambda: "address" in file.read_text())
        self.address = json.loads(file.read_text())["address"]

    def add(self, name: str, *, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a worker, which keeps what it has in a folder of its own."""
        command = ["-m", self.program, "worker", self.address, "--name", name]
        command += ["--cache-dir", str(self.folder / name)]
        self.workers[name] = self._started(name, command, environment or {}, self.prefix)
        return self.workers[name]

    def wait_for(self, count: int) -> None:
        """Wait until so many workers are there."""
        with self.client() as client:
            client.wait_for_workers(count, PATIENCE_S)

    def client(self) -> distributed.Client:
        """A client of Dask's own."""
        return distributed.Client(self.address, security=self.security, set_as_default=False)

    def run(self, *arguments: str | os.PathLike[str], **options: Any) -> Done:
        """Run the program."""
        return run_program(*arguments, environment=dict(self.environment), **options)

    def compile(self, archive: Path, out: Path, *more: str) -> Done:
        """`compile --cluster`, as JSON."""
        return self.run(
            "compile", archive, "--out", out, "--cluster", self.address, "-j", "2", "--json", *more
        )

    def begin(self, archive: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
        """The same, in the background."""
        command = ["-m", self.program, "compile", str(archive), "--out", str(out), "-j", "2", "--json"]
        return self._started("compile", [*command, "--cluster", self.address, *more], {})

    def log(self, name: str) -> str:
        """What a process has printed."""
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")

    def _started(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], prefix: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*prefix, sys.executable, *command],
                env={**os.environ, **self.environment, **environment},
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        """End all of it."""
        for each in (*self.workers.values(), self.scheduler):
            if each is not None:
                kill_session(each)


@contextmanager
def cluster(folder: Path, *workers: str, **options: Any) -> Iterator[Cluster]:
    """A cluster with some workers, which are there."""
    made = Cluster(folder, **options)
    try:
        made.start()
        for each in workers:
            made.add(each)
        if workers:
            made.wait_for(len(workers))
        yield made
    finally:
        made.stop()


def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.1)


def processes_of(session: int) -> dict[int, str]:
    """The processes of a session, with their command lines."""
    found = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found[int(each.name)] = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    return found


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all of its session."""
    for each in (process.pid, *processes_of(process.pid)):
        try:
            os.kill(each, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
