"""Watches the driver calls of a worker process while it lives, and says what it died of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, evolve, field, frozen

from orchestrator.children.parent import Ended
from orchestrator.devices.device import DeviceIdentity, DriverStep
from orchestrator.devices.image import PipelineKind
from orchestrator.run.limits import MemoryLimitError
from orchestrator.run.options import TrialLimits
from orchestrator.sets.records import PipelineJob
from orchestrator.supervise.connection import Connection
from orchestrator.supervise.in_flight import OF_PIPELINES, Flight, waited_ns
from orchestrator.supervise.messages import ImagePrepared, ImageTables, Kill
from orchestrator.supervise.trial import is_from_outside

_LOOK_S: Final = 0.1
_MOST_LOOK_S: Final = 1.0
_LOOKS_A_LIMIT: Final = 20
_STOPPED_OPENING_S: Final = 5.0
_KINDS: Final = tuple(PipelineKind)
_AFTERWARDS: Final = frozenset({DriverStep.MERGE, DriverStep.READ, DriverStep.DESTROY})
"""Steps in which a driver may crash because of a pipeline that it created before."""


@frozen
class WorkerDeath:
    """How a worker process died."""

    status: int  # exit code, or the negative signal
    hung: bool  # it was killed because a driver call did not return
    steps: frozenset[DriverStep]  # the driver calls in flight
    suspects: tuple[PipelineJob, ...] = ()  # pipelines in the driver, of which it may have died
    from_binaries: frozenset[int] = frozenset()  # keys of those that were created from stored binaries
    request: bytes = b""  # how its device was opened, encoded; b"" where it had no image
    recorded_ns: dict[int, int] = field(factory=dict)  # compile times of the pipelines of its image, by key
    too_little: MemoryLimitError | None = None  # what it said if its memory is limited

    @property
    def killed(self) -> bool:
        """Whether a person or the system killed it."""
        return is_from_outside(self.status) and not self.hung

    @property
    def by_driver(self) -> bool:
        """Whether the driver ended it, or hung."""
        return not (self.killed or self.too_little)

    @property
    def was_inside(self) -> bool:
        """Whether suspects were in the driver, and had not just returned.

        A thread of the driver, or corrupted memory, may end the process some time after the call.
        """
        return not self.steps.isdisjoint(OF_PIPELINES)

    @property
    def was_loading(self) -> bool:
        """Whether the driver had a cache file, and no pipeline that may have ended the process too."""
        return DriverStep.LOAD in self.steps and (self.hung or not self.was_inside) and self.by_driver

    @property
    def suspected(self) -> int:
        """Number of pipelines of which it may have died, of their code or of their binaries."""
        return len(self.from_binaries | {each.key for each in self.suspects})

    @property
    def how(self) -> str:
        """The end in words."""
        if self.hung:
            return "killed: the driver did not come back"
        if self.too_little is not None:
            return "too little memory"
        ended = Ended(self.status)
        return ended.signal or ended.how

    @property
    def where(self) -> str:
        """What it was doing, in words."""
        if DriverStep.FROM_BINARIES in self.steps:
            return DriverStep.FROM_BINARIES.words
        return min(self.steps).words if self.steps else "outside of any call into the driver"


@define(eq=False)
class Watch:
    """Watches one worker process."""

    connection: Connection
    number: int
    limits: TrialLimits
    compiled: set[int]  # receives the keys of the pipelines that it compiled
    ending: trio.Event = field(factory=trio.Event)  # set when it was asked to stop
    identity: DeviceIdentity | None = None  # of the device of its image
    _tables: ImageTables | None = None
    _keys: npt.NDArray[np.uint64] = field(factory=lambda: np.zeros(0, np.uint64))
    _overdue: list[Flight] = field(factory=list)

    def prepare(self, prepared: ImagePrepared) -> None:
        """The process compiles another image from now on."""
        self.remember()
        payload = self.connection.payload(prepared)
        self._tables = tables = msgspec.msgpack.decode(payload, type=ImageTables)
        self._keys = np.frombuffer(tables.keys, np.uint64)
        self.identity = msgspec.msgpack.decode(tables.identity, type=DeviceIdentity)

    def remember(self) -> int:
        """Remember what was compiled of the image, which the next process may find; how many there are."""
        if self._tables is not None:
            marks = self.connection.table.marks(self._tables.marks, len(self._keys))
            self.compiled.update(self._keys[marks].tolist())
        return len(self.compiled)

    def keys_in_driver(self) -> list[int]:
        """Keys of the pipelines in the driver now. Thread-safe."""
        keys, tables = self._keys, self._tables
        if tables is None:
            return []
        flights = self.connection.table.flights()
        if any(each.step is DriverStep.OPEN for each in flights):
            return []  # drivers greet each device with messages of their own
        numbers = [each for flight in flights for each in _pipelines_of(flight, tables)]
        return [int(keys[each]) for each in numbers if each < len(keys)]

    async def run(self) -> None:
        """Kill the process when a driver call takes too long.

        Time in which its thread waited for a processor does not count. It is counted in looks: one in which
        this process was paused does not count, since whoever pauses it may pause all processes.
        """
        shortest_s = min(self.limits.limit_s(), self.limits.call_limit_s())
        look_s = min(max(_LOOK_S, shortest_s / _LOOKS_A_LIMIT), _MOST_LOOK_S)
        ages_s: dict[Flight, float] = {}
        waited: dict[int, int] = {}
        looked = trio.current_time()
        while not self._overdue:
            await trio.sleep(look_s)
            before, waited = waited, {}
            looked, since = trio.current_time(), looked
            for each in (flights := self.connection.table.flights()):
                waited[each.thread] = now_ns = waited_ns(each.thread)
                in_look_s = looked - since - (now_ns - before.get(each.thread, now_ns)) / 1e9
                ages_s[each] = ages_s.get(each, 0.0) + min(look_s, in_look_s)
            ages_s = {each: ages_s[each] for each in flights}
            self._overdue = [each for each, age_s in ages_s.items() if self._is_late(each, age_s)]
        await self.connection.send(Kill(self.number))

    def _is_late(self, flight: Flight, age_s: float) -> bool:
        """Whether a call takes longer than one pipeline may, plus the recorded times of its others."""
        limits = self.limits
        if flight.step is DriverStep.OPEN and self._tables is None and self.ending.is_set():
            # After a stop nothing is lost with the first device.
            return age_s > min(_STOPPED_OPENING_S, limits.call_limit_s())
        if flight.step not in OF_PIPELINES:
            return age_s > limits.call_limit_s()
        if age_s <= limits.limit_s() or self._tables is None:
            return False
        if flight.step in (DriverStep.OBJECT, DriverStep.MODULE):
            return True
        known = np.frombuffer(self._tables.recorded_ns, np.int64)
        *others_ns, longest_ns = sorted(int(known[each]) for each in flight.numbers) or [0]
        return age_s > limits.limit_s(longest_ns) + sum(others_ns) / 1e9

    def death(self, status: int, too_little: MemoryLimitError | None) -> WorkerDeath:
        """The death of the process."""
        table, tables = self.connection.table, self._tables
        flights = self._overdue or table.flights()
        steps = frozenset(each.step for each in flights)
        death = WorkerDeath(status, bool(self._overdue), steps, too_little=too_little)
        if tables is None:
            return death
        if not self._overdue and steps <= _AFTERWARDS:
            flights = table.flights(ended=True)
        keys, kinds = self._keys.tolist(), np.frombuffer(tables.kinds, np.uint8).tolist()
        jobs = [PipelineJob(key, _KINDS[kind]) for key, kind in zip(keys, kinds, strict=True)]
        made = [each for each in flights if each.step is DriverStep.FROM_BINARIES]
        numbers = {each for flight in flights if flight not in made for each in _pipelines_of(flight, tables)}
        return evolve(
            death,
            suspects=tuple(jobs[each] for each in sorted(numbers)),
            from_binaries=frozenset(keys[each] for flight in made for each in flight.numbers),
            request=tables.request,
            recorded_ns=dict(zip(keys, np.frombuffer(tables.recorded_ns, np.int64).tolist(), strict=True)),
        )


def _pipelines_of(flight: Flight, tables: ImageTables) -> Iterable[int]:
    """Numbers of the pipelines that a call concerns."""
    if flight.step in (DriverStep.CREATE, DriverStep.FROM_BINARIES, DriverStep.KEYS):
        return flight.numbers
    if flight.step is DriverStep.MODULE:
        return _holding(tables.module_start, tables.module_index, flight.numbers)
    if flight.step is DriverStep.OBJECT:
        wanted = set(flight.numbers)
        for number, needs in enumerate(tables.dependencies):  # dependencies come first
            if wanted.intersection(needs):
                wanted.add(number)
        return _holding(tables.object_start, tables.object_index, wanted)
    return ()


def _holding(start: bytes, index: bytes, wanted: Iterable[int]) -> Iterable[int]:
    """Pipelines with a wanted entry, in tables grouped by pipeline."""
    places = np.flatnonzero(np.isin(np.frombuffer(index, np.int32), list(wanted)))
    found = np.searchsorted(np.frombuffer(start, np.int64), places, side="right") - 1
    return [int(each) for each in found]
