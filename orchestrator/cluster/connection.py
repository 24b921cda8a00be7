"""A cluster as its coordinator sees it: workers that come and leave, questions to one of them, and files.

Each question is a task for one named worker, so Dask's own placing and stealing, which know nothing of
drivers, never decide anything. Files go between coordinator and worker directly, a chunk at a time, and never
through the scheduler. One trio thread.
"""

from __future__ import annotations

import ipaddress
import math
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import dask
import distributed
import msgspec
import trio
from attrs import define, field

from orchestrator.children.protocol import SentError
from orchestrator.cluster import worker
from orchestrator.cluster.messages import (
    About,
    Answer,
    Chunk,
    ClusterError,
    Locate,
    Located,
    Request,
    SentFile,
    ShardProgress,
)
from orchestrator.errors import OrchestratorError
from orchestrator.stores.files.atomic_file import content_hash128, likely_cause, write_atomically

_A = TypeVar("_A", bound=msgspec.Struct)
_R = TypeVar("_R")
_CHUNK: Final = 4 << 20
_LOOK_S: Final = 2.0
_CONNECT_S: Final = 30.0
_LOCAL: Final = "local:"
_SETTINGS: Final = {
    # A worker that dies takes no other one with it: this side decides what becomes of its shard.
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.work-stealing": False,
    "distributed.comm.timeouts.connect": f"{_CONNECT_S:.0f}s",
}


_LOST: Final = (
    distributed.scheduler.KilledWorker,
    distributed.client.FutureCancelledError,
    distributed.comm.core.CommClosedError,
)


class WorkerLostError(Exception):
    """A worker left while it had something to do; the message names it, and says how."""


@define(eq=False)
class Machine:
    """A worker of the cluster."""

    address: str
    about: About
    lost: trio.Event = field(factory=trio.Event)
    is_leaving: bool = False  # in order: it gets nothing more
    _why: str = ""
    _asked: set[trio.CancelScope] = field(factory=set)

    @property
    def name(self) -> str:
        """It in words."""
        return f"{self.about.machine} ({self.address.partition('://')[2]})"

    def lose(self, why: str) -> None:
        """It is there no more: whoever waits for it gets a WorkerLostError."""
        self._why = why
        self.lost.set()
        for each in self._asked:
            each.cancel()

    @contextmanager
    def there(self) -> Iterator[None]:
        """Wait for it in a block only as long as it is there; raises WorkerLostError."""
        with trio.CancelScope() as scope:
            self._asked.add(scope)
            try:
                if self.lost.is_set():
                    scope.cancel()
                yield
            finally:
                self._asked.remove(scope)
        if scope.cancelled_caught:
            raise WorkerLostError(f"{self.name} {self._why}")


def require_safe(address: str) -> None:
    """Refuse an address through which strangers could run programs on the machines.

    Raises:
        ClusterError: It is neither encrypted nor on this machine.
    """
    scheme, _, place = address.rpartition("://")
    if scheme == "tls":
        return
    host = place.rpartition(":")[0].strip("[]")
    with suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return
    raise ClusterError(
        f"{address}: whoever reaches a Dask cluster without TLS runs programs on all of its machines; name "
        "it tls://HOST:PORT, with certificates in Dask's configuration (docs/cluster.md has the commands)"
    )


@asynccontextmanager
async def connected(address: str, directory: Path) -> AsyncIterator[Cluster]:
    """Connect to a scheduler, or start `local:N` workers on this machine, for a block.

    Args:
        address: Of the scheduler, or `local:N`.
        directory: Where local workers keep what they make.

    Raises:
        ClusterError: There is none, or it is not safe.
    """
    with dask.config.set(_SETTINGS), tempfile.TemporaryDirectory() as scratch:
        local = None
        if address.startswith(_LOCAL):
            local = await trio.to_thread.run_sync(_local_cluster, address, directory, scratch)
        else:
            require_safe(address)
        try:
            client = await trio.to_thread.run_sync(_client, local or address, address)
            cluster = Cluster(address, client)
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(cluster.watch)
                    nursery.start_soon(cluster.beat)
                    try:
                        yield cluster
                    finally:
                        nursery.cancel_scope.cancel()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(_quietly, client.close)
        finally:
            if local is not None:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(_quietly, local.close)


def _quietly(close: Callable[[], object]) -> None:
    with suppress(Exception):
        close()


