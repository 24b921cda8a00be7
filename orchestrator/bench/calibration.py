"""Calibrates a device: measures topologies, workers, batches and binaries, and what its caches are worth.

    fill and look up   one shared cache; worker caches, merged; cache sizes over rounds of load and read
    cold and warm      A B C D A', rotated by one per round, each sample in its own process
    binaries           warm, one pass, against the chosen mode and workers: A binaries A'
    batches            warm, with the chosen mode and workers: 1024 1 64 256 1024'

Guarantees: every answer comes with its figures (findings.py). A contender is sampled until it is decided. A
failed sample excludes its contender, with a note. With a time limit, the most informative contenders get
their pairs first, no sample begins that is expected to end too late, and one that lasts longer is ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from attrs import define, evolve, field, frozen

from orchestrator.bench.contention import clock_words
from orchestrator.bench.findings import (
    Contender,
    ProbeResult,
    SampleTable,
    choose,
    choose_batch,
    probe_findings,
    topology_findings,
    undecided,
    use_of,
    weigh_binaries,
)
from orchestrator.bench.jobs import (
    JOB_TIMEOUT_S,
    Answer,
    BenchError,
    Filled,
    FillJob,
    Job,
    MeasurementProgress,
    Probed,
    ProbeJob,
    Refused,
    SampleJob,
    cannot,
    other_than,
    reason_of,
    run_in_process,
)
from orchestrator.bench.rows import Sample, Start, busy_share, device_text
from orchestrator.bench.runner import in_turn
from orchestrator.bench.statistics import BUSY_SHARE, LEAST_CLEAR_PAIRS, LEAST_PAIRS, MORE_ROUNDS
from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.modes import CacheMode
from orchestrator.run.options import BATCH_LIMIT, available_workers
from orchestrator.stores.profile_file import CalibrationProfile, Choice, Finding

BATCHES = (1, 64, 256, BATCH_LIMIT)
_WARM_SECONDS = 0.5  # short, because times vary between processes and not between passes
_FILL_PASSES = 8
_PROBES = 5
_GROWTH_ROUNDS = 6
_FAR = 3.0
"""A contender that is expected to take so many times as long as its baseline is soon decided."""

_Arm = tuple[Contender, bool]
_Groups = Sequence[Sequence[Contender]]


@frozen
class Calibrated:
    """The result of a calibration: the device, its profile, and why it ended early, or ""."""

    identity: DeviceIdentity
    profile: CalibrationProfile
    stopped: str


def calibrate(
    set_paths: Sequence[str],
    device: str,
    *,
    rounds: int,
    workers: int | None = None,
    time_limit_s: float | None = None,
    profiles: Path | None = None,
    on_progress: Callable[[MeasurementProgress], None] = lambda _: None,
    run_job: Callable[[Job], Answer] = run_in_process,
) -> Calibrated:
    """Calibrate a device. Takes minutes; blocking.

    The set is archives, or one manifest. Each contender gets `rounds` samples; fewer once it is decided,
    three times as many while it is not. At most `workers` are tried; None for one per processor. No sample
    is taken after `time_limit_s`, s. `profiles` is the directory of key profiles and quarantines, as for
    `compile`. `on_progress` is called before each process. `run_job` does one job.

    Raises:
        NoDeviceError: There is no such device.
        BenchError: The set cannot be compiled on it; or set, driver or machine changed meanwhile.
    """
    with TemporaryDirectory(prefix="orchestrator-calibrate-") as directory:
        return _Calibration(
            set_paths=tuple(set_paths),
            device=device,
            rounds=rounds,
            most=available_workers() if workers is None else workers,
            deadline=None if time_limit_s is None else time.monotonic() + time_limit_s,
            directory=Path(directory),
            profiles="" if profiles is None else str(profiles),
            on_progress=on_progress,
            run_job=run_job,
        ).run()


@define(eq=False)
class _Calibration:
    set_paths: tuple[str, ...]
    device: str
    rounds: int
    most: int
    deadline: float | None
    directory: Path
    profiles: str
    on_progress: Callable[[MeasurementProgress], None]
    run_job: Callable[[Job], Answer]
    done: int = 0
    total: int = 0
    probe_s: float = 0.0
    passes: dict[CacheMode, int] = field(factory=dict)
    stopped: str = ""
    took: dict[Contender, list[float]] = field(factory=dict)
    topologies: SampleTable = field(factory=SampleTable)
    uses: SampleTable = field(factory=lambda: SampleTable(figure=use_of))
    batches: SampleTable = field(factory=SampleTable)
    failed: set[Contender] = field(factory=set)
    late: dict[Contender, None] = field(factory=dict)
    notes: list[str] = field(factory=list)
    filled: Filled = field(init=False)

    def run(self) -> Calibrated:
        self.total = (
            _PROBES + self._most * (2 * len(self._contenders(Start.WARM)) + 2) + self._later(binaries=True)
        )
        filled = self._fill("compiling with one shared cache", "shared", CacheMode.SHARED)
        if not isinstance(filled, Filled):
            cannot(f"{device_text(self.device)} cannot be calibrated", filled)
        self.filled, self.passes = filled, filled.passes(_WARM_SECONDS, _WARM_SECONDS)
        probed = self._probe()
        starts = list(Start) if probed.cache_keeps else [Start.COLD]
        later = self._later(binaries=filled.binaries) * (Start.WARM in starts)
        samples = self._race([self._contenders(each) for each in starts], self.topologies, later=later)
        findings = [*probe_findings(probed)]
        for start in starts:
            findings += topology_findings(samples, start, self.most)
        cold, warm = (
            choose(samples, start, self._worker_counts, merge_works=probed.merge_works) for start in Start
        )
        binaries = batch = None
        if later:
            if filled.binaries and cold is not None and warm is not None:
                binaries, weighed = self._weigh_binaries(samples, cold, warm)
                findings += weighed
            batch, finding = self._choose_batch(warm)
            findings.append(finding)
        conclusions = {"cold": cold, "warm": warm, "batch": batch, "binaries": binaries}
        profile = self._profile(probed, findings=tuple(findings), **conclusions)
        return Calibrated(filled.identity, profile, self.stopped)

    def _later(self, *, binaries: bool) -> int:
        """The most samples after those of the topologies."""
        return self._most * (len(BATCHES) + 1 + 3 * binaries) + binaries

    def _weigh_binaries(
        self, samples: SampleTable, cold: Choice, warm: Choice
    ) -> tuple[Choice | None, tuple[Finding, ...]]:
        cached = Contender(Start.WARM, CacheMode(warm.mode), warm.workers)
        binaries = evolve(cached, mode=CacheMode.BINARIES)
        if self._fits(self._expected_s(binaries)):
            self._take((binaries, False), -1, self.uses)  # fills the store
        uses = self._race([[cached, binaries]], self.uses, later=self._later(binaries=False))
        return weigh_binaries(samples, uses, cold, cached, self.most)

    def _choose_batch(self, warm: Choice | None) -> tuple[int | None, Finding]:
        mode, workers = (warm.mode, warm.workers) if warm is not None else (CacheMode.SHARED, self.most)
        usual = Contender(Start.WARM, CacheMode(mode), workers)
        group = [usual, *(evolve(usual, batch=each) for each in BATCHES if each != usual.batch)]
        return choose_batch(self._race([group], self.batches), usual, BATCHES)

    @property
    def _pairs(self) -> int:
        return min(self.rounds, LEAST_PAIRS)

    @property
    def _most(self) -> int:
        return self.rounds * (MORE_ROUNDS if self.rounds >= LEAST_PAIRS else 1)

    @property
    def _worker_counts(self) -> tuple[int, ...]:
        return tuple(sorted({1, self.most, *([self.most // 2] if self.most >= 4 else [])}))

    def _contenders(self, start: Start) -> list[Contender]:
        modes = [CacheMode.SHARED, CacheMode.PER_WORKER]
        more = [CacheMode.PER_WORKER_INTERNAL] if self.most > 1 else []
        if start == Start.WARM:
            more.append(CacheMode.TWO_LEVEL)
        elif self.done and self.filled.binaries:
            more.append(CacheMode.BINARIES)
        made = [Contender(start, mode, self.most) for mode in (*modes, *more)]
        return made + [Contender(start, mode, count) for count in self._worker_counts[:-1] for mode in modes]

    def _rank(self, contender: Contender) -> int:
        """How late a contender gets its pairs if time is short: the larger, the later."""
        if contender.workers == self.most:
            ranks = {CacheMode.TWO_LEVEL: 2, CacheMode.PER_WORKER_INTERNAL: 4, CacheMode.BINARIES: 6}
            return ranks.get(contender.mode, 0)
        if contender.workers == 1:
            return 1 if contender.start == Start.WARM else 3
        return 5

    # --- processes

    def _do(self, what: str, job: Job) -> Answer:
        left_s = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        self.on_progress(MeasurementProgress(self.done, self.total, what, left_s))
        answer = self.run_job(job)
        self.done += 1
        return answer

    def _fill(self, what: str, directory: str, mode: CacheMode) -> Answer:
        workers = max(2, self.most)  # a merge needs two caches, even with one processor
        passes = _FILL_PASSES if mode == CacheMode.SHARED else 0
        return self._do(what, FillJob(**self._set(directory), workers=workers, mode=mode, passes=passes))

    def _set(self, directory: str) -> dict[str, Any]:
        return {
            "set_paths": self.set_paths,
            "device": self.device,
            "cache_directory": str(self.directory / directory) if directory else "",
            "profiles": self.profiles,
        }

    def _probe(self) -> ProbeResult:
        result = ProbeResult(set_pipelines=self.filled.pipelines, cold_hits=self.filled.hits)
        began = time.monotonic()
        looked_up = self._do("looking up in a new process", ProbeJob(**self._set("shared")))
        self.probe_s = time.monotonic() - began
        if not isinstance(looked_up, Probed):
            return evolve(result, problem=reason_of(looked_up))
        result = evolve(result, shared_hits=looked_up.hits, missed=looked_up.missed)
        if not result.cache_keeps:
            return result
        compiled = self._fill("compiling with a cache for each worker", "merged", CacheMode.PER_WORKER)
        again = self._do("looking up what was merged", ProbeJob(**self._set("merged")))
        if isinstance(compiled, Filled) and isinstance(again, Probed):
            result = evolve(result, merged_hits=again.hits, merge_warnings=compiled.warnings)
        grow = ProbeJob(**self._set("shared"), rounds=_GROWTH_ROUNDS)
        grown = self._do("loading and reading over and over", grow)
        if isinstance(grown, Probed):
            result = evolve(result, sizes=grown.sizes)
        failed = [each for each in (compiled, again, grown) if not isinstance(each, Filled | Probed)]
        return evolve(result, problem="; ".join(map(reason_of, failed)))

    # --- time

    def _expected_s(self, contender: Contender) -> float:
        """The time of a sample: as its own ones took, or else as filling a cache took."""
        if contender in self.took:
            return median(self.took[contender])
        filled, hits = self.filled, self.filled.hit_s
        if contender.start == Start.COLD:
            run_s = max(filled.cold_wall_ns, filled.cold_driver_ns / contender.workers) / 1e9
        else:
            like = CacheMode.SHARED if contender.mode is CacheMode.SHARED else CacheMode.PER_WORKER
            run_s = self._passes(contender) * hits[like][contender.workers > 1] if like in hits else 0.0
        return self.probe_s + run_s

    def _passes(self, contender: Contender) -> int:
        return self.passes[contender.mode] if contender.start == Start.WARM else 1

    def _fits(self, seconds: float) -> bool:
        return self.deadline is None or time.monotonic() + seconds <= self.deadline

    def _affordable(
        self, groups: _Groups, wanted: Collection[Contender], table: SampleTable
    ) -> set[Contender]:
        """Of what is wanted, that which can still get the pairs of a verdict in time, by rank."""
        chosen, reserved_s = set[Contender](), 0.0
        there = [(each, group[0]) for group in groups for each in group if each in wanted]
        for each, baseline in sorted(there, key=lambda pair: self._rank(pair[0])):
            expected_s = self._expected_s(each)
            pairs = LEAST_CLEAR_PAIRS if expected_s > _FAR * self._expected_s(baseline) else self._pairs
            needed_s = max(0, pairs - len(table.of(each))) * expected_s * (2 if each == baseline else 1)
            if self._fits(reserved_s + needed_s):
                reserved_s += needed_s
                chosen.add(each)
        return chosen

    # --- samples

    def _race(self, groups: _Groups, table: SampleTable, *, later: int = 0) -> SampleTable:
        """Sample contenders until all are decided, each group with its baseline first, as time allows.

        At most `later` warm samples will follow.
        """
        for number in range(self._most):
            wanted = self._undecided(groups, table)
            arms_a_round = len(wanted) + len({each.start for each in wanted})
            self.total = min(self.total, self.done + (self._most - number) * arms_a_round + later)
            arms = self._arms(groups, number, self._affordable(groups, wanted, table))
            if not arms or not self._take_round(groups, arms, number, table, later):
                break
        self.total = min(self.total, self.done + later)
        wanted = self._undecided(groups, table)
        others = (each for group in groups for each in group[1:] if each in wanted)
        late = [each for each in others if len(table.of(each)) < self._most]
        if late:
            self.stopped = self.stopped or "the time limit"
        self.late |= dict.fromkeys(sorted(late, key=self._rank))
        table.late = set(self.late)
        return table

    def _undecided(self, groups: _Groups, table: SampleTable) -> set[Contender]:
        there = (group for group in groups if group[0] not in self.failed)
        return {each for group in there for each in undecided(table, group) - self.failed}

    def _take_round(
        self, groups: _Groups, arms: Sequence[_Arm], number: int, table: SampleTable, later: int
    ) -> bool:
        """Take a round as far as time allows; returns whether there was time for any of it."""
        warm_s = self._expected_s(Contender(Start.WARM, CacheMode.SHARED, self.most))
        round_s = sum(self._expected_s(each) for each, _ in arms)
        # What comes later goes before more rounds than a verdict needs.
        if number >= LEAST_PAIRS and not self._fits(round_s + later // self._most * self._pairs * warm_s):
            return False
        taken, wanted = self.done, {each for each, _ in arms}
        for contender, control in arms:
            if number == 0 and contender not in self._affordable(groups, wanted, table):
                continue  # times of samples are known now
            if contender not in self.failed and self._fits(self._expected_s(contender)):
                self._take((contender, control), number, table)
        return self.done > taken

    def _arms(self, groups: _Groups, number: int, chosen: set[Contender]) -> list[_Arm]:
        """The arms of a round, the first one in the order of their rank."""
        arms = list[_Arm]()
        for group in groups:
            whole = [*((each, False) for each in group), (group[0], True)]
            if group[0] in chosen and len(chosen.intersection(group)) > 1:  # else nothing can be compared
                arms += [arm for arm in in_turn(whole, number) if arm[0] in chosen]
        return sorted(arms, key=lambda arm: self._rank(arm[0])) if number == 0 else arms

    def _take(self, arm: _Arm, number: int, table: SampleTable) -> None:
        contender, control = arm
        warm, binaries = contender.start == Start.WARM, contender.mode is CacheMode.BINARIES
        left_s = JOB_TIMEOUT_S if self.deadline is None else max(1.0, self.deadline - time.monotonic())
        job = SampleJob(
            **self._set(("binaries" if binaries else "shared") if warm else ""),
            start=contender.start,
            duplicates=0.0,
            workers=contender.workers,
            mode=contender.mode,
            control=control,
            round=number,
            batch=contender.batch,
            passes=self._passes(contender) if table is not self.uses else 1,
            limit_s=min(JOB_TIMEOUT_S, left_s),
        )
        words = f"round {number + 1}: {contender.words}" + (" (control)" if control else "")
        answer = self._do(words, job)
        if isinstance(answer, Refused) and answer.kind == "timeout" and job.limit_s < JOB_TIMEOUT_S:
            self.took.setdefault(contender, []).append(job.limit_s)  # the time limit ended it
        elif not isinstance(answer, Sample):
            self.failed.add(contender)
            self.notes.append(f"{contender.words}: left out, because a sample failed: {reason_of(answer)}")
        elif what := other_than(answer, self.filled):
            raise BenchError(
                f"{device_text(self.device)} cannot be calibrated: what is measured changed: a sample is of "
                f"{what}",
                "begin again, and leave set, driver and machine as they are meanwhile",
            )
        else:
            table.add(answer)
            self.took.setdefault(contender, []).append(answer.process_s)

    def _profile(self, probed: ProbeResult, **conclusions: object) -> CalibrationProfile:
        filled, tables = self.filled, (self.topologies, self.uses, self.batches)
        rows = [row for each in tables for row in each.rows]
        machine, cores = filled.environment, available_workers()
        load = max((each.environment.load_average for each in rows), default=0.0)
        notes = list(self.notes)
        if rows and (busy := busy_share(rows)) > BUSY_SHARE:
            notes.append(
                f"threads waited for a processor for {busy:.0%} of the time (a load of up to {load:.1f} on "
                f"{cores} processors), so times decide little: repeat it on a quiet machine"
            )
        notes += clock_words(rows)
        notes += sorted({note for each in rows for note in each.notes if note not in notes})
        if self.late:
            notes.append(f"not decided within the time limit: {'; '.join(each.words for each in self.late)}")
        return CalibrationProfile.of(
            filled.identity,
            cores=cores,
            processor=machine.processor,
            load_average=load,
            driver_caches=machine.driver_caches,
            order=rows[0].order if rows else "",
            set_name=filled.set_name,
            set_hash=filled.set_hash,
            pipelines=filled.pipelines,
            python=machine.python,
            rounds=len(self.topologies.of(self._contenders(Start.COLD)[0])),
            figures=tuple(figure for each in tables for figure in each.figures()),
            merge_works=probed.merge_works,
            cache_keeps=probed.cache_keeps,
            read_back_grows=probed.read_back_grows,
            notes=tuple(notes),
            **conclusions,
        )
