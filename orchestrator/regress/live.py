"""Both sides, compiled here: the statistics of each set in one pass, then times in rounds A B B A.

Guarantees: each side is a process tree of its own, with its variables from its start; this process loads no
driver. A pipeline that ends a side's process is lost on that side alone. What a side has told is in a journal
of the work folder, so that the same command goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from attrs import frozen

from orchestrator.children.parent import Child, Ended
from orchestrator.children.protocol import SentError
from orchestrator.devices.device import PipelineExecutable
from orchestrator.errors import DeviceError
from orchestrator.regress.code import ShaderCode, named
from orchestrator.regress.comparison import SideComparison
from orchestrator.regress.reports import place_text
from orchestrator.regress.results import Results, Side, read_results
from orchestrator.regress.service import Means, Measure, Measured, Prove, SideAnswer, TakeTime
from orchestrator.regress.sides import Proof, SideDriver, require_different
from orchestrator.regress.times import Floats, TimeChange, time_change
from orchestrator.run.statistics import inspected

_T = TypeVar("_T", Proof, Measured)


@frozen
class LiveComparison:
    """What is compared, and where."""

    sets: tuple[str, ...]  # each is an application
    sides: tuple[SideDriver, SideDriver]
    work: Path
    workers: int | None
    pipeline_s: float | None  # as in TrialLimits
    tell: Callable[[str], object] | None  # of each stage that begins

    def compiled(self, selector: str) -> tuple[Results, Results]:
        """The results of both sides on a device.

        Raises:
            SideError: There is no driver where a side says, or both are the same.
            NoDeviceError: Nothing answers to the selector on a side.
            DeviceError: A driver ended the process that opened it, or does not compile.
        """
        proofs = [self._ask(each, Prove(selector), Proof) for each in self.sides]
        note = require_different(self.sides, (proofs[0], proofs[1]))
        first, second = (
            self._measured(side, proof, selector, note)
            for side, proof in zip(self.sides, proofs, strict=True)
        )
        return first, second

    def _measured(self, side: SideDriver, proof: Proof, selector: str, note: str) -> Results:
        variables = " ".join(f"{name}={value}" for name, value in side.variables.items())
        notes = tuple(filter(None, [variables, note]))
        told = msgspec.structs.replace(proof.side, name=side.name, notes=notes)
        self._say(f"compiling with {side.name} on {selector or 'the first device'}")
        request = self._request(side, told, selector, dict.fromkeys(self.sets))
        self._ask(side, request, Measured)
        return read_results(Path(request.result))

    def _request(
        self, side: SideDriver, told: Side, selector: str, keys: Mapping[str, list[int] | None]
    ) -> Measure:
        def path(suffix: str, *facts: object) -> str:
            which = *facts, told.build_id, told.library, sorted(side.variables.items()), selector
            return str(self.work / (blake2b(msgspec.json.encode(which), digest_size=8).hexdigest() + suffix))

        journals = {each: path(".journal", each, chosen) for each, chosen in keys.items()}
        few = {each: chosen for each, chosen in keys.items() if chosen is not None}
        result = path(".results", side.name, bool(few))
        return Measure(journals, self._means(selector), told, result, few or None)

    def _means(self, selector: str) -> Means:
        return Means(selector, self.workers, self.pipeline_s)

    def code(self, selector: str, found: SideComparison) -> list[ShaderCode]:
        """The code of both sides of what a report names, in a second pass over these pipelines."""
        places = named(found)
        rows = found.first[places]
        before = found.before
        applications = [before.applications[each] for each in before.application[rows].tolist()]
        pipelines = list(zip(applications, before.key[rows].tolist(), strict=True))
        keys: dict[str, list[int] | None] = {
            each: sorted({key for of, key in pipelines if of == each}) for each in dict.fromkeys(applications)
        }
        sides: list[dict[tuple[str, int], tuple[PipelineExecutable, ...]]] = []
        for side, results in zip(self.sides, (before, found.after), strict=True):
            self._say(f"asking {side.name} for the code of {len(pipelines):,} shaders")
            request = self._request(side, results.side, selector, keys)
            if pipelines:
                self._ask(side, request, Measured)
            journals = request.journals.items()
            sides.append(
                {
                    (of, each.key): each.found.executables
                    for of, at in journals
                    for each in inspected(Path(at))
                }
            )
        told = []
        for place, row, pipeline in zip(places.tolist(), rows.tolist(), pipelines, strict=True):
            number = int(before.number[row])
            both = [side.get(pipeline, ())[number:][:1] for side in sides]
            first, second = (each[0].representations if each else () for each in both)
            told.append(ShaderCode(place_text(found, place), first, second))
        return told

    def timed(self, selector: str, rounds: int) -> TimeChange:
        """How compile times differ on a device; pipelines that all samples compiled count."""
        samples: list[list[dict[tuple[str, int], tuple[float, float]]]] = [[], []]
        busy, names = 0.0, [Path(each).stem for each in self.sets]
        request = TakeTime(self.sets, self._means(selector), str(self.work / "times.npy"))
        for number in range(rounds):
            for at in (0, 1, 1, 0):
                self._say(f"times, round {number + 1} of {rounds}: {self.sides[at].name}")
                done = self._ask(self.sides[at], request, Measured)
                places, keys, driver_ns, cpu_ns = np.load(request.result, allow_pickle=False)
                columns = places.tolist(), keys.view(np.uint64).tolist(), driver_ns.tolist(), cpu_ns.tolist()
                taken = {
                    (names[place], key): (one, other) for place, key, one, other in zip(*columns, strict=True)
                }
                busy = max(busy, done.busy)
                samples[at].append(taken)
        common = sorted(set.intersection(*(set(each) for side in samples for each in side)))

        def column(place: int) -> tuple[Floats, Floats]:
            before, after = (
                np.array([[each[key][place] for key in common] for each in side], np.float64)
                for side in samples
            )
            return before, after

        return time_change(common, column(0), column(1), busy)

    def _say(self, stage: str) -> None:
        if self.tell is not None:
            self.tell(stage)

    def _ask(self, side: SideDriver, request: msgspec.Struct, kind: type[_T]) -> _T:
        environment = side.environment(self.work)
        with Child[SideAnswer]("regress", SideAnswer, environment=environment) as child:
            answer = child.ask(request)
        if isinstance(answer, SentError):
            error = answer.error()
            error.add_note(f"side {side.name}")
            raise error
        if isinstance(answer, Ended):
            raise DeviceError(f"{side.name}: its process ended with {answer.how_with_output}")
        assert isinstance(answer, kind)  # noqa: S101 - what it was asked for
        return answer
