"""What to measure next.

What to measure next where time may be short: many cells with too few pairs say nothing, a few with enough
do.

no limit          the rounds of the plan, in its order a limit           groups with the most workers first:
as many of them as can get the pairs that a verdict needs, round by round; then what brings others nearer to
that; then more pairs for all

Guarantees: pure. What is handed out is one round of one group, all of it that has no row yet, so that the
legs of a pair are taken side by side. Under a limit a round is handed out only where, by all that is known,
it ends in time; a group of which nothing is known gets one, its warm-up as a rule, to learn what it costs.

Runs the samples of a benchmark.

Running a benchmark: one process a sample, in the order of the plan, every row kept as soon as it is there.

Guarantees: - results.jsonl is the whole state. Interrupted (Ctrl-C, a time limit, power), the same command
goes on where it was: rows that are there are not taken again. Rows of another set, device or driver are
refused, not mixed. - A sample that crashes or hangs is a row that says so and which leg of the round it
was; that leg is left alone from then on (and the control with its baseline), and tried again when the
benchmark is run again. Nothing else suffers. - The time limit is kept by not starting a round that would,
by all that is known, end after it; one that has begun is finished, so that the legs of a pair were taken
side by side. What comes first under a limit is in pacing.py. - Going on, the caches of warm runs are those
that earlier samples began with. - A sample's process is in a session of its own and is killed when this one
is interrupted: nothing keeps running.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
from attrs import evolve, frozen

from orchestrator.bench.jobs import Answer, Filled, FillJob, Job, Refused, SampleJob
from orchestrator.bench.plan import WARM, BenchPlan, Eta, eta_of, key_of, leg_of, remaining
from orchestrator.bench.samples import (
    Cell,
    FailedSample,
    Group,
    Leg,
    Row,
    RowWriter,
    Sample,
    failed_legs,
    read_rows,
)
from orchestrator.bench.statistics import LEAST_PAIRS
from orchestrator.errors import NoDeviceError, OrchestratorError

Round = tuple[SampleJob, ...]


def next_round(waiting: Sequence[SampleJob], rows: Sequence[Row], left_s: float | None) -> Round:
    """The samples to take next: one round of one group; none where nothing ends in time.

    Args:
        waiting: What has no row yet, in the order of the plan.
        rows: What is there.
        left_s: Time left, s; None for as long as it takes.
    """
    rounds = _rounds(waiting)
    if left_s is None or not rounds:
        return rounds[0] if rounds else ()
    if left_s <= 0:
        return ()
    groups = sorted(dict.fromkeys(map(_group, rounds)), key=lambda each: -each.workers)
    budget, chosen, short = left_s, set(), []
    for group in groups:
        missing = [each for each in rounds if _group(each) == group and each[0].round < LEAST_PAIRS]
        eta = eta_of([job for each in missing for job in each], rows)
        if eta.unknown:
            return missing[0]
        if missing and eta.seconds <= budget:
            budget -= eta.seconds
            chosen.add(group)
        elif missing:
            short.append((eta.seconds, missing[0]))
    # In the order of the plan the chosen groups take turns. Of the others the one that lacks least comes first.
    wanted = [each for each in rounds if _group(each) in chosen and each[0].round < LEAST_PAIRS]
    wanted += [each for _, each in sorted(short, key=lambda item: item[0])]
    wanted += [each for each in rounds if each[0].round >= LEAST_PAIRS]
    return next((each for each in wanted if eta_of(each, rows).seconds <= left_s), ())


def _rounds(waiting: Sequence[SampleJob]) -> list[Round]:
    """The jobs by round and group, in the order of the plan."""
    found: dict[tuple[int, Group], list[SampleJob]] = {}
    for job in waiting:
        found.setdefault((job.round, _group((job,))), []).append(job)
    return [tuple(each) for each in found.values()]


def _group(jobs: Round) -> Group:
    return Group(*leg_of(jobs[0]).cell[:4])


RESULTS = "results.jsonl"
CACHES = "caches"
TIMELINES = "timelines"
WARM_PIPELINES_MOST = 1_600_000
WARM_SECONDS = 1.0
WARM_SECONDS_MOST = 3.0
"""A warm run hands over as many pipelines as one worker takes in this time, up to the number above."""

_SAMPLE_TIMEOUT_S = 3600.0
_REASON_LENGTH = 400


class BenchError(OrchestratorError):
    """A benchmark cannot begin or go on; the message says why and what to do."""


@frozen
class BenchProgress:
    """How far a benchmark is.

    Attributes:
        done: Samples that are there, those of earlier runs and warm-ups included.
        total: Samples of the plan.
        round: The round at hand; -1 for the warm-up.
        now: What is measured now, in words.
        eta: How long the rest takes.
        left_s: Time left until the limit, s; None without one.
    """

    done: int
    total: int
    round: int
    now: str
    eta: Eta
    left_s: float | None


@frozen
class BenchOutcome:
    """How a benchmark ended.

    Attributes:
        rows: Every row of the file.
        done: Samples that are there.
        total: Samples of the plan.
        resumed: Samples that were there before.
        stopped: Why it ended early, or "".
        failed: The last attempt of each leg that could not be measured.
        path: The file of rows.
    """

    rows: tuple[Row, ...]
    done: int
    total: int
    resumed: int
    stopped: str
    failed: tuple[FailedSample, ...]
    path: Path


def run_bench(
    plan: BenchPlan,
    directory: Path,
    *,
    time_limit_s: float | None = None,
    warm_passes: int | None = None,
    on_progress: Callable[[BenchProgress], None] = lambda _: None,
    on_stage: Callable[[str], None] = lambda _: None,
    run_job: Callable[[Job], Answer] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> BenchOutcome:
    """Take all samples of a plan that are not there yet.

    Args:
        plan: What to measure.
        directory: Where results and caches are kept.
        time_limit_s: End early so that no more time than this is used.
        warm_passes: How often the set is in a warm run; None to choose so that it lasts long enough.
        on_progress: Called before each sample.
        on_stage: Called with what else is done.
        run_job: Does one job; a process of its own by default.
        clock: Tells the time that the limit is about, s.

    Returns:
        What is there now, also when it was interrupted (KeyboardInterrupt is taken as an end, not raised).

    Raises:
        BenchError: The directory holds results of something else, or a device cannot be measured.
        NoDeviceError: A device is not there.
        SamplesError: The file of rows is damaged.
    """
    begin = clock()

    def left_s() -> float | None:
        return None if time_limit_s is None else begin + time_limit_s - clock()

    do = run_job or run_in_process
    directory.mkdir(parents=True, exist_ok=True)
    caches = directory / CACHES
    caches.mkdir(mode=0o700, exist_ok=True)
    (directory / TIMELINES).mkdir(exist_ok=True)
    path = directory / RESULTS
    rows: list[Row] = read_rows(path) if path.exists() else []
    resumed = sum(isinstance(each, Sample) for each in rows)
    stopped = ""
    try:
        plan = _prepare(evolve(plan, cache_directory=str(caches)), rows, warm_passes, do, on_stage)
        with RowWriter(path) as writer:
            stopped = _take(plan, rows, writer, left_s, do, on_progress, directory)
    except KeyboardInterrupt:
        stopped = "interrupted"
    total = sum(1 for _ in plan.jobs())
    wanted = {key_of(job) for job in plan.jobs()}
    done = sum(isinstance(each, Sample) and key_of(each) in wanted for each in rows)
    return BenchOutcome(tuple(rows), done, total, resumed, stopped, failed_legs(rows), path)


def _prepare(
    plan: BenchPlan,
    rows: Sequence[Row],
    warm_passes: int | None,
    do: Callable[[Job], Answer],
    on_stage: Callable[[str], None],
) -> BenchPlan:
    """Look at each device, fill the caches for warm runs, and check that earlier rows are of the same thing."""
    passes: dict[str, int] = {}
    warm = WARM in plan.temperatures
    for device in plan.devices:
        earlier = [each for each in rows if isinstance(each, Sample) and each.device == device]
        known = {each.passes for each in earlier if each.temperature == WARM}
        compiles = warm and not known
        on_stage(f"{device}: compiling once, for warm runs" if compiles else f"{device}: opening")
        answer = do(
            FillJob(
                set_paths=plan.set_paths,
                device=device,
                workers=max(plan.workers),
                cache_directory=plan.cache_directory,
                warm=warm,
                reuse=bool(known),
            )
        )
        if not isinstance(answer, Filled):
            reason = answer.reason if isinstance(answer, Refused | FailedSample) else "an unexpected answer"
            if isinstance(answer, Refused) and answer.kind == NoDeviceError.__name__:
                raise NoDeviceError(reason)
            raise BenchError(f"{device} cannot be measured: {reason}")
        _check_same(device, answer, earlier, plan)
        if known:
            passes[device] = known.pop()  # as before, so that rows can be compared
        else:
            passes[device] = warm_passes or passes_for(answer)
    return evolve(plan, warm_passes=passes)


def passes_for(filled: Filled) -> int:
    """How often a set is in a warm run, so that the run is long enough to be measured."""
    if not filled.pipelines or not filled.warm_rate:
        return 1
    # On some drivers many workers take hits a hundred times slower than one.
    slowest = filled.warm_rate_most * WARM_SECONDS_MOST
    wanted = min(filled.warm_rate * WARM_SECONDS, slowest, WARM_PIPELINES_MOST)
    return max(1, round(wanted / filled.pipelines))


def _check_same(device: str, found: Filled, earlier: Sequence[Sample], plan: BenchPlan) -> None:
    for each in earlier:
        environment = each.environment
        if each.set_hash != found.set_hash:
            what = f"another set ({each.set_name}, hash {each.set_hash}; this one has {found.set_hash})"
        elif environment.pipeline_cache_uuid not in found.identity:
            what = (
                f"another driver ({environment.driver_name} {environment.driver_info}; now {found.identity})"
            )
        elif each.batch != (batch := plan.batch_of(each.temperature)):
            what = f"another batch ({each.batch}; now {batch})"
        else:
            continue
        raise BenchError(f"the results there for {device} are of {what}: name another directory with --out")


def _take(
    plan: BenchPlan,
    rows: list[Row],
    writer: RowWriter,
    left_s: Callable[[], float | None],
    do: Callable[[Job], Answer],
    on_progress: Callable[[BenchProgress], None],
    directory: Path,
) -> str:
    """Take samples until none is left or time is up; why it ended early, or ""."""
    waiting = remaining(plan, rows)
    total = sum(1 for _ in plan.jobs())
    given_up: set[Leg] = set()

    while waiting := [each for each in waiting if leg_of(each) not in given_up]:
        jobs = next_round(waiting, rows, left_s())
        if not jobs:
            return _out_of_time(plan, waiting)
        taken = set(map(key_of, jobs))
        waiting = [each for each in waiting if key_of(each) not in taken]
        for number, job in enumerate(jobs):
            leg, to_go = leg_of(job), [*jobs[number:], *waiting]
            if leg in given_up:
                continue
            left = left_s()
            if job.round < 0 and left is not None and left < 0:
                return _out_of_time(plan, to_go)  # a warm-up is no pair that could be torn
            on_progress(
                BenchProgress(total - len(to_go), total, job.round, leg.words, eta_of(to_go, rows), left)
            )
            row = _row(do, job, timeline_path(directory, leg.cell))
            if isinstance(row, FailedSample):
                given_up |= {leg, Leg(leg.cell, True)}
            writer.write(row)
            rows.append(row)
    return ""


def _out_of_time(plan: BenchPlan, to_go: Sequence[SampleJob]) -> str:
    jobs = list(plan.jobs())
    groups = {leg_of(each).cell[:4] for each in jobs}
    lacking = {leg_of(each).cell[:4] for each in to_go if each.round < LEAST_PAIRS}
    return (
        f"the time limit: {len(to_go)} of {len(jobs)} samples are to go; {len(groups - lacking)} of {len(groups)} groups have "
        f"the {min(LEAST_PAIRS, plan.samples)} pairs that {'a verdict needs' if plan.samples >= LEAST_PAIRS else 'were asked for'}"
    )


def _row(do: Callable[[Job], Answer], job: SampleJob, timeline: Path) -> Row:
    """Take a sample; what is there instead of one says which leg failed, and why."""
    if job.round >= 0 and not job.control and not timeline.exists():
        job = msgspec.structs.replace(job, trace=str(timeline))
    answer = do(job)
    if isinstance(answer, Sample):
        return answer
    return FailedSample(
        device=job.device,
        temperature=job.temperature,
        duplicates=job.duplicates,
        workers=job.workers,
        mode=job.mode,
        round=job.round,
        control=job.control,
        reason=answer.reason if isinstance(answer, Refused | FailedSample) else "an unexpected answer",
    )


def timeline_path(directory: Path, cell: Cell) -> Path:
    """Where the timeline of a cell's first sample is kept."""
    name = f"{cell.device or 'first'}-{cell.temperature}-{cell.duplicates:g}-{cell.workers}-{cell.mode}"
    return directory / TIMELINES / (re.sub(r"[^A-Za-z0-9.-]+", "-", name) + ".json")


