"""The worker's side of a cluster: the tasks, and the process that runs them.

A Dask worker runs one task at a time. It imports no driver: what a task compiles is compiled in a supervised
child, so the driver's crash ends that child alone.

Guarantees: a task stops in order, and saves, when its coordinator asks for it, or has not been heard of for
`SILENCE_S`: a coordinator that died leaves nothing running. What came in is written under its own hash.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import math
import mmap
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import distributed
import msgspec
import trio
from distributed.protocol.pickle import dumps
from msgspec.structs import asdict, replace

from orchestrator.children.protocol import SentError
from orchestrator.cluster.messages import (
    About,
    Answer,
    Chunk,
    ClusterError,
    CompileShard,
    Devices,
    Forget,
    JoinPacks,
    ListDevices,
    Locate,
    Located,
    Made,
    Request,
    SentFile,
    ShardProgress,
)
from orchestrator.devices.listing import list_all, list_one
from orchestrator.errors import OrchestratorError
from orchestrator.packs.growing import GrowingPack
from orchestrator.packs.joining import join_packs
from orchestrator.run.first_error import first_error
from orchestrator.run.options import CompileOptions, available_workers
from orchestrator.run.records import CompileReport, Progress, encode_msgpack
from orchestrator.run.steering import Steering
from orchestrator.stores.files.atomic_file import (
    content_hash128,
    ensure_directory,
    write_atomically,
)
from orchestrator.stores.pack import MANIFEST, Pack, PackTarget
from orchestrator.supervise.supervisor import compile_supervised
from orchestrator.supervise.targets import TargetResult
from orchestrator.version import VERSION

DIRECTORY_VARIABLE: Final = "ORCHESTRATOR_WORKER_DIRECTORY"
REPORT: Final = "report"
PACK: Final = "pack"
SILENCE_S: Final = 30.0
"""A coordinator is heard every `BEAT_S`."""
BEAT_S: Final = 5.0
TOPIC: Final = "orchestrator-progress"
_LOOK_S: Final = 0.25
_TELL_S: Final = 1.0
_IDLE_S: Final = 1.0

_untaken: dict[str, str] = {}
"""Reports of shards that no coordinator has read yet, which it does last, and the run of each."""
_leaving = threading.Event()
_heard: dict[str, tuple[float, bool]] = {}
"""By run: when its coordinator was heard last, and whether it asks to stop."""


def heard(run: str, is_stopped: bool) -> None:
    """The coordinator of a run is there; called in the worker's event loop, beside its tasks."""
    _heard[run] = time.monotonic(), is_stopped


def _is_heard(run: str) -> bool:
    last, _ = _heard.get(run, (-math.inf, False))
    return time.monotonic() - last <= SILENCE_S


def greet() -> bytes:
    """Who this worker is; called in its event loop, beside its tasks."""
    _directory()
    return msgspec.msgpack.encode(about())


def about() -> About:
    """Who this process would be as a worker."""
    python = ".".join(map(str, sys.version_info[:2]))
    versions = {
        "orchestrator": VERSION,
        "Python": python,
        "distributed": importlib.metadata.version("distributed"),
    }
    return About(socket.gethostname(), available_workers(), versions, _leaving.is_set())


def answer(request: bytes) -> bytes:
    """The task: the answer to a request."""
    asked: Any = msgspec.msgpack.decode(request, type=Request)
    try:
        answered = _ANSWERS[type(asked)](asked)
    except OrchestratorError as error:
        answered = SentError.of(error)
    return msgspec.msgpack.encode(answered)


def keep_chunk(chunk: bytes, data: bytes) -> None:
    """The task: keep a part of a file, which is there under its name once the last one has come."""
    part = msgspec.msgpack.decode(chunk, type=Chunk)
    place = _kept(part.file)
    partial_file = place.with_name(f"{place.name}.part")
    place.parent.mkdir(parents=True, exist_ok=True)
    with partial_file.open("r+b" if part.offset else "wb") as file:
        file.seek(part.offset)
        file.write(data)
    if part.offset + len(data) < part.file.size:
        return
    if not _is_file(partial_file, part.file):
        partial_file.unlink()
        raise ClusterError(f"{part.file.name} did not come over as it was sent")
    partial_file.rename(place)


