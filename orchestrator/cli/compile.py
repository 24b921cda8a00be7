"""The verb `compile`: opens the set, hands it to `compile_set`, shows how far it is, and reports.

Guarantees:
- SIGINT, SIGTERM and SIGHUP end the job early and in order: no further batch is handed out, the
  driver calls in flight are waited for (they cannot be cancelled), what was compiled is merged and
  saved, and the report is shown.
- A place that cannot be written is refused before anything is compiled.
- Every figure of the report for people is one of `CompileReport`; lists are cut where they get long, and say
  so.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, TypeVar

from attrs import frozen
from cyclopts import Parameter
from rich.text import Text

from orchestrator.cli.display import display
from orchestrator.cli.errors import ExitCode, UsageError, explain
from orchestrator.cli.options import (
    DEVICE_HELP,
    FIRST_DEVICE,
    MOST_WORKERS,
    CacheDirectory,
    Flag,
    JsonFlag,
    KeyFile,
    SetNames,
    archive_paths,
    hash_number,
    in_range,
    own_target,
    read_key,
    require_writable,
    size_bytes,
    time_limit_seconds,
    usable_directory,
)
from orchestrator.cli.output import (
    Output,
    Style,
    byte_text,
    damage_text,
    driver_text,
    key_text,
    path_text,
    plural,
    seconds_text,
    styled,
    table,
    write_json,
)
from orchestrator.cli.signals import ending_signals

if TYPE_CHECKING:
    import trio

    from orchestrator.cli.control_lines import ControlLines
    from orchestrator.cli.documents import TargetsDocument
    from orchestrator.cli.progress import ProgressView
    from orchestrator.cli.progress_lines import LinesBeside, ProgressLines
    from orchestrator.devices.image import PipelineKind
    from orchestrator.process import StageClock
    from orchestrator.run.compile_server import CompileServer
    from orchestrator.run.options import CompileOptions
    from orchestrator.run.records import (
        BinariesRecord,
        CompileReport,
        IdentifiersRecord,
        OutcomeStatus,
        PipelineOutcome,
        Savings,
    )
    from orchestrator.run.steering import Steering
    from orchestrator.run.targets import TargetResult
    from orchestrator.sets.pipeline_set import PipelineSet
    from orchestrator.sets.prepare import Subset

    _Rows = Iterator[tuple[str, str | Text]]

_T = TypeVar("_T")

_REASONS_SHOWN = 10
_KEYS_SHOWN = 3
_FAILED_SHOWN = 20
_DAMAGE_SHOWN = 5
_GROUPS_SHOWN = 4
_STAGES = {"read": "set", "open": "device", "cache_load": "loading", "save": "saving", "merge": "merging"}
_MESSAGES_SHOWN = 5
_NOTABLE = 0.05
"""Share of the driver's time from which time asleep is explained."""
_LEAST_MEMORY = 64 << 20
_LEAST_STORE = 4 << 20


