"""A decoder beside a process: what it decodes is what one thread decodes, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from orchestrator.devices import open_device
from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.request import DeviceRequest, EnabledCapabilities, OtherFeatures
from orchestrator.devices.selectors import lacking
from orchestrator.errors import DeviceError, NoDeviceError
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets import decoder as module
from orchestrator.sets.answers import AskedCapabilities
from orchestrator.sets.decoder import Decoder
from orchestrator.sets.image import builder
from orchestrator.sets.image.builder import build_image, build_part
from orchestrator.sets.image.built import BuiltImage
from orchestrator.sets.image.layout import join_parts
from orchestrator.sets.needs.rules import DeviceAnswers
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.plan import SetFacts
from orchestrator.sets.prepare import WHOLE, Subset, opened_groups
from orchestrator.sets.records import PipelineJob, PipelineJobs, RecordTag
from orchestrator.sets.sample import sample_path
from orchestrator.sets.shared_set import DecodingTurn, SharedSet
from tests.children.test_children import PATIENCE_S, is_gone, until
from tests.drivers import REPOSITORY, Corpus, each_corpus, run_on_device
from tests.sets.image.same_image import assert_same_image

DEVICE = AnyDevice(0x403000)


@pytest.fixture(autouse=True)
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chunks of a small set."""
    monkeypatch.setattr(module, "_FEWEST", 1)
    monkeypatch.setattr(module, "_UNDIVIDED", 1)


@pytest.fixture
def sample() -> Iterator[PipelineSet]:
    with PipelineSet.open(sample_path()) as opened:
        yield opened


def started(
    source: PipelineSet, helpers: int = 1, subset: Subset = WHOLE, selector: str = ""
) -> closing[Decoder]:
    return closing(Decoder.start(source, helpers, subset, partial(lacking, selector)))


def decoded(source: PipelineSet, helpers: int = 3, device: DeviceCapabilities = DEVICE) -> BuiltImage:
    with started(source, helpers) as decoder:
        return image_of(decoder, source, source.pipelines, device)


def image_of(
    decoder: Decoder, source: PipelineSet, jobs: Iterable[PipelineJob], device: DeviceCapabilities = DEVICE
) -> BuiltImage:
    """What the decoder gives, which has not ended for that."""
    built = decoder.build_image(source, jobs, device)
    assert built is not None
    return built


def named(image: CreateInfoImage) -> list[tuple[Any, ...]]:
    """What each pipeline refers to, by name."""
    objects = [(each.kind, each.key) for each in image.objects]
    keys, start, flat = image.keys.tolist(), image.object_start.tolist(), image.object_index.tolist()
    return [
        (
            image.kind_of(index),
            key,
            sorted(objects[each] for each in flat[start[index] : start[index + 1]]),
            [image.modules[each].key for each in image.modules_of(index)],
            [keys[each] for each in image.libraries_of(index)],
            bool(image.is_library[index]),
            bool(image.flags2_slots[index] >= 0),
        )
        for index, key in enumerate(keys)
    ]


def held(built: BuiltImage) -> tuple[Any, ...]:
    """All that an image holds, by name, and what was found beside it."""
    modules = {each.key: each.load() for each in built.image.modules}
    return named(built.image), built.problems, built.needs, built.dependencies, modules


def test_one_part_is_the_image_byte_for_byte(sample: PipelineSet) -> None:
    jobs = sample.pipelines
    joined = join_parts(sample, jobs, [build_part(sample, jobs, DEVICE)])
    alone = build_image(sample, jobs, DEVICE)
    assert held(joined) == held(alone)
    assert_same_image(joined.image, alone.image)


@pytest.mark.parametrize("helpers", [1, 4])
def test_a_decoder_makes_the_image_of_one_thread(sample: PipelineSet, helpers: int) -> None:
    assert held(decoded(sample, helpers)) == held(build_image(sample, sample.pipelines, DEVICE))


@each_corpus
def test_a_decoder_makes_the_image_of_one_thread_of_captured_sets(corpus: Corpus) -> None:
    with PipelineSet.open(corpus.path) as opened:
        assert held(decoded(opened)) == held(build_image(opened, opened.pipelines, DEVICE))


def test_a_set_need_not_be_read_by_who_has_a_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    with PipelineSet.open(sample_path()) as other:
        groups, facts, pipelines = other.groups, SetFacts.of(other), other.pipelines
    with PipelineSet.open(sample_path(), indexed=False) as sample, started(sample) as decoder:
        shared = SharedSet.of(sample, decoder)
        monkeypatch.setattr(type(sample.records), "keys", None)
        decoder.read(shared)
        assert shared.groups == groups
        assert shared.pipelines == pipelines
        assert shared.counts == pipelines.counts()
        assert SetFacts.of(shared) == facts
        assert len(image_of(decoder, shared, groups[0].pipelines).image)


