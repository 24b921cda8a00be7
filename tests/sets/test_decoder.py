"""A set decoded in several processes: what they decode is what one thread decodes, and no process is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets import decoder as module
from orchestrator.sets.answers import AskedDevice
from orchestrator.sets.archive.reader import record_offset
from orchestrator.sets.decoder import build_in_slices, decoding_processes
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.built import BuiltImage, encode_modules
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJobs, RecordTag
from orchestrator.sets.sample import sample_path
from tests.sets.image.meaning import Meaning
from tests.supervise.processes import children

DEVICE = AnyDevice(0x403000)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small slices of a small set."""
    monkeypatch.setattr(module, "_FEWEST", 1)
    monkeypatch.setattr(module, "_UNDIVIDED", 1)


@pytest.fixture
def sample() -> Iterator[PipelineSet]:
    with PipelineSet.open(sample_path()) as opened:
        yield opened


def decoded(
    source: PipelineSet, processes: int = 3, device: Any = DEVICE, asked: AskedDevice | None = None
) -> BuiltImage:
    built = build_in_slices(source, source.pipelines, device, processes, asked)
    # A fork has this process's command line; other children are those of other tests.
    assert [each for each in children() if command_of(each) == command_of(os.getpid())] == []
    return built


def test_this_process_decodes_no_more_than_a_sample(
    sample: PipelineSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a fork fails it decodes all, and nobody would notice but by the time."""
    here: list[int] = []

    def build(source: PipelineSet, jobs: PipelineJobs, device: DeviceCapabilities) -> BuiltImage:
        here.append(len(jobs))
        return build_image(source, jobs, device)

    monkeypatch.setattr(module, "build_image", build)
    decoded(sample)
    (count,) = here
    assert count < len(sample.pipelines) / 4


def command_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended


def named(image: CreateInfoImage) -> list[tuple[Any, ...]]:
    """What each pipeline refers to, by name, and all that its create info holds and points to."""
    meaning = Meaning(image)
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
            meaning.pipeline(index),
        )
        for index, key in enumerate(keys)
    ]


def assert_same(joined: BuiltImage, one: BuiltImage) -> None:
    """That a joined image holds what that of one thread holds, and what was found beside it."""
    for mine, theirs in zip(named(joined.image), named(one.image), strict=True):
        assert mine[:-1] == theirs[:-1]
        assert holds(mine[-1], theirs[-1]), mine[1]
    modules = [{each.key: each.load() for each in built.image.modules} for built in (joined, one)]
    assert modules[0] == modules[1]
    found = [(built.problems, built.needs, built.dependencies) for built in (joined, one)]
    assert found[0] == found[1]


def holds(joined: Any, one: Any) -> bool:
    # Objects that several parts have stand in the buffer again, where nothing points to them: pieces before
    # them seem longer.
    if not (isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], bytes)):
        return bool(joined == one)
    content, fields = joined
    return content.startswith(one[0]) and all(
        mine[0] == theirs[0] and holds(mine[1], theirs[1])
        for mine, theirs in zip(fields[: len(one[1])], one[1], strict=True)
    )


def test_several_processes_make_the_image_of_one_thread_and_ask_the_same(sample: PipelineSet) -> None:
    device = SimulatedDevice(SimulatedOptions(capabilities=DEVICE))
    several, one = AskedDevice(device), AskedDevice(device)
    parts = decoded(sample, 4, several.capabilities, several)
    assert_same(parts, build_image(sample, sample.pipelines, one.capabilities))
    assert set(several.answers) == set(one.answers)
    device.close()


@pytest.mark.parametrize("name", ["placebo", "wgpu", "sascha_rt"])
def test_several_processes_make_the_image_of_captured_sets(name: str, corpora: Path) -> None:
    with PipelineSet.open(corpora / f"{name}.foz") as opened:
        assert_same(decoded(opened), build_image(opened, opened.pipelines, DEVICE))


def test_damage_is_told(tmp_path: Path) -> None:
    data = bytearray(sample_path().read_bytes())
    with PipelineSet.open(sample_path()) as opened:
        key = opened.records.keys(RecordTag.SHADER_MODULE)[0]
        place = record_offset(opened.records, RecordTag.SHADER_MODULE, key)
    assert place is not None
    data[place + 80] ^= 0xFF
    damaged = tmp_path / "damaged.foz"
    damaged.write_bytes(data)
    with PipelineSet.open(damaged) as one, PipelineSet.open(damaged) as other:
        assert_same(decoded(one), build_image(other, other.pipelines, DEVICE))
        assert set(one.damage) == set(other.damage) != set()


def test_where_a_process_fails_this_one_decodes(
    sample: PipelineSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_once(*given: Any) -> Any:
        try:
            (tmp_path / "first").touch(exist_ok=False)
        except FileExistsError:
            return encode_modules(*given)
        raise MemoryError

    monkeypatch.setattr(module, "encode_modules", fails_once)
    assert_same(decoded(sample), build_image(sample, sample.pipelines, DEVICE))
    assert (tmp_path / "first").exists()


def test_as_many_processes_decode_as_pay() -> None:
    assert [decoding_processes(5 << 19, each) for each in (1, 2, 4, 16)] == [1, 1, 3, 6]
    assert decoding_processes(1 << 14, 16) == 1
