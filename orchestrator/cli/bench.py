# Purpose: `orchestrator bench`: what a cache topology costs on a device, measured so that it can be defended.
#
# Guarantees:
# - Drivers' own caches are off; every sample is a process of its own; see docs/benchmarking.md for the method.
# - Ctrl-C, SIGTERM and a time limit end it in order: what was measured is kept and shown, and the same command goes on.
"""The verb `bench`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.options import DEVICE_HELP, JsonFlag, SetNames, open_set, set_paths, time_limit_seconds
from orchestrator.cli.output import Output, path_text

if TYPE_CHECKING:
    from orchestrator.bench.contention import ContentionReport
    from orchestrator.bench.matrix import Matrix
    from orchestrator.bench.runner import BenchOutcome

_T = TypeVar("_T")


def bench_verb(
    sets: SetNames,
    /,
    *,
    out: Annotated[
        Path,
        Parameter(name=["--out", "-o"], help="Directory for results; one that holds some is gone on with."),
    ],
    device: Annotated[
        list[str] | None,
        Parameter(
            name=["--device", "-d"],
            help=DEVICE_HELP + " May be given several times.",
            show_default=lambda _: "the first Vulkan device",
        ),
    ] = None,
    modes: Annotated[
        str,
        Parameter(name="--modes", help="Cache topologies, with commas between them; see `compile --mode`."),
    ] = "shared,per-worker,per-worker-internal",
    workers: Annotated[
        str,
        Parameter(
            name=["--workers", "-j"],
            help="Numbers of workers, with commas between them.",
            show_default=lambda _: "1, and one a processor",
        ),
    ] = "",
    start: Annotated[
        str,
        Parameter(
            name=["--start", "--temperature"],
            help="`cold`: caches start empty. `warm`: they hold everything, and the set is handed over often enough for a "
            "run to last.",
        ),
    ] = "cold,warm",
    duplicates: Annotated[
        str,
        Parameter(
            name="--duplicates", help="Shares of the pipelines that are in a run a second time, 0 to 1."
        ),
    ] = "0",
    samples: Annotated[
        int, Parameter(name=["--samples", "-n"], help="Samples of each cell, beside a warm-up.")
    ] = 7,
    batch: Annotated[
        int, Parameter(name="--batch", help="Largest number of pipelines in a call of a cold run.")
    ] = 64,
    warm_batch: Annotated[
        int, Parameter(name="--warm-batch", help="Largest number of pipelines in a call of a warm run.")
    ] = 1024,
    warm_passes: Annotated[
        int | None,
        Parameter(
            name="--warm-passes",
            help="How often the set is in a warm run.",
            show_default=lambda _: "so often that one worker needs a second",
        ),
    ] = None,
    time_limit: Annotated[
        str,
        Parameter(
            name="--time-limit",
            help="End early so that no more time than this is used, such as `90s`, `20m` or `2h`.",
            show_default=lambda _: "none",
        ),
    ] = "",
    trace: Annotated[
        Path | None,
        Parameter(name="--trace", help="Write a timeline of one sample of each cell, for Perfetto."),
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Measure what a shared and private caches cost on a device, and say it with intervals.

    Every sample is a process of its own, with the driver's caches off. Ctrl-C keeps what is done; the same command goes on.

    **EXAMPLES**

        orchestrator bench sample -d radv:navi21 -o results
        orchestrator bench game.foz -d radv -j 1,4,16 --time-limit 2h -o results
        orchestrator bench game.foz -d nvidia --duplicates 0,0.5 -o results
    """
    from orchestrator.bench.runner import run_bench
    from orchestrator.cli.bench_report import BenchView, bench_document, report_of, show_bench

    plan = _plan(
        sets,
        devices=device or [""],
        modes=modes,
        workers=workers,
        start=start,
        duplicates=duplicates,
        samples=samples,
        batch=batch,
        warm_batch=warm_batch,
    )
    limit = time_limit_seconds(time_limit) if time_limit else None
    if warm_passes is not None and warm_passes < 1:
        raise UsageError(f"--warm-passes {warm_passes}: at least 1 is expected")
    output = Output(json=json)
    with _terminated_as_interrupted(), BenchView(output) as view:
        outcome = run_bench(
            plan,
            out,
            time_limit_s=limit,
            warm_passes=warm_passes,
            on_progress=view.progress,
            on_stage=view.stage,
        )
    report = report_of(outcome)
    page = None if report is None else _write_extras(out, report, trace)
    output.document({**bench_document(outcome, report), "report": None if page is None else path_text(page)})
    show_bench(output, outcome, report)
    if page is not None:
        output.line("report: ", path_text(page))
    elif report is not None:
        output.message("no report.html: plotly is not installed (pip install 'orchestrator[report]')")
    return _exit_code(outcome)


