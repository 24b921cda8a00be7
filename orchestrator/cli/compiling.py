"""The work of the verb `compile`: has the set compiled, shows how far it is, and reports.

Guarantees: SIGINT, SIGTERM and SIGHUP end the job early and in order, whoever of its processes gets them: no
further batch is handed out, driver calls in flight are waited for, what was compiled is merged and saved, and
the report is shown. A second SIGINT or SIGTERM ends it at once. A signal during the report changes nothing.
A place that cannot be written is refused before anything is compiled.
Assumptions: imported before the server is asked, so numpy and trio come later.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

import msgspec
from attrs import evolve, frozen

from orchestrator.cli.errors import ExitCode, Failure, UsageError, explain
from orchestrator.cli.errors import report as report_failure
from orchestrator.cli.output import (
    Output,
    OutputError,
    display,
    path_text,
    plural,
    write_document,
)
from orchestrator.cli.values import (
    MOST_WORKERS,
    archive_paths,
    extra,
    hash_number,
    pipeline_limit,
    require_writable,
    run_again_for,
    signing_key,
    size_bytes,
    time_limit_seconds,
    usable_directory,
    used_keys,
    write_beside,
)
from orchestrator.errors import DeviceError, OrchestratorError
from orchestrator.process import (
    StageClock,
    end_children,
    end_process,
    ending_signals,
    first_signal_waits,
    hold_signals,
    keep_freed_memory,
    let_through,
    process_clock,
    signals_held,
)
from orchestrator.run.options import BARRIER, ROLLING, CompileOptions, TrialLimits
from orchestrator.sets.subset import WHOLE, Subset
from orchestrator.stores.files.atomic_file import SaveError, likely_cause
from orchestrator.supervise.server import CompileServer

if TYPE_CHECKING:
    import trio

    from orchestrator.cli.compile_arguments import CompileArguments
    from orchestrator.cli.compile_view import CompileView
    from orchestrator.cli.control import CommandReader, EventWriter
    from orchestrator.run.records import CompileReport
    from orchestrator.run.steering import Steering
    from orchestrator.stores.pack import PackManifest
    from orchestrator.supervise.targets import TargetCompiler, TargetResult

_T = TypeVar("_T")

_LEAST_MEMORY = 64 << 20
_LEAST_STORE = 4 << 20
_ONE_S = 0.25
"""Signals that come within this time are one: a service manager or a shell may send several."""


@frozen
class _Call:
    arguments: CompileArguments
    paths: list[str]
    output: Output
    events: EventWriter | None = None
    control: CommandReader | None = None

    @cached_property
    def subset(self) -> Subset:
        """The part of the set that is compiled."""
        given = self.arguments
        if given.only:
            return Subset(keys=frozenset(map(hash_number, given.only)))
        try:
            part = Subset.from_text(given.shard) if given.shard else WHOLE
        except ValueError as error:
            raise UsageError(f"--shard {given.shard!r}: {error}") from None
        if given.used is None:
            return part
        from orchestrator.sets.opening import open_paths

        with open_paths(self.paths) as opened:
            return evolve(part, keys=used_keys(given.used, opened))

    def begins(self, targets: Sequence[str], subset: Subset) -> int:
        """Tell a program beside this one what will be compiled; returns the pipelines of each target."""
        from orchestrator.sets.opening import open_paths

        with open_paths(self.paths) as source:
            jobs = [subset.of(each.pipelines) for each in subset.groups_of(source)]
            count = sum(map(len, jobs))
            if self.control is not None:
                self.control.known = {job.key for each in jobs for job in each}
        if self.events is not None:
            total = count * len(targets)
            self.events.tell(
                "start", process_id=os.getpid(), targets=tuple(targets), pipelines=count, total=total
            )
        return count

    def run(self, job: Callable[[Steering], Awaitable[_T]], view: CompileView) -> _T:
        """Run a job that signals stop, and commands steer."""
        import trio

        return trio.run(_until_signal, job, view, self)

    def end_at_once(self, view: CompileView) -> NoReturn:
        """End this process and its children without waiting for the driver; they blame nothing."""
        view.close()
        end_children()
        message = "ended at once by a second signal; what was saved before it is kept"
        failure = Failure("interrupted", message, "run it again to continue", ExitCode.INTERRUPTED)
        code = report_failure(failure, json=self.output.json)
        if self.events is not None:
            self.events.tell("end", exit_code=int(code))
        end_process(code)


def compile_sets(sets: list[str], arguments: CompileArguments, *, json: bool) -> int:
    """Do what the command line asks for; returns the exit code."""
    clock = process_clock()
    selector = _only_device(arguments)
    if arguments.in_process and selector is not None and (code := run_again_for(selector)) is not None:
        return code
    events = control = None
    if arguments.progress or arguments.control is not None:
        # Before anything else opens a descriptor that the caller forgot to.
        from orchestrator.cli.control import CommandReader, EventWriter

        events = EventWriter.of_option(arguments.progress, json=json)
        control = CommandReader.of_option(arguments.control, events)
    if arguments.nice:
        os.nice(arguments.nice)
    _check(arguments, several=selector is None)
    call = _Call(arguments, archive_paths(sets), Output(json=json), events, control)
    code = _compile_targets(call) if selector is None else _compile_one(call, selector, clock)
    if events is not None:
        events.tell("end", exit_code=int(code))
    return code


def _only_device(arguments: CompileArguments) -> str | None:
    given = arguments.device or [""]
    several = len(given) > 1 or arguments.out is not None or any(set("*?[") & set(each) for each in given)
    return None if several else given[0]


_Rules = Iterable[tuple[object, str, str]]
"""What a command line must not ask for: whether it does, what is wrong with that, and the next step or ""."""


def _check(given: CompileArguments, *, several: bool) -> None:
    for wrong, message, step in chain(
        _process_rules(given, several=several), _cache_rules(given), _pack_rules(given)
    ):
        if wrong:
            raise UsageError(message, step)


def _process_rules(given: CompileArguments, *, several: bool) -> _Rules:
    for option in ("trace", "pipeline_stats", "driver_log", "in_process"):
        message = f"--{option.replace('_', '-')} is for one device"
        yield several and getattr(given, option), message, "name one, without --out"
    alone = given.in_process and not several
    limited = alone and given.spirv_val != "isolate"  # which tries modules in children
    timeout = given.timeout not in ("auto", "off")
    for wrong, option in (
        (alone and given.driver_log, "--driver-log"),
        (limited and timeout, "--timeout"),
        (limited and given.memory, "--memory"),
    ):
        yield wrong, f"{option} is for a child process", "leave out --in-process"


def _cache_rules(given: CompileArguments) -> _Rules:
    keeps_nothing = given.mode == "none" or given.pipeline_stats is not None
    is_part = given.only or given.used or given.shard
    yield (
        given.pipeline_stats and (given.mode not in ("auto", "none") or given.cache_dir),
        "--pipeline-stats: statistics change the keys of caches, so that nothing is kept",
        "leave out --cache-dir, and modes but none; compile once more for a cache",
    )
    yield (
        given.merge == "rolling" and given.mode in ("shared", "binaries", "none"),
        f"--merge rolling: mode {given.mode} has no worker caches to merge",
        "use --mode per-worker or two-level",
    )
    yield (
        given.only_these and (is_part or keeps_nothing or given.mode == "binaries"),
        "--only-these: it is about the cache file of a whole set",
        "leave out --only, --used, --shard and --pipeline-stats, and modes binaries and none",
    )
    only = given.only and (given.shard or given.used)
    yield only, "--only: it alone says what is compiled", "leave out --shard and --used"
    yield (
        given.expect_hits and (given.only_these or given.out or given.cluster or given.pipeline_stats),
        "--expect-hits saves nothing",
        "leave out --only-these and --pipeline-stats; for a pack use `orchestrator coverage --run`",
    )
    yield (
        given.expect_hits and given.mode not in ("auto", "shared", "binaries"),
        f"--expect-hits: all workers look in one place, which mode {given.mode} has not",
        "leave --mode out, or name shared or binaries",
    )
    yield (
        given.identifiers and keeps_nothing,
        "--identifiers: mode none and --pipeline-stats have no cache, so they would find nothing",
        "leave one out",
    )


def _pack_rules(given: CompileArguments) -> _Rules:
    clustered, out = bool(given.cluster), "name its directory with --out"
    yield given.sign and not given.out, "--sign signs packs", "name the pack's directory with --out"
    nothing = given.out and given.mode == "none" and not given.driver_cache
    yield nothing, "--out: mode none keeps nothing that a pack could hold", ""
    yield given.driver_cache and not given.out, "--driver-cache: a pack is made", out
    yield (
        given.driver_cache and (given.mode not in ("auto", "none") or given.identifiers),
        "--driver-cache: the pipelines are in no VkPipelineCache",
        "leave out --mode and --identifiers",
    )
    yield clustered and not given.out, "--cluster: a pack is made", out
    yield (
        clustered and given.mode == "binaries",
        "--cluster: pipeline binaries of several machines are not joined",
        "compile each shard with `--shard K/N`, and put the packs together with `orchestrator merge`",
    )
    shard = "--cluster and --shard: the cluster divides the set itself"
    yield clustered and given.shard, shard, "leave --shard out"
    yield (
        clustered and given.driver_cache,
        "--cluster: what drivers write into their own caches on several machines is not joined",
        "compile each component on one machine, and publish all packs",
    )
    control = clustered and given.control is not None
    yield control, "--control: commands do not reach a cluster", "leave it out"


def _options(call: _Call, selector: str, journal: str = "") -> CompileOptions:
    arguments = call.arguments
    limits = TrialLimits(
        pipeline_s=pipeline_limit(arguments.timeout),
        memory_bytes=size_bytes(arguments.memory, "--memory", _LEAST_MEMORY) if arguments.memory else 0,
    )
    store = arguments.binaries_disk
    mode = None if arguments.mode == "auto" else arguments.mode
    return CompileOptions(
        selector=selector,
        driver_caches=arguments.driver_caches or arguments.driver_cache,
        workers=_worker_count(arguments.workers),
        mode="none" if journal or arguments.driver_cache else mode,
        statistics_journal=journal,
        cache_file_needed=arguments.out is not None and not arguments.driver_cache,
        save_needed=True,
        merge={"barrier": BARRIER, "rolling": ROLLING}.get(arguments.merge),
        relax_driver_version=arguments.relax_driver_version,
        binary_store_bytes=size_bytes(store, "--binaries-disk", _LEAST_STORE) if store else None,
        binary_memory_bytes=size_bytes(arguments.binaries_memory, "--binaries-memory"),
        spirv_val=arguments.spirv_val,
        pipeline_keys=arguments.pipeline_keys,
        subset=call.subset,
        retry_quarantined=arguments.retry_quarantined or bool(arguments.only),
        trial_limits=limits,
        time_limit_s=time_limit_seconds(arguments.time_limit) if arguments.time_limit else None,
        plan=arguments.plan == "auto",
        identifiers=arguments.identifiers,
        only_these=arguments.only_these,
        expect_hits=arguments.expect_hits,
    )


def _worker_count(workers: str) -> int | None:
    if workers == "auto":
        return None
    if workers.isascii() and workers.isdigit() and 1 <= int(workers) <= MOST_WORKERS:
        return int(workers)
    raise UsageError(
        f"--workers {workers!r}: a number from 1 to {MOST_WORKERS} is expected, or auto",
        "leave it out for one per processor",
    )


def _compile_one(call: _Call, selector: str, clock: StageClock) -> ExitCode:
    arguments = call.arguments
    keeps_nothing = arguments.mode == "none" or arguments.pipeline_stats is not None
    directory = None if keeps_nothing else usable_directory(arguments.cache_dir)
    require_writable(arguments.trace, arguments.pipeline_stats, arguments.driver_log, inputs=call.paths)
    # Once the server compiles, a signal waits for whoever can end that in order.
    with _driver_log(arguments.driver_log) as log, _journal(arguments) as journal, signals_held():
        options = _options(call, selector, journal)
        report, view = _one_report(call, options, directory, log, clock)
        _remember(call, options, directory, report)
        with _reporting():
            view.is_done(selector, report, report.cache_file.error or "")
            code = _exit_code(report, allow_damaged=arguments.allow_damaged)
            try:
                _show_one(call.output, report, clock, allow_damaged=arguments.allow_damaged)
            finally:
                # After the report, whose reader may be gone: that they cannot be written costs only them.
                _write_extras(report, arguments, journal)
    return code


@contextmanager
def _driver_log(path: Path | None) -> Iterator[BinaryIO | None]:
    if path is None:
        yield None
        return
    log = path.open("wb")
    try:
        yield log
    finally:
        try:
            log.close()  # it holds what was not written before
        except OSError as error:
            raise OutputError(f"--driver-log {path}: cannot be written: {likely_cause(error)}") from error


@contextmanager
def _journal(arguments: CompileArguments) -> Iterator[str]:
    if arguments.pipeline_stats is None:
        yield ""
        return
    with TemporaryDirectory(prefix="orchestrator-statistics-") as folder:
        yield str(Path(folder) / "journal")


def _one_report(
    call: _Call, options: CompileOptions, directory: Path | None, log: BinaryIO | None, clock: StageClock
) -> tuple[CompileReport, CompileView]:
    selector = options.selector
    with ExitStack() as held:
        server = None
        if call.arguments.in_process:
            from orchestrator.devices.opening import own_process

            keep_freed_memory()
            own_process(selector, driver_caches=options.driver_caches)
            clock.enter("read")
        else:
            server = held.enter_context(closing(CompileServer.start(call.paths, options)))
            clock.enter("supervise")
        # While the server opens the set.
        from orchestrator.cli.progress import progress_view

        shown = held.enter_context(progress_view(call.output))
        from orchestrator.cli.compile_view import CompileView

        if not (call.output.json or display.quiet):
            import orchestrator.cli.compile_report  # noqa: F401
        if call.events is not None:
            call.begins((selector,), options.subset)
        view = CompileView(shown, call.events)

        async def job(steering: Steering) -> CompileReport:
            stop = steering.beside(partial(view.settled, selector), partial(view.saved, selector))
            told: dict[str, Any] = {
                "cache_directory": directory,
                "on_stage": partial(view.stage, selector),
                "on_progress": partial(view.progress, selector),
            }
            if server is None:
                from orchestrator.run.compile import compile_set
                from orchestrator.sets.opening import open_paths
                from orchestrator.supervise.trial import try_pipelines

                stop = evolve(stop, try_pipelines=try_pipelines)
                with open_paths(call.paths) as opened:
                    return await compile_set(opened, options, stop=stop, clock=clock, **told)
            from orchestrator.supervise.supervisor import compile_supervised

            return await compile_supervised(call.paths, options, stop=stop, server=server, log=log, **told)

        report = call.run(job, view)
    if server is not None:
        for name in report.clock.__struct_fields__:
            clock.move(getattr(report.clock, name), name.removesuffix("_ns"))
        clock.enter("report")
    return report, view


def _remember(
    call: _Call, options: CompileOptions, directory: Path | None, report: CompileReport | None
) -> None:
    """Leave what `refresh` does again, in the cache directory, where something is kept."""
    given = call.arguments
    if (directory or given.out) is None or report is None or report.stopped or given.expect_hits:
        return
    from orchestrator.stores.cache_file import cache_path
    from orchestrator.stores.compiles import RememberedCompile, remember_compile

    encoded = msgspec.msgpack.encode(evolve(options, time_limit_s=None, environment=()))
    with suppress(SaveError, UsageError):  # it costs only that
        place = usable_directory(given.cache_dir)
        name = cache_path(place, report.device.identity).name
        paths = [str(Path(each).absolute()) for each in call.paths]
        pack = None if given.out is None else given.out.absolute()
        done = RememberedCompile.of(paths, options.selector, encoded, name, pack)
        remember_compile(place, done)


def _show_one(output: Output, report: CompileReport, clock: StageClock, *, allow_damaged: bool) -> None:
    if output.json:
        from orchestrator.run.records import encode_report

        write_document(encode_report(report, clock))
        return
    from orchestrator.cli.compile_report import show_end, show_report
    from orchestrator.supervise.targets import TargetResult

    if not display.quiet:
        show_report(output, report, clock)
    show_end(output, [TargetResult("", report)], allow_damaged=allow_damaged)


@contextmanager
def _reporting() -> Iterator[None]:
    try:
        with first_signal_waits():
            let_through()
            yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "interrupted while the report was written; the compile had ended and saved before that"
        ) from None


def _write_extras(report: CompileReport, arguments: CompileArguments, journal: str) -> None:
    if arguments.trace is not None:
        from orchestrator.bench.trace import compile_spans, encode_trace

        spans = compile_spans(report)
        write_beside("--trace", arguments.trace, encode_trace(spans, process=f"compile {report.set.path}"))
    if arguments.pipeline_stats is not None:
        from orchestrator.cli.executable_statistics import statistics_csv
        from orchestrator.run.statistics import inspected

        text = statistics_csv(report.set.path, inspected(Path(journal)))
        write_beside("--pipeline-stats", arguments.pipeline_stats, text.encode("utf-8", "backslashreplace"))


def _compile_targets(call: _Call) -> ExitCode:
    from orchestrator.cli.progress import progress_view

    arguments, out = call.arguments, call.arguments.out
    key = signing_key(arguments.sign)
    manifest = unwritten = pack = None
    with ExitStack() as stopping:
        with ExitStack() as held:
            with progress_view(call.output) as shown:
                shown.stage("looking for devices")
                from orchestrator.cli.compile_view import CompileView
                from orchestrator.packs.growing import GrowingPack
                from orchestrator.supervise.targets import Expected, compile_targets, selectors_of

                targets = selectors_of(arguments.device or ())
                options = [_options(call, each) for each in targets]
                shown.stage("reading the set")
                # First, so that a mistake in the command takes no target out of a good pack.
                pipelines = call.begins(targets, options[0].subset)
                directory = None if out is None else out.absolute()
                if arguments.mode != "none" and (out is None or arguments.cache_dir is not None):
                    directory = usable_directory(arguments.cache_dir).absolute()
                if out is not None:
                    fills = usable_directory(arguments.cache_dir) if arguments.driver_cache else None
                    pack = held.enter_context(GrowingPack.writing(out, key, targets, driver_caches=fills))
                    given = pack.environments
                    options = [evolve(o, environment=given.get(o.selector, ())) for o in options]
                stopping.enter_context(signals_held())
                shown.stage(f"compiling for {plural(len(targets), 'target')}")
                view = CompileView(shown, call.events, len(targets))

                async def job(steering: Steering) -> list[TargetResult]:
                    async with _compiler(arguments, len(targets)) as compiler:
                        return await compile_targets(
                            call.paths,
                            options,
                            expected=Expected(pipelines) if pack is None else pack.expected(pipelines),
                            cache_directory=directory,
                            listener=view,
                            stop=steering,
                            keep=None if pack is None else pack.take,
                            compiler=compiler,
                        )

                results = call.run(job, view)
                for option, each in zip(options, results, strict=True):
                    _remember(call, option, directory, each.report)
            if pack is not None:
                try:
                    manifest = pack.finish(results)
                except OrchestratorError as error:
                    unwritten = error  # which costs the pack, not the report
                lost = pack.problems
                results = [evolve(each, error=lost.get(each.selector, each.error)) for each in results]
        with _reporting():
            _show_targets(call.output, arguments, results, manifest)
    if unwritten is not None:
        raise unwritten
    return _targets_exit_code(results, allow_damaged=arguments.allow_damaged)


@asynccontextmanager
async def _compiler(arguments: CompileArguments, targets: int) -> AsyncIterator[TargetCompiler]:
    from orchestrator.supervise.targets import IN_TURN, TargetCompiler

    if not arguments.cluster:
        yield IN_TURN
        return
    with extra("cluster", "--cluster"):
        from orchestrator.cluster.compile import cluster_compiler
    assert arguments.out is not None  # noqa: S101 - checked before
    folder = arguments.out.absolute().with_name(f".{arguments.out.name}.cluster")
    workers = _worker_count(arguments.workers)
    async with cluster_compiler(arguments.cluster, folder, workers) as compiler:
        yield TargetCompiler(compiler.compile, targets)


def _show_targets(
    output: Output,
    arguments: CompileArguments,
    results: Sequence[TargetResult],
    manifest: PackManifest | None,
) -> None:
    from orchestrator.cli.compile_report import show_end, show_results
    from orchestrator.cli.documents import CompiledTarget, TargetsDocument, filled
    from orchestrator.cli.packs import show_pack

    if output.json:
        targets = tuple(
            filled(CompiledTarget, each, problem=None if each.error is None else str(each.error))
            for each in results
        )
        pack = None if arguments.out is None else path_text(arguments.out)
        output.document(lambda: TargetsDocument(pack=pack, targets=targets))
        return
    show_results(output, results)
    if manifest is not None and arguments.out is not None and all(each.has_ended for each in results):
        show_pack(output, arguments.out, manifest, signed=arguments.sign is not None)
    show_end(output, results, allow_damaged=arguments.allow_damaged)


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
    worst = ExitCode.INTERRUPTED, ExitCode.BAD_INPUT, ExitCode.OUT_OF_TIME, ExitCode.PIPELINES_FAILED
    return next((each for each in worst if each in codes), ExitCode.OK)


async def _until_signal(job: Callable[[Steering], Awaitable[_T]], view: CompileView, call: _Call) -> _T:
    import trio

    from orchestrator.run.first_error import first_error
    from orchestrator.run.steering import Steering

    control = call.control
    steering = Steering(steered=control is not None)
    try:
        with first_error():
            async with trio.open_nursery() as nursery:
                await nursery.start(_watch_signals, steering.stop, view, call)
                if control is not None:
                    await nursery.start(control.serve, steering)
                result = await job(steering)
                nursery.cancel_scope.cancel()
    except DeviceError as error:
        if steering.stop.is_set():  # a stopped job without a device to go on with
            raise KeyboardInterrupt(str(error)) from None
        raise
    return result


async def _watch_signals(
    stop: trio.Event, view: CompileView, call: _Call, *, task_status: trio.TaskStatus[None]
) -> None:
    import trio

    first = math.inf
    with trio.open_signal_receiver(*ending_signals()) as signals:
        let_through()
        try:
            task_status.started()
            async for number in signals:
                if not stop.is_set():
                    view.say(
                        "stopping: waiting for the driver calls in flight, then what is done is merged and "
                        "saved; a second signal ends it at once"
                    )
                    stop.set()
                # What the system sends beside another one, as a session ends, is no second one.
                elif number != signal.SIGHUP and time.monotonic() - first > _ONE_S:
                    call.end_at_once(view)
                first = min(first, time.monotonic())
        finally:
            hold_signals()  # until the report is written
