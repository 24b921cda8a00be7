"""Runs without SPIR-V, and with a provider that gives what turns out to be needed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from attrs import define, evolve, field
from msgspec.structs import replace

from orchestrator.devices.device import CacheMode, PreparedPipelines
from orchestrator.devices.identified import IdentifiedModules, SpirvProvider, SuppliedCode
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.run.execution import run_pipelines
from orchestrator.run.identification import Identification
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus, Progress, RunReport
from orchestrator.run.session import Remainder, open_session
from orchestrator.run.session_thread import start_session
from orchestrator.schedule import Priority
from orchestrator.sets.image.builder import build_image
from tests.contract.subject import empty_compute_shader
from tests.run.support import MODES_WITH_CACHE, check_sums, identified, refuse, without
from tests.sets.needs import test_supplied

COUNT = 40
LIMIT_S = 60.0
SPIRV = empty_compute_shader(1)
LIBRARIES = {30: [3], 31: [30, 4]}


def shaders_of(pipeline: int) -> tuple[int, int]:
    """Neighbours share a shader, and all share another one."""
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
    assert record.provider_ns >= record.slowest_ns > 0


def test_a_library_that_many_others_link_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level of libraries would else double the work: 22 took 24 s, and 33 would take hours."""
    keys = list(range(24))
    libraries = {each: [each // 2 * 2 - 2, each // 2 * 2 - 1] for each in keys[2:]}
    diamonds = simulated_image(keys, modules={each: (each,) for each in keys}, libraries=libraries)
    identified = IdentifiedModules(diamonds, SpirvProvider(refuse), SuppliedCode())
    looked_at: list[int] = []
    modules_of = CreateInfoImage.modules_of

    def counted(self: CreateInfoImage, index: int) -> tuple[int, ...]:
        looked_at.append(index)
        return modules_of(self, index)

    monkeypatch.setattr(CreateInfoImage, "modules_of", counted)
    needed = {diamonds.modules[each].key for each in identified.needed(len(diamonds) - 1)}
    assert needed == {*keys[:22], int(diamonds.keys[-1])}
    assert len(looked_at) == len(needed)


async def test_one_damaged_identifier_is_one_pipelines_fall_back() -> None:
    device = SimulatedDevice()
    translator = Translator()
    bare = prepared(device, SpirvProvider(translator), of=image(range(0, COUNT, 2)))
    assert bare.identified is not None
    number = next(n for n, each in enumerate(bare.image.modules) if each.key == 1005)
    good = bare.identified.identifier(number)
    bare.identified.learn(number, bytes([good[0] ^ 0x40, *good[1:]]))
    data = await primed(pipelines=range(0, COUNT, 2))
    report = await run_pipelines(device, bare, RunOptions(workers=2), primary=data)
    assert report.cache_hits == COUNT // 2
    assert sorted(translator.calls) == [1005, 2000]
    record = report.identifiers
    assert record is not None
    assert (record.created, record.missed, record.changed) == (COUNT // 2 - 1, 1, 1)
    assert bare.identified.learned == {1005: good}
    device.close()


async def test_a_driver_may_miss_for_no_reason() -> None:
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(spurious_misses={7, 8, 31})))
    translator = Translator()
    report = await supplied(translator, device, primary=await primed(), workers=3)
    assert report.cache_hits == COUNT  # with its code each is found
    record = report.identifiers
    assert record is not None
    assert (record.created, record.missed) == (COUNT - 3, 3)
    # 31 links 30 and 4, and 30 links 3: whoever compiles it may have to see the code of all.
    wanted = {each for pipeline in (7, 8, 31, 30, 3, 4) for each in shaders_of(pipeline)}
    assert sorted(translator.calls) == sorted(wanted)


async def test_hits_never_wait_behind_compiles() -> None:
    """All tries come before the first compile, in few calls, and the longest compiles first."""
    device = SimulatedDevice()
    alone = [
        each for each in range(COUNT) if each not in (3, 4)
    ]  # and no libraries, which come before others
    half = [each for each in alone if each % 4 < 2]
    primary = await primed(pipelines=half)
    report = await supplied(
        lambda _: SPIRV, device, of=image(alone), primary=primary, workers=1, mode=CacheMode.SHARED
    )
    operations = [each.operation for each in device.calls()]
    assert "create_identified" not in operations[operations.index("create_pipelines") :]
    assert operations.count("create_identified") <= 8
    assert created(report) == len(alone)
    assert report.identifiers is not None
    assert report.identifiers.created == len(half)


async def test_the_provider_is_not_called_in_a_workers_thread() -> None:
    """The one worker is in the driver until another shader was asked for."""
    second = threading.Event()
    compiles: list[int] = []

    def compiling(key: int) -> None:
        compiles.append(key)
        assert second.wait(LIMIT_S)

    def give(_: int) -> bytes:
        if len(translator.calls) > 2:
            second.set()
        return SPIRV

    translator = Translator(give)
    device = SimulatedDevice(SimulatedOptions(on_compile=compiling))
    report = await supplied(SpirvProvider(translator, concurrency=1), device, workers=1)
    assert created(report) == COUNT
    assert translator.most == 1


async def test_async_providers() -> None:
    busy = most = 0

    async def translate(key: int) -> bytes:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await trio.lowlevel.checkpoint()
        busy -= 1
        return SPIRV

    class Object:
        async def __call__(self, key: int) -> bytes:
            return await translate(key)

    for provider in (translate, Object(), lambda key: translate(key)):
        report = await supplied(SpirvProvider(provider, concurrency=3))
        assert created(report) == COUNT
        assert 1 <= most <= 3


def broken(how: str) -> Callable[[int], object]:
    def give(key: int) -> object:
        if key != 1003:
            return SPIRV
        return {
            "gives text": "shader",
            "gives nothing": b"",
            "gives no words": SPIRV[:-1],
            "gives junk": bytes(len(SPIRV)),
            "gives half": SPIRV[: len(SPIRV) // 2 // 4 * 4 + 4],
        }[how]

    return give


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("gives text", "the provider gave str and not bytes"),
        ("gives nothing", "the provider gave what is no SPIR-V: "),
        ("gives no words", "the provider gave what is no SPIR-V: "),
        ("gives junk", "the provider gave what is no SPIR-V: "),
        ("gives half", "the provider gave what is no SPIR-V: "),
    ],
)
async def test_what_a_provider_gets_wrong_is_the_outcome_of_its_pipelines_alone(
    how: str, reason: str
) -> None:
    translator = Translator(broken(how))
    report = await supplied(translator)
    assert_two_failed(report, f"shader module {1003:016x}: {reason}")
    assert report.identifiers is not None
    assert report.identifiers.refused == 1
    assert translator.calls.count(1003) == 1


