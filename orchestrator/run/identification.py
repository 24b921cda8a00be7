"""Shader-module identifiers: what is known of modules, and who is asked for code that turns out to be needed.

    Identification   one compile: what earlier runs learned of an image's modules, and what this one did
    SpirvSupply      one run: asks a provider for the SPIR-V of pipelines that were not found without it

    workers ── not found without code ──> take ──> modules, those of the most urgent and longest first
    caller ─── urges, cancels ──> reorder ────────────┤  several at a time, never in a worker's thread
    schedule <── supplied, or excluded <── settle <───┴── provider ──> judged ──> identifier

Guarantees: each shader is requested once for all pipelines of a run, and not while all pipelines that need it
are cancelled. Where the provider raises, gives no valid code, or does not answer
in time, only the pipelines that need the shader fail. A stuck call occupies its thread, and one of the
provider's concurrent calls, until it returns; no task waits for it. Where all of them are stuck, the time of
the other shaders runs, too, so that a run ends. A file that cannot be read or written is a note.
"""

from __future__ import annotations

import inspect
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import trio
from attrs import converters, define, evolve, field, validators
from outcome import Error, capture

from orchestrator.devices.device import Device, PreparedPipelines
from orchestrator.devices.identified import IdentifiedModules, SpirvProvider, of_image
from orchestrator.devices.image import CreateInfoImage
from orchestrator.errors import OrchestratorError
from orchestrator.run.exchange import Exchange
from orchestrator.run.records import CREATED_CODES, IdentifiersRecord, OutcomeStatus, OutcomeTable
from orchestrator.sets.needs.supplied import Refusal, SuppliedJudge
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.run_notes import add_identifiers, identifiers_place, read_identifiers

_SLOW_NS: Final = 1_000_000_000


