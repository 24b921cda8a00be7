# Purpose: counts what became of a set's pipelines while its groups are compiled one after the other, for the progress
# that a person watches and the report at the end.
# Guarantees: the total is fixed before the first pipeline; `done` never falls; every outcome is kept once a group.
# Assumptions: one thread.
"""Outcomes and progress of a compile over all its groups."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, evolve, field, frozen

from orchestrator.devices.image import PipelineKind
from orchestrator.run.compile_report import Outcome
from orchestrator.run.outcomes import OutcomeStatus, RunReport
from orchestrator.run.progress import Progress
from orchestrator.sets.image_builder import BuiltImage
from orchestrator.sets.jobs import PipelineJob

_KINDS = tuple(PipelineKind)


@frozen
class CompileProgress:
    """How far a compile is. The total is fixed from the start and `done` never falls.

    Attributes:
        total: Pipelines to create, those of each group counted.
        done: Those with an outcome.
        compiled: Created by compiling.
        hits: Created from the cache, by creation feedback.
        failed: Not created.
        skipped: Not handed to the driver; known once a group was prepared.
        in_flight: In a driver call now.
        elapsed_s: Seconds since the first job of the current group.
        rate: Pipelines a second in the current group.
        eta_s: Seconds to go, or None until it is known.
    """

    total: int
    done: int
    compiled: int
    hits: int
    failed: int
    skipped: int
    in_flight: int
    elapsed_s: float
    rate: float
    eta_s: float | None


@define(eq=False)
class Tally:
    """What became of pipelines so far.

    Attributes:
        total: Pipelines to create, those of each group counted.
        outcomes: What became of them, group by group.
        runs: The report of each group's run.
    """

    total: int = 0
    outcomes: list[Outcome] = field(factory=list)
    runs: list[RunReport] = field(factory=list)
    _finished: CompileProgress = CompileProgress(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, None)

    def leave_out(self, outcomes: Sequence[Outcome]) -> None:
        """Count pipelines that are not handed to the driver in this run: skipped or failed."""
        self.outcomes += outcomes
        skipped = sum(each.status is OutcomeStatus.SKIPPED for each in outcomes)
        before = self._finished
        self._finished = evolve(
            before,
            done=before.done + len(outcomes),
            skipped=before.skipped + skipped,
            failed=before.failed + len(outcomes) - skipped,
        )

    def take_run(self, report: RunReport) -> None:
        """Count what a group's run did."""
        reasons = {each.index: each.reason for each in (*report.skipped, *report.failed)}
        for index in range(len(report)):
            job = PipelineJob(int(report.keys[index]), _KINDS[int(report.kinds[index])])
            self.outcomes.append(
                Outcome(job, report.status_of(index), reasons.get(index, ""), int(report.driver_ns[index]))
            )
        counts = report.counts()
        before = self._finished
        self._finished = evolve(
            before,
            done=before.done + len(report) - counts[OutcomeStatus.NOT_RUN],
            compiled=before.compiled + counts[OutcomeStatus.COMPILED],
            hits=before.hits + counts[OutcomeStatus.CACHE_HIT],
            failed=before.failed + counts[OutcomeStatus.FAILED],
            skipped=before.skipped + counts[OutcomeStatus.SKIPPED],
        )
        self.runs.append(report)

    def during(self, progress: Progress) -> CompileProgress:
        """Progress over all groups while one of them runs."""
        before = self._finished
        rest = self.total - before.done - progress.total
        eta = progress.eta_s
        if eta is not None and rest > 0:  # groups to come: at the rate of this one
            eta = eta + rest / progress.rate if progress.rate else None
        return CompileProgress(
            total=self.total,
            done=before.done + progress.done,
            compiled=before.compiled + progress.compiled,
            hits=before.hits + progress.hits,
            failed=before.failed + progress.failed,
            skipped=before.skipped + progress.skipped,
            in_flight=progress.in_flight,
            elapsed_s=progress.elapsed_s,
            rate=progress.rate,
            eta_s=eta,
        )


def problem_outcomes(built: BuiltImage) -> tuple[Outcome, ...]:
    """Outcomes of the pipelines that did not get into an image."""
    return tuple(
        Outcome(
            each.job,
            OutcomeStatus.SKIPPED if each.unsupported else OutcomeStatus.FAILED,
            each.reason,
        )
        for each in built.problems
    )
