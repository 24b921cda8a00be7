"""Building the image of a set."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from orchestrator.devices.image import CreateInfoImage, ObjectKind, PipelineKind
from orchestrator.registry import registry
from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.archive.hashes import module_hash
from orchestrator.sets.archive.modules import encode_module
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.image.builder import BuiltImage, build_image
from orchestrator.sets.image.documents import TABLES
from orchestrator.sets.image.rearranged import leave_out
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob, RecordTag
from orchestrator.sets.sample import sample_path
from tests.drivers import Corpus, each_good_corpus
from tests.sets.image.lies import hexed as hexed
from tests.sets.image.meaning import Meaning
from tests.sets.spirv.shader_words import compute_module

LAYOUT, MODULE = 0x10, module_hash(compute_module(), 0)
CONVERSION = {"sType": 1000156000, "format": 1000156003, "components": [0, 0, 0, 0]}


class Records(MemoryRecords):
    """Records written as JSON values."""

    def __init__(self) -> None:
        super().__init__()
        self.module(compute_module())
        self.put(RecordTag.PIPELINE_LAYOUT, LAYOUT, {"setLayouts": [], "pushConstantRanges": []})

    def module(self, code: bytes, *, cut: int = 0) -> int:
        """Add a module, its record cut short by so many bytes; returns its key."""
        payload = encode_module(code, 0)
        self.add(RecordTag.SHADER_MODULE, module_hash(code, 0), payload[: len(payload) - cut])
        return module_hash(code, 0)

    def put(self, tag: RecordTag, key: int, value: Any) -> None:
        document = {"version": 6, TABLES[tag][0][0]: {hexed(key): value}}
        self.add(tag, key, json.dumps(document, separators=(",", ":")).encode())  # as recorders write it

    def compute(self, key: int, *, module: int = MODULE, layout: int = LAYOUT, **members: Any) -> None:
        stage = {"stage": 32, "module": hexed(module), "name": members.pop("entry", "main")}
        value = {"layout": hexed(layout), "stage": stage} | members
        self.put(RecordTag.COMPUTE_PIPELINE, key, value)

    def library(self, key: int, *links: int, **members: Any) -> None:
        chain: list[Any] = [{"sType": 1000320002, "flags": 1}]  # the part that holds vertex input
        chain += [{"sType": 1000290000, "libraries": [hexed(each) for each in links]}] if links else []
        value = {"flags": 0x800, "renderPass": hexed(0), "stages": [], "pNext": chain} | members
        self.put(RecordTag.GRAPHICS_PIPELINE, key, value)

    def built(self, **capabilities: Any) -> BuiltImage:
        source = PipelineSet.from_records(self)
        return build_image(source, source.pipelines, AnyDevice(**capabilities))


def reasons(built: BuiltImage) -> dict[int, tuple[bool, str]]:
    """What is wrong with each pipeline, without whose fault it is."""
    invalid = "invalid as recorded, by a fault of the application or the recorder: "
    return {each.job.key: (each.unsupported, each.reason.removeprefix(invalid)) for each in built.problems}


def test_everything_a_pipeline_refers_to_is_in_the_image() -> None:
    records = Records()
    records.put(RecordTag.SAMPLER, 0x30, {"minFilter": 1})
    binding = {
        "binding": 0,
        "descriptorType": 1,
        "descriptorCount": 1,
        "stageFlags": 32,
        "immutableSamplers": [hexed(0x30)],
    }
    records.put(RecordTag.DESCRIPTOR_SET_LAYOUT, 0x31, {"bindings": [binding]})
    records.put(RecordTag.PIPELINE_LAYOUT, 0x32, {"setLayouts": [hexed(0x31)], "pushConstantRanges": []})
    records.compute(1, layout=0x32)
    records.compute(2)
    built = records.built()
    image = built.image
    assert built.problems == ()
    assert image.keys.tolist() == [1, 2]
    assert image.counts[PipelineKind.COMPUTE] == 2
    assert [(each.kind, each.key) for each in image.objects] == [
        (ObjectKind.SAMPLER, 0x30),
        (ObjectKind.DESCRIPTOR_SET_LAYOUT, 0x31),
        (ObjectKind.PIPELINE_LAYOUT, 0x32),
        (ObjectKind.PIPELINE_LAYOUT, LAYOUT),
    ]
    assert [each.dependencies for each in image.objects] == [(), (0,), (1,), ()]
    assert [each.key for each in image.modules] == [MODULE]
    assert image.modules_of(0) == image.modules_of(1) == (0,)
    assert image.modules[0].load() == compute_module()


def test_a_chain_holds_each_structure_once() -> None:
    """Of a pipeline, of a state that pipelines share, and of what is taken out of its chain."""
    records = Records()
    flags = {"sType": 1000470005, "flags": 0}
    records.compute(1, pNext=[flags, flags])
    records.compute(2, pNext=[flags, {"sType": 1000068000}])
    stream = {"sType": 1000028002}
    records.library(3, rasterizationState={"pNext": [stream, stream]})
    records.put(RecordTag.SAMPLER, 0x30, {"pNext": [CONVERSION, CONVERSION]})
    binding = {"binding": 0, "descriptorType": 1, "descriptorCount": 1, "immutableSamplers": [hexed(0x30)]}
    records.put(RecordTag.DESCRIPTOR_SET_LAYOUT, 0x32, {"bindings": [binding]})
    records.put(RecordTag.PIPELINE_LAYOUT, 0x33, {"setLayouts": [hexed(0x32)]})
    records.compute(4, layout=0x33)
    built = records.built()
    assert built.image.keys.tolist() == [2]
    assert reasons(built) == {
        1: (False, "a pNext chain holds VkPipelineCreateFlags2CreateInfo twice"),
        3: (False, "a pNext chain holds VkPipelineRasterizationStateStreamCreateInfoEXT twice"),
        4: (False, "a pNext chain holds VkSamplerYcbcrConversionCreateInfo twice"),
    }


def assert_consistent(image: CreateInfoImage) -> None:
    """What every image promises."""
    slots = np.concatenate([image.pointer_slots, image.object_slots, image.module_slots, image.library_slots])
    assert len(np.unique(slots)) == len(slots)
    assert not (slots % 8).any()
    words = np.zeros(-(-len(image.buffer) // 8), np.uint64)
    words.view(np.uint8)[: len(image.buffer)] = image.buffer
    assert not words[slots // 8].any()
    assert ((image.pointer_targets >= 0) & (image.pointer_targets < len(image.buffer))).all()
    assert (np.diff(image.object_slot_object) >= 0).all()
    for start, values in (
        (image.module_slot_start, image.module_slots),
        (image.library_slot_start, image.library_slots),
        (image.object_start, image.object_index),
    ):
        assert start[0] == 0
        assert start[-1] == len(values)
        assert (np.diff(start) >= 0).all()
        assert len(start) == len(image) + 1
    for index in range(len(image)):
        assert all(library < index for library in image.libraries_of(index))
    assert sum(image.counts.values()) == len(image)


def test_creation_only_flags_and_base_pipelines_do_not_reach_the_image() -> None:
    records = Records()
    flags = {"sType": 1000470005, "flags": (1 << 31) | (1 << 33) | 0x40}
    records.compute(1, flags=0x3C6, basePipelineHandle=hexed(2), basePipelineIndex=0, pNext=[flags])
    records.compute(2)
    image = records.built().image
    at = int(image.offsets[0])
    assert int.from_bytes(image.buffer[at + 16 : at + 20].tobytes(), "little") == 0
    assert int.from_bytes(image.buffer[at + 80 : at + 88].tobytes(), "little") == 0  # basePipelineHandle
    assert int.from_bytes(image.buffer[at + 88 : at + 92].tobytes(), "little", signed=True) == -1
    slot = int(image.flags2_slots[0])
    assert int.from_bytes(image.buffer[slot : slot + 8].tobytes(), "little") == 1 << 33
    assert image.flags2_slots[1] == -1


def test_libraries_come_first_and_are_marked() -> None:
    records = Records()
    records.library(1, 3, 4)
    records.library(2, 3)
    records.library(3)
    records.library(4)
    image = records.built().image
    assert sorted(image.keys.tolist()) == [1, 2, 3, 4]
    place = {int(key): index for index, key in enumerate(image.keys)}
    assert image.libraries_of(place[1]) == (place[3], place[4])
    assert image.libraries_of(place[2]) == (place[3],)
    assert image.is_library[[place[3], place[4]]].all()
    assert not image.is_library[[place[1], place[2]]].any()
    assert_consistent(image)


def test_libraries_that_link_each_other_fail_and_end() -> None:
    records = Records()
    records.library(1, 2)
    records.library(2, 1)
    records.compute(3)
    built = records.built()
    assert built.image.keys.tolist() == [3]
    found = reasons(built)
    assert set(found) == {1, 2}
    assert all("links" in reason and not unsupported for unsupported, reason in found.values())


@pytest.mark.parametrize("order", [1, -1])
def test_how_deep_libraries_may_link_does_not_depend_on_the_order_of_records(order: int) -> None:
    records = Records()
    records.library(1)
    records.compute(3000)
    for key in [*range(2, 101)][::order]:
        records.library(key, key - 1)
    built = records.built()
    assert sorted(built.image.keys.tolist()) == [*range(1, 34), 3000]
    found = reasons(built)
    assert found[34] == (False, "links libraries more than 32 deep")
    assert {found[key][1] for key in range(35, 101)} == {f"library {34:016x}: {found[34][1]}"}


def test_dangling_references_fail_by_name_and_leave_the_others_alone() -> None:
    records = Records()
    records.compute(1, module=0x77)
    records.compute(2, layout=0x78)
    records.library(3, 0x79)
    records.compute(4)
    built = records.built()
    assert built.image.keys.tolist() == [4]
    found = reasons(built)
    for key, missing in ((1, 0x77), (2, 0x78), (3, 0x79)):
        unsupported, reason = found[key]
        assert not unsupported
        assert hexed(missing) in reason


def test_a_pipeline_that_lists_an_unknown_structure_is_skipped_and_names_it() -> None:
    records = Records()
    records.compute(1, pNext=[{"sType": 999_999_999}])
    unsupported, reason = reasons(records.built())[1]
    assert unsupported
    assert "999999999" in reason


def test_a_damaged_module_fails_only_its_own_pipelines() -> None:
    records = Records()
    key = records.module(compute_module(local_size=(4, 1, 1)), cut=4)
    records.compute(1, module=key)
    records.compute(2, module=key)
    records.compute(3)
    built = records.built()
    assert built.image.keys.tolist() == [3]
    assert {key: unsupported for key, (unsupported, _) in reasons(built).items()} == {1: False, 2: False}


@each_good_corpus
def test_every_pipeline_of_a_captured_set_is_in_the_image_or_explained(corpus: Corpus) -> None:
    with PipelineSet.open(corpus.path) as source:
        built = build_image(source, source.pipelines, AnyDevice())
        assert len(built.image) + len(built.problems) == corpus.pipelines
        assert all(each.reason for each in built.problems)
        assert_consistent(built.image)


def test_one_malformed_record_leaves_the_others_alone() -> None:
    """A binding without descriptorCount in a layout with flags, and a negative dynamic state."""
    records = Records()
    inline = {"binding": 0, "descriptorType": 1000138000, "stageFlags": 32}
    flags = {"sType": 1000161000, "bindingFlags": [1]}
    records.put(RecordTag.DESCRIPTOR_SET_LAYOUT, 0x40, {"flags": 2, "bindings": [inline], "pNext": [flags]})
    records.put(RecordTag.PIPELINE_LAYOUT, 0x42, {"setLayouts": [hexed(0x40)]})
    records.compute(0x40, layout=0x42)
    records.library(0x50, dynamicState={"dynamicState": [-1]})
    records.compute(0x51)
    built = records.built()
    found = reasons(built)
    assert sorted(built.image.keys.tolist()) == [0x40, 0x51]
    assert found[0x50] == (True, f"VkDynamicState -1, unknown to registry {registry().version}")


def test_a_workgroup_of_nothing_fails() -> None:
    records = Records()
    records.compute(1, module=records.module(compute_module(local_size=(0, 1, 1))))
    assert reasons(records.built()) == {1: (False, "a workgroup of 0x1x1 invocations")}


# --- what only pipelines refer to that are not in the image: no driver is given it


def put_objects(records: Records, key: int) -> None:
    """A compute pipeline and two pipeline libraries, with an object of each kind that nobody else has."""
    records.put(RecordTag.SAMPLER, key + 1, {"pNext": [CONVERSION], "minFilter": 1})
    binding: dict[str, Any] = {"binding": 0, "descriptorType": 1, "descriptorCount": 1, "stageFlags": 32}
    binding["immutableSamplers"] = [hexed(key + 1)]
    records.put(RecordTag.DESCRIPTOR_SET_LAYOUT, key + 2, {"bindings": [binding]})
    records.put(RecordTag.PIPELINE_LAYOUT, key + 3, {"setLayouts": [hexed(key + 2)]})
    module = records.module(compute_module(entry=f"entry{key}"))
    records.compute(key, layout=key + 3, module=module, entry=f"entry{key}")
    for number, table in ((4, "renderPasses"), (5, "renderPasses2")):
        passes = {hexed(key + number): {"subpasses": [{"flags": 0, "pipelineBindPoint": 0}]}}
        records.add(RecordTag.RENDER_PASS, key + number, json.dumps({"version": 6, table: passes}).encode())
        records.library(key + 2 + number, renderPass=hexed(key + number))


GOOD, BAD = 0x100, 0x200
OBJECTS = {
    ObjectKind.SAMPLER_YCBCR_CONVERSION: (BAD, 1),
    ObjectKind.SAMPLER: (BAD, 1),
    ObjectKind.DESCRIPTOR_SET_LAYOUT: (BAD, 2),
    ObjectKind.PIPELINE_LAYOUT: (BAD, 3),
    ObjectKind.RENDER_PASS: (BAD + 6, 4),
    ObjectKind.RENDER_PASS_2: (BAD + 7, 5),
}
"""Of each kind of object the pipeline that it is placed for, and its own number."""


def held(image: CreateInfoImage) -> dict[tuple[ObjectKind, int], tuple[tuple[ObjectKind, int], ...]]:
    """The objects of an image, with what each refers to."""
    names = [(each.kind, each.key) for each in image.objects]
    return {
        names[number]: tuple(names[other] for other in each.dependencies)
        for number, each in enumerate(image.objects)
    }


@pytest.mark.parametrize("kind", ObjectKind)
def test_objects_of_a_pipeline_that_is_left_out_are_not_in_the_image(kind: ObjectKind) -> None:
    records = Records()
    for key in (BAD, GOOD):  # what is left out comes first, so that all that stays is counted anew
        put_objects(records, key)
    whole = PipelineSet.from_records(records)
    pipeline, number = OBJECTS[kind]
    every = build_image(whole, whole.pipelines, AnyDevice())
    assert (kind, BAD + number) in held(every.image)
    built = leave_out(every, {pipeline: "it ended the driver", GOOD + 0xFF: "not in the image"})
    assert reasons(built) == {pipeline: (False, "it ended the driver")}
    assert (kind, BAD + number) not in held(built.image)
    assert (kind, GOOD + number) in held(built.image)
    assert_consistent(built.image)
    # As if the set had never had it.
    rest = [job for job in whole.pipelines if job.key != pipeline]
    assert_alike(built, every, build_image(whole, rest, AnyDevice()))


def test_a_library_that_only_what_is_left_out_links_is_left_out_with_it() -> None:
    records = Records()
    records.library(1)
    for key in (2, 3, 4):
        records.library(key, key - 1)
    records.library(5, 1)
    source = PipelineSet.from_records(records)
    four, five = (PipelineJob(key, PipelineKind.GRAPHICS) for key in (4, 5))
    both = build_image(source, [four, five], AnyDevice())
    assert {each.key for each in both.dependencies} == {1, 2, 3}
    built = leave_out(both, {4: "it ended the driver"})
    assert_alike(built, both, build_image(source, [five], AnyDevice()))
    assert reasons(built) == {4: (False, "it ended the driver")}
    # One that nobody asked for is no problem of the image; what links it is.
    assert set(reasons(leave_out(both, {2: "it ended the driver"}))) == {4}


@pytest.mark.parametrize("left_out", [{7}, {0, 1, 2}, set(range(0, 400, 3)), set(range(400))])
def test_what_remains_is_what_is_decoded_without_the_others(left_out: set[int]) -> None:
    with PipelineSet.open(sample_path()) as source:
        every = build_image(source, source.pipelines, AnyDevice())
        keys = [key for index, key in enumerate(every.image.keys.tolist()) if index in left_out]
        built = leave_out(every, dict.fromkeys(keys, "it ended the driver"))
        out = {each.job for each in built.problems}
        assert len(out) >= len(keys) > 0
        assert_consistent(built.image)
        rest = [job for job in source.pipelines if job not in out]
        assert_alike(built, every, build_image(source, rest, AnyDevice()))


def assert_alike(part: BuiltImage, whole: BuiltImage, built: BuiltImage) -> None:
    """Check that part of a whole says what an image says, however they are laid out."""
    one, other = part.image, built.image
    assert one.keys.tolist() == other.keys.tolist()
    assert one.kinds.tolist() == other.kinds.tolist()
    assert one.counts == other.counts
    assert one.is_library.tolist() == other.is_library.tolist()
    assert (one.flags2_slots < 0).tolist() == (other.flags2_slots < 0).tolist()
    assert held(one) == held(other)
    modules = [{each.key: each.load() for each in image.modules} for image in (one, other)]
    assert modules[0] == modules[1]
    assert part.dependencies == built.dependencies
    meanings = Meaning(one, Meaning(whole.image)), Meaning(other)
    for index in range(len(one)):
        assert meanings[0].pipeline(index) == meanings[1].pipeline(index)
    objects = [
        {(each.kind, each.key): meaning.object(number) for number, each in enumerate(image.objects)}
        for image, meaning in zip((one, other), meanings, strict=True)
    ]
    assert objects[0] == objects[1]


def test_what_was_placed_before_a_later_part_fails_is_not_in_the_image() -> None:
    """Counts without their arrays, beside something that is missing: a driver would read a null pointer."""
    records = Records()
    records.put(RecordTag.DESCRIPTOR_SET_LAYOUT, 0x41, {"bindings": [], "bindingCount": 4})
    layouts = [hexed(0x41), hexed(0xDEAD)]
    records.put(RecordTag.PIPELINE_LAYOUT, 0x42, {"setLayouts": layouts})
    records.compute(1, layout=0x42)
    passes = {hexed(0x43): {"subpasses": [], "subpassCount": 2}}
    records.add(RecordTag.RENDER_PASS, 0x43, json.dumps({"version": 6, "renderPasses2": passes}).encode())
    records.library(2, renderPass=hexed(0x43), layout=hexed(0xDEAD))
    records.compute(3)
    built = records.built()
    assert set(reasons(built)) == {1, 2}
    assert held(built.image) == {(ObjectKind.PIPELINE_LAYOUT, LAYOUT): ()}
