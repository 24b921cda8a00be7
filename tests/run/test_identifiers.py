"""Runs without SPIR-V, and with a provider that gives what turns out to be needed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from attrs import define, field

from orchestrator.devices.device import PreparedPipelines
from orchestrator.devices.identified import SpirvProvider
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import SimulatedDevice, simulated_image
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus, RunReport
from orchestrator.run.session import open_session
from orchestrator.schedule.options import Priority
from tests.contract.subject import empty_compute_shader
from tests.run.support import MODES_WITH_CACHE, cancelled, check_sums, identified, refuse, required

COUNT = 40
LIMIT_S = 60.0
SPIRV = empty_compute_shader(1)
LIBRARIES = {30: [3], 31: [30, 4]}


def shaders_of(pipeline: int) -> tuple[int, int]:
    return 1000 + pipeline // 2, 2000


def image(pipelines: Iterable[int] = range(COUNT)) -> CreateInfoImage:
    keys = list(pipelines)
    return simulated_image(
        keys,
        modules={each: shaders_of(each) for each in keys},
        libraries={each: linked for each, linked in LIBRARIES.items() if {each, *linked} <= set(keys)},
    )


@define(eq=False)
class Translator:
    """A provider that counts who is asked for, and how many at a time."""

    give: Callable[[int], object] = lambda _: SPIRV
    calls: list[int] = field(factory=list)
    most: int = 0
    _busy: int = 0
    _lock: threading.Lock = field(factory=threading.Lock)

    def __call__(self, key: int) -> bytes:
        with self._lock:
            self.calls.append(key)
            self._busy += 1
            self.most = max(self.most, self._busy)
        try:
            return self.give(key)  # type: ignore[return-value]
        finally:
            with self._lock:
                self._busy -= 1


def prepared(
    device: SimulatedDevice,
    provider: SpirvProvider,
    known: Sequence[int] | None = None,
    of: CreateInfoImage | None = None,
) -> PreparedPipelines:
    """The image of which only identifiers are known: of all shaders, or of some."""
    if not device.features.shader_module_identifiers:
        known = ()
    return device.prepare(identified(device, of if of is not None else image(), provider, known))


async def supplied(
    provider: SpirvProvider | Callable[[int], object],
    device: SimulatedDevice | None = None,
    *,
    known: Sequence[int] | None = None,
    of: CreateInfoImage | None = None,
    primary: bytes = b"",
    stop: trio.Event | None = None,
    **options: Any,
) -> RunReport:
    """A run of the image of which only identifiers are known, by two workers; it closes the device."""
    device = device or SimulatedDevice()
    provider = provider if isinstance(provider, SpirvProvider) else SpirvProvider(provider)  # type: ignore[arg-type]
    made = RunOptions(**{"workers": 2} | options)
    report = await run_pipelines(
        device, prepared(device, provider, known, of), made, primary=primary, stop=stop
    )
    check_sums(report)
    device.close()
    return report


async def primed(mode: CacheMode = CacheMode.SHARED, pipelines: Iterable[int] = range(COUNT)) -> bytes:
    """What a cache holds after pipelines were compiled from their SPIR-V."""
    device = SimulatedDevice()
    run = await run_pipelines(device, device.prepare(image(pipelines)), RunOptions(workers=1, mode=mode))
    device.close()
    assert run.cache_data is not None
    return run.cache_data


def created(report: RunReport) -> int:
    counts = report.counts()
    return counts[OutcomeStatus.COMPILED] + counts[OutcomeStatus.CACHE_HIT]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("mode", MODES_WITH_CACHE)
async def test_nobody_is_asked_where_the_cache_has_everything(mode: CacheMode, workers: int) -> None:
    report = await supplied(refuse, primary=await primed(), workers=workers, mode=mode)
    assert report.cache_hits == COUNT
    assert report.identifiers is not None
    assert (report.identifiers.created, report.identifiers.missed, report.identifiers.asked) == (COUNT, 0, 0)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("mode", [*MODES_WITH_CACHE, CacheMode.NONE])
@pytest.mark.parametrize("known", [None, ()], ids=["identifiers known", "nothing known"])
async def test_each_shader_is_asked_for_once(
    mode: CacheMode, workers: int, known: Sequence[int] | None
) -> None:
    device = SimulatedDevice()
    translator = Translator()
    report = await supplied(translator, device, known=known, workers=workers, mode=mode)
    assert created(report) == COUNT
    assert set(device.compile_counts.values()) == {1}
    assert Counter(translator.calls) == Counter({each.key: 1 for each in image().modules})
    assert translator.most <= 2
    record = report.identifiers
    assert record is not None
    assert (record.created, record.missed, record.asked) == (0, COUNT, len(image().modules))
    if known is None:
        assert record.unknown == 0
    else:  # what links others is tried after those, and what was asked for them is known by then
        least = COUNT - len(LIBRARIES)
        if workers > 1:  # so is what another worker asked for: of each shader one pipeline knew nothing
            least = len(image().modules) // int(np.diff(image().module_slot_start).max())
        assert least <= record.unknown <= COUNT
    assert record.supplied_bytes == len(SPIRV) * len(image().modules)
    assert record.provider_ns > 0


@pytest.mark.parametrize(
    "given",
    ["shader", b"", SPIRV[:-1], bytes(len(SPIRV)), SPIRV[: len(SPIRV) // 2 // 4 * 4 + 4]],
    ids=["text", "nothing", "no words", "junk", "half"],
)
async def test_what_a_provider_gets_wrong_is_the_outcome_of_its_pipelines_alone(given: object) -> None:
    translator = Translator(lambda key: given if key == 1003 else SPIRV)
    report = await supplied(translator)
    reason = "the provider gave what is no SPIR-V: " if isinstance(given, bytes) else "str and not bytes"
    assert_two_failed(report, reason)
    assert report.identifiers is not None
    assert report.identifiers.refused == 1
    assert translator.calls.count(1003) == 1


def assert_two_failed(report: RunReport, reason: str) -> None:
    """All were created but for the two pipelines of shader 1003."""
    assert {each.key for each in report.failed} == {6, 7}
    assert all(reason in each.reason for each in report.failed)
    assert created(report) == COUNT - 2


async def test_a_provider_that_is_stuck_costs_its_pipelines_alone() -> None:
    async def translate(key: int) -> bytes:
        if key == 1003:
            await trio.sleep_forever()
        return SPIRV

    report = await supplied(SpirvProvider(translate, timeout_s=0.05, concurrency=1))
    assert_two_failed(report, "the provider did not give it within 0.05 s")


async def test_a_run_that_is_stopped_waits_for_no_provider() -> None:
    stop = trio.Event()

    async def translate(key: int) -> bytes:
        stop.set()
        await trio.sleep_forever()
        raise AssertionError(key)

    report = await supplied(translate, stop=stop)
    assert report.stopped
    assert report.counts()[OutcomeStatus.NOT_RUN] == COUNT


async def test_a_session_asks_for_what_is_submitted() -> None:
    device = SimulatedDevice()
    translator = Translator()
    first = prepared(device, SpirvProvider(translator))
    assert first.identified is not None
    async with open_session(
        device, first, RunOptions(workers=2, keep=True), primary=await primed(pipelines=range(10))
    ) as session:
        await session.submit(range(10))
        assert all(each.created for each in await session.wait(range(10)))
        assert translator.calls == []
        outcome = await required(session, 20)
        assert outcome.status is OutcomeStatus.COMPILED
        assert sorted(translator.calls) == [1010, 2000]
        session.take(range(10))
    device.close()


async def test_the_provider_is_asked_by_what_is_urgent_now() -> None:
    asked: list[int] = []
    begun, go = trio.Event(), trio.Event()

    async def translate(key: int) -> bytes:
        asked.append(key)
        begun.set()
        await go.wait()
        return SPIRV

    device = SimulatedDevice()
    bare = prepared(device, SpirvProvider(translate, concurrency=1))
    async with open_session(device, bare, RunOptions(workers=1)) as session:
        await session.submit(range(18), priority=Priority.BACKGROUND)
        await begun.wait()
        await trio.testing.wait_all_tasks_blocked()
        needed = next(each for each in (0, 16) if asked[0] not in shaders_of(each) or asked[0] == 2000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(required, session, needed)
            await trio.testing.wait_all_tasks_blocked()
            # A level that was left: nothing more is asked for, but what is required.
            await cancelled(session, [each for each in range(18) if each != needed])
            go.set()
        assert asked[1] in shaders_of(needed)
        assert set(asked) == {asked[0], *shaders_of(needed)}
        await session.submit([8, 9])
        assert all(each.created for each in await session.wait([8, 9]))
        assert set(asked) == {asked[0], *shaders_of(needed), 1004}
    device.close()


async def test_a_run_ends_where_every_call_is_stuck() -> None:
    go = threading.Event()

    def translate(_: int) -> bytes:
        assert go.wait(LIMIT_S)
        return SPIRV

    with trio.fail_after(LIMIT_S):
        report = await supplied(SpirvProvider(translate, concurrency=2, timeout_s=0.05))
    assert len(report.failed) == COUNT
    reasons = {each.reason.rpartition("the provider ")[2] for each in report.failed}
    assert reasons == {"did not give it within 0.05 s"}
    go.set()
