"""The work of the verb `compile`: opens the set, hands it to `compile_set`, shows how far it is, and reports.

Guarantees:
- SIGINT, SIGTERM and SIGHUP end the job early and in order: no further batch is handed out, the
  driver calls in flight are waited for (they cannot be cancelled), what was compiled is merged and
  saved, and the report is shown. One that comes while that is written changes nothing.
- A place that cannot be written is refused before anything is compiled.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from attrs import evolve, frozen

from orchestrator.cli.errors import ExitCode, UsageError, explain
from orchestrator.cli.output import OutputError, display
from orchestrator.cli.values import (
    MOST_WORKERS,
    archive_paths,
    hash_number,
    read_key,
    require_writable,
    restart_for,
    size_bytes,
    time_limit_seconds,
    usable_directory,
    write_beside,
)
from orchestrator.errors import DeviceError, OrchestratorError
from orchestrator.process import ending_signals, first_signal_waits

if TYPE_CHECKING:
    import trio

    from orchestrator.cli.compile_arguments import CompileArguments
    from orchestrator.cli.control import ControlLines, ProgressLines
    from orchestrator.cli.documents import TargetsDocument
    from orchestrator.cli.output import Output
    from orchestrator.cli.progress import ProgressView
    from orchestrator.packs.growing import GrowingPack
    from orchestrator.process import StageClock
    from orchestrator.run.options import CompileOptions
    from orchestrator.run.records import CompileReport
    from orchestrator.run.steering import Settlement, Steering
    from orchestrator.sets.pipeline_set import PipelineSet
    from orchestrator.sets.subset import Subset
    from orchestrator.stores.pack import PackManifest
    from orchestrator.supervise.server import CompileServer
    from orchestrator.supervise.targets import TargetResult

_T = TypeVar("_T")

_LEAST_MEMORY = 64 << 20
_MANIFEST = "manifest.json"  # of orchestrator.stores.pack, which few compiles need
_LEAST_STORE = 4 << 20


@frozen
class _Listeners:
    view: ProgressView
    control: ControlLines | None
    settled: Callable[[Settlement], None] | None = None
    saved: Callable[[Path, int], None] | None = None


def compile_sets(sets: list[str], arguments: CompileArguments, *, json: bool) -> int:
    """Do what the command line asks for; returns the exit code."""
    from orchestrator.cli.output import Output
    from orchestrator.process import process_clock

    # Before anything else opens a descriptor that the caller forgot to.
    clock = process_clock()
    lines = control = None
    if arguments.progress or arguments.control is not None:
        from orchestrator.cli.control import ControlLines, ProgressLines

        lines = ProgressLines.of_option(arguments.progress)
        if json and lines.on_stdout:
            raise UsageError(
                "--progress jsonl:1 and --json: both would be on stdout",
                "give the events another descriptor, as in --progress jsonl:3 3>FILE",
            )
        control = ControlLines.of_option(arguments.control, lines)
    if arguments.nice:
        os.nice(arguments.nice)
    output = Output(json=json)
    if (selector := _only_device(arguments)) is None:
        code = _compile_targets(sets, arguments, control, lines, output)
    else:
        code = _compile_one(sets, arguments, selector, control, lines, output, clock)
    if lines is not None:
        lines.end(code)
    return code


def _only_device(arguments: CompileArguments) -> str | None:
    given = arguments.device or [""]
    several = len(given) > 1 or arguments.out is not None or any(set("*?[") & set(each) for each in given)
    return None if several else given[0]


def compile_options(arguments: CompileArguments, selector: str) -> CompileOptions:
    """What is asked for, on one device.

    Raises:
        NoDeviceError: The selector is not UTF-8.
        UsageError: A number or a time is none, or two options contradict each other.
    """
    from orchestrator.run.options import BARRIER, ROLLING, CompileOptions, TrialLimits

    if arguments.merge == "rolling" and arguments.mode in ("shared", "binaries", "none"):
        raise UsageError(
            f"--merge rolling: mode {arguments.mode} has no worker caches to merge",
            "use --mode per-worker or two-level",
        )
    if arguments.identifiers and arguments.mode == "none":
        raise UsageError("--identifiers: mode none has no cache, so they would find nothing", "leave one out")
    return CompileOptions(
        selector=selector,
        driver_caches=arguments.driver_caches,
        workers=_worker_count(arguments.workers),
        mode=None if arguments.mode == "auto" else arguments.mode,
        cache_file_needed=arguments.out is not None,
        merge={"barrier": BARRIER, "rolling": ROLLING}.get(arguments.merge),
        relax_driver_version=arguments.relax_driver_version,
        binary_store_bytes=size_bytes(arguments.binaries_disk, "--binaries-disk", _LEAST_STORE)
        if arguments.binaries_disk
        else None,
        binary_memory_bytes=size_bytes(arguments.binaries_memory, "--binaries-memory"),
        spirv_val=arguments.spirv_val,
        pipeline_keys=arguments.pipeline_keys,
        inspect_executables=arguments.pipeline_stats is not None,
        subset=_subset(arguments.shard, arguments.only or ()),
        retry_quarantined=arguments.retry_quarantined or bool(arguments.only),
        trial_limits=TrialLimits(
            pipeline_s=_timeout_seconds(arguments.timeout),
            memory_bytes=size_bytes(arguments.memory, "--memory", _LEAST_MEMORY) if arguments.memory else 0,
        ),
        time_limit_s=time_limit_seconds(arguments.time_limit) if arguments.time_limit else None,
        plan=arguments.plan == "auto",
        identifiers=arguments.identifiers,
    )


def _subset(shard: str, only: Sequence[str]) -> Subset:
    from orchestrator.sets.subset import WHOLE, Subset

    if only:
        if shard:
            raise UsageError("--only and --shard: a key is in one shard only", "leave --shard out")
        return Subset(keys=frozenset(map(hash_number, only)))
    try:
        return Subset.from_text(shard) if shard else WHOLE
    except ValueError as error:
        raise UsageError(f"--shard {shard!r}: {error}") from None


def _timeout_seconds(text: str) -> float | None:
    if text == "auto":
        return None
    return math.inf if text == "off" else time_limit_seconds(text, "--timeout")


def _worker_count(workers: str) -> int | None:
    if workers == "auto":
        return None
    if workers.isascii() and workers.isdigit() and 1 <= int(workers) <= MOST_WORKERS:
        return int(workers)
    raise UsageError(
        f"--workers {workers!r}: a number from 1 to {MOST_WORKERS} is expected, or auto",
        "leave it out for one per processor",
    )


def _check_in_process(arguments: CompileArguments) -> None:
    tries = arguments.spirv_val == "isolate"
    of_child = {
        "--driver-log": arguments.driver_log is not None,
        "--timeout": arguments.timeout not in ("auto", "off") and not tries,
        "--memory": bool(arguments.memory) and not tries,
    }
    _refuse_given(of_child, "is for a child process", "leave out --in-process")


def _refuse_given(options: Mapping[str, bool], why: str, step: str) -> None:
    for option, is_given in options.items():
        if is_given:
            raise UsageError(f"{option} {why}", step)


def _compile_one(
    sets: list[str],
    arguments: CompileArguments,
    selector: str,
    control: ControlLines | None,
    lines: ProgressLines | None,
    output: Output,
    clock: StageClock,
) -> ExitCode:
    if arguments.key is not None:
        raise UsageError("--key signs packs", "name the pack's directory with --out")
    if arguments.in_process:
        _check_in_process(arguments)
        restart_for(selector)
    paths = archive_paths(sets)
    options = compile_options(arguments, selector)
    directory = None if arguments.mode == "none" else usable_directory(arguments.cache_dir)
    require_writable(arguments.trace, arguments.pipeline_stats, arguments.driver_log, inputs=paths)
    unwritten: list[OutputError] = []
    with ExitStack() as held:
        server: CompileServer | None = None
        if not arguments.in_process:
            server = held.enter_context(_started(paths, options, directory, control))
            clock.enter("supervise")
        from orchestrator.cli.progress import progress_view  # the child imports meanwhile

        if lines is not None:
            from orchestrator.sets.opening import open_paths

            with open_paths(paths) as source:
                lines.start((selector,), _planned(source, options.subset, control))
        with progress_view(output) as shown:
            listeners = _Listeners(shown, control)
            if lines is not None:
                from orchestrator.cli.control import LinesBeside

                view = LinesBeside(shown, lines, selector)
                listeners = _Listeners(view, control, view.settled, view.saved)
            if server is None:
                report = _compile_here(paths, options, directory, listeners, clock)
            else:
                log = held.enter_context(_log_file(arguments.driver_log, unwritten))
                report = _compile_supervised(server, paths, options, directory, listeners, log)
                for name in report.clock.__struct_fields__:
                    clock.move(getattr(report.clock, name), name.removesuffix("_ns"))
                clock.enter("report")
    report = _with_notes(report, _pack_notes(directory, [report]))
    with _reporting():
        if lines is not None:
            lines.ends(selector, report, report.cache_file.error or "")
        code = _exit_code(report, allow_damaged=arguments.allow_damaged)
        try:
            _show_one(output, report, clock, code)
        finally:
            # After the report, whose reader may be gone: that they cannot be written costs nothing but them.
            _write_extras(report, trace=arguments.trace, pipeline_stats=arguments.pipeline_stats)
    for error in unwritten:
        raise error
    return code


def _show_one(output: Output, report: CompileReport, clock: StageClock, code: ExitCode) -> None:
    if output.json:
        from orchestrator.cli.output import write_document
        from orchestrator.run.records import encode_report

        write_document([encode_report(report, clock)])
    elif not display.quiet or code:
        from orchestrator.cli.compile_report import show_clock, show_end, show_report

        if not display.quiet:
            show_report(output, report)
            show_clock(output, clock)
        show_end(output, report, code)


@contextmanager
def _reporting() -> Iterator[None]:
    try:
        with first_signal_waits():
            yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "interrupted while the report was written; the compile had ended and saved before that"
        ) from None


@contextmanager
def _log_file(path: Path | None, unwritten: list[OutputError]) -> Iterator[BinaryIO | None]:
    if path is None:
        yield None
        return
    file = path.open("wb")
    try:
        yield file
    finally:
        try:
            file.close()  # it holds what was not written before
        except OSError as error:
            from orchestrator.stores.files.atomic_file import likely_cause

            unwritten.append(OutputError(f"--driver-log {path}: cannot be written: {likely_cause(error)}"))


@contextmanager
def _started(
    paths: Sequence[str], options: CompileOptions, directory: Path | None, control: ControlLines | None
) -> Iterator[CompileServer]:
    from orchestrator.supervise.server import CompileServer, first_request

    first = first_request(options, directory) if control is None else None
    server = CompileServer.start(paths, options, first=first)
    try:
        yield server
    finally:
        server.close()


def _compile_supervised(
    server: CompileServer,
    paths: Sequence[str],
    options: CompileOptions,
    directory: Path | None,
    listeners: _Listeners,
    log: BinaryIO | None,
) -> CompileReport:
    import trio

    from orchestrator.supervise.supervisor import compile_supervised

    async def job(steering: Steering) -> CompileReport:
        return await compile_supervised(
            paths,
            options,
            cache_directory=directory,
            stop=steering.beside(listeners.settled, listeners.saved),
            on_stage=listeners.view.stage,
            on_progress=listeners.view.progress,
            server=server,
            log=log,
        )

    return trio.run(_until_signal, job, listeners.view.say, listeners.control)


def _compile_here(
    paths: Sequence[str],
    options: CompileOptions,
    directory: Path | None,
    listeners: _Listeners,
    clock: StageClock,
) -> CompileReport:
    import trio

    from orchestrator.run.compile import compile_set
    from orchestrator.sets.opening import open_paths
    from orchestrator.supervise.trial import try_pipelines

    clock.enter("read")
    with open_paths(paths, indexed=False) as opened:

        async def job(steering: Steering) -> CompileReport:
            own = evolve(steering.beside(listeners.settled, listeners.saved), try_pipelines=try_pipelines)
            return await compile_set(
                opened,
                options,
                cache_directory=directory,
                stop=own,
                on_stage=listeners.view.stage,
                on_progress=listeners.view.progress,
                clock=clock,
            )

        from orchestrator.devices.opening import own_process
        from orchestrator.malloc import keep_freed_memory

        keep_freed_memory()
        own_process(options.selector, driver_caches=options.driver_caches)
        return trio.run(_until_signal, job, listeners.view.say, listeners.control)


def _planned(source: PipelineSet, subset: Subset, control: ControlLines | None) -> int:
    jobs = [subset.of(each.pipelines) for each in subset.groups_of(source)]
    if control is not None:
        control.known = {job.key for each in jobs for job in each}
    return sum(map(len, jobs))


def _compile_targets(
    sets: list[str],
    arguments: CompileArguments,
    control: ControlLines | None,
    lines: ProgressLines | None,
    output: Output,
) -> ExitCode:
    import trio

    from orchestrator.cli.control import ProgressLines
    from orchestrator.cli.progress import progress_view
    from orchestrator.cli.targets_view import TargetsView
    from orchestrator.packs.growing import GrowingPack
    from orchestrator.sets.opening import open_paths
    from orchestrator.supervise.targets import compile_targets, selectors_of

    _check_targets(arguments)
    paths, targets = archive_paths(sets), selectors_of(arguments.device or ())
    options = [compile_options(arguments, each) for each in targets]
    key = read_key(arguments.key)
    out = arguments.out
    manifest = unwritten = None
    with ExitStack() as held:
        # First, so that a mistake in the command takes no target out of a good pack.
        source = held.enter_context(open_paths(paths))
        pipelines = _planned(source, options[0].subset, control)
        directory = None if out is None else out.absolute()
        if arguments.mode != "none" and (out is None or arguments.cache_dir is not None):
            directory = usable_directory(arguments.cache_dir).absolute()
        pack = None if out is None else held.enter_context(GrowingPack.writing(out, key, targets))
        lines = lines or ProgressLines(None)
        lines.start(targets, pipelines)
        with progress_view(output) as shown:
            view = TargetsView(shown, lines, len(targets), says_ends=not output.json)

            async def job(steering: Steering) -> list[TargetResult]:
                return await compile_targets(
                    paths,
                    options,
                    pipelines=pipelines,
                    cache_directory=directory,
                    listener=view,
                    stop=steering,
                    keep=None if pack is None else pack.take,
                )

            results = trio.run(_until_signal, job, view.say, control)
        if pack is not None:
            manifest, unwritten = _finished(pack, results)
            lost = pack.problems
            results = [evolve(each, error=lost.get(each.selector, each.error)) for each in results]
        if directory is not None and (out is None or not directory.samefile(out)):
            notes = _pack_notes(directory, [each.report for each in results if each.report])
            results = [
                evolve(each, report=each.report and _with_notes(each.report, notes)) for each in results
            ]
    with _reporting():
        _show_targets(output, arguments, results, manifest)
    if unwritten is not None:
        raise unwritten
    return _targets_exit_code(results, allow_damaged=arguments.allow_damaged)


def _check_targets(arguments: CompileArguments) -> None:
    of_one = {
        "--trace": arguments.trace is not None,
        "--pipeline-stats": arguments.pipeline_stats is not None,
        "--driver-log": arguments.driver_log is not None,
        "--in-process": arguments.in_process,
    }
    _refuse_given(of_one, "is for one device", "name one, without --out")
    if arguments.out is None and arguments.key is not None:
        raise UsageError("--key signs packs", "name the pack's directory with --out")
    if arguments.out is not None and arguments.mode == "none":
        raise UsageError("--out: mode none keeps nothing, so there would be nothing in the pack")


def _finished(
    pack: GrowingPack, results: Sequence[TargetResult]
) -> tuple[PackManifest | None, OrchestratorError | None]:
    # The error costs the pack, not the report: it is raised after that.
    from orchestrator.stores.files.atomic_file import SaveError
    from orchestrator.stores.pack import PackError

    try:
        return pack.finish(results), None
    except (PackError, SaveError) as error:
        return None, error


def _show_targets(
    output: Output,
    arguments: CompileArguments,
    results: Sequence[TargetResult],
    manifest: PackManifest | None,
) -> None:
    from orchestrator.cli.compile_report import show_failed
    from orchestrator.cli.output import styled
    from orchestrator.cli.packs import show_pack, show_results

    output.document(lambda: _targets_document(results, arguments.out))
    if not display.quiet:
        show_results(output, results)
        for result in results:
            if result.report is not None and result.report.failed:
                output.line("")
                output.line(styled(result.selector, "head"))
                show_failed(output, result.report.failed)
        if manifest is not None and arguments.out is not None:
            show_pack(output, arguments.out, manifest, signed=arguments.key is not None)
    if not output.json:
        _show_ends(output, results, allow_damaged=arguments.allow_damaged)


def _show_ends(output: Output, results: Sequence[TargetResult], *, allow_damaged: bool) -> None:
    from orchestrator.cli.compile_report import show_end
    from orchestrator.cli.output import styled

    for each in results:
        if each.error is not None:
            output.problem(styled(f"{each.selector}: {each.error}", "bad"))
        elif each.report is None:
            output.problem(
                styled(f"{each.selector}: stopped before its turn; run it again to continue", "warn")
            )
        if each.report is not None:
            code = _exit_code(each.report, allow_damaged=allow_damaged)
            if code or not display.quiet:
                show_end(output, each.report, code, each.selector)


def _pack_notes(directory: Path | None, reports: Sequence[CompileReport]) -> tuple[str, ...]:
    compiled = any(each.outcomes.compiled for each in reports)
    if directory is None or not compiled or not (directory / _MANIFEST).exists():
        return ()
    from orchestrator.cli.output import path_text
    from orchestrator.stores.pack import Pack, PackError

    with suppress(PackError):
        if any(Pack.open(directory).problems()):
            place = path_text(directory)
            return (
                f"{place} is a pack whose files are not what its manifest says any more, so `verify` calls "
                f"it damaged; the same command with `--out {place}` in place of --cache-dir puts that right",
            )
    return ()


def _with_notes(report: CompileReport, notes: tuple[str, ...]) -> CompileReport:
    from msgspec.structs import replace

    return replace(report, notes=(*report.notes, *notes)) if notes else report


def _targets_document(results: Sequence[TargetResult], out: Path | None) -> TargetsDocument:
    from orchestrator.cli.documents import CompiledTarget, TargetsDocument
    from orchestrator.cli.output import path_text

    return TargetsDocument(
        pack=None if out is None else path_text(out),
        targets=tuple(
            CompiledTarget(
                selector=each.selector,
                problem=None if each.error is None else str(each.error),
                report=each.report,
            )
            for each in results
        ),
    )


def _targets_exit_code(results: Sequence[TargetResult], *, allow_damaged: bool) -> ExitCode:
    errors = [each.error for each in results if each.error is not None and each.report is None]
    if len(errors) == len(results):
        return explain(errors[0]).exit_code
    codes = {
        # One with both was compiled, and the pack did not take it.
        ExitCode.BAD_INPUT if each.error else _exit_code(each.report, allow_damaged=allow_damaged)
        for each in results
        if each.report is not None
    }
    if any(each.report is None and each.error is None for each in results):
        codes.add(ExitCode.OUT_OF_TIME if ExitCode.OUT_OF_TIME in codes else ExitCode.INTERRUPTED)
    if errors:
        codes.add(ExitCode.PIPELINES_FAILED)
    worst = (
        ExitCode.INTERRUPTED,
        ExitCode.BAD_INPUT,
        ExitCode.OUT_OF_TIME,
        ExitCode.PIPELINES_FAILED,
    )
    return next((each for each in worst if each in codes), ExitCode.OK)


def _write_extras(report: CompileReport, *, trace: Path | None, pipeline_stats: Path | None) -> None:
    if trace is not None:
        from orchestrator.bench.trace import compile_spans, encode_trace

        spans = compile_spans(report)
        write_beside("--trace", trace, encode_trace(spans, process=f"compile {report.set.path}"))
    if pipeline_stats is not None:
        from orchestrator.cli.executable_statistics import statistics_csv

        text = statistics_csv(report.set.path, report.inspected)
        write_beside("--pipeline-stats", pipeline_stats, text.encode("utf-8", "backslashreplace"))


async def _until_signal(
    job: Callable[[Steering], Awaitable[_T]], say: Callable[[str], None], control: ControlLines | None
) -> _T:
    # The first ending signal stops the job, and commands steer it. A stopped job without a report, because
    # there is no device to go on with, is an interrupt.
    import trio

    from orchestrator.run.first_error import first_error
    from orchestrator.run.steering import Steering

    steering = Steering(steered=control is not None)
    try:
        with first_error():
            async with trio.open_nursery() as nursery:
                await nursery.start(_watch_signals, steering.stop, say)
                if control is not None:
                    await nursery.start(control.serve, steering)
                report = await job(steering)
                nursery.cancel_scope.cancel()
    except DeviceError as error:
        if steering.stop.is_set():
            raise KeyboardInterrupt(str(error)) from None
        raise
    return report


async def _watch_signals(
    stop: trio.Event, say: Callable[[str], None], *, task_status: trio.TaskStatus[None]
) -> None:
    import trio

    with trio.open_signal_receiver(*ending_signals()) as signals:
        task_status.started()
        async for _ in signals:
            if stop.is_set():
                say(
                    "a driver call cannot be interrupted: still waiting for those in flight, then what is "
                    "done is saved (SIGKILL would lose it)"
                )
            else:
                say("stopping: waiting for the driver calls in flight, then what is done is merged and saved")
                stop.set()


def _exit_code(report: CompileReport, *, allow_damaged: bool) -> ExitCode:
    lost = any(each.device_lost for each in report.runs)
    if report.stopped and not report.out_of_time and not lost:
        return ExitCode.INTERRUPTED
    if report.cache_file.error or (report.binaries is not None and report.binaries.lost):
        return ExitCode.BAD_INPUT
    if report.out_of_time:
        return ExitCode.OUT_OF_TIME
    if report.outcomes.failed or (report.set.damage and not allow_damaged):
        return ExitCode.PIPELINES_FAILED
    return ExitCode.OK
