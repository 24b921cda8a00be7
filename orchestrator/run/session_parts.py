"""The parts of a session over a set: for each group a device, an image, a cache and a `PipelineSession`.

    set ──> groups ──> for each: open device ─> image ─> load cache file ─> part ─> save cache file ─> close
                                                                            └─ at the end, all together

A group is what one application told its device; on a device of the caller's all groups are one part. Parts
are opened one after the other, while those before compile. One part at a time has the time that the host
allows: the most urgent. What is required runs in any.

Guarantees: a part ends in this order: calls in flight, merge, cache file, kept pipelines, layouts and
modules, and the device, if the session opened it. What is not compiled is told, with the reason.
Assumptions: it belongs to the session's thread; `allow`, `progress`, `is_done` and `take` to any.
"""

from __future__ import annotations

import difflib
import re
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, field, frozen

from orchestrator.devices.device import Device
from orchestrator.errors import DriverError
from orchestrator.run.first_error import first_error
from orchestrator.run.groups import GroupRun, SetGroups
from orchestrator.run.options import NO_WORKER_CACHES, CompileOptions, RunOptions, duration_ns
from orchestrator.run.records import (
    CompileReport,
    OutcomeStatus,
    OutcomeTable,
    PipelineOutcome,
    Progress,
    RunReport,
)
from orchestrator.run.session import DeviceLostError, PipelineSession, open_session
from orchestrator.schedule.jobs import Int32s
from orchestrator.schedule.options import Priority
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.opening import AnySet, in_memory, open_paths, paths_of
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.plan import SetFacts
from orchestrator.sets.prepare import DeviceOpener, OpenedGroup, opened_group
from orchestrator.sets.records import FeatureGroup, PipelineJob, PipelineJobs

Rest: TypeAlias = Callable[[], Awaitable[Any]]
"""The part of a command that waits."""

Urgency: TypeAlias = Literal["now", "soon", "background"]
"""How urgent pipelines are: somebody waits for them; the default; when nothing else is left."""

_KEY: Final = re.compile(r"[0-9a-f]{16}")


@frozen(eq=False)
class SessionRequest:
    """What a session was asked for; see `session`."""

    sets: AnySet
    device: str | Device | DeviceOpener
    options: CompileOptions  # with the selector
    cache_directory: Any
    applications: tuple[str, ...]
    keep: bool
    queue: bool


@define(eq=False)
class SessionPart:
    """A group whose pipelines can be compiled."""

    session: PipelineSession
    rows: dict[int, int]  # the number of each pipeline in the session, by key
    dependencies: frozenset[PipelineJob]  # those that were not asked for
    urgency: Priority = Priority.BACKGROUND  # of what was submitted since nothing was left
    taken: list[npt.NDArray[np.uint64]] = field(factory=list, init=False)  # of the session's own device

    def chosen(self, keys: Iterable[int] | None) -> Int32s:
        """The numbers of some pipelines, or of all."""
        rows = range(len(self.session.table)) if keys is None else (self.rows.get(key, -1) for key in keys)
        numbers = np.fromiter(rows, np.int32)
        return numbers[numbers >= 0]