@frozen(kw_only=True)
class CompileArguments:
    """`CompileOptions` and places, as they are said on the command line.

    Attributes:
        workers: Number of workers, or `auto`: what `calibrate` found best, else one a processor.
        mode: `auto`: what `calibrate` found best on the device, else `per-worker`. `shared`: one cache for
            all workers. `per-worker`: one externally synchronized cache each, merged at the end.
            `per-worker-internal`: the same without the flag, as a control. `two-level`: look up in the merged
            cache, compile what it lacks in a cache for each worker, merge on the way. `binaries`: keep the
            binaries of each pipeline in a store of ours (VK_KHR_pipeline_binary). `none`: no cache, nothing
            is kept.
        merge: `barrier`: merge worker caches at the end. `rolling`: also while workers run, and save what is
            merged. `auto`: rolling in mode two-level, else at the end.
        driver_caches: Leave the driver's own disk and memory caches on; figures then say little about the
            cache here.
        relax_driver_version: Load a cache file of another driverVersion if all else agrees. For desktop
            drivers that change pipelineCacheUUID whenever their data changes.
        trace: Write a timeline: Chrome trace events, which ui.perfetto.dev opens.
        pipeline_stats: Write what the driver says about the code of each pipeline, as CSV with the columns of
            `fossilize-replay --enable-pipeline-stats`. Creates every pipeline once more, without a cache.
        spirv_val: What is done about shader modules that may be invalid. `warn`: ask spirv-val, and say what
            it refuses. `skip`: leave out the pipelines of modules that it refuses. `isolate`: compile every
            pipeline in a child process first, and leave out those that the driver dies of or does not come
            back from.
        pipeline_keys: Compile once what is the same pipeline to the driver. `auto`: ask it for the keys of
            pipelines that have their code in common and that the cache is not expected to hold. `all`: of all
            of those. `off`: ask for none.
        time_limit: Begin no more work after this time, such as `500ms`, `2s` or `8h`, counted from the first
            pipeline; a number alone is seconds. What is done is kept, and running again goes on.
        shard: Compile one of N parts of the set only, `K/N` such as `2/4`: each pipeline is in one of them,
            which its key decides. For several processes or machines that share the work.
        plan: Whether the decoded set is kept beside the cache file as a plan, which the next run takes
            instead of reading the set. `off`: neither.
        identifiers: Create pipelines from identifiers of their shader modules first, and read the SPIR-V only
            of those that the driver does not find so (VK_EXT_shader_module_identifier). Identifiers are kept
            in the cache directory.
        only: Compile the pipeline of this key only, 16 hex digits as reports show them, also where it is in
            quarantine. May be given several times.
        retry_quarantined: Try pipelines again that ended the driver in an earlier run. Those that compile now
            leave the quarantine.
        timeout: What the driver may take for one pipeline, such as `5s`, before its process is killed and the
            pipeline blamed, or `off`. `auto`: 60 s, or 20 times what was recorded of it, whichever is more;
            longer on a machine that is busy.
        binaries_disk: What the store of mode `binaries` may have on disk from now on, such as `2G`. What is
            worth least leaves it first.
        binaries_memory: What binaries may have that are made ahead of time, such as `1G`; the others are read
            when they are needed.
        memory: What a process that compiles may have for its data, such as `2G` or `500M`. Where a pipeline
            alone takes more, it is blamed.
        driver_log: Write all that the driver prints to this file.
        in_process: Compile in this process, which a crash of the driver then ends, such as for a debugger.
        allow_damaged: Exit with 0 also where records of the set could not be read, if all that could be read
            compiled.
        out: Make a pack: a directory with the cache files of all targets, or in mode binaries with what their
            pipelines were compiled to, and a manifest. Cache files are kept
            there while they are made, unless --cache-dir says otherwise, so the same command goes on.
        progress: `jsonl`: write how far it is, one JSON object a line, to descriptor 3; `jsonl:FD`: to
            another one. For programs.
        control: Take commands from this descriptor, one JSON object a line: what comes first, what is left
            out, how long work may begin, and to stop. Needs `--progress`, for the answers.
        nice: Let other programs of this machine go first: 0 to 19, as nice(1).
    """

    device: Annotated[
        list[str] | None,
        FIRST_DEVICE,
        Parameter(
            help=DEVICE_HELP
            + " A pattern such as `radv:*` is every family that the installed driver has. May "
            "be given several times."
        ),
    ] = None
    workers: Annotated[str, Parameter(alias="-j")] = "auto"
    mode: Literal["auto", "shared", "per-worker", "per-worker-internal", "two-level", "binaries", "none"] = (
        "auto"
    )
    merge: Literal["auto", "barrier", "rolling"] = "auto"
    cache_dir: Annotated[
        CacheDirectory, Parameter(help="Where the cache file is kept, one file a device and driver.")
    ] = None
    driver_caches: Flag = False
    relax_driver_version: Flag = False
    trace: Path | None = None
    pipeline_stats: Path | None = None
    spirv_val: Literal["off", "warn", "skip", "isolate"] = "off"
    pipeline_keys: Literal["auto", "all", "off"] = "auto"
    time_limit: Annotated[str, Parameter(alias="--time-budget", show_default=lambda _: "none")] = ""
    shard: Annotated[str, Parameter(show_default=lambda _: "all of it")] = ""
    plan: Literal["auto", "off"] = "auto"
    identifiers: Flag = False
    only: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    retry_quarantined: Flag = False
    timeout: str = "auto"
    binaries_disk: Annotated[str, Parameter(show_default=lambda _: "as before, else 512M")] = ""
    binaries_memory: str = "256M"
    memory: Annotated[str, Parameter(show_default=lambda _: "no limit")] = ""
    driver_log: Path | None = None
    in_process: Flag = False
    allow_damaged: Flag = False
    out: Annotated[Path | None, Parameter(alias="-o", show_default=lambda _: "none")] = None
    key: KeyFile = None
    progress: Annotated[str, Parameter(show_default=lambda _: "none")] = ""
    control: Annotated[int | None, Parameter(show_default=lambda _: "none", validator=in_range(0))] = None
    nice: Annotated[int, Parameter(validator=in_range(0, 19))] = 0

    def options(self, selector: str) -> CompileOptions:
        """What is asked for, on one device.

        Raises:
            UsageError: A number or a time is none, or two options contradict each other.
        """
        from orchestrator.run.options import BARRIER, ROLLING, CompileOptions, TrialLimits

        if self.merge == "rolling" and self.mode in ("shared", "binaries", "none"):
            raise UsageError(
                f"--merge rolling: mode {self.mode} has no worker caches to merge",
                "use --mode per-worker or two-level",
            )
        if self.identifiers and self.mode == "none":
            raise UsageError(
                "--identifiers: mode none has no cache, so nothing would be found by them", "leave one out"
            )
        return CompileOptions(
            selector=selector,
            driver_caches=self.driver_caches,
            workers=_worker_count(self.workers),
            mode=None if self.mode == "auto" else self.mode,
            cache_file_needed=self.out is not None,
            merge={"barrier": BARRIER, "rolling": ROLLING}.get(self.merge),
            relax_driver_version=self.relax_driver_version,
            binary_store_bytes=size_bytes(self.binaries_disk, "--binaries-disk", _LEAST_STORE)
            if self.binaries_disk
            else None,
            binary_memory_bytes=size_bytes(self.binaries_memory, "--binaries-memory"),
            spirv_val=self.spirv_val,
            pipeline_keys=self.pipeline_keys,
            inspect_executables=self.pipeline_stats is not None,
            subset=_subset(self.shard, self.only),
            retry_quarantined=self.retry_quarantined or bool(self.only),
            trial_limits=TrialLimits(
                pipeline_s=_timeout_seconds(self.timeout),
                memory_bytes=size_bytes(self.memory, "--memory", _LEAST_MEMORY) if self.memory else 0,
            ),
            time_limit_s=time_limit_seconds(self.time_limit) if self.time_limit else None,
            plan=self.plan == "auto",
            identifiers=self.identifiers,
        )


