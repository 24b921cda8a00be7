"""Images with pipelines that are in them several times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orchestrator.bench.take import run_order
from orchestrator.devices.device import Device
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.simulated import SimulatedDevice
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.rearranged import leave_out, repeat_pipelines
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from tests.conftest import OpenDriverDevice
from tests.drivers import each_driver

FEEDBACK_SIZE = 16


@pytest.fixture(scope="module")
def image() -> CreateInfoImage:
    with PipelineSet.open(Path(sample_path())) as source:
        return build_image(source, source.pipelines, AnyDevice()).image


def reached(image: CreateInfoImage, index: int) -> list[object]:
    """What a pipeline's create info leads to, by walking its pointers, as values that do not name offsets.

    Handle fields are given as what they refer to; feedback by whether it is the pipeline's own.
    """
    targets = dict(zip(image.pointer_slots.tolist(), image.pointer_targets.tolist(), strict=True))
    objects = dict(zip(image.object_slots.tolist(), image.object_slot_object.tolist(), strict=True))
    first, last = image.module_slot_start[index], image.module_slot_start[index + 1]
    modules = dict(
        zip(
            image.module_slots[first:last].tolist(),
            image.module_slot_module[first:last].tolist(),
            strict=True,
        )
    )
    feedback = range(image.feedback_offset, image.feedback_offset + FEEDBACK_SIZE * len(image))
    stride = image.strides[image.kind_of(index)]
    found: list[object] = []
    waiting, seen = [(int(image.offsets[index]), stride)], set()
    while waiting:
        at, size = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        found.append(image.buffer[at : at + size].tobytes())
        for slot in range(at, at + size, 8):
            if slot in objects:
                found.append(("object", objects[slot]))
            if slot in modules:
                found.append(("module", modules[slot]))
            if slot in targets:
                target = targets[slot]
                if target in feedback:
                    found.append(("feedback", target == image.feedback_offset + FEEDBACK_SIZE * index))
                else:
                    waiting.append((target, 40 if slot == image.feedback_slots[index] else 24))
    return found


@pytest.mark.parametrize(("passes", "duplicates"), [(1, 0.0), (3, 0.0), (1, 0.5), (2, 1.0)])
def test_a_copy_leads_to_what_the_original_leads_to(
    image: CreateInfoImage, passes: int, duplicates: float
) -> None:
    order = run_order(image, passes=passes, duplicates=duplicates)
    repeated = repeat_pipelines(image, order)
    assert repeated.keys.tolist() == image.keys[order].tolist()
    assert len(repeated) == len(order)
    for place in range(0, len(order), 7):
        index = int(order[place])
        assert reached(repeated, place) == reached(image, index)
        assert [repeated.keys[each] for each in repeated.libraries_of(place)] == [
            image.keys[each] for each in image.libraries_of(index)
        ]
        assert all(library < place for library in repeated.libraries_of(place))
        assert repeated.modules_of(place) == image.modules_of(index)
        assert repeated.kind_of(place) is image.kind_of(index)
    assert (np.diff(repeated.object_slot_object) >= 0).all()
    assert sum(repeated.counts.values()) == len(order)


def create_all(device: Device, image: CreateInfoImage) -> list[int]:
    prepared = device.prepare(image)
    cache = device.create_pipeline_cache()
    results: list[int] = []
    for start in range(0, len(image), 64):
        indices = np.arange(start, min(start + 64, len(image)), dtype=np.int32)
        results += device.create_pipelines(prepared, indices, cache).results.tolist()
    prepared.close()
    device.destroy_pipeline_cache(cache)
    return results


def test_the_simulated_device_takes_them(image: CreateInfoImage) -> None:
    device = SimulatedDevice()
    assert set(create_all(device, repeat_pipelines(image, run_order(image, passes=2)))) == {0}
    device.close()


@each_driver
def test_drivers_take_copies_and_what_is_left_of_an_image(
    driver: str, open_driver_device: OpenDriverDevice
) -> None:
    device = open_driver_device(driver)
    with PipelineSet.open(Path(sample_path())) as source:
        built = build_image(source, source.pipelines[::8], device.capabilities)
        keys, plain = built.image.keys.tolist(), create_all(device, built.image)
        order = run_order(built.image, passes=2)
        assert create_all(device, repeat_pipelines(built.image, order)) == [plain[each] for each in order]
        rest = leave_out(built, dict.fromkeys(keys[::3], "it ended the driver")).image
        assert 0 < len(rest) <= len(keys) - len(keys[::3])
        result_of = dict(zip(keys, plain, strict=True))
        assert create_all(device, rest) == [result_of[key] for key in rest.keys.tolist()]