class SessionParts:
    """Everything of a session that runs in its thread."""

    def __init__(self, asked: SessionRequest) -> None:
        self._asked = asked
        self.queue = asked.queue
        self.parts: list[SessionPart] = []
        self.names: dict[str, tuple[int, ...]] = {}
        self.left_out: dict[int, str] = {}
        self.all_open = trio.Event()
        self._told: dict[int, PipelineOutcome] = {}  # of those left out, but for other applications'
        self._refused = dict.fromkeys(OutcomeStatus, 0)
        self._known: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._waiting: deque[FeatureGroup] = deque()
        self._opened_one = trio.Event()
        self._changed = trio.Event()
        self._over = trio.Event()
        self.is_closing = False  # no further part is opened; any thread sets it
        self._jobs = PipelineJobs.joined([])
        self._lock = threading.Lock()  # of the time, which any thread gives
        self._active: SessionPart | None = None
        self._until_ns: int | None = None

    # --- from opening to closing

    async def serve(self, obey: Callable[[], Awaitable[None]]) -> CompileReport:
        """Open everything, obey commands until one ends the session, close everything, and report."""
        with ExitStack() as held:
            await trio.to_thread.run_sync(self._open_set, held)
            with first_error():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._open_parts, nursery)
                    nursery.start_soon(self._give_turns)
                    await obey()
                    self._over.set()
                    self._changed.set()
            return self._report()

    def _open_set(self, held: ExitStack) -> None:
        asked, options = self._asked, self._asked.options
        source = in_memory(asked.sets)
        if source is None:
            source = held.enter_context(open_paths(paths_of(asked.sets)))
        directory = asked.cache_directory
        given = asked.device if callable(asked.device) else None
        self._groups = SetGroups.of(source, options, directory, given, self._tell_left_out)
        held.callback(self._groups.cache.end)
        groups = self._chosen_groups(source, options.subset.groups_of(source))
        self._jobs = PipelineJobs.of(dict.fromkeys(job for each in groups for job in each.pipelines))
        self._known = source.pipelines.keys
        self.names = {name: tuple(keys) for name, keys in source.names.items()}
        if isinstance(asked.device, Device):
            groups = [self._one_group(groups)]
        self._waiting.extend(groups)

    def _chosen_groups(self, source: PipelineSet, groups: Sequence[FeatureGroup]) -> list[FeatureGroup]:
        """The groups of the applications that were asked for; tells what is left out with the others."""
        asked = self._asked.applications
        if not asked:
            return list(groups)
        names = {f"{each.key:016x}": each.name or "" for each in source.applications}
        if unknown := set(asked) - {*names, *names.values()}:
            there = ", ".join(f"{name!r} ({key})" for key, name in names.items())
            raise ValueError(f"the set has no application {min(unknown)!r}; it has {there or 'none'}")
        keys = {int(key, 16) for key, name in names.items() if {key, name} & {*asked}}
        chosen = [each for each in groups if keys & {*each.applications}]
        wanted = {job.key for each in chosen for job in each.pipelines}
        for each in groups:
            others = ", ".join(names.get(f"{key:016x}", "") or f"{key:016x}" for key in each.applications)
            for job in each.pipelines if each not in chosen else ():
                if job.key not in wanted:
                    self.left_out[job.key] = f"it is of {others or 'no application'}, not asked for"
        return chosen

    def _one_group(self, groups: Sequence[FeatureGroup]) -> FeatureGroup:
        applications = tuple(dict.fromkeys(key for each in groups for key in each.applications))
        return FeatureGroup(groups[0].request, applications, self._jobs)

    async def _open_parts(self, nursery: trio.Nursery) -> None:
        while self._waiting and not (self.is_closing and self.parts):
            group = self._waiting[0]
            try:
                await nursery.start(self._serve_part, group)
            except DriverError as error:
                if not self.parts and len(self._waiting) == 1:
                    raise
                self._groups.refuse(group, error)
            self._waiting.popleft()
            self._opened_one.set()
            self._opened_one = trio.Event()
        self.all_open.set()
        self._opened_one.set()
        self._changed.set()

    async def _serve_part(self, group: FeatureGroup, task_status: trio.TaskStatus[None]) -> None:
        chunks = self._opening(group)
        ready = part = None
        try:
            opened = await trio.to_thread.run_sync(next, chunks)
            ready = await trio.to_thread.run_sync(self._make_ready, opened)
            cache = ready.cache
            await trio.to_thread.run_sync(partial(self._groups.schedule, ready, streaming=True))
            merge = None if cache.mode in NO_WORKER_CACHES else self._asked.options.merge
            workers, keep = self._groups.cache.decision.workers, self._asked.keep
            async with open_session(
                opened.device,
                ready.prepared,
                RunOptions(workers=workers, mode=cache.mode, merge=merge, keep=keep),
                primary=cache.primary,
                scheduler=ready.schedule.scheduler(),  # of hits many fit into a frame
                on_merged=cache.on_merged,
            ) as session:
                session.limit_time(0)  # until it has its turn
                keys = ready.prepared.image.keys.tolist()
                rows = dict(zip(keys, range(len(keys)), strict=True))
                part = SessionPart(session, rows, opened.built.dependencies)
                if self.queue:
                    await session.submit(part.chosen(None), priority=Priority.BACKGROUND)
                self._take_part(part)
                task_status.started()
                await self._over.wait()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._end_part, chunks, ready, part)

    def _opening(self, group: FeatureGroup) -> Generator[OpenedGroup, None, None]:
        device = self._asked.device
        if isinstance(device, Device):
            return self._on_given(group, device)
        source = self._groups.quarantined.source
        return opened_group(source, group, self._groups.opener, subset=self._asked.options.subset)

    def _on_given(self, group: FeatureGroup, device: Device) -> Generator[OpenedGroup, None, None]:
        """All pipelines on a device of the caller's, who closes it."""
        self._groups.quarantined.opening(lambda _: device)(group.request)
        source = self._groups.quarantined.source
        jobs = self._asked.options.subset.of(group.pipelines)
        built = build_image(source, jobs, device.capabilities)
        yield OpenedGroup(group, device, built).leaving_out(source.left_out)

    def _make_ready(self, opened: OpenedGroup) -> GroupRun:
        try:
            return self._groups.make_ready(opened, opened.built.image)
        finally:
            self._waiting.extend(opened.split)
            self._groups.take(opened)

    def _tell_left_out(self, table: OutcomeTable) -> None:
        for told in table:
            self._told[told.key], self.left_out[told.key] = told, told.reason
            self._refused[told.status] += 1

    def _end_part(
        self, chunks: Generator[OpenedGroup, None, None], ready: GroupRun | None, part: SessionPart | None
    ) -> None:
        """Save and destroy what is the part's, in the order that Vulkan wants."""
        try:
            if ready is None:
                return
            ready.report = None if part is None else part.session.report
            self._groups.cache.close(ready.cache, ready.report)
            self._groups.keep(ready)
            if part is not None and ready.report is not None:
                self._take_report(ready.device, part, ready.report)
            with self._lock:  # what was taken cannot outlive the session's own device
                for handles in () if part is None else part.taken:
                    ready.device.destroy_pipelines(handles)
            ready.prepared.close()
        finally:
            chunks.close()

    def _take_report(self, device: Device, part: SessionPart, report: RunReport) -> None:
        if self._asked.keep:
            device.destroy_pipelines(part.session.take(part.chosen(None)))
            table = msgspec.structs.replace(report.pipelines, handles=None)
            report = msgspec.structs.replace(report, pipelines=table)
        self._groups.notes += report.notes
        self._groups.tally.take_run(report, part.dependencies)

    def _report(self) -> CompileReport:
        others = len(self.left_out.keys() - self._told.keys())
        said = f"{others} pipelines are of applications that were not asked for"
        return self._groups.report(
            self._jobs,
            SetFacts.of(self._groups.quarantined.source),
            stopped=any(each.stopped for each in self._groups.tally.runs) or bool(self._waiting),
            notes=[said] if others else [],
        )

    # --- whose turn it is

    def _take_part(self, part: SessionPart) -> None:
        self.parts.append(part)
        with self._lock:
            if self._active is None:
                self._active = part
                self._give_time()
        self._changed.set()

    def allow(self, seconds: float | None) -> None:
        """Let work begin for so long from now on; any thread."""
        limit_ns = duration_ns(seconds)
        with self._lock:
            self._until_ns = None if limit_ns is None else time.perf_counter_ns() + limit_ns
            self._give_time()

    def _give_time(self) -> None:
        if self._active is not None:
            until_ns = self._until_ns
            left_s = None if until_ns is None else max(0, until_ns - time.perf_counter_ns()) / 1e9
            self._active.session.limit_time(left_s)

    async def _give_turns(self) -> None:
        """While there are several parts, give the time to the one with the most urgent work."""
        while not self._over.is_set():
            self._changed = trio.Event()
            busy = [each for each in self.parts if not each.session.is_idle]
            chosen = min(busy, key=lambda each: each.urgency, default=None)
            with self._lock:
                if chosen is not None and chosen is not self._active:
                    if self._active is not None:
                        self._active.session.limit_time(0)
                    self._active = chosen
                    self._give_time()
            if chosen is None or len(self.parts) == 1:
                await self._changed.wait()
            elif await self._idle_before(chosen, self._changed):
                chosen.urgency = Priority.BACKGROUND

    @staticmethod
    async def _idle_before(part: SessionPart, changed: trio.Event) -> bool:
        """Wait until a part has nothing left, or something changes; whether the first came."""
        is_idle = False

        async def wait() -> None:
            nonlocal is_idle
            await part.session.idle()
            is_idle = True
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await changed.wait()
            nursery.cancel_scope.cancel()
        return is_idle

    # --- commands

    def keys_of(self, pipelines: str | int | Iterable[str | int] | None) -> list[int] | None:
        """Keys by names, tags and keys; None for all.

        Raises:
            ValueError: The set has no such pipeline.
        """
        if pipelines is None:
            return None
        several = [pipelines] if isinstance(pipelines, str | int | np.integer) else list(pipelines)
        keys = dict.fromkeys(key for each in several for key in self._named(each))
        asked = np.fromiter(keys, np.uint64, len(keys))
        if (unknown := asked[~np.isin(asked, self._known)]).size:
            raise ValueError(f"the set has no pipeline with the key {int(unknown[0]):016x}")
        return [*keys]

    def _named(self, name: str | int) -> Sequence[int]:
        if not isinstance(name, str):
            if not hasattr(name, "__index__") or not 0 <= int(name) < 1 << 64:
                raise ValueError(f"a pipeline is a name, a tag or a key of 64 bits, not {name!r}")
            return (int(name),)
        if name in self.names:
            return self.names[name]
        if _KEY.fullmatch(name):
            return (int(name, 16),)
        near = difflib.get_close_matches(name, self.names, 3)
        hint = f"; did you mean {', '.join(near)}?" if near else "; archives have keys, and no names"
        raise ValueError(f"no pipeline of the set is called {name!r}{hint}")

    async def _until_open(self, keys: Iterable[int] | None) -> None:
        """Wait until every part is open that has one of the pipelines."""
        wanted = None if keys is None else np.array([*keys], np.uint64)
        while not self.all_open.is_set():
            waiting = [*self._waiting]  # a thread adds to it
            if wanted is not None and not any(np.isin(wanted, each.pipelines.keys).any() for each in waiting):
                return
            await self._opened_one.wait()

    async def submit(self, keys: Sequence[int] | None, priority: Priority) -> Rest:
        """Queue pipelines, or raise them to a priority."""
        await self._until_open(keys)
        asked = [(each, rows) for each in self.parts if len(rows := each.chosen(keys))]
        for part, rows in asked:
            part.urgency = min(part.urgency, priority)
            await part.session.submit(rows, priority=priority)
        self._changed.set()

        async def rest() -> tuple[PipelineOutcome, ...]:
            found = [self._told[key] for key in (self._told if keys is None else keys) if key in self._told]
            for part, rows in asked:
                found += await part.session.wait(rows)
            return tuple(found)

        return rest

    async def require(self, keys: Sequence[int] | None) -> Rest:
        """Create one pipeline before all others."""
        if keys is None or len(keys) != 1:
            raise ValueError("one pipeline is required at a time: submit several, and wait for their ticket")
        (key,) = keys
        while True:
            for part in self.parts:
                if key in part.rows:
                    rest = part.session.begin_require(part.rows[key])
                    self._changed.set()
                    return rest
            if key in self._told or self.all_open.is_set():
                break
            await self._opened_one.wait()
        if key not in self._told:
            raise ValueError(
                f"pipeline {key:016x} was left out: {self.left_out.get(key, 'not in the subset')}"
            )
        return partial(_told, self._told[key])

    async def cancel(self, keys: Sequence[int] | None) -> Rest:
        """Take pipelines back that have not begun."""
        if keys is None:
            self.queue = False  # those of parts to come, too
        else:
            await self._until_open(keys)
        ends = [each.session.begin_cancel(each.chosen(keys)) for each in self.parts]

        async def rest() -> int:
            return sum([await each() for each in ends])

        return rest

    async def finish(self) -> None:
        """Compile what is queued, in every part; then merge and report."""
        await self.all_open.wait()
        await self._end(PipelineSession.finish)

    async def close(self) -> None:
        """End every part after the calls in flight."""
        self.is_closing = True
        await self._end(PipelineSession.close)
        await self.all_open.wait()
        await self._end(PipelineSession.close)

    async def _end(self, how: Callable[[PipelineSession], Awaitable[object]]) -> None:
        lost: DeviceLostError | None = None
        for part in [*self.parts]:
            try:
                await how(part.session)
            except DeviceLostError as error:
                lost = error
        if lost is not None:
            raise lost

    # --- looking; any thread

    @property
    def is_done(self) -> bool:
        """Whether all parts are open, and nothing is queued or in the driver."""
        return self.all_open.is_set() and all(
            each.session.closed or each.session.is_idle for each in self.parts
        )

    @property
    def progress(self) -> Progress:
        """Progress over all parts; of parts to come their pipelines count, where all are queued."""
        each = [part.session.progress for part in self.parts]
        waiting = sum(len(group.pipelines) for group in [*self._waiting]) if self.queue else 0
        return _joined(each, waiting, self._refused if self.queue else dict.fromkeys(OutcomeStatus, 0))

    def take(self, keys: Sequence[int] | None) -> dict[int, int]:
        """Pipelines that are there and were not taken, by key."""
        found: dict[int, int] = {}
        for part in [*self.parts]:
            rows = part.session.settled() if keys is None else part.chosen(keys)
            with self._lock:
                handles = part.session.take(rows)
                there = handles != 0
                if isinstance(self._asked.device, str) and there.any():
                    part.taken.append(handles[there])
            found.update(
                zip(part.session.table.keys[rows[there]].tolist(), handles[there].tolist(), strict=True)
            )
        return found