def _subset(shard: str, only: Sequence[str]) -> Subset:
    from orchestrator.sets.prepare import WHOLE, Subset

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
        "leave it out for one a processor",
    )


def compile_verb(
    sets: SetNames,
    /,
    arguments: Annotated[CompileArguments, Parameter(name="*")] = CompileArguments(),
    *,
    json: JsonFlag = False,
) -> int:
    """Compile a set on a device over several workers, merge their caches, and keep the result.

    A second run loads the file that the first one saved. Ctrl-C stops after the calls in flight and keeps
    what is done. The driver works in a child process: a pipeline that it dies of fails, is named, and is left
    out by later runs, and everything else is compiled.

    **EXAMPLES**

        orchestrator compile sample --device radv:navi21
        orchestrator compile game.foz game.1.foz --workers 8 --cache-dir build/cache
        orchestrator compile game.foz --mode shared --json > shared.json
        orchestrator compile unknown.foz --timeout 20s --memory 4G
        orchestrator compile game.foz --only 43210c2d62f9536c
        orchestrator compile game.foz --time-limit 8h
        orchestrator compile game.foz --identifiers
        orchestrator compile game.foz --shard 2/4 --cache-dir build/shard2
        orchestrator compile game.foz -d radv:navi21 -d radv:navi31 --out pack
        orchestrator compile game.foz --device 'radv:*' --out pack --nice 10
    """
    from orchestrator.cli.control_lines import ControlLines
    from orchestrator.cli.progress_lines import ProgressLines
    from orchestrator.process import process_clock

    # Before anything else opens a descriptor that the caller forgot to.
    clock = process_clock()
    lines = ProgressLines.of_option(arguments.progress)
    control = ControlLines.of_option(arguments.control, lines)
    if arguments.nice:
        os.nice(arguments.nice)
    given = arguments.device or [""]
    output = Output(json=json)
    if len(given) > 1 or arguments.out is not None or any(set("*?[") & set(each) for each in given):
        code = _compile_targets(sets, arguments, control, lines, output)
    else:
        code = _compile_one(sets, arguments, given[0], control, lines, output, clock)
    lines.end(code)
    return code


def _compile_one(
    sets: list[str],
    arguments: CompileArguments,
    selector: str,
    control: ControlLines,
    lines: ProgressLines,
    output: Output,
    clock: StageClock,
) -> ExitCode:
    with ExitStack() as held:
        if arguments.key is not None:
            raise UsageError("--key signs packs", "name the pack's directory with --out")
        paths = archive_paths(sets)
        options = arguments.options(selector)
        directory = None if arguments.mode == "none" else usable_directory(arguments.cache_dir)
        require_writable(arguments.trace, arguments.pipeline_stats, arguments.driver_log)
        # A fork has what is imported by now, and this process loads the rest beside it.
        server = None if arguments.in_process else held.enter_context(_started(paths, options))
        from orchestrator.cli.progress import progress_view
        from orchestrator.cli.progress_lines import LinesBeside
        from orchestrator.run.records import encode_report
        from orchestrator.sets.opening import open_paths

        if lines.wanted:
            with open_paths(paths) as source:
                lines.start((selector,), _planned(source, options.subset, control))
        with progress_view(output, quiet=display.quiet) as shown:
            view = LinesBeside(shown, lines, selector)
            if server is None:
                report = _compile_here(paths, options, directory, view, control, clock)
            else:
                log = arguments.driver_log
                file = None if log is None else held.enter_context(log.open("wb"))
                clock.enter("supervise")
                report = _compile_supervised(server, paths, options, directory, view, control, file)
                for name in report.clock.__struct_fields__:
                    clock.move(getattr(report.clock, name), name.removesuffix("_ns"))
                clock.enter("report")
    lines.ends(selector, report, report.cache_file.error or "")
    if output.json:
        write_json(encode_report(report, clock))
    elif not display.quiet:
        show_report(output, report)
        _show_clock(output, clock)
    code = _exit_code(report, allow_damaged=arguments.allow_damaged)
    if not display.quiet or code:
        _show_end(output, report, code)
    # After the report: that they cannot be written costs nothing but them.
    _write_extras(report, trace=arguments.trace, pipeline_stats=arguments.pipeline_stats)
    return code


