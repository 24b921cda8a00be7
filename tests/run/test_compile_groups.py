"""Groups of a set, compiled: what devices were opened as, where pipelines are kept, what the report says."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field
from msgspec import structs

from orchestrator.bench.trace import MAIN_ROW, compile_spans
from orchestrator.devices import open_device
from orchestrator.devices.device import CacheMode
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import CacheOperation, DriverBugs, SimulatedDevice, SimulatedOptions
from orchestrator.errors import DeviceError, DriverError
from orchestrator.run.caches import Rotation
from orchestrator.run.compile import compile_set
from orchestrator.run.options import BARRIER, ROLLING, CompileOptions, MergePolicy, TrialLimits
from orchestrator.run.records import CompileReport, OutcomeStatus, Progress, Stage
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.authoring.builder import PipelineSetBuilder, Rendering
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import Subset
from orchestrator.stores.cache_file import LoadResult
from orchestrator.stores.kinds import FEATURE_GROUPS
from orchestrator.stores.run_notes import read_feature_groups
from tests.run.small_sets import BLUR, Opener, Watched, compiled, write_applications

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


async def test_a_damaged_record_of_groups_is_told_and_replaced(tmp_path: Path) -> None:
    path = write_applications(tmp_path / "set.foz")
    first = await compiled(path, tmp_path / "cache", Opener())
    (file,) = {each.cache_file for each in first.set.groups}
    assert file is not None
    noted, _ = read_feature_groups(file)
    record = FEATURE_GROUPS.path(file)
    record.write_bytes(b"{")
    _, problem = read_feature_groups(file)
    assert str(record) in problem
    told = f"what earlier runs made the cache file for is lost, and this run's was noted: {problem}"
    assert told in (await compiled(path, tmp_path / "cache", Opener())).notes
    assert read_feature_groups(file) == (noted, "")
    assert told not in (await compiled(path, tmp_path / "cache", Opener())).notes


def test_a_group_that_is_over_holds_no_copy_of_the_cache(tmp_path: Path) -> None:
    path = write_applications(tmp_path / "set.foz")

    def run() -> CompileReport:
        kept = partial(compiled, path, tmp_path / "cache", Opener())
        return trio.run(partial(kept, workers=1, mode=CacheMode.PER_WORKER, merge=ROLLING))

    run()
    gc.collect()  # of other tests
    gc.disable()  # what a run leaves refers to itself, and the command line collects it rarely
    try:
        assert run().cache_file.loaded_bytes
        left = gc.get_objects()
    finally:
        gc.enable()
    copies = [each.data for each in left if type(each) is LoadResult and tmp_path in each.path.parents]
    copies += [each.seed for each in left if type(each) is Rotation]
    assert not any(copies)


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
    assert note.startswith("1 pipeline needs")
    assert "finds it only if" in note
    assert "VkPhysicalDevicePipelineRobustnessFeatures::pipelineRobustness" in note
    builder.compute_pipeline("auto", module, specialization={0: 32, 1: 4, 2: False}, p_next=[robust])
    (note,) = [each for each in trio.run(main).notes if "no application is recorded" in each]
    assert note.startswith("2 pipelines need what")
    assert "finds them only if" in note


def test_a_library_of_another_shard_is_compiled_and_not_counted() -> None:
    records = MemoryRecords("set")
    builder = PipelineSetBuilder(records)
    rendering = Rendering(["r8g8b8a8_unorm"])
    output = builder.graphics_pipeline(library_flags="fragment_output_interface", rendering=rendering)
    link = builder.graphics_pipeline(
        libraries=[output], library_flags="vertex_input_interface", state={"vertex_input": {}}
    )
    seen: list[Progress] = []

    def compiled_part(*keys: int) -> CompileReport:
        async def main() -> CompileReport:
            return await compile_set(
                PipelineSet.from_records(records),
                CompileOptions(workers=1, mode=CacheMode.SHARED, subset=Subset(keys=frozenset(keys))),
                opener=Opener(),
                on_progress=seen.append,
            )

        return trio.run(main)

    report = compiled_part(link)
    assert report.pipelines.keys.tolist() == [link]
    assert report.counts()[OutcomeStatus.COMPILED] == report.set.unique == 1
    assert report.set.subset is not None
    assert report.set.subset.of == 2
    assert [set(each.pipelines.keys.tolist()) for each in report.runs] == [{output, link}]
    assert (seen[-1].done, seen[-1].total) == (1, 1)
    other = compiled_part(output)
    assert other.pipelines.keys.tolist() == [output]


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
        """Those events that are such steps."""
        return [each for each in self.events if each.endswith(steps)]


@pytest.fixture(autouse=True)
def enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is memory, whatever the machine has."""
    monkeypatch.setattr("orchestrator.run.compile.has_memory", lambda: True)


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A set of two groups, of two pipelines each."""
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
    alone_ns = [each.duration_ns for each in report.stages if each.name == "open" and not each.overlapped]
    assert [report.timing.open_ns] == alone_ns
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
    (kept,), (expected,) = (list(each.glob("*.plan")) for each in (tmp_path / "cache", plain))
    assert kept.read_bytes() == expected.read_bytes()


async def test_a_group_is_made_ready_and_the_one_before_it_saved_while_others_compile(
    tmp_path: Path,
) -> None:
    path, folder = tmp_path / "set.foz", tmp_path / "cache"
    write_applications(path, same=False)
    opener = Neighbours(awaits=("second primary", "first close"))
    told: list[Progress] = []
    report = await compiled(path, folder, opener, workers=1, on_progress=told.append)
    # One clock for both.
    assert len({each.started_ns for each in told}) == 1
    elapsed = [each.elapsed_s for each in told]
    assert elapsed == sorted(elapsed)
    assert {each.done for each in told} >= {2, 4}
    assert told[-1].rate == pytest.approx(4 / told[-1].elapsed_s)
    steps = ("open", "prepare", "primary")
    expected = [f"{name} {step}" for name in ("first", "second") for step in steps]
    assert opener.told(*steps, "close") == [*expected, "first close", "second close"]
    assert report.counts()[OutcomeStatus.COMPILED] == len(report.pipelines) == 4
    caches = [each for each in report.stages if each.name in ("cache_load", "cache_save")]
    assert sorted((each.name, each.overlapped) for each in caches) == [
        ("cache_load", False),
        ("cache_load", True),
        ("cache_save", False),
        ("cache_save", True),
    ]
    # Two primaries, neither of which has all.
    assert report.merge is not None
    assert report.merge.primary_bytes_after == report.cache_file.saves[-1].bytes_after
    assert report.merge.primary_bytes_after > max(each.primary_bytes_after for each in report.merge.groups)
    # The file holds what both compiled, and nobody else saved there.
    assert not any("another process" in each for each in report.notes)
    assert [each.bytes_before > 0 for each in report.cache_file.saves] == [False, True]
    again = await compiled(path, folder, Opener(), workers=1, open_ahead=False)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == 4


@define
class OneCreatesNoCache(Opener):
    """Opens several devices, of which one has no memory for a cache.

    Attributes:
        place: Which one.
    """

    place: int = field(kw_only=True)

    def __call__(self, request: DeviceRequest) -> SimulatedDevice:
        """Open one."""
        refuses = len(self.opened) == self.place
        self.bugs = DriverBugs(out_of_memory_operations={CacheOperation.CREATE} if refuses else set())
        return super().__call__(request)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("open_ahead", [True, False])
@pytest.mark.parametrize(
    ("mode", "merge"),
    [
        ("per-worker", BARRIER),
        ("per-worker", ROLLING),
        ("two-level", ROLLING),
        ("shared", None),
        (None, None),
    ],
)
async def test_a_group_without_a_cache_leaves_the_other_its_own(
    tmp_path: Path, place: int, open_ahead: bool, mode: CacheMode | None, merge: MergePolicy | None
) -> None:
    path, folder = tmp_path / "set.foz", tmp_path / "cache"
    write_applications(path, same=False)
    options: dict[str, Any] = {"workers": 1, "mode": mode, "merge": merge, "open_ahead": open_ahead}
    report = await compiled(path, folder, OneCreatesNoCache(place=place), **options)
    assert report.counts()[OutcomeStatus.COMPILED] == 4
    kept = report.runs[1 - place].mode
    assert [each.mode is CacheMode.NONE for each in report.runs] == [place == 0, place == 1]
    assert report.mode is kept is not CacheMode.NONE
    (note,) = (each for each in report.notes if "creates no pipeline cache" in each)
    assert "for this group" in note
    again = await compiled(path, folder, Opener(), **options)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == again.counts()[OutcomeStatus.COMPILED] == 2


async def test_what_a_group_has_in_common_with_the_one_before_it_is_compiled_once(
    pair: Path, tmp_path: Path
) -> None:
    report = await compiled(pair, tmp_path / "cache", Neighbours(), workers=1)
    assert [each.cache_hits for each in report.runs] == [0, 2]
    prepared = [each.overlapped for each in report.stages if each.name == "cache_load"]
    assert prepared == [False, False]


@pytest.mark.parametrize(
    "bounds",
    [
        {"open_ahead": False},
        {"time_limit_s": 60.0},
        {"trial_limits": TrialLimits(memory_bytes=1 << 30)},
        {"identifiers": True},
    ],
    ids=lambda bounds: next(iter(bounds)),
)
async def test_groups_are_opened_one_after_the_other_where_something_speaks_for_it(
    bounds: dict[str, Any], pair: Path, tmp_path: Path
) -> None:
    opener = Neighbours(awaits=("", ""))
    report = await compiled(pair, tmp_path, opener, workers=1, **bounds)
    assert opener.told("open", "close") == ["first open", "first close", "second open", "second close"]
    assert [len(run) for run in report.runs] == [2, 2]


async def test_groups_are_opened_one_after_the_other_where_memory_is_short(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.run.compile.has_memory", lambda: False)
    opener = Neighbours(awaits=("", ""))
    await compiled(pair, tmp_path / "cache", opener, workers=1)
    assert opener.told("open", "close") == ["first open", "first close", "second open", "second close"]


async def test_a_group_that_cannot_be_opened_leaves_what_compiled_meanwhile(
    pair: Path, tmp_path: Path
) -> None:
    def refuse() -> None:
        raise DeviceError("one device at a time")

    opener = Neighbours(at_the_second=refuse)
    with pytest.raises(DeviceError, match="one device at a time"):
        await compiled(pair, tmp_path / "cache", opener, workers=1)
    assert opener.told("open", "close") == ["first open", "first close"]
    again = await compiled(pair, tmp_path / "cache", Neighbours(), workers=1)
    assert again.runs[0].counts()[OutcomeStatus.CACHE_HIT] == 2


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
    # The next compile has it again, beside the plan of the other one, and finds what was kept of that.
    assert [*folder.glob("*.plan")]
    again = await compiled(path, folder, Opener(), workers=1, open_ahead=open_ahead)
    counts = again.counts()
    assert (counts[OutcomeStatus.CACHE_HIT], counts[OutcomeStatus.COMPILED]) == (2, 2)


async def test_a_compile_that_gets_no_device_at_all_raises(pair: Path, tmp_path: Path) -> None:
    def refuse(request: DeviceRequest) -> SimulatedDevice:
        raise DriverError("vkCreateDevice", -3, "VK_ERROR_INITIALIZATION_FAILED")

    with pytest.raises(DriverError, match="VK_ERROR_INITIALIZATION_FAILED"):
        await compiled(pair, tmp_path, refuse, workers=1)


async def test_a_stop_closes_the_group_that_was_opened_ahead(pair: Path, tmp_path: Path) -> None:
    token, stop = trio.lowlevel.current_trio_token(), trio.Event()
    opener = Neighbours(at_the_second=lambda: trio.from_thread.run_sync(stop.set, trio_token=token))
    report = await compiled(pair, tmp_path / "cache", opener, workers=1, stop=stop)
    events = opener.told("open", "close")
    assert events[:2] == ["first open", "second open"]
    assert sorted(events[2:]) == ["first close", "second close"]
    assert report.stopped
    assert len(report.runs) == 1
    # What had begun was waited for, and no more.
    assert [each.name for each in report.stages if each.overlapped] == ["open"]


async def test_a_cancellation_closes_the_group_that_was_opened_ahead(pair: Path, tmp_path: Path) -> None:
    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope:
        cancel = scope.cancel
        opener = Neighbours(at_the_second=lambda: trio.from_thread.run_sync(cancel, trio_token=token))
        await compiled(pair, tmp_path / "cache", opener, workers=1)
    assert scope.cancelled_caught
    events = opener.told("open", "close")
    assert events[:2] == ["first open", "second open"]
    assert sorted(events[2:]) == ["first close", "second close"]


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