@pytest.mark.parametrize(
    ("pipelines", "helpers", "sizes"),
    [
        (682, 6, [114] * 5 + [112]),
        (10_200, 12, [850] * 12),
        (65_280, 16, [1020] * 64),
        (3, 16, [1] * 3),
        (0, 2, [0]),
    ],
)
def test_chunks_keep_all_helpers_equally_busy(
    pipelines: int, helpers: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UNDIVIDED", 512)
    jobs = PipelineJobs(np.arange(pipelines, dtype=np.uint64), np.zeros(pipelines, np.uint8))
    chunks = module._chunks(jobs, helpers)
    assert [len(each) for each in chunks] == sizes
    assert PipelineJobs.joined(chunks).keys.tolist() == jobs.keys.tolist()


def keys_of_both(path: str) -> tuple[int, bool]:
    """Of how many pipelines RADV has keys, and whether both ways get the same; for a process of its own."""
    vars(module).update(_FEWEST=1, _UNDIVIDED=1)
    with PipelineSet.open(path) as opened, started(opened, 3) as decoder:
        device = open_device("radv:navi21", request=opened.groups[0].request)
        keys = []
        for built in (
            image_of(decoder, opened, opened.pipelines, device.capabilities),
            build_image(opened, opened.pipelines, device.capabilities),
        ):
            prepared = device.prepare(built.image)
            keys.append(device.pipeline_keys(prepared, np.arange(len(built.image), dtype=np.int32)))
            prepared.close()
        device.close()
    one, other = keys
    return sum(each is not None for each in one), one == other


def test_a_driver_gives_both_the_same_keys() -> None:
    known, agree = run_on_device("radv:navi21", "tests.sets.test_decoder:keys_of_both", str(sample_path()))
    assert known > 50
    assert agree


def noted_agreement(patch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each image that comes from now on is that of the device."""
    found: list[bool] = []
    agrees = DeviceAnswers.agrees

    def noted(answers: DeviceAnswers, decisions: Any) -> bool:
        found.append(agrees(answers, decisions))
        return found[-1]

    patch.setattr(DeviceAnswers, "agrees", noted)
    return found


def groups_of_both(path: str) -> list[bool]:
    """Whether RADV decides as was assumed, and gets the same of each group with a decoder and without.

    For a process of its own.
    """
    agreed = noted_agreement(pytest.MonkeyPatch())
    radv = "radv:navi21"
    with PipelineSet.open(path, indexed=False) as opened, started(opened, selector=radv) as decoder:
        found = []
        for source in (SharedSet.of(opened, decoder), opened):
            groups = opened_groups(source, lambda request: open_device(radv, request=request))
            found.append(
                [
                    (each.group.request, list(each.group.pipelines), each.split, held(each.built))
                    for each in groups
                ]
            )
        assert decoder.process_id
    one, other = found
    return [all(agreed), bool(agreed), len(one) == len(other), *(each in other for each in one)]


@each_corpus
def test_a_driver_opens_the_same_groups_of_captured_sets(corpus: Corpus) -> None:
    same = run_on_device("radv:navi21", "tests.sets.test_decoder:groups_of_both", str(corpus.path))
    assert len(same) > 3
    assert all(same)


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    return noted_agreement(monkeypatch)


class Lacking(AnyDevice, frozen=True):
    """A device that lacks what the sample's pipelines need most."""

    def has_feature(self, struct: str, member: str) -> bool:
        return member != "tessellationShader"


class Modest(AnyDevice, frozen=True):
    """A device that has just enough of everything, and less than what is assumed."""

    def property_value(self, struct: str, member: str) -> Any:
        found = super().property_value(struct, member)
        if isinstance(found, tuple):
            return (1024,) * len(found)
        return min(found, 1 << 14) if isinstance(found, int) and member.startswith("max") else found

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        return (0, 0x1FFFF, 0x7F)


@pytest.mark.parametrize(
    ("device", "expected"),
    [(AnyDevice(), [True]), (Modest(), [True]), (Lacking(), [False, True])],
    ids=["any", "modest", "lacking"],
)
def test_it_is_decoded_again_where_a_device_decides_otherwise(
    sample: PipelineSet, device: AnyDevice, expected: list[bool], tries: list[bool]
) -> None:
    request = evolve(sample.groups[0].request, others=OtherFeatures.UNRECORDED)
    capabilities = EnabledCapabilities(device, request)
    with started(sample, 2) as decoder:
        asked = AskedCapabilities(capabilities)
        built = image_of(decoder, sample, sample.pipelines, asked)
    assert tries == expected
    alone = AskedCapabilities(capabilities)
    assert held(built) == held(build_image(sample, sample.pipelines, alone))
    # A plan is told all that was asked, but for limits that decided nothing.
    assert {each for each in alone.answers if each[0] != "property"} <= asked.answers.keys()


def test_other_groups_and_parts_of_them_are_decoded_too(sample: PipelineSet, tries: list[bool]) -> None:
    capabilities = EnabledCapabilities(DEVICE, DeviceRequest())
    several = (sample.pipelines[:3], sample.pipelines[:0], sample.pipelines[5:], sample.pipelines)
    with started(sample, 2, Subset(1, 2)) as decoder:
        for jobs in several:
            built = image_of(decoder, sample, jobs, capabilities)
            assert held(built) == held(build_image(sample, jobs, capabilities))
    assert tries.count(True) == len(several)


@pytest.mark.parametrize(
    ("device", "expected"), [(AnyDevice(), [True, True]), (Lacking(), [False, True])], ids=["any", "lacking"]
)
def test_what_was_begun_is_decoded_for_the_device_before_it_is_asked_for(
    device: AnyDevice,
    expected: list[bool],
    sample: PipelineSet,
    tries: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SOON_MS", int(PATIENCE_S * 1000))
    (group,) = sample.groups
    capabilities = EnabledCapabilities(device, evolve(group.request, others=OtherFeatures.UNRECORDED))
    with started(sample) as decoder:
        decoder.read(sample)
        decoder.begin(group.pipelines, capabilities)
        asked = AskedCapabilities(capabilities)
        built = image_of(decoder, sample, group.pipelines, asked)
    assert tries == expected
    alone = AskedCapabilities(capabilities)
    assert held(built) == held(build_image(sample, group.pipelines, alone))
    assert {each for each in alone.answers if each[0] != "property"} <= asked.answers.keys()


def test_what_is_not_there_soon_is_waited_for_later(
    sample: PipelineSet, tries: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module._Line, "is_ready", lambda *_: False)
    (group,) = sample.groups
    with started(sample) as decoder:
        decoder.begin(group.pipelines, AnyDevice())
        assert tries == []
        assert held(image_of(decoder, sample, group.pipelines)) == held(
            build_image(sample, group.pipelines, DEVICE)
        )


def test_what_was_begun_for_another_purpose_is_not_taken(sample: PipelineSet) -> None:
    jobs = sample.pipelines
    for wanted, device in ((jobs, Lacking()), (jobs[5:], AnyDevice())):
        with started(sample) as decoder:
            decoder.begin(jobs, AnyDevice())
            built = image_of(decoder, sample, wanted, device)
            assert held(built) == held(build_image(sample, wanted, device))


def test_what_a_compile_will_ask_for_is_decoded_once(
    sample: PipelineSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder tells by a file what it decodes, since it is another process."""
    told = tmp_path / "decoded"

    def noted(source: PipelineSet, jobs: PipelineJobs, capabilities: DeviceCapabilities) -> BuiltImage:
        with told.open("a") as file:
            file.write(f"{len(jobs)}\n")
        return build_image(source, jobs, capabilities)

    subset = Subset(1, 2)
    (group,) = sample.groups  # what its device is opened as follows from all its pipelines
    several, newest = (group.pipelines, subset.of(group.pipelines)), AnyDevice()
    with monkeypatch.context() as patched:
        patched.setattr(builder, "build_image", noted)
        decoder = Decoder.start(sample, 1, subset)
    with closing(decoder):
        for jobs in several:
            assert held(image_of(decoder, sample, jobs, newest)) == held(build_image(sample, jobs, newest))
    assert told.read_text().split() == [str(len(jobs)) for jobs in several]


def test_a_device_that_answers_nothing_is_told_by_who_asks(sample: PipelineSet) -> None:
    class Lost(AnyDevice, frozen=True):
        def has_feature(self, struct: str, member: str) -> bool:
            raise DeviceError("the device is lost")

    with started(sample, 2) as decoder, pytest.raises(DeviceError, match="is lost"):
        decoder.build_image(sample, sample.pipelines, Lost(0x403000))


def test_a_fork_uses_a_decoder_that_is_handed_over(sample: PipelineSet) -> None:
    decoder = Decoder.start(sample, 2, WHOLE)
    lead = decoder.process_id
    process_id = os.fork()
    if process_id == 0:
        code = 1
        try:
            built = decoder.build_image(sample, sample.pipelines, DEVICE)
            decoder.close()  # waits for no process that is not its own
            code = built is None or held(built) != held(build_image(sample, sample.pipelines, DEVICE))
        finally:
            os._exit(code)
    decoder.hand_over()
    assert decoder.descriptors == (-1,)
    assert os.waitpid(process_id, 0)[1] == 0
    decoder.close()
    assert is_gone(lead)


def test_one_process_at_a_time_has_the_turn(tmp_path: Path) -> None:
    with (tmp_path / "turn").open("wb") as file:
        turn = DecodingTurn(file.fileno())
        assert turn.take(wait=False)
        process_id = os.fork()
        if process_id == 0:
            os._exit(DecodingTurn(file.fileno()).take(wait=False))
        assert os.waitpid(process_id, 0)[1] == 0
        turn.give_back()
        process_id = os.fork()
        if process_id == 0:
            os._exit(not DecodingTurn(file.fileno()).take(wait=False))
        assert os.waitpid(process_id, 0)[1] == 0


def test_damage_is_told(tmp_path: Path) -> None:
    data = bytearray(sample_path().read_bytes())
    with PipelineSet.open(sample_path()) as opened:
        place = opened.module_place(int(opened.records.keys(RecordTag.SHADER_MODULE)[0]))
    assert place is not None
    data[place[1] + 80] ^= 0xFF
    damaged = tmp_path / "damaged.foz"
    damaged.write_bytes(data)
    with PipelineSet.open(damaged) as one, PipelineSet.open(damaged) as other:
        assert held(decoded(one)) == held(build_image(other, other.pipelines, DEVICE))
        assert set(one.damage) == set(other.damage) != set()


def test_where_the_decoder_is_lost_there_is_no_image(sample: PipelineSet) -> None:
    with started(sample) as decoder:
        os.kill(decoder.process_id, signal.SIGKILL)
        assert decoder.build_image(sample, sample.pipelines, DEVICE) is None
        assert not decoder.process_id
        assert decoder.build_image(sample, sample.pipelines, DEVICE) is None


def test_a_decoder_that_does_not_know_what_is_lacking_ends(sample: PipelineSet) -> None:
    def unknown() -> tuple[tuple[int, ...], tuple[str, ...]]:
        raise NoDeviceError("no such driver")

    with closing(Decoder.start(sample, 1, WHOLE, unknown)) as decoder:
        assert decoder.build_image(sample, sample.pipelines, DEVICE) is None
        assert not decoder.process_id


def test_a_defect_in_what_is_read_is_told_as_elsewhere(
    sample: PipelineSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise IndexError

    monkeypatch.setattr(builder, "walk_modules", broken)
    built = decoded(sample)
    assert built.problems == build_image(sample, sample.pipelines, DEVICE).problems
    assert "a defect of this program" in built.problems[0].reason


@pytest.mark.parametrize("everywhere", [False, True])
def test_where_helpers_fail_nobody_waits(
    sample: PipelineSet, everywhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"

    def fails(*given: Any) -> Any:
        try:
            first.touch(exist_ok=everywhere)
        except FileExistsError:
            return build_part(*given)
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(builder, "build_part", fails)
        decoder = Decoder.start(sample, 3, WHOLE)
    with closing(decoder):
        assert decoder.build_image(sample, sample.pipelines, DEVICE) is None
        assert not decoder.process_id


def children_of(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


PARENT = """
import sys
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.decoder import Decoder
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import WHOLE
from orchestrator.sets.sample import sample_path
opened = PipelineSet.open(sample_path())
decoder = Decoder.start(opened, 1, WHOLE)
decoder.build_image(opened, opened.pipelines, AnyDevice(0x403000))
print(decoder.process_id, flush=True)
sys.stdin.read()
"""


def test_none_is_left_when_their_parent_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
    ) as process:
        assert process.stdout is not None
        decoder = int(process.stdout.readline())
        assert not is_gone(decoder)
        process.send_signal(signal.SIGKILL)
        until(lambda: is_gone(decoder))


def test_none_is_left_when_it_is_closed(sample: PipelineSet) -> None:
    before = set(children_of(os.getpid()))
    decoded(sample)
    with started(sample, 2):
        assert len(set(children_of(os.getpid())) - before) == 1
    assert set(children_of(os.getpid())) <= before


def test_a_signal_to_the_group_of_who_starts_it_does_not_reach_it(sample: PipelineSet) -> None:
    with started(sample, 2) as decoder:
        image_of(decoder, sample, sample.pipelines)
        assert os.getpgid(decoder.process_id) == decoder.process_id


def test_processes_that_are_busy_are_ended_at_once(
    sample: PipelineSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    readable, busy = os.pipe()

    def endless(*_: object) -> None:
        os.write(busy, b"x")
        while True:
            signal.pause()

    with monkeypatch.context() as patched:
        patched.setattr(builder, "build_part", endless)
        decoder = Decoder.start(sample, 2, WHOLE)
    for _ in range(2):
        os.read(readable, 1)
    forks = [decoder.process_id, *children_of(decoder.process_id)]
    assert len(forks) == 3
    assert not any(map(is_gone, forks))
    decoder.close()
    until(lambda: all(map(is_gone, forks)))
    assert not decoder.process_id
    for each in (readable, busy):
        os.close(each)
