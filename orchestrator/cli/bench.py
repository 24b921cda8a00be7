"""The verb `bench`: measures what cache topologies cost on a device.

Guarantees:
- Drivers' own caches are off, and every sample is its own process; docs/benchmarking.md has the method.
- After Ctrl-C, SIGTERM, SIGHUP or the time limit, the results so far are kept and shown, and the same command
  resumes.
- Medians come with their intervals and the number of samples. Only a difference beyond noise is reported as
  one. Failed cells have a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, TypeVar

from attrs import frozen
from cyclopts import Parameter
from msgspec.structs import asdict
from rich.text import Text

from orchestrator.bench.contention import (
    CellReport,
    Comparison,
    ContentionReport,
    cell_texts,
    contention_report,
    noise_text,
)
from orchestrator.bench.rows import Start, counted_samples, device_text
from orchestrator.bench.runner import RESULTS, BenchOutcome, Matrix, run_bench, timelines_of
from orchestrator.bench.statistics import LEAST_PAIRS, noise_factor
from orchestrator.bench.tables import csv_text, markdown_text
from orchestrator.bench.trace import join_traces
from orchestrator.cli.application import DEVICE_HELP, FIRST_DEVICE, POSITIVE, JsonFlag, SetNames, in_range
from orchestrator.cli.documents import BenchCell, BenchDocument, BenchGroup, FailedCell, RatioRecord, filled
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, OutputError, path_text, plural, styled, table
from orchestrator.cli.progress_bar import MeasurementBar
from orchestrator.cli.values import (
    MOST_SAMPLES,
    MOST_WORKERS,
    archive_paths,
    cache_files_directory,
    damage_to_measure,
    require_writable,
    set_paths,
    time_limit_seconds,
    write_beside,
)
from orchestrator.devices.families import require_family
from orchestrator.devices.modes import CacheMode
from orchestrator.errors import OrchestratorError
from orchestrator.process import interrupted_by_signals
from orchestrator.run.options import available_workers
from orchestrator.stores.files.atomic_file import SaveError, write_document
from orchestrator.stores.files.writer_lock import lock_path

_T = TypeVar("_T")

_TABLE, _TEXT, _PAGE = "report.csv", "report.md", "report.html"
_COLUMNS = (
    *("mode", "n", "pipelines/s", "ratio", "efficiency"),
    *("blocked", "no CPU", "CPU", "merge", "dupl.", "memory"),
)
_SHORT = {"efficiency": "effic."}
_SECONDS = ("open", "merge", "read_back", "barrier_wait", "duplicate")
_LEGEND = (
    "n: samples. pipelines/s: in one pass over the set, keys and merge included. ratio: that over the "
    "baseline's, pair by pair; ≈: equal within 5 %, ?: undecided. effic.: throughput per worker against one "
    "worker. blocked: asleep, from the least (in the driver's own time) to the most (in the whole call). no "
    "CPU: waiting for a processor. CPU: CPU time per pipeline against one worker. merge: the driver's part. "
    "Brackets: a 95 % interval; of at most 5 samples, their range."
)


@frozen(kw_only=True)
class BenchArguments:
    """The options of `bench`: what to compare, and how to measure.

    Attributes:
        out: Directory for results. If it holds results already, the benchmark resumes.
        modes: Cache topologies, separated by commas; see `compile --mode`.
        workers: Numbers of workers, separated by commas.
        start: `cold`: caches start empty. `warm`: caches hold the whole set, and a run repeats the set until
            it lasts long enough.
        duplicates: Shares of the pipelines that a run creates a second time, 0 to 1, separated by commas.
        samples: Samples of each cell, after a warm-up; up to three times as many while a mode is undecided. A
            verdict needs 5 or more.
        batch: Largest number of pipelines in a call of a cold run.
        warm_batch: Largest number of pipelines in a call of a warm run.
        warm_passes: How many times a warm run repeats the set.
        time_limit: Stop within this time, such as `90s`, `20m` or `2h`; a number alone is seconds.
        trace: Write a timeline of one sample of each cell, for Perfetto.
    """

    out: Annotated[Path, Parameter(alias="-o")]
    device: Annotated[
        list[str] | None, FIRST_DEVICE, Parameter(help=DEVICE_HELP + " May be given several times.")
    ] = None
    modes: str = "shared,per-worker,per-worker-internal"
    workers: Annotated[str, Parameter(alias="-j", show_default=lambda _: "1, and one per processor")] = ""
    start: Annotated[str, Parameter(alias="--temperature")] = "cold,warm"
    duplicates: str = "0"
    samples: Annotated[int, Parameter(alias="-n", validator=in_range(1, MOST_SAMPLES))] = 7
    batch: Annotated[int, Parameter(validator=POSITIVE)] = 1024
    warm_batch: Annotated[int, Parameter(validator=POSITIVE)] = 1024
    warm_passes: Annotated[
        int | None,
        Parameter(validator=POSITIVE, show_default=lambda _: "until one worker needs a second"),
    ] = None
    time_limit: Annotated[str, Parameter(show_default=lambda _: "none")] = ""
    trace: Path | None = None

    def matrix(self, sets: list[str]) -> Matrix:
        """The matrix to measure.

        Raises:
            UsageError: An option has an invalid value.
        """
        for selector in self.device or []:
            require_family(selector)
        workers = self.workers or ",".join(map(str, sorted({1, available_workers()})))
        matrix = Matrix(
            set_paths=set_paths(sets),
            devices=tuple(dict.fromkeys(self.device or [""])),
            modes=_several("--modes", self.modes, CacheMode, ", ".join(CacheMode)),
            workers=_several("--workers", workers, _worker_count, f"1 to {MOST_WORKERS}"),
            starts=_several("--start", self.start, Start, "cold, warm"),
            duplicates=_several("--duplicates", self.duplicates, _share, "shares from 0 to 1"),
            samples=self.samples,
            batch=self.batch,
            warm_batch=self.warm_batch,
            profiles=str(cache_files_directory(None)),
        )
        if not any(matrix.jobs()):
            raise UsageError(
                f"--modes {self.modes} --start {self.start}: nothing can be measured: a run without a cache "
                "is never warm",
                "name another mode, or --start cold",
            )
        return matrix


def _worker_count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MOST_WORKERS:
        raise ValueError
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise ValueError
    return number


def _several(option: str, text: str, read: Callable[[str], _T], expected: str) -> tuple[_T, ...]:
    try:
        return tuple(dict.fromkeys(read(each.strip()) for each in text.split(",")))
    except ValueError:
        raise UsageError(f"{option} {text!r}: expected, separated by commas: {expected}") from None


def bench_verb(
    sets: SetNames,
    /,
    arguments: Annotated[BenchArguments, Parameter(name="*")],
    *,
    json: JsonFlag = False,
) -> int:
    """Measure the cost of a shared cache and of private caches on a device.

    Every sample is its own process, with the driver's caches off. Ctrl-C keeps the samples so far; the same
    command resumes.

    **EXAMPLES**

        orchestrator bench sample -d radv:navi21 -o results
        orchestrator bench game.foz -d radv -j 1,4,16 --time-limit 2h -o results
        orchestrator bench game.foz -d nvidia --duplicates 0,0.5 -o results
    """
    results = arguments.out / RESULTS
    own = [results, lock_path(results), *(arguments.out / each for each in (_TABLE, _TEXT, _PAGE))]
    require_writable(arguments.trace, inputs=archive_paths(sets), outputs=own)
    limit = time_limit_seconds(arguments.time_limit) if arguments.time_limit else None
    output = Output(json=json)
    damage = damage_to_measure(sets)  # a set that cannot be opened is an error before anything is measured
    matrix = arguments.matrix(sets)
    if damage:
        output.message(styled(damage, "bad"))
    for start in sorted(set(matrix.starts) - {job.start for job in matrix.jobs()}):
        output.message(
            styled("note: ", "warn"), f"nothing is measured {start}: no mode of --modes has a cache"
        )
    with interrupted_by_signals(), MeasurementBar(output) as bar:
        outcome = run_bench(
            matrix,
            arguments.out,
            time_limit_s=limit,
            warm_passes=arguments.warm_passes,
            on_progress=bar.measures,
            on_stage=bar.stage,
        )
    report = report_of(outcome)
    page: Path | None = None
    lost: OrchestratorError | None = outcome.lost
    if report is not None:
        try:
            page = _write_extras(arguments.out, report, arguments.trace)
        except (OutputError, SaveError) as error:  # the results are shown nevertheless
            lost = lost or error
    output.document(lambda: bench_document(outcome, report, page))
    show_bench(output, outcome, report)
    if page is not None:
        output.line("report: ", path_text(page))
    elif report is not None and lost is None:
        output.message(
            "no report.html: plotly or Jinja2 is not installed "
            "(pip install 'vulkan-pipeline-orchestrator[report]')"
        )
    if lost is not None:
        raise lost
    if damage:
        output.message(styled(damage, "bad"))
    if outcome.stopped == "interrupted":
        return ExitCode.INTERRUPTED
    return ExitCode.PIPELINES_FAILED if outcome.failed or damage else ExitCode.OK


def _write_extras(out: Path, report: ContentionReport, trace: Path | None) -> Path | None:
    write_document(out / _TABLE, csv_text(report).encode())
    write_document(out / _TEXT, markdown_text(report).encode())
    timelines = timelines_of(out, [each.cell for each in report.cells])
    if trace is not None:
        write_beside("--trace", trace, join_traces(timelines.values()))
    try:
        from orchestrator.bench.page import html_report
    except ModuleNotFoundError:  # the extra `report`
        return None
    page = out / _PAGE
    write_document(page, html_report(report, timelines).encode())
    return page


def report_of(outcome: BenchOutcome) -> ContentionReport | None:
    """The statistics of the samples so far; None before the first round."""
    return contention_report(outcome.rows) if counted_samples(outcome.rows) else None


def bench_document(
    outcome: BenchOutcome, report: ContentionReport | None, page: Path | None
) -> BenchDocument:
    """The JSON document of a benchmark."""

    def cell(of: CellReport) -> BenchCell:
        figures: dict[str, Any] = dict(of.figures)
        for name in _SECONDS:
            figures[f"{name}_s"] = of.median(attrgetter(f"{name}_ns")) / 1e9
        return BenchCell(
            **asdict(of.cell),
            **figures,
            samples=len(of.samples),
            efficiency=of.efficiency,
            inflation=of.inflation,
            merge_driver_s=of.median(lambda each: each.merge_cost_ns) / 1e9,
            duplicate_keys=of.median(lambda each: each.duplicate_keys),
            peak_memory_bytes=of.median(lambda each: each.peak_memory_bytes),
        )

    def group(of: Comparison) -> BenchGroup:
        return filled(
            BenchGroup,
            of,
            **asdict(of.conditions),
            noise=None if of.control is None else noise_factor(of.control),
            throughput_ratios={mode: RatioRecord.of(each) for mode, each in of.throughput.items()},
            creation_rate_ratios={mode: RatioRecord.of(each) for mode, each in of.creation_rate.items()},
            locking=None if of.locking is None else RatioRecord.of(of.locking),
        )

    return BenchDocument(
        results=path_text(outcome.path),
        samples=outcome.done,
        planned=outcome.total,
        resumed=outcome.resumed,
        stopped=outcome.stopped or None,
        failed=tuple(filled(FailedCell, each) for each in outcome.failed),
        cells=() if report is None else tuple(map(cell, report.cells)),
        groups=() if report is None else tuple(map(group, report.comparisons)),
        advice=() if report is None else report.advice,
        verdicts=() if report is None else report.verdicts,
        warnings=() if report is None else report.warnings,
        report=None if page is None else path_text(page),
    )


def show_bench(output: Output, outcome: BenchOutcome, report: ContentionReport | None) -> None:
    """Print the report."""
    resumed = f", {outcome.resumed:,} of them from earlier runs" if outcome.resumed else ""
    output.line(
        f"{outcome.done:,} of {plural(outcome.total, 'sample')}{resumed} in ", path_text(outcome.path)
    )
    if report is not None:
        _show_environment(output, report)
        for group in report.comparisons:
            _show_group(output, report, group)
        output.line("")
        output.line(styled(_LEGEND, "dim"))
        for sentence in (*report.advice, *report.verdicts):
            output.line(styled(sentence, "head"))
        for warning in report.warnings:
            output.line(styled("note: ", "warn"), warning)
    for each in outcome.failed:
        output.line(styled("† failed: ", "bad"), each.words)
    if outcome.stopped:
        output.line(styled(f"ended early: {outcome.stopped}", "warn"), "; the same command resumes")


def _show_environment(output: Output, report: ContentionReport) -> None:
    for where in (each.environment for each in report.sample_of_devices):
        output.line(
            f"{where.device_name}, {where.driver_name} {where.driver_info}; {plural(where.cores, 'core')} "
            f"of {where.processor}; Python {where.python}, orchestrator {where.orchestrator}"
        )
        output.line(styled(f"driver's own caches {where.driver_caches}", "dim"))
        set_here = [*where.variables, *where.layers]
        if set_here:
            output.line(styled(f"environment and layers: {', '.join(set_here)}", "dim"))
        for each in where.opened_as:
            output.line(styled(f"device opened as: {each}", "dim"))
    for order in sorted({sample.order for cell in report.cells for sample in cell.samples}):
        words = {"cost": "by estimated cost, as in compile", "given": "as in the set"}.get(order, order)
        output.line(styled(f"order of pipelines: {words}", "dim"))


def _show_group(output: Output, report: ContentionReport, group: Comparison) -> None:
    key = group.conditions
    cells = report.cells_of(group)
    failed = {each.arm for each in report.failed if each.conditions == key}
    first = cells[0].samples[0]
    counts = sorted({sample.passes for each in cells for sample in each.samples})
    times = " or ".join(f"{count:,}" for count in counts)
    passes = f", the set {times} times" if counts[-1] > 1 else ""
    noise = noise_text(group.control)
    if group.control is None and any(each.control for each in failed):
        noise += ": it failed"
    elif group.control is not None and group.control.count < LEAST_PAIRS:
        noise += f" ({plural(group.control.count, 'pair')})"
    title = f"{device_text(key.device)}, {key.start}, {plural(key.workers, 'worker')}{key.copies}"
    output.line("")
    output.line(styled(f"{title}: {plural(first.pipelines, 'pipeline')}{passes}, {noise}", "head"))
    lost = {each.cell for each in failed if not each.control}
    rows = []
    for each in cells:
        texts = cell_texts(each, group)
        texts["n"] += " †" if each.cell in lost else ""
        texts["dupl."] = f"{each.median(lambda one: one.duplicate_keys):,.0f}"
        rows.append(texts)
    measured = {each.cell for each in cells}
    rows += [{"mode": cell.mode, "n": "0 †"} for cell in sorted(lost - measured)]
    figures = [each for each in _COLUMNS if each != "dupl." or key.duplicates]
    lines = [[row.get(each, "") for each in figures] for row in rows]
    show_matrix(output, [_SHORT.get(each, each) for each in figures], lines)


def show_matrix(output: Output, heading: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
    """Print a narrow table without line breaks, whose first column is the mode and all others are figures."""
    made = table(*heading, numbers=range(1, len(heading)))
    made.padding = (0, 0, 0, 1)
    for place, column in enumerate(made.columns):
        # rich takes the longest word of a figure for its least width
        column.min_width = max(len(row[place]) for row in (heading, *rows))
    for row in rows:
        made.add_row(*row)
    output.show(made)
