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
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, field, frozen

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
    """Whose calls count together: an `Identification` wraps its provider for each image with some code."""
    return id(identified.provider.stands_for or identified.provider)


@frozen(eq=False)
class _Module:
    """A requested module, at its first use.

    Attributes:
        part: The image that uses it.
        identified: What is known of the image's modules.
        number: Its place among them.
        key: Hash of its record.
    """

    part: PreparedPipelines
    identified: IdentifiedModules
    number: int
    key: int

    @property
    def name(self) -> _Name:
        """What tells it apart."""
        return _name(self.identified, self.key)


@frozen
class _Given:
    """Supplied code: its size in bytes, and whether its identifier differs from the known one."""

    size: int
    changed: bool = False


@define(eq=False)
class SpirvSupply:
    """Supplies the code of one run.

    Attributes:
        device: The device.
        parts: The images.
        exchange: The schedule.
        settle: Gives an outcome to pipelines that are not assigned.
        notes: Caveats for the report.
    """

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
    # Of each provider, by `_asked`: its calls that have not returned, and how many of these nobody waits for.
    _calls: dict[int, trio.CapacityLimiter] = field(factory=dict)
    _overdue: Counter[int] = field(factory=Counter)
    _threads: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(math.inf))

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
        """Takes the most urgent module that may be asked for, and a call unless all are stuck; else None."""
        free = [
            number
            for number, calls in self._calls.items()
            if calls.available_tokens or self._overdue[number] >= calls.total_tokens
        ]
        if not (free and self._queue):
            return None
        if self._order is None:
            self._order = self._ordered()
        heads = [order for number in free if (order := self._order.get(number))]
        if not heads:
            return None
        _, name = min(heads, key=itemgetter(-1)).pop()
        module = self._queue.pop(name)
        calls = self._calls[_asked(module.identified)]
        if calls.available_tokens:
            calls.acquire_on_behalf_of_nowait(module)
        return module

    def _ordered(self) -> dict[int, list[tuple[int, _Name]]]:
        """The modules that are waited for, with their place by the most urgent job that waits for each."""
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
        found = await self._ask(module)
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
        """Get the code of a module, keep it, and learn its identifier; or why there is none."""
        provider = module.identified.provider
        translate, key, token = provider.translate, module.key, trio.lowlevel.current_trio_token()
        asked = _asked(module.identified)
        calls = self._calls[asked]
        # Whether a thread has the call, and whether nobody waits for it: it ends with the last of both.
        is_out = is_over = False

        def thread_ended() -> None:
            nonlocal is_out
            is_out = False
            if is_over:
                self._overdue[asked] -= 1
                self._end_call(module)

        def in_thread() -> tuple[object, Refusal | bytes | None]:
            # In a pair, for trio takes a function that returns an awaitable for a mistake.
            try:
                code = translate(key)
                return (code, None) if inspect.isawaitable(code) else (None, self._checked(module, code))
            except BaseException as error:  # noqa: BLE001 - it concerns only this shader
                return None, _failure(error)
            finally:
                with suppress(trio.RunFinishedError):  # it was stuck for longer than the run
                    token.run_sync_soon(thread_ended)  # before trio hands the result over, in the same queue

        try:
            with trio.fail_after(provider.timeout_s):
                if module not in calls.statistics().borrowers:
                    await calls.acquire_on_behalf_of(module)  # all were stuck: its time runs while it waits
                if _is_async(translate):
                    code: object = await translate(key)  # type: ignore[misc]
                    checked = None
                else:
                    await trio.lowlevel.checkpoint_if_cancelled()  # behind this, a thread begins or cannot
                    is_out = True
                    try:
                        code, checked = await trio.to_thread.run_sync(
                            in_thread, abandon_on_cancel=True, limiter=self._threads
                        )
                    except Exception:
                        is_out = False  # there is no thread
                        raise
                    if checked is None:
                        code = await code  # type: ignore[misc]
        except trio.TooSlowError:
            return Refusal(f"the provider did not give it within {provider.timeout_s:g} s")
        except Exception as error:  # noqa: BLE001 - any error concerns only this shader
            return _failure(error)
        except (trio.Cancelled, KeyboardInterrupt, SystemExit, GeneratorExit, BaseExceptionGroup):
            raise  # this run's end, or the program's
        except BaseException as error:  # noqa: BLE001 - such as asyncio.CancelledError
            return _failure(error)
        finally:
            is_over = True
            if is_out:
                self._overdue[asked] += 1
                self._lot.unpark_all()
            elif module in calls.statistics().borrowers:
                self._end_call(module)
        if checked is None:
            checked = await trio.to_thread.run_sync(self._checked, module, code)
        return checked if isinstance(checked, Refusal) else self._keep(module, checked)

    def _end_call(self, module: _Module) -> None:
        self._calls[_asked(module.identified)].release_on_behalf_of(module)
        self._lot.unpark_all()

    def _checked(self, module: _Module, code: object) -> Refusal | bytes:
        """Code as bytes, or why it cannot be used. Any thread, also after the time limit."""
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
        """Keep code for the device, and learn its identifier, a hash that is too cheap for a thread."""
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
        """All code of some jobs has arrived."""
        ready: list[int] = []
        for job in jobs:
            part, own = self.parts.part_of(job)
            identified = part.identified
            assert identified is not None  # noqa: S101
            if not identified.provider.trusted:
                refusals = map(self._judge(identified).pipeline_refusal, identified.with_libraries(own))
                if (refusal := next(filter(None, refusals), None)) is not None:
                    self._refuse([job], refusal)
                    continue
            ready.append(job)
            del self._waits[job]
            identified.settle([own])
        if not ready:
            return
        with self.exchange.steering(reorders=False) as schedule:
            schedule.supplied(ready)

    def _refuse(self, jobs: Iterable[int], refusal: Refusal) -> None:
        """Some code of some jobs will never arrive."""
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
    """Why there is no code, by what a provider raised."""
    if isinstance(error, OrchestratorError):
        return Refusal(str(error))
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - the provider's own class, whose text is not worth a run
        words = "it does not say why"
    return Refusal(f"the provider failed: {type(error).__name__}: {words}")


def _is_async(translate: object) -> bool:
    """Whether it is an async function, or an object whose `__call__` is one."""
    call = getattr(translate, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(translate) or inspect.iscoroutinefunction(call)