@contextmanager
def _started(paths: Sequence[str], options: CompileOptions) -> Iterator[CompileServer]:
    """A child that compiles the set, for the block."""
    from orchestrator.process import may_fork
    from orchestrator.run.compile_server import CompileServer

    server = CompileServer.start(paths, options, fork=may_fork())
    try:
        yield server
    finally:
        server.close()


def _compile_supervised(
    server: CompileServer,
    paths: Sequence[str],
    options: CompileOptions,
    directory: Path | None,
    view: LinesBeside,
    control: ControlLines,
    log: BinaryIO | None,
) -> CompileReport:
    import trio

    from orchestrator.run.supervisor import compile_supervised

    async def job(steering: Steering) -> CompileReport:
        return await compile_supervised(
            paths,
            options,
            cache_directory=directory,
            stop=steering.beside(view.settled, view.saved),
            on_stage=view.stage,
            on_progress=view.progress,
            server=server,
            log=log,
        )

    return trio.run(_until_signal, job, view, control)


def _compile_here(
    paths: Sequence[str],
    options: CompileOptions,
    directory: Path | None,
    view: LinesBeside,
    control: ControlLines,
    clock: StageClock,
) -> CompileReport:
    import trio

    from orchestrator.run.compile import compile_set
    from orchestrator.sets.opening import open_paths

    clock.enter("read")
    with open_paths(paths, indexed=False) as opened:

        async def job(steering: Steering) -> CompileReport:
            return await compile_set(
                opened,
                options,
                cache_directory=directory,
                stop=steering.beside(view.settled, view.saved),
                on_stage=view.stage,
                on_progress=view.progress,
                clock=clock,
            )

        own_target(options.selector, driver_caches=options.driver_caches)
        return trio.run(_until_signal, job, view, control)


def _planned(source: PipelineSet, subset: Subset, control: ControlLines) -> int:
    """How many pipelines a device is to create, those of each group counted; commands may name them."""
    jobs = [subset.of(each.pipelines) for each in subset.groups_of(source)]
    if control.wanted:
        control.known = {job.key for each in jobs for job in each}
    return sum(map(len, jobs))


def _compile_targets(
    sets: list[str],
    arguments: CompileArguments,
    control: ControlLines,
    lines: ProgressLines,
    output: Output,
) -> ExitCode:
    """Compile for several targets, each in a child process, and make a pack where one is asked for."""
    import trio

    from orchestrator.cli.packs import show_pack, show_results
    from orchestrator.cli.progress import progress_view
    from orchestrator.cli.targets_view import TargetsView
    from orchestrator.run.packs import GrowingPack
    from orchestrator.run.target_servers import target_servers
    from orchestrator.run.targets import compile_targets, selectors_of
    from orchestrator.sets.opening import open_paths

    of_one = {
        "--trace": arguments.trace is not None,
        "--pipeline-stats": arguments.pipeline_stats is not None,
        "--driver-log": arguments.driver_log is not None,
        "--in-process": arguments.in_process,
    }
    for option, is_given in of_one.items():
        if is_given:
            raise UsageError(f"{option} is for one device", "name one, without --out")
    if arguments.out is None and arguments.key is not None:
        raise UsageError("--key signs packs", "name the pack's directory with --out")
    if arguments.out is not None and arguments.mode == "none":
        raise UsageError("--out: mode none keeps nothing, so there would be nothing in the pack")
    paths, targets = archive_paths(sets), selectors_of(arguments.device or ())
    options = [arguments.options(each) for each in targets]
    key = read_key(arguments.key)
    pack = None if arguments.out is None else GrowingPack.begin(arguments.out, key, targets)
    place = arguments.cache_dir or arguments.out
    directory = None if arguments.mode == "none" else usable_directory(place).absolute()
    with ExitStack() as held:
        source = held.enter_context(open_paths(paths))
        pipelines = _planned(source, options[0].subset, control)
        # Before anything here starts a thread.
        servers = held.enter_context(target_servers(source, paths, options))
        lines.start(targets, pipelines)
        view = held.enter_context(progress_view(output, quiet=display.quiet))

        async def job(steering: Steering) -> list[TargetResult]:
            return await compile_targets(
                paths,
                options,
                pipelines=pipelines,
                cache_directory=directory,
                listener=TargetsView(view, lines, len(targets), says_ends=not output.json),
                stop=steering,
                keep=None if pack is None else pack.take,
                compiler=servers.compile,
            )

        results = trio.run(_until_signal, job, view, control)
    manifest = None if pack is None else pack.finish(results)
    output.document(lambda: _targets_document(results, arguments.out))
    if not display.quiet:
        show_results(output, results)
        for result in results:
            if result.report is not None and result.report.failed:
                output.line("")
                output.line(styled(result.selector, "head"))
                _show_failed(output, result.report.failed)
        if manifest is not None and arguments.out is not None:
            show_pack(output, arguments.out, manifest, signed=key is not None)
    return _targets_exit_code(results, allow_damaged=arguments.allow_damaged)