def _write_extras(out: Path, report: ContentionReport, trace: Path | None) -> Path | None:
    """Write the page, where plotly is installed, and the timelines that were asked for; returns the page's path.

    Raises:
        SaveError: One cannot be written.
    """
    from orchestrator.bench.html_report import ReportError, html_report
    from orchestrator.bench.runner import timelines_of
    from orchestrator.bench.trace import join_traces
    from orchestrator.stores.files.atomic_file import write_atomically

    timelines = timelines_of(out, [each.cell for each in report.cells])
    if trace is not None:
        write_atomically(trace, [join_traces(list(timelines.values()))])
    try:
        text = html_report(report, timelines)
    except ReportError:
        return None
    page = out / "report.html"
    write_atomically(page, [text.encode()])
    return page


def _plan(
    sets: list[str],
    *,
    devices: list[str],
    modes: str,
    workers: str,
    start: str,
    duplicates: str,
    samples: int,
    batch: int,
    warm_batch: int,
) -> Matrix:
    from orchestrator.bench.matrix import Matrix
    from orchestrator.bench.rows import Start
    from orchestrator.devices.device import CacheMode
    from orchestrator.run import available_workers

    if min(samples, batch, warm_batch) < 1:
        raise UsageError(
            f"--samples {samples}, --batch {batch}, --warm-batch {warm_batch}: at least 1 is expected"
        )
    with open_set(sets) as opened:  # a set that cannot be opened is told before anything is measured
        if not len(opened):
            raise UsageError(f"{opened.name}: holds no pipelines")

    def whole(text: str) -> int:
        number = int(text)
        if not 1 <= number <= 4096:
            raise ValueError
        return number

    def share(text: str) -> float:
        number = float(text)
        if not 0 <= number <= 1:
            raise ValueError
        return number

    here = available_workers()
    every_mode = ", ".join(CacheMode)
    return Matrix(
        set_paths=set_paths(sets),
        devices=tuple(dict.fromkeys(devices)),
        modes=_several("--modes", modes, CacheMode, every_mode),
        workers=_several("--workers", workers or ",".join(map(str, sorted({1, here}))), whole, "1 to 4096"),
        starts=_several("--start", start, Start, "cold, warm"),
        duplicates=_several("--duplicates", duplicates, share, "shares from 0 to 1"),
        samples=samples,
        batch=batch,
        warm_batch=warm_batch,
    )


def _several(option: str, text: str, read: Callable[[str], _T], expected: str) -> tuple[_T, ...]:
    """Values with commas between them, each once."""
    try:
        return tuple(dict.fromkeys(read(each.strip()) for each in text.split(",")))
    except ValueError:
        raise UsageError(f"{option} {text!r}: expected are, with commas between them: {expected}") from None


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the work as Ctrl-C does."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit_code(outcome: BenchOutcome) -> ExitCode:
    if outcome.stopped == "interrupted":
        return ExitCode.INTERRUPTED
    return ExitCode.PIPELINES_FAILED if outcome.failed else ExitCode.OK