@define(eq=False)
class Identification:
    """Knows identifiers before a run, and keeps what was learned after it. Blocking; one thread at a time.

    Attributes:
        provider: Who gives code that the set has not; None where it has all.
        directory: A directory of cache files; None where nothing is kept.
        notes: What a reader of the report must know.
    """

    provider: SpirvProvider | None = field(
        validator=validators.optional(validators.instance_of(SpirvProvider))
    )
    directory: Path | None = field(converter=converters.optional(Path))
    notes: list[str] = field(factory=list)
    _code: dict[int, bytes] = field(factory=dict)
    _place: Path | None = None  # of the identifiers that are kept

    def begin(self, device: Device, image: CreateInfoImage) -> IdentifiedModules | None:
        """What is known of the modules of an image; None where it is to be prepared with its code."""
        provider = _with_records(self.provider, image)
        identified = IdentifiedModules(image, provider, self._code)
        features = device.features
        if not (features.shader_module_identifiers and features.compile_required):
            lack = f"{device.identity.device_name} has no VK_EXT_shader_module_identifier"
            if self.provider is None:
                self._say(f"{lack}: pipelines are created with their SPIR-V, as without identifiers")
                return None
            self._say(f"{lack}: the code of every shader is asked for")
            return identified
        self._place = None
        if self.directory is not None:
            algorithm = device.identifier_algorithm
            self._place = identifiers_place(self.directory, algorithm, provider.revision)
            known = read_identifiers(self._place)
            if known.problem:
                self._say(f"identifiers were not used: {known.problem}")
            identified.begin_with(known.of(_keys(image)))
        return identified

    def keep(self, identified: IdentifiedModules) -> None:
        """Keep what was learned of the modules of an image."""
        if self._place is None or not identified.learned:
            return
        try:
            add_identifiers(self._place, identified.learned, _keys(identified.image))
        except SaveError as error:
            self._say(f"identifiers were not kept: {error}")
        else:
            identified.learned.clear()

    def _say(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _keys(image: CreateInfoImage) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array([each.key for each in image.modules], np.uint64)


def _with_records(provider: SpirvProvider | None, image: CreateInfoImage) -> SpirvProvider:
    records = of_image(image)
    if provider is None:
        return records
    there = frozenset(each.key for each in image.modules if each.code_size)
    if not there:
        return provider
    return evolve(
        provider,
        translate=lambda key: records.translate(key) if key in there else provider.translate(key),
    )


@define(eq=False)
class SpirvSupply:
    """Supplies the code of one run."""

    device: Device
    prepared: PreparedPipelines
    exchange: Exchange
    settle: Callable[[OutcomeStatus, Mapping[int, str]], None]
    notes: list[str] = field(factory=list)
    _counts: Counter[str] = field(factory=Counter)  # fields of the record
    _lot: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)
    # Of the following, a module is named by its key.
    _queue: dict[int, int] = field(factory=dict)  # not requested yet, with the number in the image
    _order: list[int] | None = None  # those that are waited for, the most urgent last; None: not known
    _wanted: dict[int, list[int]] = field(factory=lambda: defaultdict(list))  # jobs that wait for each
    _waits: dict[int, set[int]] = field(factory=dict)  # modules that each job waits for
    _refused: dict[int, Refusal] = field(factory=dict)
    _active: int = 0  # modules that the provider is asked for; `_calls` has its calls that have not returned
    _identified: IdentifiedModules = field(init=False)
    _calls: trio.CapacityLimiter = field(init=False)

    def __attrs_post_init__(self) -> None:
        assert self.prepared.identified is not None  # noqa: S101 - or there is no supply
        self._identified = self.prepared.identified
        self._calls = trio.CapacityLimiter(self._identified.provider.concurrency)

    @cached_property
    def _judge(self) -> SuppliedJudge:
        return SuppliedJudge(self._identified.image, self.device.capabilities)

    def take(self, jobs: npt.NDArray[np.int32]) -> None:
        """Supply the code of jobs that were not found without it."""
        ready: list[int] = []
        identified = self._identified
        for job in jobs.tolist():
            self._counts["missed"] += 1
            self._counts["unknown"] += not identified.known(np.array([job], np.int32))[0]
            needed = {identified.image.modules[number].key: number for number in identified.needed(job)}
            lacking = {key: number for key, number in needed.items() if key not in identified.code}
            self._waits[job] = set(lacking)
            for key, number in lacking.items():
                if key not in self._wanted and key not in self._refused:
                    self._queue[key] = number
                self._wanted[key].append(job)
            if refused := [self._refused[key] for key in lacking if key in self._refused]:
                self._refuse([job], refused[0])
            elif not lacking:
                ready.append(job)
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
                nursery.start_soon(self._supply, *module)

    def _next(self) -> tuple[int, int] | None:
        """Take the most urgent module that may be asked for, its key and number; None where there is none."""
        if not (self._queue and self._is_free):
            return None
        if self._order is None:
            self._order = self._ordered()
        if not self._order:
            return None
        key = self._order.pop()
        self._active += 1
        return key, self._queue.pop(key)

    @property
    def _is_free(self) -> bool:
        """Whether the provider may be asked once more: also where all its calls are stuck, to end in time."""
        calls = self._calls
        stuck = max(0, calls.borrowed_tokens - self._active)  # nobody waits for these threads any more
        return self._active + stuck < calls.total_tokens or stuck >= calls.total_tokens

    def _ordered(self) -> list[int]:
        keys = list(self._queue)
        waiting = [self._wanted[key] for key in keys]
        of_key = np.repeat(np.arange(len(keys)), list(map(len, waiting)))
        every = np.fromiter(chain.from_iterable(waiting), np.int32)
        with self.exchange.looking() as schedule:
            waits = np.isin(every, schedule.unsettled(every))
            order = schedule.in_order(every[waits])
        return [keys[each] for each in dict.fromkeys(of_key[waits][order].tolist())][::-1]

    async def _supply(self, key: int, number: int) -> None:
        counts, began = self._counts, time.perf_counter_ns()
        try:
            refusal = await self._ask(key, number)
        finally:
            self._active -= 1
            self._lot.unpark_all()
        took_ns = time.perf_counter_ns() - began
        if took_ns >= _SLOW_NS:
            self.notes.append(f"shader {key:016x} took the provider {took_ns / 1e9:.1f} s")
        counts["asked"] += 1
        counts["provider_ns"] += took_ns
        waiting = self._wanted.pop(key, [])
        if refusal is not None:
            counts["refused"] += 1
            self._refused[key] = Refusal(f"shader module {key:016x}: {refusal.reason}", refusal.unsupported)
            self._refuse(waiting, self._refused[key])
            return
        waiting = [job for job in waiting if job in self._waits]  # not those of which other code was refused
        for job in waiting:
            self._waits[job].discard(key)
        self._settle(job for job in waiting if not self._waits[job])

    async def _ask(self, key: int, number: int) -> Refusal | None:
        """Get the code of a module, and keep it; returns why it cannot be used."""
        provider = self._identified.provider
        try:
            with trio.fail_after(provider.timeout_s):
                code = await self._translated(key)
        except trio.TooSlowError:
            return Refusal(f"the provider did not give it within {provider.timeout_s:g} s")
        except (trio.Cancelled, KeyboardInterrupt, SystemExit, GeneratorExit, BaseExceptionGroup):
            raise  # this run's end, or the program's
        except BaseException as error:  # noqa: BLE001 - such as asyncio.CancelledError
            return _failure(error)
        if not (provider.trusted or isinstance(code, Refusal)):
            refusal = await trio.to_thread.run_sync(self._judged, number, code)
            code = code if refusal is None else refusal
        return code if isinstance(code, Refusal) else self._keep(key, number, code)

    async def _translated(self, key: int) -> object:
        """What the provider gives. A stuck thread keeps its token until it returns."""
        # Captured, for trio takes a function that returns an awaitable for a mistake.
        given = await trio.to_thread.run_sync(
            capture,
            self._identified.provider.translate,
            key,
            abandon_on_cancel=True,
            limiter=self._calls,
        )
        if isinstance(given, Error):
            return _failure(given.error)
        code = given.unwrap()
        return await code if inspect.isawaitable(code) else code

    def _judged(self, number: int, code: object) -> Refusal | None:
        return self._judge.refusal(number, code)  # made in a thread, because it goes through the whole image

    def _keep(self, key: int, number: int, code: object) -> Refusal | None:
        assert isinstance(code, bytes | bytearray | memoryview)  # noqa: S101 - it was judged, or is trusted
        identified = self._identified
        identified.code[key] = b"" if identified.provider.trusted else bytes(code)
        if self.device.features.shader_module_identifiers:
            try:
                found = self.device.code_identifier(self.prepared, number)
            except OrchestratorError as error:
                return Refusal(str(error))
            self._counts["changed"] += identified.learn_by_code(number, found)
        self._counts["supplied_bytes"] += len(code)
        return None

    def _settle(self, jobs: Iterable[int]) -> None:
        ready = list(jobs)
        for job in ready:
            del self._waits[job]
            self._identified.settle([job])
        if ready:
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
        created, counts = np.isin(table.status, CREATED_CODES), self._counts
        identified = self._identified
        modules = identified.image.modules
        counts["created"] += int(np.count_nonzero(created & identified.lacking))
        counts["modules"] += len(modules)
        counts["known"] += identified.known_at_start
        counts["code_bytes"] += sum(each.code_size for each in modules)
        return IdentifiersRecord(**counts)


def _failure(error: BaseException) -> Refusal:
    if isinstance(error, OrchestratorError):
        return Refusal(str(error))
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - the provider's own class, whose text is not worth a run
        words = "it does not say why"
    return Refusal(f"the provider failed: {type(error).__name__}: {words}")
