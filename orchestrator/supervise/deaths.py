"""What follows when a worker process dies; the next one goes on with the rest.

pipelines were in the driver                            they are tried, and those that die are blamed
it created pipelines from binaries, no trial died       those are compiled; after two such deaths all
a device was opened or closed beside the calls          one device at a time from now on
another call did not return, or ended two processes     that step is given up, or the compile
nothing explains it, two times                          one pipeline at a time, which is then blamed
it was killed from outside, or memory is too little     the next process goes on
"""

from __future__ import annotations

import signal
from typing import Final

from attrs import define, field

from orchestrator.children.parent import Ended
from orchestrator.devices.device import DriverStep
from orchestrator.errors import DeviceError, shown
from orchestrator.sets.records import PipelineJob
from orchestrator.stores.culprits import Cause
from orchestrator.supervise.in_flight import OF_PIPELINES
from orchestrator.supervise.trial import Blame
from orchestrator.supervise.watch import WorkerDeath

MOST_FRUITLESS: Final = 8
_MOST_UNEXPLAINED: Final = 2
_FEW: Final = 8
_MANY: Final = 500
"""Pipelines that take as long one at a time, of some milliseconds each, as some deaths with their trials."""
_NEEDED: Final = OF_PIPELINES | {DriverStep.OPEN}
"""Steps that no compile can do without."""


@define(eq=False)
class DeathRules:
    """What was learned from the deaths of worker processes."""

    opens_ahead: bool  # the next process may have a second device
    notes: list[str] = field(factory=list)  # what a reader of the report should know
    given_up: set[DriverStep] = field(factory=set)  # that the driver is not asked for any more
    distrusted: set[int] = field(factory=set)  # that are not created from stored binaries any more
    _fatal: set[DriverStep] = field(factory=set)
    _unexplained: int = 0
    _fruitless: int = 0
    _compiled_fruitlessly: int = 0

    @property
    def careful(self) -> bool:
        """Whether the driver gets one pipeline at a time, because several deaths had no culprit."""
        return self._unexplained >= _MOST_UNEXPLAINED

    def learn(
        self, death: WorkerDeath, compiled: int, printed: str, *, stopped: bool
    ) -> tuple[PipelineJob, Blame] | None:
        """Learn from a death of which no trial found the cause; a pipeline that is blamed all the same.

        Args:
            death: The death.
            compiled: Number of pipelines that all processes compiled.
            printed: The last line that the driver printed, or "".
            stopped: Whether the compile was stopped before there was anything to report.

        Raises:
            DeviceError: A step is needed, or there were too many deaths with hardly anything compiled.
            MemoryLimitError: One pipeline at a time is too much already.
        """
        if death.from_binaries and death.by_driver:
            self._distrust(death)
            return None
        if self._has_two_devices(death):
            return None
        self._give_up(death, stopped=stopped)
        if death.too_little is not None and (self.careful or not death.suspects):
            raise death.too_little
        new = compiled - self._compiled_fruitlessly
        self._compiled_fruitlessly = compiled
        # Suspects of a hang were only slow together, and a cache file is given up by itself.
        if not (death.killed or death.hung or death.was_loading):
            if self.careful and death.was_inside and len(death.suspects) == 1:
                reason = f"the driver ended a process that gave it only this one ({death.how}), but no trial"
                cause = Cause.SIGNAL if death.status < 0 else Cause.EXIT
                return death.suspects[0], Blame(cause, reason, Ended(death.status).signal)
            self._unexplained = self._unexplained + 1 if new < _MANY else 1
            if self._unexplained == _MOST_UNEXPLAINED:
                self.notes.append(
                    f"{_MOST_UNEXPLAINED} processes ended without a pipeline to blame: after that one worker "
                    "compiled one pipeline at a time, which takes longer"
                )
        # A long run may be killed often, by a system short of memory for example, and come to its end.
        self._fruitless = self._fruitless + 1 if new < _FEW else 1
        if self._fruitless > MOST_FRUITLESS:
            raise DeviceError(
                f"the driver ended {self._fruitless} processes, and no pipeline is to blame: the last one "
                f"ended with {death.how}, {death.where}{_possible_cause(death, printed)}"
            )
        return None

    def _distrust(self, death: WorkerDeath) -> None:
        """Do without stored binaries that the driver may have died of; after the second time, without any."""
        again = bool(self.distrusted)
        self.distrusted |= death.from_binaries
        if again:
            self.given_up.add(DriverStep.FROM_BINARIES)
        count = len(death.from_binaries)
        several = "a pipeline from its" if count == 1 else f"{count} pipelines from their"
        compiled = "nothing is created from binaries any more" if again else "compiled instead"
        self.notes.append(
            f"the driver ended a process while it created {several} stored binaries ({death.how}): {compiled}"
        )

    def _has_two_devices(self, death: WorkerDeath) -> bool:
        """Whether a second device may be the cause, while it is opened or closed; no other process has two.

        What died beside another step says nothing of either.
        """
        others = death.steps - OF_PIPELINES
        is_beside = DriverStep.OPEN in others or bool(others and death.was_inside)
        opened_ahead, self.opens_ahead = self.opens_ahead, False
        return opened_ahead and bool(death.request) and is_beside

    def _give_up(self, death: WorkerDeath, *, stopped: bool) -> None:
        """Skip from now on a step in which the driver hangs, or crashes repeatedly."""
        if not death.by_driver or death.was_loading or (death.was_inside and not death.hung):
            return
        again = death.steps & self._fatal
        self._fatal |= death.steps
        # After a stop, and with nothing to report, no other process tries it.
        if death.hung and DriverStep.OPEN in (death.steps if stopped else again):
            found = f", as {self._fruitless + 1} processes found" if again else ""
            raise DeviceError(f"the driver does not come back from {DriverStep.OPEN.words}{found}")
        news = (death.steps if death.hung else again) - _NEEDED - self.given_up
        for each in sorted(news):
            what = "does not come back from" if death.hung else "crashes"
            self.notes.append(f"the driver {what} {each.words}: it was not asked for that again")
        self.given_up |= news


def _possible_cause(death: WorkerDeath, printed: str) -> str:
    cause = ""
    if -death.status == signal.SIGBUS and not death.was_inside:
        cause = "; the system sends it where a file that is read was cut short, or a disk fails"
    if printed:
        cause += f"; the last line that it printed: {shown(printed)}"
    return cause
