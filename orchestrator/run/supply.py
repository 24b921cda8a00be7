"""`SpirvSupply`: asks a provider for the SPIR-V of pipelines that were not found without it.

    workers ── not found without code ──> take ──> modules, those of the most urgent and longest first
    caller ─── urges, cancels ──> reorder ────────────┤  several at a time, never in a worker's thread
    schedule <── supplied, or excluded <── settle <───┴── provider ──> judged ──> identifier

Guarantees: each shader is requested once for all pipelines and images that need it; images of several
`Identification`s have a provider and supplied code each, so there once for each of these. None is requested
while all pipelines that need it are cancelled. If the provider raises, gives no valid code, or does not
answer in time, only the pipelines that need the shader fail. A stuck call of a provider occupies its thread,
and one of the provider's concurrent calls, until it returns; no task waits for it. Where all of them are
stuck, the time of the other shaders runs, too, so that a run ends.
Assumptions: belongs to the trio thread, and lives as long as the workers of one run.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from operator import itemgetter
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, field, frozen
from outcome import Error, capture

from orchestrator.devices.device import Device, PreparedPipelines
from orchestrator.devices.identified import IdentifiedModules
from orchestrator.errors import OrchestratorError
from orchestrator.run.caches import PreparedParts
from orchestrator.run.exchange import Exchange
from orchestrator.run.records import CREATED_CODES, IdentifiersRecord, OutcomeStatus, OutcomeTable
from orchestrator.schedule import Scheduler
from orchestrator.sets.needs.supplied import Refusal, SuppliedJudge

_SLOW_NS: Final = 1_000_000_000


_Name = tuple[int, int]
"""A module: where its supplied code is kept, as the `id` of that, and its key."""


def _name(identified: IdentifiedModules, key: int) -> _Name:
    return id(identified.code), key


def _asked(identified: IdentifiedModules) -> int:
    return id(identified.provider.stands_for or identified.provider)


@frozen(eq=False)
class _Module:
    part: PreparedPipelines
    identified: IdentifiedModules
    number: int
    key: int

    @property
    def name(self) -> _Name:
        return _name(self.identified, self.key)


@frozen
class _Given:
    """Supplied code: its size in bytes, and whether its identifier differs from the known one."""

    size: int
    changed: bool = False


@define(eq=False)
class SpirvSupply:
    """Supplies the code of one run."""

    device: Device
    parts: PreparedParts
    exchange: Exchange
    settle: Callable[[OutcomeStatus, Mapping[int, str]], None]
    notes: list[str] = field(factory=list)
    _record: IdentifiersRecord = field(factory=IdentifiersRecord)
    _lot: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)
    _queue: dict[_Name, _Module] = field(factory=dict)  # not requested yet
    # Those that are waited for, by `_asked`: the most urgent last; None: not known.
    _order: dict[int, list[tuple[int, _Name]]] | None = None
    _wanted: dict[_Name, list[int]] = field(factory=dict)  # jobs that wait for each module
    _waits: dict[int, set[_Name]] = field(factory=dict)  # modules that each job waits for
    _refused: dict[_Name, Refusal] = field(factory=dict)
    _judges: dict[int, SuppliedJudge] = field(factory=dict)
    _judging: threading.Lock = field(factory=threading.Lock)
    # Of each provider, by `_asked`: its calls that have not returned, and the modules that it is asked for.
    _calls: dict[int, trio.CapacityLimiter] = field(factory=dict)
    _active: Counter[int] = field(factory=Counter)

    def is_waited_for(self, schedule: Scheduler) -> bool:
        """Whether jobs that are not cancelled wait for code."""
        waiting = np.fromiter(self._waits, np.int32, len(self._waits))
        return bool(len(schedule.unsettled(waiting)))

    def take(self, jobs: npt.NDArray[np.int32]) -> None:
        """Supply the code of jobs that were not found without it."""
        ready: list[int] = []
        unknown = 0
        for job in jobs.tolist():
            part, own = self.parts.part_of(job)
            identified = part.identified
            assert identified is not None  # noqa: S101 - other jobs are never missed
            unknown += not identified.known(np.array([own], np.int32))[0]
            lacking: set[_Name] = set()
            for number in identified.needed(own):
                key = identified.image.modules[number].key
                if key in identified.code:
                    continue
                name = _name(identified, key)
                lacking.add(name)
                if name not in self._wanted and name not in self._refused:
                    self._queue[name] = _Module(part, identified, number, key)
                    provider = identified.provider
                    self._calls.setdefault(_asked(identified), trio.CapacityLimiter(provider.concurrency))
                self._wanted.setdefault(name, []).append(job)
            self._waits[job] = lacking
            if not lacking:
                ready.append(job)
            elif refused := [self._refused[name] for name in lacking if name in self._refused]:
                self._refuse([job], refused[0])
        self._record = msgspec.structs.replace(
            self._record, missed=self._record.missed + len(jobs), unknown=self._record.unknown + unknown
        )
        self._settle(ready)
        self.reorder()

    def reorder(self) -> None:
        """Jobs have become more urgent, were cancelled, or wait as well."""
        self._order = None
        self._lot.unpark_all()

    async def serve(self) -> None:
        """Request wanted modules until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                # No checkpoint lies between this and `park`, and what changes it runs in the trio thread too.
                while (module := self._next()) is None:
                    await self._lot.park()
                nursery.start_soon(self._supply, module)

    def _next(self) -> _Module | None:
        """Takes the most urgent module that may be asked for; None where there is none."""
        free = [number for number in self._calls if self._is_free(number)]
        if not (free and self._queue):
            return None
        if self._order is None:
            self._order = self._ordered()
        heads = [order for number in free if (order := self._order.get(number))]
        if not heads:
            return None
        _, name = min(heads, key=itemgetter(-1)).pop()
        module = self._queue.pop(name)
        self._active[_asked(module.identified)] += 1
        return module

    def _is_free(self, number: int) -> bool:
        """Whether a provider may be asked once more: also where all its calls are stuck, to end in time."""
        calls, active = self._calls[number], self._active[number]
        stuck = max(0, calls.borrowed_tokens - active)  # nobody waits for these threads any more
        return active + stuck < calls.total_tokens or stuck >= calls.total_tokens

    def _ordered(self) -> dict[int, list[tuple[int, _Name]]]:
        names = list(self._queue)
        waiting = [self._wanted[name] for name in names]
        of_name = np.repeat(np.arange(len(names)), list(map(len, waiting)))
        every = np.fromiter(chain.from_iterable(waiting), np.int32)
        with self.exchange.looking() as schedule:
            waits = np.isin(every, schedule.unsettled(every))
            order = schedule.in_order(every[waits])
        ranked = of_name[waits][order].tolist()
        found: dict[int, list[tuple[int, _Name]]] = {}
        for place, each in reversed([*enumerate(dict.fromkeys(ranked))]):
            asked = _asked(self._queue[names[each]].identified)
            found.setdefault(asked, []).append((place, names[each]))
        return found

    async def _supply(self, module: _Module) -> None:
        began = time.perf_counter_ns()
        try:
            found = await self._ask(module)
        finally:
            self._active[_asked(module.identified)] -= 1
            self._lot.unpark_all()
        took_ns = time.perf_counter_ns() - began
        if took_ns >= _SLOW_NS:
            self.notes.append(f"shader {module.key:016x} took the provider {took_ns / 1e9:.1f} s")
        waiting = self._wanted.pop(module.name, [])
        given = _Given(0) if isinstance(found, Refusal) else found
        record = self._record
        self._record = msgspec.structs.replace(
            record,
            asked=record.asked + 1,
            refused=record.refused + isinstance(found, Refusal),
            changed=record.changed + given.changed,
            supplied_bytes=record.supplied_bytes + given.size,
            provider_ns=record.provider_ns + took_ns,
            slowest_ns=max(record.slowest_ns, took_ns),
        )
        if isinstance(found, Refusal):
            text = f"shader module {module.key:016x}: {found.reason}"
            self._refused[module.name] = refusal = Refusal(text, found.unsupported)
            self._refuse(waiting, refusal)
            return
        ready = []
        for job in waiting:
            lacking = self._waits.get(job)
            if lacking is None:
                continue  # other code that it needs was refused
            lacking.discard(module.name)
            if not lacking:
                ready.append(job)
        self._settle(ready)

    async def _ask(self, module: _Module) -> Refusal | _Given:
        provider = module.identified.provider
        try:
            with trio.fail_after(provider.timeout_s):
                code = await self._translated(module)
        except trio.TooSlowError:
            return Refusal(f"the provider did not give it within {provider.timeout_s:g} s")
        except (trio.Cancelled, KeyboardInterrupt, SystemExit, GeneratorExit, BaseExceptionGroup):
            raise  # this run's end, or the program's
        except BaseException as error:  # noqa: BLE001 - such as asyncio.CancelledError
            return _failure(error)
        if isinstance(code, Refusal):
            return code
        checked = await trio.to_thread.run_sync(self._checked, module, code)
        return checked if isinstance(checked, Refusal) else self._keep(module, checked)

    async def _translated(self, module: _Module) -> object:
        """What the provider gives, or why it raised. A stuck thread keeps its token until it returns."""
        translate, calls = module.identified.provider.translate, self._calls[_asked(module.identified)]
        if _is_async(translate):
            async with calls:
                return await translate(module.key)  # type: ignore[misc]
        # Captured, for trio takes a function that returns an awaitable for a mistake.
        given = await trio.to_thread.run_sync(
            capture, translate, module.key, abandon_on_cancel=True, limiter=calls
        )
        if isinstance(given, Error):
            return _failure(given.error)
        code = given.unwrap()
        return await code if inspect.isawaitable(code) else code

    def _checked(self, module: _Module, code: object) -> Refusal | bytes:
        identified = module.identified
        if not identified.provider.trusted:
            refusal = self._judge(identified).refusal(module.number, code)
            if refusal is not None:
                return refusal
        assert isinstance(code, bytes | bytearray | memoryview)  # noqa: S101 - it was judged
        return bytes(code)

    def _judge(self, identified: IdentifiedModules) -> SuppliedJudge:
        with self._judging:
            judge = self._judges.get(id(identified))
            if judge is None:
                judge = SuppliedJudge(identified.image, self.device.capabilities)
                self._judges[id(identified)] = judge
        return judge

    def _keep(self, module: _Module, code: bytes) -> Refusal | _Given:
        identified = module.identified
        identified.code.put(module.key, b"" if identified.provider.trusted else code)
        if not self.device.features.shader_module_identifiers:
            return _Given(len(code))
        known = identified.identifier(module.number)
        try:
            found = self.device.code_identifier(module.part, module.number)
        except OrchestratorError as error:
            return Refusal(str(error))
        if found == known:
            return _Given(len(code))
        identified.learn(module.number, found)
        identified.learned[module.key] = found
        return _Given(len(code), changed=bool(known))

    def _settle(self, jobs: Iterable[int]) -> None:
        ready: list[int] = []
        for job in jobs:
            part, own = self.parts.part_of(job)
            identified = part.identified
            assert identified is not None  # noqa: S101
            ready.append(job)
            del self._waits[job]
            identified.settle([own])
        if not ready:
            return
        with self.exchange.steering(reorders=False) as schedule:
            schedule.supplied(ready)

    def _refuse(self, jobs: Iterable[int], refusal: Refusal) -> None:
        reasons = {job: refusal.reason for job in jobs if self._waits.pop(job, None) is not None}
        if not reasons:
            return
        if refusal.unsupported:
            self.settle(OutcomeStatus.SKIPPED, reasons)
        with self.exchange.steering(reorders=False) as schedule:
            schedule.exclude(reasons)

    def record(self, table: OutcomeTable) -> IdentifiersRecord:
        """The record, once all workers have ended."""
        created = np.isin(table.status, CREATED_CODES)
        found = modules = known = size = 0
        for first, part in self.parts.items():
            identified = part.identified
            if identified is None:
                continue
            own = created[first : first + len(part.image)] & identified.lacking
            found += int(np.count_nonzero(own))
            modules += len(identified.image.modules)
            known += identified.known_at_start
            size += sum(each.code_size for each in identified.image.modules)
        return msgspec.structs.replace(
            self._record, modules=modules, known=known, code_bytes=size, created=found
        )


def _failure(error: BaseException) -> Refusal:
    if isinstance(error, OrchestratorError):
        return Refusal(str(error))
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - the provider's own class, whose text is not worth a run
        words = "it does not say why"
    return Refusal(f"the provider failed: {type(error).__name__}: {words}")


def _is_async(translate: object) -> bool:
    call = getattr(translate, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(translate) or inspect.iscoroutinefunction(call)