def timelines_of(directory: Path, cells: Iterable[Cell]) -> dict[Cell, bytes]:
    """The timelines that are there, by cell."""
    return {cell: path.read_bytes() for cell in cells if (path := timeline_path(directory, cell)).exists()}


def run_in_process(job: Job) -> Answer:
    """Do a job in a process of its own; one that crashes or hangs gives a `Refused`."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "orchestrator.bench.sample_process"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
        start_new_session=True,
    )
    try:
        out, err = process.communicate(msgspec.json.encode(job), timeout=_SAMPLE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Refused(kind="timeout", reason=f"the sample did not end within {_SAMPLE_TIMEOUT_S:.0f} s")
    except BaseException:
        process.kill()
        process.communicate()
        raise
    try:
        decoded: Answer = msgspec.json.decode(out, type=Answer)
    except msgspec.MsgspecError:
        last = err.decode("utf-8", "replace").strip()[-_REASON_LENGTH:]
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        return Refused(kind="crash", reason=f"the process of the sample ended with {how}: {last}")
    if isinstance(decoded, Sample):  # the process itself does not know what starting it took
        decoded = msgspec.structs.replace(decoded, process_s=time.perf_counter() - began)
    return decoded


def _environment() -> dict[str, str]:
    """This process's, with the package to be found where this one found it."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
