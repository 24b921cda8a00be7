# Purpose: calibrating a device: which topology, how many workers, which batch, and whether its caches can be trusted to be
# worth it. Takes the samples, asks the probes, has `measure` judge them, and makes the profile.
#
#   probes        compile shared ─ look up ─ grow;  compile per-worker ─ look up
#   rounds 0..n   cold: A B C D A'   warm: A B C D E A'     turned by one a round, each sample in a process of its own
#   batches       warm, with the mode and workers that were found best: 1024 1 64 256 1024'
#
# Guarantees: a sample that fails leaves its contender out and is noted; nothing else suffers. With a time limit the rounds that
# are there are judged, and with too few of them the answer is "not measured", not a guess. Caches for warm runs are in a
# temporary directory, never the user's.
"""Taking the samples of a calibration."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import define, field, frozen

from orchestrator.bench.jobs import Answer, Job, Probed, ProbeJob, ProbeStep, Refused, SampleJob
from orchestrator.bench.runner import WARM_PIPELINES_MOST, BenchError, run_in_process
from orchestrator.devices.device import DeviceIdentity
from orchestrator.errors import NoDeviceError
from orchestrator.measure.calibration import (
    COLD,
    INTERNAL,
    PER_WORKER,
    SHARED,
    TWO_LEVEL,
    WARM,
    Contender,
    Samples,
    choose,
    choose_batch,
    topology_findings,
)
from orchestrator.measure.calibration_probes import ProbeResult, probe_findings
from orchestrator.measure.samples import FailedSample, Sample
from orchestrator.run import available_workers
from orchestrator.stores.calibration_profile import CalibrationProfile, Choice, Finding
from orchestrator.stores.profile_file import ProfileIdentity

ROUNDS = 7
"""Rounds where the time allows: two more than the least from which a difference can be told."""

BATCHES = (1, 64, 256, 1024)
BATCH = {COLD: 64, WARM: 1024}
"""Largest batch. A hit takes a microsecond: in small calls it would be the interpreter that is compared."""
_WARM_SECONDS = 0.5
_WARM_SECONDS_MOST = 2.0
_TRIAL_PASSES = 8
_PROBES = 5


@frozen
class CalibrationProgress:
    """How far a calibration is.

    Attributes:
        done: Processes that have ended.
        total: Processes of the plan as it is known now.
        now: What is measured now, in words.
    """

    done: int
    total: int
    now: str


@frozen
class Calibrated:
    """What a calibration found.

    Attributes:
        identity: The device.
        profile: The profile.
        stopped: Why it ended early, or "".
    """

    identity: DeviceIdentity
    profile: CalibrationProfile
    stopped: str


def calibrate(
    set_paths: Sequence[str],
    device: str,
    *,
    rounds: int = ROUNDS,
    workers: int | None = None,
    time_limit_s: float | None = None,
    on_progress: Callable[[CalibrationProgress], None] = lambda _: None,
    run_job: Callable[[Job], Answer] = run_in_process,
) -> Calibrated:
    """Calibrate a device. Takes minutes; blocking.

    Args:
        set_paths: The archives, or one manifest.
        device: The selector.
        rounds: Samples of each contender.
        workers: The most workers to try; None for one a processor.
        time_limit_s: Start nothing after this time.
        on_progress: Called before each process.
        run_job: Does one job; a process of its own by default.

    Raises:
        NoDeviceError: The device is not there.
        BenchError: The set cannot be compiled on it.
    """
    with tempfile.TemporaryDirectory(prefix="orchestrator-calibrate-") as directory:
        job = _Calibration(
            set_paths=tuple(set_paths),
            device=device,
            rounds=rounds,
            most=available_workers() if workers is None else workers,
            deadline=None if time_limit_s is None else time.monotonic() + time_limit_s,
            directory=Path(directory),
            on_progress=on_progress,
            run_job=run_job,
        )
        return job.run()


@define(eq=False)
class _Calibration:
    """One calibration."""

    set_paths: tuple[str, ...]
    device: str
    rounds: int
    most: int
    deadline: float | None
    directory: Path
    on_progress: Callable[[CalibrationProgress], None]
    run_job: Callable[[Job], Answer]
    done: int = 0
    total: int = 0
    passes: int = 1
    stopped: str = ""
    rows: list[Sample] = field(factory=list)
    batch_rows: list[Sample] = field(factory=list)
    left_out: dict[Contender, str] = field(factory=dict)
    notes: list[str] = field(factory=list)

    def run(self) -> Calibrated:
        """All of it."""
        self.total = _PROBES + self.rounds * (len(self._contenders(COLD)) + len(self._contenders(WARM)) + 2)
        found, probe = self._probe()
        temperatures = [COLD, WARM] if probe.cache_keeps else [COLD]
        self.total = self.done + self.rounds * sum(len(self._contenders(each)) + 1 for each in temperatures)
        if WARM in temperatures:
            self.total += self.rounds * (len(BATCHES) + 1) + 1
            self._keep_runs_short()
        self._rounds(temperatures)
        samples = Samples(self.rows)
        findings = list(probe_findings(probe))
        for temperature in temperatures:
            findings += topology_findings(samples, temperature, self.most, BATCH[temperature])
        cold, warm = (
            choose(samples, each, self._worker_counts, BATCH[each], merge_works=probe.merge_works)
            for each in (COLD, WARM)
        )
        batch = None
        if WARM in temperatures:
            mode, workers = (warm.mode, warm.workers) if warm is not None else (SHARED, self.most)
            batch, finding = self._batches(Contender(WARM, mode, workers, BATCH[WARM]))
            findings.append(finding)
        return self._profile(found, findings, cold, warm, batch, probe)

    @property
    def _worker_counts(self) -> tuple[int, ...]:
        return tuple(sorted({1, self.most, *([self.most // 2] if self.most >= 4 else [])}))

    def _contenders(self, temperature: str) -> list[Contender]:
        """The baseline first."""
        most = self.most
        made = [
            Contender(temperature, SHARED, most, BATCH[temperature]),
            Contender(temperature, PER_WORKER, most, BATCH[temperature]),
        ]
        if most > 1:
            made.append(Contender(temperature, INTERNAL, most, BATCH[temperature]))
        if temperature == WARM:
            made.append(Contender(temperature, TWO_LEVEL, most, BATCH[temperature]))
        for count in self._worker_counts[:-1]:
            made += [Contender(temperature, mode, count, BATCH[temperature]) for mode in (SHARED, PER_WORKER)]
        return made

    # --- single questions

    def _probe(self) -> tuple[Probed, ProbeResult]:
        shared, merged = str(self.directory / "shared"), str(self.directory / "merged")
        first = self._ask("compiling with one shared cache", ProbeStep.COMPILE, shared, SHARED)
        if isinstance(first, Refused):
            if first.kind == NoDeviceError.__name__:
                raise NoDeviceError(first.reason)
            raise BenchError(f"{self.device} cannot be calibrated: {first.reason}")
        result = ProbeResult(set_pipelines=first.pipelines, cold_hits=first.hits)
        looked_up = self._ask("looking up in a new process", ProbeStep.LOOK_UP, shared)
        if isinstance(looked_up, Refused):
            return first, ProbeResult(set_pipelines=first.pipelines, problem=looked_up.reason)
        rate = looked_up.rate
        self.passes = max(1, round(min(rate * _WARM_SECONDS, WARM_PIPELINES_MOST) / max(1, first.pipelines)))
        problems, merged_hits = [], None
        warnings: tuple[str, ...] = ()
        keeps = looked_up.hits > first.hits
        if keeps:
            compiled = self._ask(
                "compiling with a cache for each worker", ProbeStep.COMPILE, merged, PER_WORKER
            )
            again = self._ask("looking up what was merged", ProbeStep.LOOK_UP, merged)
            if isinstance(compiled, Probed) and isinstance(again, Probed):
                merged_hits, warnings = again.hits, compiled.warnings
            problems += [each.reason for each in (compiled, again) if isinstance(each, Refused)]
        grown = self._ask("loading and reading over and over", ProbeStep.GROW, shared) if keeps else None
        if isinstance(grown, Refused):
            problems.append(grown.reason)
        return first, ProbeResult(
            set_pipelines=result.set_pipelines,
            cold_hits=result.cold_hits,
            shared_hits=looked_up.hits,
            merged_hits=merged_hits,
            merge_warnings=warnings,
            sizes=grown.sizes if isinstance(grown, Probed) else (),
            problem="; ".join(problems),
        )

    def _ask(self, what: str, step: ProbeStep, directory: str, mode: str = SHARED) -> Probed | Refused:
        self._tell(what)
        # Merging takes two caches, also where there is one processor.
        answer = self.run_job(
            ProbeJob(
                step=step,
                set_paths=self.set_paths,
                device=self.device,
                cache_directory=directory,
                workers=max(2, self.most),
                mode=mode,
            )
        )
        self.done += 1
        if isinstance(answer, Probed | Refused):
            return answer
        return Refused(kind="answer", reason="an unexpected answer")

    # --- rounds

    def _keep_runs_short(self) -> None:
        """On some drivers many workers take hits a hundred times slower than one, by whose rate runs were made to last."""
        passes, self.passes = self.passes, min(self.passes, _TRIAL_PASSES)
        tried: list[Sample] = []
        self._take(self._contenders(WARM)[0], control=False, number=-1, rows=tried)
        self.passes = passes
        for each in tried:
            a_pass_s = each.wall_ns / 1e9 / each.passes
            self.passes = max(1, min(passes, round(_WARM_SECONDS_MOST / max(a_pass_s, 1e-9))))

    def _rounds(self, temperatures: Sequence[str]) -> None:
        for number in range(self.rounds):
            for temperature in temperatures:
                legs = self._legs(self._contenders(temperature))
                if not self._round(legs, number, self.rows):
                    return

    def _legs(self, contenders: list[Contender]) -> list[tuple[Contender, bool]]:
        """All contenders, and the first one again."""
        return [*((each, False) for each in contenders), (contenders[0], True)]

    def _batches(self, contender: Contender) -> tuple[int | None, Finding]:
        contenders = [
            contender,
            *(contender._replace(batch=batch) for batch in BATCHES if batch != contender.batch),
        ]
        for number in range(self.rounds):
            if not self._round(self._legs(contenders), number, self.batch_rows):
                break
        return choose_batch(Samples(self.batch_rows), contender, BATCHES)

    def _round(self, legs: Sequence[tuple[Contender, bool]], number: int, rows: list[Sample]) -> bool:
        """One sample of each, in turned order; whether there is time for more."""
        turn = number % len(legs)
        for contender, control in (*legs[turn:], *legs[:turn]):
            if contender in self.left_out:
                self.done += 1
                continue
            if self.deadline is not None and time.monotonic() > self.deadline:
                self.stopped = (
                    f"the time limit: {max(0, self.total - self.done)} of {self.total} samples are missing"
                )
                return False
            self._take(contender, control=control, number=number, rows=rows)
        return True

    def _take(self, contender: Contender, *, control: bool, number: int, rows: list[Sample]) -> None:
        temperature, mode, workers, batch = contender
        count = f"{workers} worker" if workers == 1 else f"{workers} workers"
        self._tell(
            f"{'trial' if number < 0 else f'round {number + 1} of {self.rounds}'}: {temperature}, {mode}, {count}"
            + (f", calls of {batch}" if rows is self.batch_rows else "")
            + (" (control)" if control else "")
        )
        warm = temperature == WARM
        answer = self.run_job(
            SampleJob(
                set_paths=self.set_paths,
                device=self.device,
                temperature=temperature,
                duplicates=0.0,
                workers=workers,
                mode=mode,
                control=control,
                round=number,
                batch=batch,
                passes=self.passes if warm else 1,
                cache_directory=str(self.directory / "shared") if warm else "",
            )
        )
        self.done += 1
        if isinstance(answer, Sample):
            rows.append(answer)
            return
        reason = answer.reason if isinstance(answer, Refused | FailedSample) else "an unexpected answer"
        self.left_out[contender] = reason
        self.notes.append(f"{temperature}, {mode}, {count}: left out, because a sample failed: {reason}")

    def _tell(self, what: str) -> None:
        self.on_progress(CalibrationProgress(self.done, self.total, what))

    # --- the profile

    def _profile(
        self,
        found: Probed,
        findings: list[Finding],
        cold: Choice | None,
        warm: Choice | None,
        batch: int | None,
        probe: ProbeResult,
    ) -> Calibrated:
        identity, rows = found.identity, [*self.rows, *self.batch_rows]
        environment = rows[0].environment if rows else None
        load = max((each.environment.load_average for each in rows), default=0.0)
        cores = available_workers()
        notes = list(self.notes)
        if load > cores + 1:
            notes.append(
                f"the machine was busy: a load of up to {load:.1f} on {cores} processors; what is said here may be noise, and "
                "differences that are there may not have been seen"
            )
        notes += sorted({note for each in rows for note in each.notes if note not in notes})
        if self.stopped:
            notes.append(f"ended early by {self.stopped}")
        return Calibrated(
            identity,
            CalibrationProfile(
                identity=ProfileIdentity.of(identity),
                device_name=identity.device_name,
                driver=f"{identity.driver_name} {identity.driver_info}".strip(),
                made_at=time.time(),
                cores=cores,
                processor=environment.processor if environment is not None else "",
                load_average=load,
                driver_caches=environment.driver_caches if environment is not None else "",
                set_name=found.set_name,
                set_hash=found.set_hash,
                pipelines=found.pipelines,
                orchestrator=environment.orchestrator if environment is not None else "",
                python=platform.python_version(),
                rounds=min((len(Samples(self.rows).of(each)) for each in self._contenders(COLD)), default=0),
                figures=(*Samples(self.rows).figures(), *Samples(self.batch_rows).figures()),
                findings=tuple(findings),
                cold=cold,
                warm=warm,
                batch=batch,
                merge_works=probe.merge_works,
                cache_keeps=probe.cache_keeps,
                read_back_grows=probe.read_back_grows,
                notes=tuple(notes),
            ),
            self.stopped,
        )
