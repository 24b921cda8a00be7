"""Groups of a set, compiled: what devices were opened as, where pipelines are kept, what the report says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field
from msgspec import structs

from orchestrator.bench.trace import MAIN_ROW, compile_spans
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.opening import open_device
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.errors import DriverError
from orchestrator.run.compile import compile_set
from orchestrator.run.options import CompileOptions, TrialLimits
from orchestrator.run.records import CompileReport, OutcomeStatus, Stage
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.stores.run_notes import read_feature_groups
from tests.run.small_sets import BLUR, Opener, Watched, compiled, write_applications
from tests.stores.stored import plan_bytes

NAVI21 = "radv:navi21"


async def test_each_group_says_what_its_device_was_opened_as(tmp_path: Path) -> None:
    path = write_applications(tmp_path / "set.foz")
    opener = Opener(options={"keys_depend_on": frozenset({"VkPhysicalDeviceFeatures::robustBufferAccess"})})
    report = await compiled(path, tmp_path / "cache", opener, workers=1)
    # Each application's own: to this driver the same pipeline is another one with robust access.
    assert report.counts()[OutcomeStatus.COMPILED] == 2
    assert sum(len(run) for run in report.runs) == 4
    assert sum(each.cache_hits for each in report.runs) == 0
    names = [each.opened_as.application for each in report.set.groups]
    assert names == ["one", "two"]
    (file,) = {each.cache_file for each in report.set.groups}
    assert file is not None
    noted, problem = read_feature_groups(file)
    assert problem == ""
    assert [each.request for each in noted] == [each.opened_as.request for each in report.set.groups]
    assert [each.pipelines for each in noted] == [2, 2]
    again = await compiled(path, tmp_path / "cache", opener, workers=1)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == 2
    assert read_feature_groups(file) == (noted, "")


def test_what_is_added_to_the_record_is_told(tmp_path: Path) -> None:
    records = MemoryRecords("set")
    builder = PipelineSetBuilder(records)
    builder.application(name="game")
    module = builder.shader_module(BLUR.read_bytes())
    robust = {"structure": "VkPipelineRobustnessCreateInfo", "storage_buffers": "robust_buffer_access"}
    builder.compute_pipeline("auto", module, specialization={0: 64, 1: 4, 2: False})
    builder.compute_pipeline("auto", module, specialization={0: 64, 1: 4, 2: False}, p_next=[robust])

    async def main() -> CompileReport:
        source = PipelineSet.from_records(records)
        return await compile_set(source, CompileOptions(workers=1, mode=CacheMode.SHARED), opener=Opener())

    report = trio.run(main)
    assert report.counts()[OutcomeStatus.COMPILED] == 2
    (note,) = [each for each in report.notes if "no application is recorded to have enabled" in each]
    assert note.startswith("1 of the pipelines need")
    assert "VkPhysicalDevicePipelineRobustnessFeatures::pipelineRobustness" in note


@define(eq=False)
class Neighbours:
    """Opens simulated devices, and has the first or the second compile nothing until something happened.

    Attributes:
        awaits: What the first waits for, and the second; "" for nothing.
        at_the_second: Called when the second is asked for, before it is opened.
        events: What happened, in order: which device was asked for or opened, or took a step (`Watched`).
    """

    awaits: tuple[str, str] = ("second asked", "")
    at_the_second: Callable[[], None] = lambda: None
    events: list[str] = field(factory=list)
    _changed: threading.Condition = field(factory=threading.Condition)

    def __call__(self, request: DeviceRequest) -> SimulatedDevice:
        is_second = "first asked" in self.events
        name, awaited = "second" if is_second else "first", self.awaits[is_second]

        def on_step(step: str) -> None:
            with self._changed:
                self.events.append(f"{name} {step}")
                self._changed.notify_all()

        def on_compile(_: int) -> None:
            with self._changed:
                assert not awaited or self._changed.wait_for(lambda: awaited in self.events, 60)

        on_step("asked")
        if is_second:
            self.at_the_second()
        device = Watched(SimulatedOptions(request=request, on_compile=on_compile), on_step)
        on_step("open")
        return device

    def told(self, *steps: str) -> list[str]:
        return [each for each in self.events if each.endswith(steps)]


@pytest.fixture(autouse=True)
def enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.run.compile.has_memory", lambda: True)


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    path = write_applications(tmp_path / "pair.foz")
    with PipelineSet.open(path) as source:
        assert [len(each.pipelines) for each in source.groups] == [2, 2]
    return path


async def test_a_group_is_opened_and_decoded_while_the_one_before_it_compiles(
    pair: Path, tmp_path: Path
) -> None:
    opener = Neighbours()
    report = await compiled(pair, tmp_path / "cache", opener, workers=1)
    assert opener.told("open", "close") == ["first open", "second open", "first close", "second close"]
    assert [len(run) for run in report.runs] == [2, 2]
    assert [each.opened_as.application for each in report.set.groups] == ["one", "two"]
    opened = sorted((each.start_ns, each.overlapped) for each in report.stages if each.name == "open")
    assert [overlapped for _, overlapped in opened] == [False, True]
    spans = compile_spans(report)
    assert [each.row for each in spans if each.name == "open device"] == [MAIN_ROW, "other groups 1"]
    crossing = (Stage("open", 10, 5, True), Stage("prepare", 0, 10, True), Stage("cache_save", 5, 20, True))
    spans = compile_spans(structs.replace(report, stages=crossing))
    assert [(each.row, each.name) for each in spans if each.category == "stage"] == [
        ("other groups 1", "prepare"),
        ("other groups 2", "save cache file"),  # bars of one row may stand behind or in each other only
        ("other groups 1", "open device"),
    ]
    # What is kept is what is kept of groups that are opened one after the other.
    plain = tmp_path / "plain"
    after = await compiled(pair, plain, Opener(), workers=1, open_ahead=False)
    assert after.counts() == report.counts()
    assert plan_bytes(tmp_path / "cache") == plan_bytes(plain)


async def test_what_a_group_has_in_common_with_the_one_before_it_is_compiled_once(
    pair: Path, tmp_path: Path
) -> None:
    report = await compiled(pair, tmp_path / "cache", Neighbours(), workers=1)
    assert [each.cache_hits for each in report.runs] == [0, 2]
    prepared = [each.overlapped for each in report.stages if each.name == "cache_load"]
    assert prepared == [False, False]


@pytest.mark.parametrize(
    "bounds",
    [{"time_limit_s": 60.0}, {"trial_limits": TrialLimits(memory_bytes=1 << 30)}, {"identifiers": True}],
    ids=lambda bounds: next(iter(bounds)),
)
async def test_groups_are_opened_one_after_the_other_where_something_speaks_for_it(
    bounds: dict[str, Any], pair: Path, tmp_path: Path
) -> None:
    opener = Neighbours(awaits=("", ""))
    report = await compiled(pair, tmp_path, opener, workers=1, **bounds)
    assert opener.told("open", "close") == ["first open", "first close", "second open", "second close"]
    assert [len(run) for run in report.runs] == [2, 2]


@pytest.mark.parametrize("open_ahead", [True, False])
@pytest.mark.parametrize("place", [0, 1])
async def test_a_group_that_the_driver_gives_no_device_for_fails_alone(
    tmp_path: Path, place: int, open_ahead: bool
) -> None:
    path, folder = tmp_path / "set.foz", tmp_path / "cache"
    write_applications(path, same=False)
    opened = 0

    def refuse_one(request: DeviceRequest) -> SimulatedDevice:
        nonlocal opened
        opened += 1
        if opened == place + 1:
            raise DriverError("vkCreateDevice", -8, "VK_ERROR_FEATURE_NOT_PRESENT")
        return Opener()(request)

    report = await compiled(path, folder, refuse_one, workers=1, open_ahead=open_ahead)
    counts = report.counts()
    assert (counts[OutcomeStatus.COMPILED], counts[OutcomeStatus.FAILED]) == (2, 2)
    assert set(report.pipelines.reasons.values()) == {
        "the driver gives no device as this application asks for it: vkCreateDevice returned "
        "VK_ERROR_FEATURE_NOT_PRESENT (-8)"
    }
    # The next compile has it again.
    again = await compiled(path, folder, Opener(), workers=1, open_ahead=open_ahead)
    counts = again.counts()
    assert (counts[OutcomeStatus.CACHE_HIT], counts[OutcomeStatus.COMPILED]) == (2, 2)


@pytest.mark.parametrize("by_stop", [True, False])
async def test_an_early_end_closes_the_group_that_was_opened_ahead(
    pair: Path, tmp_path: Path, by_stop: bool
) -> None:
    token, stop = trio.lowlevel.current_trio_token(), trio.Event()
    report: CompileReport | None = None
    with trio.CancelScope() as scope:
        end = stop.set if by_stop else scope.cancel
        opener = Neighbours(at_the_second=lambda: trio.from_thread.run_sync(end, trio_token=token))
        report = await compiled(pair, tmp_path / "cache", opener, workers=1, stop=stop)
    events = opener.told("open", "close")
    assert events[:2] == ["first open", "second open"]
    assert sorted(events[2:]) == ["first close", "second close"]
    assert scope.cancelled_caught is not by_stop
    if by_stop:
        assert report is not None
        assert report.stopped
        assert len(report.runs) == 1
        assert {each.name for each in report.stages if each.overlapped} <= {"open", "prepare"}


@pytest.mark.driver(NAVI21)
async def test_applications_for_which_the_driver_has_another_identity_have_a_file_each(
    tmp_path: Path,
) -> None:
    """RADV gives some games, by their names, options; in Mesa 25 they change pipelineCacheUUID."""
    path = write_applications(tmp_path / "set.foz", [{"name": "a game of no renown"}, {"name": "DOOM"}])
    report = await compiled(path, tmp_path / "cache", workers=1, selector=NAVI21)
    files = [each.cache_file for each in report.set.groups]
    identities = set()
    for each in report.set.groups:
        with closing(open_device(NAVI21, request=each.opened_as.request)) as device:
            identities.add(device.identity)
    assert len(set(files)) == len(identities)
    assert any("another pipelineCacheUUID" in each for each in report.notes) is (len(identities) == 2)
    assert sorted(each.overlapped for each in report.stages if each.name == "open") == [False, True]
    for each in report.set.groups:
        assert each.cache_file is not None
        assert each.cache_file.stat().st_size > 128
        noted, _ = read_feature_groups(each.cache_file)
        sharing = [one for one in report.set.groups if one.cache_file == each.cache_file]
        assert [one.request for one in noted] == [one.opened_as.request for one in sharing]
    again = await compiled(path, tmp_path / "cache", workers=1, selector=NAVI21)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == 2
