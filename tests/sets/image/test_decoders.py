"""Decoders beside a process: what they decode is what one thread decodes, and none of them is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.devices import open_device
from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.image import CreateInfoImage
from orchestrator.errors import DeviceError
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.answers import AskedCapabilities, Question, Value, ask
from orchestrator.sets.image import builder
from orchestrator.sets.image import decoders as module
from orchestrator.sets.image.builder import BuiltImage, ReadAhead, build_image, build_part
from orchestrator.sets.image.decoders import Decoders
from orchestrator.sets.image.documents import PipelineDocuments
from orchestrator.sets.image.layout import join_parts
from orchestrator.sets.image.shared_set import DecodingTurn
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJobs, RecordTag
from orchestrator.sets.sample import sample_path
from tests.drivers import REPOSITORY, Corpus, each_corpus, run_on_device

DEVICE = AnyDevice(0x403000)
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chunks of a small set."""
    monkeypatch.setattr(module, "_FEWEST", 1)
    monkeypatch.setattr(module, "_UNDIVIDED", 1)


@pytest.fixture
def sample() -> Iterator[PipelineSet]:
    with PipelineSet.open(sample_path()) as opened:
        yield opened


def started(source: PipelineSet, count: int) -> closing[Decoders]:
    return closing(Decoders.start(source, count, lambda: source.pipelines))


def decoded(source: PipelineSet, count: int = 3) -> BuiltImage:
    with started(source, count) as decoders:
        built = decoders.build_image(source, source.pipelines, DEVICE)
        assert decoders.process_id  # none was lost, for which this process would have decoded
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
    for name in CreateInfoImage.__annotations__:
        one, other = getattr(joined.image, name), getattr(alone.image, name)
        if isinstance(one, np.ndarray):
            assert np.array_equal(one, other), name
        elif name not in ("objects", "modules"):
            assert one == other, name
    assert [(each.kind, each.key, each.offset, each.dependencies) for each in joined.image.objects] == [
        (each.kind, each.key, each.offset, each.dependencies) for each in alone.image.objects
    ]


@pytest.mark.parametrize("count", [1, 4])
def test_decoders_make_the_image_of_one_thread(sample: PipelineSet, count: int) -> None:
    assert held(decoded(sample, count)) == held(build_image(sample, sample.pipelines, DEVICE))


@each_corpus
def test_decoders_make_the_image_of_one_thread_of_captured_sets(corpus: Corpus) -> None:
    with PipelineSet.open(corpus.path) as opened:
        assert held(decoded(opened)) == held(build_image(opened, opened.pipelines, DEVICE))


@pytest.mark.parametrize("guessed", [slice(0), slice(1, 40), slice(None, None, -1)])
def test_what_is_read_ahead_in_vain_changes_nothing(sample: PipelineSet, guessed: slice) -> None:
    jobs = sample.pipelines
    with closing(Decoders.start(sample, 3, lambda: jobs[guessed])) as decoders:
        built = decoders.build_image(sample, jobs, DEVICE)
        assert decoders.process_id
    assert held(built) == held(build_image(sample, jobs, DEVICE))


