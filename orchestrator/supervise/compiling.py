"""`compile`: a set, compiled as the command line does it: in a child process, with the cache file kept.

A function that opens devices, and a provider of shader code, belong to this process: with one of them the
set is compiled here, and a driver that crashes ends the program. Every function may be called in any thread.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import trio
from attrs import evolve

from orchestrator.devices.modes import CacheMode
from orchestrator.errors import expect, unexpected
from orchestrator.run.compile import compile_set
from orchestrator.run.options import COMPILE_DEFAULTS, CompileOptions, kept_in
from orchestrator.run.records import CompileReport, ProgressCallback
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.opening import AnySet, in_memory, open_paths, paths_of
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import DeviceOpener
from orchestrator.supervise.supervisor import compile_supervised


def compile(  # noqa: A001 - what it does; nobody means the built-in function by it
    sets: AnySet,
    device: str | DeviceOpener = "",
    cache: str | os.PathLike[str] | None = None,
    *,
    workers: int | None = None,
    mode: str | None = None,
    options: CompileOptions = COMPILE_DEFAULTS,
    on_progress: ProgressCallback = lambda _: None,
) -> CompileReport:
    """Compile a set and keep the cache file, as `orchestrator compile` does; blocks until it is done.

    Thread-safe. What was compiled is saved, also where the program is interrupted.

    Args:
        sets: As the command line has it: archives, or one manifest, or `sample`. Or a PipelineSet, or a
            PipelineSetBuilder, which stays the caller's.
        device: A selector as the command line has it, such as "radv:navi21". Or a function that opens a
            device for a DeviceRequest.
        cache: Directory of the cache file; None for the user's.
        workers: Number of workers; None for what `calibrate` found best, or else one a processor.
        mode: The cache topology, as the command line has it; None for `auto`. "none" keeps nothing.
        options: What else may be chosen.
        on_progress: Called as pipelines get done, in the calling thread; must not block.

    Raises:
        ArchiveError: An archive cannot be read as a whole.
        ManifestError: The manifest cannot be understood.
        NoDeviceError: Nothing answers to the selector.
        DriverError: The driver refused a device.
        SaveError: Nothing can be saved.
        TypeError: An argument is of another type.
        ValueError: No set is named, or an option cannot be meant.
    """
    work = partial(compile_async, sets, device, cache, workers=workers, mode=mode)
    return trio.run(partial(work, options=options, on_progress=on_progress))


async def compile_async(
    sets: AnySet,
    device: str | DeviceOpener = "",
    cache: str | os.PathLike[str] | None = None,
    *,
    workers: int | None = None,
    mode: str | None = None,
    options: CompileOptions = COMPILE_DEFAULTS,
    on_progress: ProgressCallback = lambda _: None,
) -> CompileReport:
    """Compile a set in a program that runs trio, in the trio thread; see `compile`.

    Raises:
        trio.Cancelled: The surrounding scope was cancelled. What was compiled is saved, and the child ended.
    """
    expect(options, CompileOptions, "CompileOptions")
    if not (isinstance(device, str) or callable(device)):
        raise unexpected(device, "a selector, or a function that opens a device (`session` takes devices)")
    options = evolve(
        options,
        selector=device if isinstance(device, str) else options.selector,
        workers=options.workers if workers is None else workers,
        mode=mode or options.mode,
        save_needed=True,
    )
    directory = None if options.mode is CacheMode.NONE else kept_in(cache)
    source = in_memory(sets)
    if callable(device) or (source is not None and source.provider is not None):
        with ExitStack() as held:
            if source is None:
                source = held.enter_context(open_paths(paths_of(sets)))
            return await compile_set(
                source,
                options,
                cache_directory=directory,
                opener=device if callable(device) else None,
                on_progress=on_progress,
            )
    async with _in_files(sets, source) as paths:
        report = await compile_supervised(paths, options, cache_directory=directory, on_progress=on_progress)
    if source is None:
        return report
    return msgspec.structs.replace(report, set=msgspec.structs.replace(report.set, path=source.name))


@asynccontextmanager
async def _in_files(sets: AnySet, source: PipelineSet | None) -> AsyncIterator[tuple[str, ...]]:
    """The paths of a set, for a child that opens them; what is in memory is written for the block."""
    if source is None:
        yield paths_of(sets)
        return
    with TemporaryDirectory(prefix="orchestrator-") as folder:
        path = Path(folder, "set.foz")
        with ArchiveWriter(path) as writer:
            source.copy_to(writer)
        yield (str(path),)