def _local_cluster(address: str, directory: Path, scratch: str) -> distributed.LocalCluster:
    count = address.removeprefix(_LOCAL)
    if not (count.isascii() and count.isdigit() and 1 <= int(count) <= 1024):
        raise ClusterError(f"--cluster {address}: a number of workers from 1 to 1024 is expected")
    settings = worker.WORKER_SETTINGS.copy()
    return distributed.LocalCluster(
        n_workers=int(count),
        threads_per_worker=settings.pop("nthreads"),
        **settings,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",  # of its other pages: without one they are at a port of all
        scheduler_kwargs={"dashboard": False},
        local_directory=scratch,
        silence_logs=50,
        env={
            worker.DIRECTORY_VARIABLE: str(directory),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
    )


def _client(place: Any, address: str) -> distributed.Client:
    try:
        return distributed.Client(place, timeout=_CONNECT_S, direct_to_workers=True, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise ClusterError(f"--cluster {address}: no scheduler answers: {error}") from None


@define(eq=False)
class Cluster:
    """A connected cluster; made by `connected`."""

    address: str
    client: distributed.Client
    run: str = field(factory=lambda: f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}")
    machines: dict[str, Machine] = field(factory=dict)
    refused: dict[str, str] = field(factory=dict)  # by address: why a worker gets nothing
    unanswered: dict[str, str] = field(factory=dict)  # by address: who does not say yet who it is
    stopping: bool = False
    _changed: trio.Event = field(factory=trio.Event)
    _greeting: set[str] = field(factory=set)
    # by address: what the scheduler said of when a worker was seen, and since when it says so
    _seen: dict[str, tuple[float, float]] = field(factory=dict)
    # Of its own, because a call that waits for a worker which hangs waits as long.
    _threads: trio.CapacityLimiter = field(factory=partial(trio.CapacityLimiter, math.inf))

    @property
    def is_local(self) -> bool:
        """Whether its workers are processes of this machine that this process has started."""
        return self.address.startswith(_LOCAL)

    def changed(self) -> None:
        """Wake those who wait for a worker or for work."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self) -> None:
        """Wait for a change: workers came or left, or somebody called `changed`."""
        await self._changed.wait()

    # --- questions

    async def ask(self, machine: Machine, request: Request, kind: type[_A]) -> _A:
        """The answer of a worker.

        Raises:
            WorkerLostError: It left.
            OrchestratorError: What the task raised.
        """
        answered = await self._task(machine, worker.answer, msgspec.msgpack.encode(request))
        answer: Any = msgspec.msgpack.decode(answered, type=Answer)
        if isinstance(answer, SentError):
            raise answer.error()
        assert isinstance(answer, kind)  # noqa: S101 - what the worker answers
        return answer

    async def _task(self, machine: Machine, function: Callable[..., Any], *arguments: Any) -> Any:
        future = self.client.submit(
            function, *arguments, workers=[machine.address], allow_other_workers=False, pure=False, retries=0
        )
        done, token = trio.Event(), trio.lowlevel.current_trio_token()

        def wake(_future: object) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        future.add_done_callback(wake)
        try:
            with machine.there():
                await done.wait()
                return await self._in_thread(future.result)
        except _LOST:
            self.lose(machine, "has left")
            raise WorkerLostError(f"{machine.name} has left") from None
        except (OrchestratorError, WorkerLostError):
            raise
        except Exception as error:
            if self.client.status != "running":
                raise self._ended() from None
            said = likely_cause(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            raise ClusterError(said) from error
        finally:
            if not done.is_set():
                future.cancel()
            future.release()

    def _ended(self) -> ClusterError:
        kept = "what came back is kept, and the same command goes on from there"
        return ClusterError(f"the scheduler at {self.address} has ended; {kept}")

    async def _in_thread(self, call: Callable[[], _R]) -> _R:
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)

    # --- files

    async def send(self, machine: Machine, files: tuple[SentFile, ...]) -> tuple[str, ...]:
        """Where a worker has some files; those that it lacks are sent."""
        paths = (await self.ask(machine, Locate(files), Located)).paths
        for file, path in zip(files, paths, strict=True):
            if not path:
                await self._send(machine, file)
        return (await self.ask(machine, Locate(files), Located)).paths if not all(paths) else paths

    async def _send(self, machine: Machine, file: SentFile) -> None:
        with Path(file.path).open("rb") as content:
            for offset in range(0, max(file.size, 1), _CHUNK):
                data = await trio.to_thread.run_sync(content.read, _CHUNK)
                scatter = partial(self.client.scatter, workers=[machine.address], direct=True, hash=False)
                with machine.there():
                    scattered = await self._in_thread(partial(scatter, data))
                chunk = msgspec.msgpack.encode(Chunk(file, offset, len(data)))
                await self._task(machine, worker.keep_chunk, chunk, scattered)
                scattered.release()

    async def fetch(self, machine: Machine, files: tuple[SentFile, ...], folder: Path) -> None:
        """Bring files of a worker into a folder, each proven by its hash, in their order.

        Raises:
            ClusterError: A file did not come over as it was named.
        """
        for file in files:
            place = folder / file.name
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            parts = []
            for offset in range(0, max(file.size, 1), _CHUNK):
                chunk = msgspec.msgpack.encode(Chunk(file, offset, _CHUNK))
                parts.append(await self._task(machine, worker.read_chunk, chunk))
            content = b"".join(parts)
            if content_hash128(content).hex() != file.xxh3_128:
                raise ClusterError(f"{file.name} did not come over as it was named")
            await trio.to_thread.run_sync(write_atomically, place, [content])

    # --- who is there

    async def watch(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow which workers are there; has started once those that are there now were greeted."""
        async with trio.open_nursery() as greeting:
            await self._look(greeting)
            with trio.move_on_after(_CONNECT_S):
                while self._greeting:
                    await self.wait()
            task_status.started()
            while True:
                await trio.sleep(_LOOK_S)
                await self._look(greeting)

    async def _look(self, greeting: trio.Nursery) -> None:
        there = await self._there()
        gone = [each for address, each in self.machines.items() if address not in there]
        for machine in gone:
            is_known = machine.address in self._seen
            self.lose(machine, f"was silent for {worker.SILENCE_S:.0f} s" if is_known else "has left")
        for address in there - self.machines.keys() - self.refused.keys() - self._greeting:
            self._greeting.add(address)
            greeting.start_soon(self._greet, address)
        for address in self.unanswered.keys() - there:
            del self.unanswered[address]
        if gone:
            self.changed()

    async def _there(self) -> set[str]:
        """Addresses of the workers that the scheduler hears of."""
        try:
            if self.client.status != "running":  # it tries for long to connect again, and no worker does
                raise ConnectionError
            # The client keeps a copy, which its own look, without workers, may have replaced meanwhile.
            scheduler: Any = self.client.scheduler
            ask = partial(self.client.sync, scheduler.identity, n_workers=-1)
            workers = (await self._in_thread(ask))["workers"]
        except (OSError, KeyError):  # a client whose scheduler has ended knows of no workers at all
            raise self._ended() from None
        now, before = trio.current_time(), self._seen
        self._seen = {}
        for address, about in workers.items():
            seen, since = before.get(address, (0.0, now))
            self._seen[address] = (seen, since) if seen == about["last_seen"] else (about["last_seen"], now)
            if address in self.machines and about["status"].startswith("closing"):
                self.machines[address].is_leaving = True
        return {each for each, (_, since) in self._seen.items() if now - since < worker.SILENCE_S}

    def lose(self, machine: Machine, why: str) -> None:
        """A machine is there no more, or only to be asked again who it is."""
        if self.machines.get(machine.address) is machine:
            del self.machines[machine.address]
        machine.lose(why)

    async def _greet(self, address: str) -> None:
        place = address.partition("://")[2]
        # In its event loop: as a task it would wait until the worker has compiled what it has.
        greet = partial(self.client.run, worker.greet, workers=[address], on_error="return")
        answered = None
        self.unanswered.setdefault(address, f"{place} does not answer")
        with trio.move_on_after(_CONNECT_S), suppress(OSError):
            answered = (await self._in_thread(greet)).get(address)
        if isinstance(answered, OSError):
            self.unanswered[address] = f"{place} does not answer: {answered}"
        elif answered is not None:
            del self.unanswered[address]
        if isinstance(answered, bytes):
            about = msgspec.msgpack.decode(answered, type=About)
            machine = Machine(address, about, is_leaving=about.is_leaving)
            if differences := about.differences(worker.about()):
                self.refused[address] = f"{machine.name} gets nothing: {'; '.join(differences)}"
            else:
                self.machines[address] = machine
        elif isinstance(answered, Exception) and not isinstance(answered, OSError):
            why = f"{type(answered).__name__}: {answered}"
            self.refused[address] = (
                f"{place} gets nothing: it is no `orchestrator worker` of this version ({why})"
            )
        self._greeting.remove(address)
        self.changed()

    async def left_in_order(self, machine: Machine) -> bool:
        """Whether a worker that is lost was asked to leave, such as by a cluster that shrinks."""
        with trio.move_on_after(_CONNECT_S), suppress(Exception):
            events = await self._in_thread(partial(self.client.get_events, machine.address))
            return any(each.get("expected") for _, each in events if each["action"] == "remove-worker")
        return False

    async def beat(self) -> None:
        """Let the workers hear that this run goes on."""
        while True:
            await self.tell()
            await trio.sleep(worker.BEAT_S)

    async def tell(self) -> None:
        """Tell all workers that this run goes on, or is to stop, also beside one that hangs."""

        def tell() -> None:
            with suppress(Exception):
                there = list(self.machines)
                self.client.run(worker.heard, self.run, self.stopping, workers=there, on_error="ignore")

        with trio.move_on_after(worker.BEAT_S):
            await self._in_thread(tell)

    def on_progress(self, take: Callable[[ShardProgress], None]) -> None:
        """Have each progress of a shard of this run taken, in the trio thread."""
        token = trio.lowlevel.current_trio_token()

        def handle(event: tuple[float, Any]) -> None:
            with suppress(trio.RunFinishedError, msgspec.ValidationError):
                token.run_sync_soon(take, msgspec.convert(event[1], ShardProgress))

        self.client.subscribe_topic(f"{worker.TOPIC}-{self.run}", handle)


def processors_of(cluster: Cluster, machine: Machine) -> int:
    """The processors that a worker may use: local ones divide this machine's."""
    share = len(cluster.machines) if cluster.is_local else 1
    return max(1, machine.about.processors // max(1, share))