def _targets_document(results: Sequence[TargetResult], out: Path | None) -> TargetsDocument:
    from orchestrator.cli.documents import CompiledTarget, TargetsDocument

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
    """The worst of the targets'; where none could be compiled, that of the first error."""
    errors = [each.error for each in results if each.error is not None]
    if len(errors) == len(results):
        return explain(errors[0]).exit_code
    codes = {
        _exit_code(each.report, allow_damaged=allow_damaged) for each in results if each.report is not None
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
    """Write the timeline and the statistics that were asked for.

    Raises:
        SaveError: One cannot be written.
    """
    from orchestrator.stores.files.atomic_file import write_atomically

    if trace is not None:
        from orchestrator.bench.trace import compile_spans, encode_trace

        write_atomically(trace, [encode_trace(compile_spans(report), process=f"compile {report.set.path}")])
    if pipeline_stats is not None:
        from orchestrator.cli.executable_statistics import statistics_csv

        text = statistics_csv(report.set.path, report.inspected)
        write_atomically(pipeline_stats, [text.encode("utf-8", "backslashreplace")])


async def _until_signal(
    job: Callable[[Steering], Awaitable[_T]], view: ProgressView, control: ControlLines
) -> _T:
    """Run a job that the first ending signal stops, and commands steer; the report of what was done."""
    import trio

    from orchestrator.run.steering import Steering

    steering = Steering(steered=control.wanted)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(_watch_signals, steering.stop, view)
            await nursery.start(control.serve, steering)
            report = await job(steering)
            nursery.cancel_scope.cancel()
    except ExceptionGroup as group:
        # The nursery wraps what the job raises; a caller wants the error itself.
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
    return report


async def _watch_signals(stop: trio.Event, view: ProgressView, *, task_status: trio.TaskStatus[None]) -> None:
    import trio

    with trio.open_signal_receiver(*ending_signals()) as signals:
        task_status.started()
        async for _ in signals:
            if stop.is_set():
                view.say(
                    "a driver call cannot be interrupted: still waiting for those in flight, then what is "
                    "done is saved (SIGKILL would lose it)"
                )
            else:
                view.say(
                    "stopping: waiting for the driver calls in flight, then what is done is merged and saved"
                )
                stop.set()


def _exit_code(report: CompileReport, *, allow_damaged: bool) -> ExitCode:
    if report.stopped and not report.out_of_time:
        return ExitCode.INTERRUPTED
    if report.cache_file.error:
        return ExitCode.BAD_INPUT
    if report.out_of_time:
        return ExitCode.OUT_OF_TIME
    if report.outcomes.failed or (report.set.damage and not allow_damaged):
        return ExitCode.PIPELINES_FAILED
    return ExitCode.OK


def _show_end(output: Output, report: CompileReport, code: ExitCode) -> None:
    """The last lines: what the exit code is about, and whether anything was compiled at all."""
    say = output.message if display.quiet and not output.json else output.line
    created = report.outcomes.compiled + report.outcomes.cache_hits
    if not created and not report.stopped and not report.outcomes.failed:
        every = plural(report.outcomes.skipped, "pipeline")
        why = (
            f"the device can take none of the {every}" if report.outcomes.skipped else "it holds no pipeline"
        )
        say(styled(f"nothing was compiled: {why}", "warn"))
    if report.set.damage:
        lost = f"{plural(len(report.set.damage), 'place')} of the set could not be read"
        hint = "" if code is ExitCode.OK else "; --allow-damaged takes that for success"
        say(styled(f"damaged: {lost}, and what was there is not compiled{hint}", "bad"))
    if report.cache_file.error:
        say(styled(f"not saved, and lost: {report.cache_file.error}", "bad"))


def show_report(output: Output, report: CompileReport) -> None:
    """Write the report to stdout; silent with --json."""
    _show_head(output, report)
    _show_counts(output, report)
    _show_skipped(output, report.skipped)
    _show_failed(output, report.failed)
    _show_supervision(output, report)
    _show_damage(output, report)
    output.line("")
    output.facts(
        [*_saved_rows(report.saved), *_merge_rows(report), *_cache_rows(report), *_time_rows(report)]
    )
    for note in report.notes:
        output.line(styled("note: ", "warn"), note)
    for warning in (each for run in report.runs if run.merge is not None for each in run.merge.warnings):
        output.line(styled("warning: ", "warn"), warning)
    if report.stopped:
        left = f"{report.outcomes.not_run:,} of {plural(report.set.unique, 'pipeline')} remain"
        output.line(
            styled(f"stopped before its end: {left}; run it again to go on from what was saved", "warn")
        )


def _show_clock(output: Output, clock: StageClock) -> None:
    """Write where the time of the process went, the rest of the report included: so it is the last line."""
    from orchestrator.run.records import Clock

    spent = Clock.of(clock)
    named = [(name.removesuffix("_ns"), getattr(spent, name)) for name in spent.__struct_fields__]
    stages = ", ".join(f"{_STAGES.get(name, name)} {_time(ns)}" for name, ns in named if ns)
    output.line(styled("process: ", "dim"), f"{_time(spent.total_ns)}: {stages}")


def _show_head(output: Output, report: CompileReport) -> None:
    device = report.device
    output.line(
        styled(path_text(report.set.path), "head"),
        " on ",
        styled(device.device_name, "head"),
        styled(f"  {driver_text(device)}", "dim"),
    )
    output.line(f"mode {report.mode.value}, {plural(report.workers, 'worker')}")
    if (subset := report.set.subset) is not None:
        part = f"shard {subset.shard}/{subset.shards}" if subset.shards > 1 else "chosen by key"
        output.line(f"{part}: {report.set.unique:,} of {plural(subset.of, 'pipeline')}")
    for each in report.set.groups[: output.most(_GROUPS_SHOWN)]:
        of = each.opened_as.application
        whose = f" of {of}" if of else ""
        output.line(f"device{whose} opened as {each.opened_as.request.text}")
    _show_rest(output, len(report.set.groups) - _GROUPS_SHOWN, "group")
    output.line("")


def _show_counts(output: Output, report: CompileReport) -> None:
    from orchestrator.devices.image import PipelineKind
    from orchestrator.run.records import OutcomeStatus

    columns: list[tuple[OutcomeStatus, str, Style]] = [
        (OutcomeStatus.COMPILED, "compiled", ""),
        (OutcomeStatus.CACHE_HIT, "cache hits", "good"),
        (OutcomeStatus.SKIPPED, "skipped", "warn"),
        (OutcomeStatus.FAILED, "failed", "bad"),
    ]
    if report.stopped or report.outcomes.not_run:
        columns.append((OutcomeStatus.NOT_RUN, "not run", "warn"))
    made = table("pipelines", "all", *(name for _, name, _ in columns), numbers=range(1, len(columns) + 2))
    for kind in PipelineKind:
        if report.set.pipelines.get(kind):
            made.add_row(kind.value.replace("_", " "), *_cells(report, kind, columns))
    made.add_section()
    made.add_row("all", *_cells(report, None, columns), style="head")
    output.show(made)


def _cells(
    report: CompileReport, kind: PipelineKind | None, columns: Sequence[tuple[OutcomeStatus, str, Style]]
) -> list[Text]:
    counts = report.counts(kind)
    total = sum(counts.values())
    return [
        styled(f"{total:,}"),
        *(styled(f"{counts[status]:,}", style if counts[status] else "dim") for status, _, style in columns),
    ]


def _show_skipped(output: Output, skipped: Sequence[PipelineOutcome]) -> None:
    if not skipped:
        return
    by_reason: dict[str, list[PipelineOutcome]] = {}
    for each in skipped:
        by_reason.setdefault(each.reason, []).append(each)
    ranked = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    output.line("")
    output.line(styled("skipped", "warn"), ": the device lacks what they need, so the driver was not asked")
    for reason, members in ranked[: output.most(_REASONS_SHOWN)]:
        output.line(f"  {len(members):>5,}  {reason}")
        keys = ", ".join(key_text(each.key) for each in members[: output.most(_KEYS_SHOWN)])
        left = len(members) - (output.most(_KEYS_SHOWN) or len(members))
        more = f", ... {left:,} more" if left > 0 else ""
        output.line(styled(f"         {keys}{more}", "dim"))
    _show_rest(output, len(ranked) - _REASONS_SHOWN, "reason")


def _show_failed(output: Output, failed: Sequence[PipelineOutcome]) -> None:
    if not failed:
        return
    output.line("")
    output.line(styled("failed", "bad"))
    for each in failed[: output.most(_FAILED_SHOWN)]:
        output.line(f"  {key_text(each.key)}  {each.kind.value.replace('_', ' ')}  {each.reason}")
    _show_rest(output, len(failed) - _FAILED_SHOWN, "pipeline")


def _show_supervision(output: Output, report: CompileReport) -> None:
    supervision = report.supervision
    if supervision is None:
        return
    if supervision.deaths:
        took = _time(supervision.explaining_ns)
        output.line("")
        output.line(
            styled(f"the driver ended {plural(len(supervision.deaths), 'process', 'processes')}", "bad"),
            f" of {supervision.processes:,}; finding out why took {took}, in "
            f"{plural(supervision.trials, 'process', 'processes')} of one pipeline at a time",
        )
    if supervision.culprits:
        first = supervision.culprits[0].key
        output.line(f"  try one alone: orchestrator compile SET --device ... --only {first}")
    for each in supervision.messages[:_MESSAGES_SHOWN]:
        keys = ", ".join(key_text(key) for key in each.keys[:_KEYS_SHOWN])
        whose = f" while it had {'one of ' if len(each.keys) > 1 else ''}{keys}" if keys else ""
        amount = f"{plural(each.lines, 'line')}, {byte_text(each.size)}"
        output.line(styled("the driver printed", "warn"), f" {amount}{whose}: {each.first}")
    _show_rest(output, len(supervision.messages) - _MESSAGES_SHOWN, "message")


def _show_damage(output: Output, report: CompileReport) -> None:
    damage = report.set.damage
    if not damage:
        return
    output.line("")
    output.line(styled(f"damage in the set: {plural(len(damage), 'place')}", "bad"))
    for each in damage[: output.most(_DAMAGE_SHOWN)]:
        output.line(f"  {damage_text(each)}")
    _show_rest(output, len(damage) - _DAMAGE_SHOWN, "place")


def _show_rest(output: Output, count: int, noun: str) -> None:
    if count > 0 and output.most(1):
        output.line(styled(f"  ... and {plural(count, 'more ' + noun)}, see --verbose", "dim"))


def _time(nanoseconds: int) -> str:
    return seconds_text(nanoseconds / 1e9)


def _saved_rows(savings: Savings) -> _Rows:
    count = savings.by_state_key + savings.by_pipeline_key
    if count:
        yield (
            "same work",
            f"{plural(count, 'compile')} saved, about {_time(savings.driver_ns)} of driver "
            f"time: {savings.by_state_key:,} by state key, {savings.by_pipeline_key:,} by the driver's "
            "pipeline key",
        )
    if savings.keys_asked:
        took = _time(savings.keys_ns)
        asked = f"asked for {plural(savings.keys_asked, 'pipeline key')} in {took}"
        yield ("", asked) if count else ("same work", f"none found: {asked}")


def _merge_rows(report: CompileReport) -> _Rows:
    from orchestrator.devices.device import CacheMode

    merge = report.merge
    if merge is None or report.mode is CacheMode.NONE:
        return
    before, after = byte_text(merge.primary_bytes_before), byte_text(merge.primary_bytes_after)
    if report.binaries is not None:
        yield from _binary_rows(report.binaries)
    if report.identifiers is not None:
        yield from _identifier_rows(report.identifiers)
        return
    if report.mode is CacheMode.SHARED:
        yield "cache", f"one for all workers: {before} before, {after} after; nothing to merge"
        return
    yield (
        "merge",
        f"{byte_text(merge.source_bytes)} in {plural(report.workers, 'worker cache')} + {before} in the "
        f"primary -> {after}, {byte_text(merge.pruned_bytes)} of duplicates pruned",
    )
    yield (
        "",
        f"merged in {_time(merge.merge_ns)}; waiting at the barrier "
        f"{_time(merge.barrier_wait_ns)} (all workers)",
    )
    rolling = [each.rolling for each in merge.groups if each.rolling is not None]
    if folds := sum(each.folds for each in rolling):
        pause = _time(max(each.longest_pause_ns for each in rolling))
        caches = plural(sum(each.caches for each in rolling), "worker cache")
        merges = f"on the way {plural(folds, 'merge')} of {caches}"
        yield "", f"{merges}; a worker paused {pause} at most"
    if merge.duplicate_keys:
        yield (
            "",
            f"{plural(merge.duplicate_keys, 'pipeline')} compiled by more than one worker, "
            f"{_time(merge.duplicate_driver_ns)} of driver time",
        )


def _identifier_rows(found: IdentifiersRecord) -> _Rows:
    yield (
        "identifiers",
        f"{found.known:,} of {plural(found.modules, 'module')} known at the start: "
        f"{plural(found.created, 'pipeline')} created without SPIR-V",
    )
    if found.missed:
        unknown = f", {found.unknown:,} of them of unknown modules" if found.unknown else ""
        yield "", f"{plural(found.missed, 'pipeline')} not found by identifiers{unknown}"
    if found.asked:
        yield (
            "",
            f"{plural(found.asked, 'shader')} asked for in {_time(found.provider_ns)} all in all, "
            f"{_time(found.slowest_ns)} the longest: {byte_text(found.supplied_bytes)} of SPIR-V",
        )
    for number, what in (
        (found.refused, "not given, or of no use"),
        (found.changed, "with another identifier than was known"),
    ):
        if number:
            yield "", f"{plural(number, 'shader')} {what}"
    if found.store_bytes:
        instead = f", in place of {byte_text(found.code_bytes)} of SPIR-V" if found.code_bytes else ""
        yield "", f"{byte_text(found.store_bytes)} on disk{instead}"


def _binary_rows(binaries: BinariesRecord) -> _Rows:
    yield (
        "binaries",
        f"{binaries.pulled_in + binaries.pulled_late:,} of {plural(binaries.looked_up, 'pipeline')} found in "
        f"{_time(binaries.look_up_ns)}: {plural(binaries.pulled_binaries, 'binary', 'binaries')}, "
        f"{byte_text(binaries.pulled_bytes)}",
    )
    if binaries.created:
        yield "", f"{plural(binaries.created, 'pipeline')} created from binaries"
    if binaries.from_internal_cache:
        yield "", f"{plural(binaries.from_internal_cache, 'pipeline')} found in the driver's own cache"
    if binaries.captured:
        share = binaries.stored_bytes / binaries.captured_bytes if binaries.captured_bytes else 0.0
        yield (
            "",
            f"{plural(binaries.captured, 'pipeline')} captured: {byte_text(binaries.captured_bytes)}, of "
            f"which {byte_text(binaries.stored_bytes)} were new ({share:.0%})",
        )
    told = (
        (binaries.collisions, "share the driver's key with another one that has other binaries"),
        (binaries.refused, "were not made from their binaries by the driver, and were compiled"),
        (binaries.damaged, "were damaged in the store, and were compiled"),
        (binaries.ambiguous, "were not told apart by their identifiers, and were compiled"),
        (binaries.too_large, "are too large for the store"),
        (binaries.lost, "could not be stored"),
    )
    for count, what in told:
        if count:
            yield "", styled(f"{count:,} {what}", "warn")
    if binaries.evicted:
        yield "", f"{plural(binaries.evicted, 'pipeline')} left the store to make room"


def _cache_rows(report: CompileReport) -> _Rows:
    from orchestrator.stores.cache_file import LoadStatus

    file = report.cache_file
    if report.binaries is not None and file.path is not None:
        yield "store", path_text(file.path)
        if file.error:
            yield "", styled(f"not used: {file.error}", "bad")
        return
    if file.path is None:
        yield "cache file", "none is kept in this mode"
        return
    yield "cache file", path_text(file.path)
    if file.load_status is not None:
        match file.load_status:
            case LoadStatus.LOADED:
                yield "  loaded", styled(f"LOADED, {byte_text(file.loaded_bytes)}", "good")
            case LoadStatus.MISSING:
                yield "  loaded", "MISSING: a first run"
            case status:
                yield "  loaded", styled(f"{status.value}: {file.load_detail}", "warn")
        if (current := file.instead_of) is not None:
            words = f"the current one is {current.status.value}: {current.detail}"
            yield "", styled(f"from the previous generation; {words}", "warn")
        if file.quarantined is not None:
            yield "  quarantine", path_text(file.quarantined)
    if file.error:
        yield "  saved", styled(file.error, "bad")
    elif file.not_saved:
        yield "  saved", styled(f"no: {file.not_saved}", "warn")
    else:
        yield "  saved", byte_text(file.saved_bytes)
    if merged := [each for each in file.saves if each.merged_with_others]:
        before, after = byte_text(merged[-1].bytes_before), byte_text(merged[-1].bytes_after)
        yield "  merged", f"with what another process saved: {before} were there, {after} are there now"


def _time_rows(report: CompileReport) -> _Rows:
    timing = report.timing
    yield "time", f"{_time(timing.wall_ns)} from the first pipeline to the barrier"
    lock = ""
    if timing.blocked_ns > timing.driver_ns * _NOTABLE:
        lock = f" ({_time(timing.blocked_without_faults_ns)} of it in calls without a page fault: at a lock)"
    yield (
        "  workers",
        f"{_time(timing.driver_ns)} in the driver: {_time(timing.cpu_ns)} on the CPU, "
        f"{_time(timing.blocked_ns)} blocked{lock}, {_time(timing.run_delay_ns)} waiting for a CPU",
    )
    if timing.overhead_ns < 0:
        yield "", "the device's clock is not the machine's: driver time is simulated"
    elif timing.driver_ns:
        share = f"{timing.overhead_ns / timing.driver_ns:.1%} of driver time"
        yield "  overhead", f"{_time(timing.overhead_ns)} ({share}): all that is not the driver"
    if timing.waiting_ns or timing.ending_ns:
        yield (
            "  idle",
            f"{timing.idle_share:.1%} of the workers' time: {_time(timing.waiting_ns)} for a library or the "
            f"same work in another worker, {_time(timing.ending_ns)} for the last batches of others",
        )
    yield (
        "  before",
        f"{_time(timing.open_ns)} opening the device, {_time(timing.prepare_ns)} preparing, "
        f"{_time(timing.cache_load_ns)} loading the cache",
    )
    yield "  after", f"{_time(timing.merge_ns)} merging, {_time(timing.cache_save_ns)} saving"