def assert_two_failed(report: RunReport, reason: str) -> None:
    """All were created but for the two pipelines of shader 1003."""
    assert {each.key for each in report.failed} == {6, 7}
    assert all(reason in each.reason for each in report.failed)
    assert created(report) == COUNT - 2


async def test_code_that_the_device_cannot_take_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the set has the code: what the device lacks is named."""
    wants_more = empty_compute_shader(1)
    words = bytearray(wants_more)
    # OpCapability Shader -> Float64
    words[24:28] = (10).to_bytes(4, "little")
    from orchestrator.devices.request import DeviceRequest, OtherFeatures

    device = SimulatedDevice(SimulatedOptions(request=DeviceRequest(others=OtherFeatures.NONE)))
    report = await supplied(lambda key: bytes(words) if key == 1003 else SPIRV, device)
    assert {each.key for each in report.skipped} == {6, 7}
    assert all("shaderFloat64" in each.reason for each in report.skipped)
    assert created(report) == COUNT - 2


async def test_a_limit_costs_the_pipelines_that_exceed_it_alone() -> None:
    """A workgroup of no invocations, which RADV divides by: it took a program with it."""
    device = SimulatedDevice()
    described = test_supplied.described(supplied=True)
    bare = build_image(described, described.pipelines, device.capabilities).image
    report = await supplied(lambda _: test_supplied.SHADER, device, known=(), of=bare)
    assert sorted(each.reason for each in report.failed) == [
        "shader module 0000000000000007: 8 invocations in x, which subgroups of 16 do not fill",
        "shader module 0000000000000007: a workgroup of 0x1x1 invocations",
    ]
    assert created(report) == len(bare) - 2


async def test_a_provider_that_is_stuck_costs_its_pipelines_alone() -> None:
    async def translate(key: int) -> bytes:
        if key == 1003:
            await trio.sleep_forever()
        return SPIRV

    report = await supplied(SpirvProvider(translate, timeout_s=0.05, concurrency=1))
    assert_two_failed(report, "the provider did not give it within 0.05 s")


async def test_a_thread_that_is_stuck_is_left_behind() -> None:
    go, back, stop = threading.Event(), threading.Event(), trio.Event()

    def translate(key: int) -> bytes:
        if key == 1003:
            assert go.wait(LIMIT_S)
            back.set()
        return SPIRV

    def watch(progress: Progress) -> None:
        if progress.done == COUNT - 2:
            stop.set()

    device = SimulatedDevice()
    bare = prepared(device, SpirvProvider(translate, concurrency=2))
    report = await run_pipelines(device, bare, RunOptions(workers=2), stop=stop, on_progress=watch)
    assert created(report) == COUNT - 2
    assert report.counts()[OutcomeStatus.NOT_RUN] == 2
    device.close()
    # What comes back too late is for nobody, and touches neither device nor run.
    go.set()
    assert await trio.to_thread.run_sync(back.wait, LIMIT_S)
    assert bare.identified is not None
    assert 1003 not in bare.identified.code


async def test_a_run_that_is_stopped_waits_for_no_provider() -> None:
    stop = trio.Event()

    async def translate(key: int) -> bytes:
        stop.set()
        await trio.sleep_forever()
        raise AssertionError(key)

    report = await supplied(translate, stop=stop)
    assert report.stopped
    assert report.counts()[OutcomeStatus.NOT_RUN] == COUNT


async def test_a_device_without_identifiers_has_everything_supplied() -> None:
    device = SimulatedDevice(without(shader_module_identifiers=False))
    translator = Translator()
    report = await supplied(translator, device, primary=await primed())
    assert report.cache_hits == COUNT
    assert sorted(translator.calls) == sorted(each.key for each in image().modules)


async def test_a_session_asks_for_what_is_submitted() -> None:
    device = SimulatedDevice()
    translator = Translator()
    first = prepared(device, SpirvProvider(translator))
    assert first.identified is not None
    async with open_session(
        device, first, RunOptions(workers=2, keep=True), primary=await primed(pipelines=range(10))
    ) as session:
        ticket = await session.submit(range(10))
        assert all(each.created for each in await ticket.wait())
        assert translator.calls == []
        outcome = await session.require(20)
        assert outcome.status is OutcomeStatus.COMPILED
        assert sorted(translator.calls) == [1010, 2000]
        # Another image with shaders of the first: nobody is asked twice.
        known = first.identified
        later = device.prepare(IdentifiedModules(image(range(20, 24)), known.provider, known.code))
        ticket = await session.submit(session.add(later))
        assert all(each.created for each in await ticket.wait())
        assert sorted(translator.calls) == [1010, 1011, 2000]
        assert session.progress.done == session.progress.total == 15
        session.take(ticket)
    device.close()


@pytest.mark.parametrize("settled", [True, False], ids=["after", "while"])
async def test_images_with_supplied_code_of_their_own_are_supplied_each(settled: bool) -> None:
    went, other = trio.Event(), Translator()

    async def translate(_: int) -> bytes:
        await went.wait()
        return SPIRV

    device = SimulatedDevice()
    first = prepared(device, SpirvProvider(translate))
    own = IdentifiedModules(image(range(20, 24)), SpirvProvider(other), SuppliedCode())
    async with open_session(device, first, RunOptions(workers=2)) as session:
        ticket = await session.submit([20, 21])
        if settled:
            went.set()
            await ticket.wait()
        later = await session.submit(session.add(device.prepare(own)))
        await trio.testing.wait_all_tasks_blocked()
        went.set()
        with trio.fail_after(LIMIT_S):
            assert all(each.created for each in (*await later.wait(), *await ticket.wait()))
    assert sorted(other.calls) == [1010, 1011, 2000]
    device.close()


@pytest.mark.parametrize("several", [False, True])
async def test_a_providers_calls_count_together_for_all_images(several: bool) -> None:
    """Each image has some code in its records, other code than the other one has."""
    device, another = SimulatedDevice(), threading.Event()
    translator = Translator(lambda _: (another.wait(0.05), SPIRV)[-1])  # time for another call to come
    provider = SpirvProvider(translator, concurrency=1)
    shared = Identification(provider, None)

    def begun(pipelines: range) -> PreparedPipelines:
        bare = image(pipelines)
        modules = (
            replace(each, load=lambda: SPIRV, code_size=len(SPIRV) * (each.key == 1000 + pipelines[0] // 2))
            for each in bare.modules
        )
        identification = Identification(provider, None) if several else shared
        identified = identification.begin(device, evolve(bare, modules=tuple(modules)))
        assert identified is not None
        return device.prepare(identified)

    async with open_session(device, begun(range(8)), RunOptions(workers=2)) as session:
        tickets = [await session.submit(range(8)), await session.submit(session.add(begun(range(20, 28))))]
        for ticket in tickets:
            assert all(each.created for each in await ticket.wait())
    assert sorted(translator.calls) == [1001, 1002, 1003, 1011, 1012, 1013, 2000] + [2000] * several
    assert translator.most == 1
    device.close()


async def test_what_is_cancelled_while_it_waits_for_code_may_be_submitted_again() -> None:
    asked, go = trio.Event(), trio.Event()

    async def translate(_: int) -> bytes:
        asked.set()
        await go.wait()
        return SPIRV

    device = SimulatedDevice()
    async with open_session(
        device, prepared(device, SpirvProvider(translate)), RunOptions(workers=1)
    ) as session:
        ticket = await session.submit([5, 6])
        await asked.wait()
        await session.cancel(ticket)
        assert session.unsettled(np.arange(COUNT, dtype=np.int32)).tolist() == []
        again = await session.submit([5])
        go.set()
        (outcome,) = await again.wait()
        assert outcome.created
    assert device.compile_counts == {5: 1}
    device.close()


def test_a_session_of_a_host_without_trio() -> None:
    device = SimulatedDevice()
    translator = Translator()
    with start_session(
        (device, prepared(device, SpirvProvider(translator))), RunOptions(workers=2)
    ) as session:
        outcomes = session.submit(range(COUNT)).result(LIMIT_S)
    assert all(each.created for each in outcomes)
    assert Counter(translator.calls) == Counter({each.key: 1 for each in image().modules})
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
            nursery.start_soon(session.require, needed)
            await trio.testing.wait_all_tasks_blocked()
            # A level that was left: nothing more is asked for, but what is required.
            await session.cancel([each for each in range(18) if each != needed])
            go.set()
        assert asked[1] in shaders_of(needed)
        assert set(asked) == {asked[0], *shaders_of(needed)}
        again = await session.submit([8, 9])
        assert all(each.created for each in await again.wait())
        assert set(asked) == {asked[0], *shaders_of(needed), 1004}
    device.close()


async def test_a_stuck_thread_keeps_its_place() -> None:
    """So the time of the next shader does not run while it waits for that place."""
    go, asked = threading.Event(), list[int]()

    def translate(key: int) -> bytes:
        asked.append(key)
        assert go.wait(LIMIT_S)
        return SPIRV

    device = SimulatedDevice()
    provider = SpirvProvider(translate, concurrency=2, timeout_s=0.05)
    first = prepared(device, provider)
    assert first.identified is not None
    of = id(first.identified.provider)
    async with open_session(device, first, RunOptions(workers=1)) as session:
        ticket = await session.submit(range(8))
        supply = session._run.supply
        assert supply is not None
        while not supply._overdue[of]:  # one of two is stuck
            await trio.sleep(0.001)
        assert len(asked) <= provider.concurrency
        assert supply._calls[of].borrowed_tokens >= supply._overdue[of]
        go.set()
        await ticket.wait()
        while supply._calls[of].borrowed_tokens:  # until all threads are back
            await trio.sleep(0.001)
        assert supply._overdue[of] == 0
    device.close()


@pytest.mark.parametrize("threads", [True, False], ids=["stuck", "no thread"])
async def test_a_run_ends_where_every_call_is_stuck(threads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def translate(_: int) -> bytes:
        assert go.wait(LIMIT_S)
        return SPIRV

    if not threads:
        real, refused = trio.to_thread.run_sync, list[bool]()

        async def run_sync(work: Callable[..., object], *arguments: object, **more: object) -> object:
            if work.__name__ == "in_thread" and len(refused) < 2:
                refused.append(True)
                raise RuntimeError("can't start new thread")
            go.set()
            return await real(work, *arguments, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    provider = SpirvProvider(translate, concurrency=2, timeout_s=0.05 if threads else LIMIT_S)
    with trio.fail_after(LIMIT_S):
        report = await supplied(provider)
    reasons = {each.reason.rpartition("the provider ")[2] for each in report.failed}
    if threads:
        assert len(report.failed) == COUNT
        assert reasons == {"did not give it within 0.05 s"}
    else:
        assert reasons == {"failed: RuntimeError: can't start new thread"}
        assert created(report) == COUNT - len(report.failed)
    go.set()


class Wordless(Exception):
    """Raised by a host that is beyond help."""

    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LookupError("no such shader"), ": no such shader"),
        (asyncio.CancelledError(), ""),
        (Wordless(), ""),
        (ExceptionGroup("two", [ValueError()]), ""),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_whatever_a_provider_raises_the_others_go_on(
    error: BaseException, words: str, is_async: bool
) -> None:
    def translate(key: int) -> bytes:
        if key == 1003:
            raise error
        return SPIRV

    async def translate_later(key: int) -> bytes:
        return translate(key)

    report = await supplied(translate_later if is_async else translate)
    assert_two_failed(report, f"{1003:016x}: the provider failed: {type(error).__name__}{words}")
    assert report.identifiers is not None
    assert report.identifiers.refused == 1


async def test_a_frame_waits_for_a_provider_and_does_not_spin() -> None:
    went = trio.Event()

    async def translate(_: int) -> bytes:
        await went.wait()
        return SPIRV

    device = SimulatedDevice()
    bare = prepared(device, SpirvProvider(translate))
    async with open_session(device, bare, RunOptions(workers=1, time_limit_s=0)) as session:
        await session.submit([0])
        frame: list[Remainder] = []

        async def run() -> None:
            frame.append(await session.run_for(LIMIT_S))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert not frame  # the pipeline waits for its code, and there is time
            went.set()
        assert frame[0].done
    device.close()
