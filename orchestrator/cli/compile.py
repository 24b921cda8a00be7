# Purpose: `orchestrator compile`: the main job. Opens the set, hands it to `compile_set`, shows how far it is, and reports.
#
# Guarantees:
# - SIGINT and SIGTERM end the job early and in order: no further batch is handed out, the driver calls in flight are
#   waited for (they cannot be cancelled), what was compiled is merged and saved, and the report is shown.
# - A cache directory that cannot be written is refused before anything is compiled.
"""The verb `compile`."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.options import DEVICE_HELP, JsonFlag, SetNames

if TYPE_CHECKING:
    import trio

    from orchestrator.cli.progress import ProgressView
    from orchestrator.run.records import CompileReport
    from orchestrator.sets.pipeline_set import PipelineSet


def compile_verb(
    sets: SetNames,
    /,
    *,
    device: Annotated[
        str,
        Parameter(
            name=["--device", "-d"], help=DEVICE_HELP, show_default=lambda _: "the first Vulkan device"
        ),
    ] = "",
    workers: Annotated[
        str,
        Parameter(
            name=["--workers", "-j"],
            help="Number of workers, or `auto`: what `calibrate` found best, else one a processor.",
        ),
    ] = "auto",
    mode: Annotated[
        Literal["auto", "shared", "per-worker", "per-worker-internal", "two-level", "none"],
        Parameter(
            name="--mode",
            help="`auto`: what `calibrate` found best on the device, else `per-worker`. `shared`: one cache for all workers. `per-worker`: one externally synchronized cache each, merged "
            "at the end. `per-worker-internal`: the same without the flag, as a control. `two-level`: look up in the merged "
            "cache, compile what it lacks in a cache for each worker, merge on the way. `none`: no cache, nothing is kept.",
        ),
    ] = "auto",
    merge: Annotated[
        Literal["auto", "barrier", "rolling"],
        Parameter(
            name="--merge",
            help="`barrier`: merge worker caches at the end. `rolling`: also while workers run, and save what is merged. "
            "`auto`: rolling in mode two-level, else at the end.",
        ),
    ] = "auto",
    cache_dir: Annotated[
        Path | None,
        Parameter(
            name="--cache-dir",
            help="Where the cache file is kept, one file a device and driver.",
            show_default=lambda _: "the user's cache directory",
        ),
    ] = None,
    driver_caches: Annotated[
        bool,
        Parameter(
            name="--driver-caches",
            negative="",
            show_default=False,
            help="Leave the driver's own disk and memory caches on; figures then say little about the cache here.",
        ),
    ] = False,
    relax_driver_version: Annotated[
        bool,
        Parameter(
            name="--relax-driver-version",
            negative="",
            show_default=False,
            help="Load a cache file of another driverVersion if all else agrees. For desktop drivers that change "
            "pipelineCacheUUID whenever their data changes.",
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        Parameter(name="--trace", help="Write a timeline: Chrome trace events, which ui.perfetto.dev opens."),
    ] = None,
    pipeline_stats: Annotated[
        Path | None,
        Parameter(
            name="--pipeline-stats",
            help="Write what the driver says about the code of each pipeline, as CSV with the columns of "
            "`fossilize-replay --enable-pipeline-stats`. Creates every pipeline once more, without a cache.",
        ),
    ] = None,
    spirv_val: Annotated[
        Literal["off", "warn", "skip", "isolate"],
        Parameter(
            name="--spirv-val",
            help="What is done about shader modules that may be invalid. `warn`: ask spirv-val, and say what it "
            "refuses. `skip`: leave out the pipelines of modules that it refuses. `isolate`: compile every pipeline in "
            "a child process first, and leave out those that the driver dies of or does not come back from.",
        ),
    ] = "off",
    pipeline_keys: Annotated[
        Literal["auto", "all", "off"],
        Parameter(
            name="--pipeline-keys",
            help="Compile once what is the same pipeline to the driver. `auto`: ask it for the keys of pipelines that have "
            "their code in common and that the cache is not believed to hold. `all`: of all of those. `off`: ask for none.",
        ),
    ] = "auto",
    time_budget: Annotated[
        str,
        Parameter(
            name="--time-budget",
            help="Begin no more work after this time, such as `500ms`, `2s` or `8h`, counted from the first pipeline. What is "
            "done is kept, and running again goes on.",
            show_default=lambda _: "none",
        ),
    ] = "",
    json: JsonFlag = False,
) -> int:
    """Compile a set on a device over several workers, merge their caches, and keep the result.

    A second run loads the file that the first one saved. Ctrl-C stops after the calls in flight and keeps what is done.

    **EXAMPLES**

        orchestrator compile sample --device radv:navi21
        orchestrator compile game.foz game.1.foz --workers 8 --cache-dir build/cache
        orchestrator compile game.foz --mode shared --json > shared.json
        orchestrator compile unknown.foz --spirv-val isolate
        orchestrator compile game.foz --time-budget 8h
    """
    import trio

    from orchestrator.cli.compile_tables import show_report
    from orchestrator.cli.options import time_limit_seconds, usable_directory
    from orchestrator.cli.output import Output
    from orchestrator.cli.progress import progress_view
    from orchestrator.cli.set_names import open_set
    from orchestrator.devices import own_process
    from orchestrator.devices.device import CacheMode
    from orchestrator.run.compile import compile_set
    from orchestrator.run.options import BARRIER, ROLLING, CompileOptions, ModulePolicy, PipelineKeyUse
    from orchestrator.run.records import encode_json

    if merge == "rolling" and mode in ("shared", "none"):
        raise UsageError(
            f"--merge rolling: mode {mode} has no worker caches to merge",
            "use --mode per-worker or two-level",
        )
    count = _worker_count(workers)
    budget = time_limit_seconds(time_budget, "--time-budget") if time_budget else None
    directory = None if mode == "none" else usable_directory(cache_dir)
    options = CompileOptions(
        selector=device,
        driver_caches=driver_caches,
        workers=count,
        mode=None if mode == "auto" else CacheMode(mode),
        merge={"barrier": BARRIER, "rolling": ROLLING}.get(merge),
        relax_driver_version=relax_driver_version,
        spirv_val=ModulePolicy(spirv_val),
        pipeline_keys=PipelineKeyUse(pipeline_keys),
        inspect_executables=pipeline_stats is not None,
        time_limit_s=budget,
    )
    output = Output(json=json)
    with open_set(sets) as opened, progress_view(output) as view:

        async def job(stop: trio.Event) -> CompileReport:
            return await compile_set(
                opened,
                options,
                cache_directory=directory,
                stop=stop,
                on_stage=view.stage,
                on_progress=view.progress,
            )

        _require_writable(trace, pipeline_stats)
        own_process(device, driver_caches=driver_caches)
        report = trio.run(_until_signal, job, view)
        _write_extras(opened, report, trace=trace, pipeline_stats=pipeline_stats)
    output.document(encode_json(report))
    show_report(output, report)
    return _exit_code(report)


def _require_writable(*paths: Path | None) -> None:
    """Refuse places that cannot be written, before anything is compiled."""
    for path in paths:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise UsageError(f"{path}: cannot be written: it is a directory, or its directory is not there")


def _write_extras(
    source: PipelineSet, report: CompileReport, *, trace: Path | None, pipeline_stats: Path | None
) -> None:
    """Write the timeline and the statistics that were asked for.

    Raises:
        SaveError: One cannot be written.
    """
    from orchestrator.stores.files.atomic_file import write_atomically

    if trace is not None:
        from orchestrator.bench.trace import compile_spans, encode_trace

        write_atomically(trace, [encode_trace(compile_spans(report), process=f"compile {report.set.path}")])
    if pipeline_stats is not None:
        from orchestrator.bench.pipeline_statistics import PipelineStatistics, statistics_csv

        rows = [
            PipelineStatistics(
                source.name,
                each.kind,
                each.key,
                each.found.wall_ns,
                each.found.driver_ns,
                each.found.executables,
            )
            for each in report.inspected
        ]
        write_atomically(pipeline_stats, [statistics_csv(rows).encode("utf-8", "backslashreplace")])


def _worker_count(workers: str) -> int | None:
    if workers == "auto":
        return None
    if workers.isascii() and workers.isdigit() and 1 <= int(workers) <= 4096:
        return int(workers)
    raise UsageError(
        f"--workers {workers!r}: a number from 1 to 4096 is expected, or auto",
        "leave it out for one a processor",
    )


async def _until_signal(
    job: Callable[[trio.Event], Awaitable[CompileReport]], view: ProgressView
) -> CompileReport:
    """Run a job that the first SIGINT or SIGTERM asks to stop; the report of what was done by then."""
    import trio

    stop = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(_watch_signals, stop, view)
            report = await job(stop)
            nursery.cancel_scope.cancel()
    except ExceptionGroup as group:
        # The nursery wraps what the job raises; a caller wants the error itself.
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
    return report


async def _watch_signals(stop: trio.Event, view: ProgressView, *, task_status: trio.TaskStatus[None]) -> None:
    import trio

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if stop.is_set():
                view.say(
                    "a driver call cannot be interrupted: still waiting for those in flight, then what is done is saved "
                    "(SIGKILL would lose it)"
                )
            else:
                view.say(
                    "stopping: waiting for the driver calls in flight, then what is done is merged and saved"
                )
                stop.set()


def _exit_code(report: CompileReport) -> ExitCode:
    if report.stopped and not report.out_of_time:
        return ExitCode.INTERRUPTED
    if report.cache_file.error:
        return ExitCode.BAD_INPUT
    if report.out_of_time:
        return ExitCode.OUT_OF_TIME
    if report.outcomes.failed:
        return ExitCode.PIPELINES_FAILED
    return ExitCode.OK