async def _told(outcome: PipelineOutcome) -> PipelineOutcome:
    return outcome


def _joined(parts: Sequence[Progress], waiting: int, refused: dict[OutcomeStatus, int]) -> Progress:
    """Progress over parts, with pipelines of parts to come, and those that were left out."""
    first = parts[0] if parts else Progress()
    left_out = sum(refused.values())
    if len(parts) == 1 and not waiting and not left_out:
        return first
    names = ("compiled", "hits", "in_flight")
    sums = {name: sum(getattr(each, name) for each in parts) for name in names}
    rate = sum(each.rate for each in parts)
    etas = [0.0 if each.done == each.total else each.eta_s for each in parts]
    if (over_ns := sum(each.done_ns for each in parts)) and None in etas:
        # A part whose turn has not come has no rate: what all took for their cost so far is its rate, too.
        pace = first.elapsed_s / over_ns
        etas = [
            (each.total_ns - each.done_ns) * pace if eta is None else eta
            for each, eta in zip(parts, etas, strict=True)
        ]
    if waiting:
        etas.append(waiting / rate if rate else None)
    known = [each for each in etas if each is not None]
    is_one = len(parts) == 1 and not waiting
    return msgspec.structs.replace(
        first,
        **sums,
        total=sum(each.total for each in parts) + waiting + left_out,
        done=sum(each.done for each in parts) + left_out,
        failed=sum(each.failed for each in parts) + refused[OutcomeStatus.FAILED],
        skipped=sum(each.skipped for each in parts) + refused[OutcomeStatus.SKIPPED],
        rate=rate,
        eta_s=sum(known) if len(known) == len(etas) else None,
        # Nobody knows what pipelines cost that were not decoded yet.
        total_ns=first.total_ns if is_one else 0,
        done_ns=first.done_ns if is_one else 0,
    )
