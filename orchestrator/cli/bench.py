"""The verb `bench`: measures what cache topologies cost on a device.

Guarantees:
- Drivers' own caches are off, and every sample is its own process; docs/benchmarking.md has the method.
- After Ctrl-C, SIGTERM, SIGHUP or the time limit, the results so far are kept and shown, and the same command
  resumes.
- Medians come with their intervals and the number of samples. Only a difference beyond noise is reported as
  one. Failed cells have a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from attrs import frozen
from cyclopts import Parameter

from orchestrator.cli.application import DEVICE_HELP, FIRST_DEVICE, POSITIVE, JsonFlag, SetNames, in_range
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, OutputError, path_text, styled
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
from orchestrator.errors import OrchestratorError
from orchestrator.process import interrupted_by_signals

if TYPE_CHECKING:
    from orchestrator.bench.contention import ContentionReport
    from orchestrator.bench.runner import BenchOutcome, Matrix

_T = TypeVar("_T")

_TABLE, _TEXT, _PAGE = "report.csv", "report.md", "report.html"


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
        from orchestrator.bench.rows import Start
        from orchestrator.bench.runner import Matrix
        from orchestrator.devices.families import require_family
        from orchestrator.devices.modes import CacheMode
        from orchestrator.run.options import available_workers

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
    from orchestrator.bench.runner import RESULTS, run_bench
    from orchestrator.cli.measured import bench_document, report_of, show_bench, show_progress
    from orchestrator.cli.progress_bar import MeasurementBar
    from orchestrator.stores.files.atomic_file import SaveError
    from orchestrator.stores.files.writer_lock import lock_path

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
            on_progress=partial(show_progress, bar),
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
    return _exit_code(outcome, damaged=bool(damage))


def _write_extras(out: Path, report: ContentionReport, trace: Path | None) -> Path | None:
    from orchestrator.bench.runner import timelines_of
    from orchestrator.bench.tables import csv_text, markdown_text
    from orchestrator.bench.trace import join_traces
    from orchestrator.stores.files.atomic_file import write_document

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


def _exit_code(outcome: BenchOutcome, *, damaged: bool) -> ExitCode:
    if outcome.stopped == "interrupted":
        return ExitCode.INTERRUPTED
    return ExitCode.PIPELINES_FAILED if outcome.failed or damaged else ExitCode.OK