def read_chunk(chunk: bytes) -> bytes:
    """The task: a part of a file that this worker has named."""
    part = msgspec.msgpack.decode(chunk, type=Chunk)
    with Path(part.file.path).open("rb") as file:
        file.seek(part.offset)
        data = file.read(part.size)
    _untaken.pop(part.file.path, None)
    return data


def run_worker(address: str, directory: Path, name: str | None) -> None:
    """Serve a scheduler until it ends, or this process is asked to end. Blocking.

    Args:
        address: Of the scheduler.
        directory: Where sets and shards are kept.
        name: Of this worker; None for one that Dask makes.
    """

    async def serve() -> None:
        async with distributed.Nanny(
            address,
            name=name,
            env={DIRECTORY_VARIABLE: str(directory)},
            local_directory=str(directory),
            **WORKER_SETTINGS,
        ) as nanny:
            leaving: list[asyncio.Task[None]] = []

            def leave() -> None:
                if not leaving:
                    leaving.append(asyncio.create_task(_leave(nanny)))

            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave)
            await nanny.finished()

    asyncio.run(serve())


async def _leave(nanny: distributed.Nanny) -> None:
    """End a worker once what it was compiling is handed back."""
    with suppress(Exception):  # such as that it has ended
        async with nanny.rpc(nanny.worker_address) as served:
            await served.run(function=dumps(hand_back))
    await nanny.close(reason="SIGTERM")


async def hand_back(dask_worker: distributed.Worker) -> None:
    """Stop what this worker compiles, and wait until it was taken; called in its event loop.

    Args:
        dask_worker: This worker; Dask gives it to a function that names it so.
    """
    _leaving.set()
    idle_s = 0.0
    while idle_s < _IDLE_S:
        await asyncio.sleep(_LOOK_S)
        is_busy = dask_worker.state.executing or any(map(_is_heard, _untaken.values()))
        idle_s = 0.0 if is_busy else idle_s + _LOOK_S


WORKER_SETTINGS: Final[dict[str, Any]] = {
    "nthreads": 1,  # one task at a time: a compile has the machine's processors
    "memory_limit": 0,  # Dask sees the memory of its own process only, and the driver is in a child
    "preload": __name__,  # so that its event loop answers as soon as it is there
}


def send_of(path: Path, name: str) -> SentFile:
    """A file as it is now; reads all of it. Raises OSError."""
    return SentFile(name, str(path.absolute()), path.stat().st_size, _hash_of(path))


def files_of(folder: Path) -> tuple[SentFile, ...]:
    """The files of a pack of this machine, its manifest last."""
    names = [file.name for each in Pack.open(folder).manifest.targets for file in each.files]
    return tuple(send_of(folder / name, f"{PACK}/{name}") for name in (*names, MANIFEST))


def put_cache(pack: Pack, target: PackTarget, directory: Path) -> Path:
    """Put the cache file of a pack's target into a directory, with what is noted of it; returns its path."""
    assert target.cache is not None  # noqa: S101 - asked before
    place = directory / target.cache.name
    write_atomically(place, [pack.read_cache(target)])
    pack.read_notes(target).add_to(place)
    return place


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return content_hash128(b"").hex()
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as content:
            return content_hash128(content).hex()


# --- the answers


def _list(request: ListDevices) -> Answer:
    found = (list_one(request.selector),) if request.selector else list_all().devices
    return Devices(tuple(replace(each, features=None) for each in found))


def _locate(request: Locate) -> Answer:
    places = [[Path(each.path), _kept(each)] for each in request.files]
    found = [
        next((str(path) for path in paths if _is_file(path, file)), "")
        for file, paths in zip(request.files, places, strict=True)
    ]
    return Located(tuple(found))