def test_what_is_read_ahead_is_not_read_again(sample: PipelineSet, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = sample.pipelines
    ahead = ReadAhead.of(sample, list(jobs))
    monkeypatch.setattr(PipelineDocuments, "decode", None)
    monkeypatch.setattr(PipelineSet, "module", None)
    monkeypatch.setattr(PipelineSet, "modules", None)
    built = join_parts(sample, jobs, [build_part(sample, jobs, DEVICE, ahead)])
    monkeypatch.undo()
    assert held(built) == held(build_image(sample, jobs, DEVICE))


def test_decoders_that_are_ready_decode_a_few(sample: PipelineSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FEWEST", 1000)
    few, none = sample.pipelines[:3], sample.pipelines[:0]
    expected = held(build_image(sample, few, DEVICE))
    with started(sample, 2) as decoders:
        assert held(decoders.build_image(sample, few, DEVICE)) == expected, "while they get ready"
        monkeypatch.setattr(module, "_FEWEST", 1)
        decoders.build_image(sample, sample.pipelines, DEVICE)
        monkeypatch.setattr(module, "_FEWEST", 1000)
        assert not len(decoders.build_image(sample, none, DEVICE).image)
        monkeypatch.setattr(builder, "build_image", None)
        assert held(decoders.build_image(sample, few, DEVICE)) == expected


@pytest.mark.parametrize(
    ("pipelines", "count", "sizes"),
    [
        (682, 6, [114] * 5 + [112]),
        (10_200, 12, [850] * 12),
        (65_280, 16, [1020] * 64),
        (3, 16, [1] * 3),
        (0, 2, []),
    ],
)
def test_chunks_keep_all_decoders_equally_busy(
    pipelines: int, count: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UNDIVIDED", 512)
    jobs = PipelineJobs(np.arange(pipelines, dtype=np.uint64), np.zeros(pipelines, np.uint8))
    chunks = module._chunks(jobs, count)
    assert [len(each) for each in chunks] == sizes
    assert PipelineJobs.joined(chunks).keys.tolist() == jobs.keys.tolist()


def keys_of_both(path: str) -> tuple[int, bool]:
    """Of how many pipelines RADV has keys, and whether both ways get the same; for a process of its own."""
    vars(module).update(_FEWEST=1, _UNDIVIDED=1)
    with PipelineSet.open(path) as opened, started(opened, 3) as decoders:
        device = open_device("radv:navi21", request=opened.groups[0].request)
        keys = []
        for build in (decoders.build_image, build_image):
            built = build(opened, opened.pipelines, device.capabilities)
            prepared = device.prepare(built.image)
            keys.append(device.pipeline_keys(prepared, np.arange(len(built.image), dtype=np.int32)))
            prepared.close()
        device.close()
    one, other = keys
    return sum(each is not None for each in one), one == other


def test_a_driver_gives_both_the_same_keys() -> None:
    known, agree = run_on_device(
        "radv:navi21", "tests.sets.image.test_decoders:keys_of_both", str(sample_path())
    )
    assert known > 50
    assert agree


def test_what_the_set_leaves_out_later_is_left_out(sample: PipelineSet) -> None:
    reasons: dict[int, str] = {}
    rest = sample.leaving_out(reasons)
    with started(rest, 2) as decoders:
        reasons[int(sample.pipelines.keys[3])] = "it ended the driver"
        built = decoders.build_image(rest, rest.pipelines, DEVICE)
    assert held(built) == held(build_image(rest, rest.pipelines, DEVICE))
    assert "it ended the driver" in {each.reason for each in built.problems}


def test_a_device_is_asked_each_question_once(sample: PipelineSet, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Question, str, str]] = []

    def noted(capabilities: DeviceCapabilities, question: Question, name: str, member: str) -> Value:
        asked.append((question, name, member))
        return ask(capabilities, question, name, member)

    monkeypatch.setattr(module, "ask", noted)
    decoded(sample)
    alone = AskedCapabilities(DEVICE)
    build_image(sample, sample.pipelines, alone)
    assert len(asked) == len(set(asked))
    assert set(alone.answers) <= set(asked)


def chunk_count(monkeypatch: pytest.MonkeyPatch) -> list[module.Chunk]:
    """The chunks that decoders are given from now on."""
    given: list[module.Chunk] = []
    send = module._Line.send

    def noted(line: module._Line, message: Any) -> None:
        if isinstance(message, module.Chunk):
            given.append(message)
        send(line, message)

    monkeypatch.setattr(module._Line, "send", noted)
    return given


def begun(decoders: Decoders, source: PipelineSet, jobs: PipelineJobs, device: DeviceCapabilities) -> None:
    """Begin when all decoders have asked what they always ask."""
    for line in decoders._lines:
        assert select.select([line.end], [], [], PATIENCE_S)[0]
    decoders.begin(source, jobs, device)


def test_what_was_begun_is_not_decoded_again(sample: PipelineSet, monkeypatch: pytest.MonkeyPatch) -> None:
    given, device = chunk_count(monkeypatch), AskedCapabilities(DEVICE)
    with started(sample, 3) as decoders:
        begun(decoders, sample, sample.pipelines, DEVICE)
        assert len(given) == 3
        built = decoders.build_image(sample, sample.pipelines, device)
        several = len(given)
        few = decoders.build_image(sample, sample.pipelines[:2], DEVICE)  # fewer than decoders
        assert decoders.process_id
    whole = AskedCapabilities(DEVICE)
    assert held(built) == held(build_image(sample, sample.pipelines, whole))
    assert whole.answers.items() <= device.answers.items()  # a plan is told all that was asked
    assert {each.device for each in given[:several]} == {1}
    assert held(few) == held(build_image(sample, sample.pipelines[:2], DEVICE))


class Other(AnyDevice, frozen=True):
    """A device that lacks what the sample's pipelines need most."""

    def has_feature(self, struct: str, member: str) -> bool:
        return member != "tessellationShader"


def test_what_was_begun_for_another_purpose_is_decoded_anew(sample: PipelineSet) -> None:
    jobs, rest = sample.pipelines, sample.leaving_out({int(sample.pipelines.keys[3]): "it ended the driver"})
    other = Other(0x403000)
    assert held(build_image(sample, jobs, other)) != held(build_image(sample, jobs, DEVICE))
    for wanted in ((sample, jobs, other), (sample, jobs[5:], DEVICE), (rest, jobs, DEVICE)):
        with started(sample, 2) as decoders:
            begun(decoders, sample, jobs, DEVICE)
            assert held(decoders.build_image(*wanted)) == held(build_image(*wanted))
            assert decoders.process_id


def test_decoders_that_are_late_begin_later(sample: PipelineSet, monkeypatch: pytest.MonkeyPatch) -> None:
    held_up, here, lead = os.pipe(), os.getpid(), module._lead

    def late(*given: Any) -> None:
        if os.getpid() != here:
            os.read(held_up[0], 1)
        lead(*given)

    monkeypatch.setattr(module, "_lead", late)
    with started(sample, 2) as decoders:
        decoders.begin(sample, sample.pipelines, DEVICE)
        os.write(held_up[1], b"x")
        built = decoders.build_image(sample, sample.pipelines, DEVICE)
        assert decoders.process_id
    for each in held_up:
        os.close(each)
    assert held(built) == held(build_image(sample, sample.pipelines, DEVICE))


def test_a_device_that_answers_nothing_is_told_by_who_decodes(sample: PipelineSet) -> None:
    class Lost(AnyDevice, frozen=True):
        def has_feature(self, struct: str, member: str) -> bool:
            raise DeviceError("the device is lost")

    with started(sample, 2) as decoders:
        begun(decoders, sample, sample.pipelines, Lost(0x403000))
        assert not decoders.process_id
        with pytest.raises(DeviceError, match="is lost"):
            decoders.build_image(sample, sample.pipelines, Lost(0x403000))


def test_a_fork_uses_decoders_that_are_handed_over(sample: PipelineSet) -> None:
    decoders = Decoders.start(sample, 2, lambda: sample.pipelines)
    lead = decoders.process_id
    process_id = os.fork()
    if process_id == 0:
        code = 1
        try:
            built = decoders.build_image(sample, sample.pipelines, DEVICE)
            was_used = decoders.process_id == lead
            decoders.close()  # waits for no process that is not its own
            code = not (was_used and held(built) == held(build_image(sample, sample.pipelines, DEVICE)))
        finally:
            os._exit(code)
    decoders.hand_over()
    assert decoders.descriptors == (-1, -1)
    assert os.waitpid(process_id, 0)[1] == 0
    decoders.close()
    assert not is_running(lead)


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


def test_where_a_decoder_is_lost_this_process_decodes(sample: PipelineSet) -> None:
    with started(sample, 2) as decoders:
        decoders._lines[1].end.shutdown(2)
        built = decoders.build_image(sample, sample.pipelines, DEVICE)
        assert not decoders.process_id
        assert held(built) == held(build_image(sample, sample.pipelines, DEVICE))


def test_a_defect_in_what_is_read_ahead_is_told_as_elsewhere(
    sample: PipelineSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise IndexError

    monkeypatch.setattr(builder, "walk_modules", broken)
    built = decoded(sample)
    assert built.problems == build_image(sample, sample.pipelines, DEVICE).problems
    assert "a defect of this program" in built.problems[0].reason


@pytest.mark.parametrize("broken", [(builder, "build_part"), (ReadAhead, "of")], ids=["later", "ahead"])
def test_where_the_first_decoder_fails_nobody_waits(
    sample: PipelineSet, monkeypatch: pytest.MonkeyPatch, broken: tuple[Any, str]
) -> None:
    """It would wait for the others, and they for this process, which would wait for it."""
    whole = held(build_image(sample, sample.pipelines, DEVICE))
    here, works = os.getpid(), getattr(*broken)

    def fails(*given: Any) -> Any:
        if os.getppid() == here:
            raise MemoryError
        return works(*given)

    with monkeypatch.context() as patched:
        patched.setattr(*broken, fails)
        decoders = Decoders.start(sample, 3, lambda: sample.pipelines)
    with closing(decoders):
        assert held(decoders.build_image(sample, sample.pipelines, DEVICE)) == whole
        assert not decoders.process_id


def children_of(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


PARENT = """
import sys
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.image import decoders
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
decoders._FEWEST = 1
opened = PipelineSet.open(sample_path())
several = decoders.Decoders.start(opened, 2, lambda: opened.pipelines)
several.build_image(opened, opened.pipelines, AnyDevice(0x403000))
print(several.process_id, flush=True)
sys.stdin.read()
"""


def test_none_is_left_when_their_parent_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
    ) as process:
        assert process.stdout is not None
        first = int(process.stdout.readline())
        forks = [first, *children_of(first)]
        assert len(forks) == 2
        process.send_signal(signal.SIGKILL)
        until(lambda: not any(is_running(each) for each in forks))


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_none_is_left_when_they_are_closed(sample: PipelineSet) -> None:
    before = set(children_of(os.getpid()))
    decoded(sample)
    with started(sample, 2):
        assert len(set(children_of(os.getpid())) - before) == 1
    assert set(children_of(os.getpid())) <= before


def test_a_signal_to_the_group_of_who_starts_them_does_not_reach_them(sample: PipelineSet) -> None:
    with started(sample, 2) as decoders:
        decoders.build_image(sample, sample.pipelines, DEVICE)
        lead = decoders.process_id
        assert {os.getpgid(each) for each in (lead, *children_of(lead))} == {lead}


def test_decoders_that_are_busy_are_ended_at_once(
    sample: PipelineSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    readable, busy = os.pipe()

    def endless(*_: object) -> None:
        os.write(busy, b"x")
        while True:
            signal.pause()

    with monkeypatch.context() as patched:
        patched.setattr(ReadAhead, "of", endless)
        decoders = Decoders.start(sample, 2, lambda: sample.pipelines)
    forks: list[int] = []
    while len(forks) < 2:
        os.read(readable, 1)
        forks = [decoders.process_id, *children_of(decoders.process_id)]
    assert all(is_running(each) for each in forks)
    decoders.close()
    until(lambda: not any(is_running(each) for each in forks))
    assert not decoders.process_id
    for each in (readable, busy):
        os.close(each)


def test_of_what_is_not_asked_for_no_further_chunk_is_decoded(sample: PipelineSet) -> None:
    first, rest = sample.pipelines[:64], sample.pipelines[64:]
    with started(sample, 2) as decoders:
        decoders.begin(sample, rest, DEVICE)
        begun = decoders._begun
        assert begun is not None
        chunks = begun._count
        built = decoders.build_image(sample, first, DEVICE)
        assert len(begun._parts) <= 2 < chunks
        assert held(built) == held(build_image(sample, first, DEVICE))