def _compile(request: CompileShard) -> Answer:
    options = msgspec.msgpack.decode(request.options, type=CompileOptions)
    folder = _directory() / "shards" / request.name
    pack_folder = folder / PACK
    if request.seed:
        _seed(_assembled(request.seed, folder / "seed"), pack_folder)
    with GrowingPack.writing(pack_folder, None, [options.selector]) as pack:
        report = trio.run(_compiled, request, options, pack_folder)
        pack.finish([TargetResult(options.selector, report)])
    write_atomically(folder / REPORT, [encode_msgpack(report)])
    _untaken[str(folder / REPORT)] = request.run
    return Made((*files_of(pack_folder), send_of(folder / REPORT, REPORT)))


def _seed(seed: Path, pack_folder: Path) -> None:
    pack = Pack.open(seed)
    for target in pack.manifest.targets:
        if target.cache is not None and not (pack_folder / target.cache.name).exists():
            ensure_directory(pack_folder)
            put_cache(pack, target, pack_folder)


async def _compiled(request: CompileShard, options: CompileOptions, folder: Path) -> CompileReport:
    steering, told = Steering(), 0.0
    _, is_stopped = _heard.get(request.run, (0.0, False))
    heard(request.run, is_stopped)

    def tell(progress: Progress) -> None:
        nonlocal told
        if trio.current_time() - told >= _TELL_S:
            told = trio.current_time()
            counts = {name: getattr(progress, name) for name in ShardProgress.__struct_fields__[1:]}
            message = asdict(ShardProgress(request.name, **counts))
            distributed.get_worker().log_event(f"{TOPIC}-{request.run}", message)

    working = distributed.get_worker()
    task = working.get_current_task()

    def goes_on() -> bool:
        _, is_stopped = _heard[request.run]
        if is_stopped or not _is_heard(request.run) or _leaving.is_set():
            return False
        # Dask lets a task go whose coordinator is gone, and has a worker close whose cluster shrinks.
        there = working.state.tasks.get(task)
        return there is not None and there.state == "executing" and working.status.name == "running"

    async def listen() -> None:
        while goes_on():
            await trio.sleep(_LOOK_S)
        steering.stop.set()

    with first_error():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            report = await compile_supervised(
                request.archives, options, cache_directory=folder, stop=steering, on_progress=tell
            )
            nursery.cancel_scope.cancel()
    return report


def _join(request: JoinPacks) -> Answer:
    folder = _directory() / "joined" / request.name
    shutil.rmtree(folder, ignore_errors=True)
    parts = folder.with_name(f"{request.name}.parts")
    shutil.rmtree(parts, ignore_errors=True)
    packs = [_assembled(files, parts / str(number)) for number, files in enumerate(request.packs)]
    join_packs([Pack.open(each) for each in packs], folder)
    shutil.rmtree(parts)
    return Made(files_of(folder))


def _forget(request: Forget) -> Answer:
    for each in ("shards", "joined"):
        shutil.rmtree(_directory() / each / request.name, ignore_errors=True)
    return Made(())


def _assembled(files: Sequence[SentFile], folder: Path) -> Path:
    """A pack of files that this worker has, each in a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    for each in files:
        shutil.copyfile(each.path, folder / Path(each.name).name)
    return folder


_ANSWERS: Final[dict[type, Callable[[Any], Answer]]] = {
    ListDevices: _list,
    Locate: _locate,
    CompileShard: _compile,
    JoinPacks: _join,
    Forget: _forget,
}


def _directory() -> Path:
    try:
        return Path(os.environ[DIRECTORY_VARIABLE])
    except KeyError:
        raise ClusterError("it was not started by `orchestrator worker`") from None


def _kept(file: SentFile) -> Path:
    # By content, with its name at the end, because a set is known by the names of its archives.
    return _directory() / "files" / file.xxh3_128 / Path(file.name).name


def _is_file(path: Path, file: SentFile) -> bool:
    try:
        return path.stat().st_size == file.size and _hash_of(path) == file.xxh3_128
    except OSError:
        return False
