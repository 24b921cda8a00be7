"""Packing of decoded documents into Vulkan structures."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from orchestrator.devices.vulkan._generated import ffi
from orchestrator.sets.image.create_infos import CreateInfoError, Heap, at_heap, packer
from orchestrator.sets.image.documents import decode_document
from orchestrator.sets.records import RecordTag

KEY = 1


class Bound:
    """A packed structure at real addresses, every handle replaced by its key."""

    def __init__(self, tag: RecordTag, table: str, document: Any) -> None:
        payload = json.dumps({"version": 6, table: {f"{KEY:016x}": document}}).encode()
        value = decode_document(tag, KEY, payload)
        heap = Heap()
        name = type(value).__name__
        info, own = packer(name).pack(value, heap), heap.take_own()
        start = heap.put(own.data, own.pointers)
        offset = heap.put(info.data, [(slot, at_heap(target, start)) for slot, target in info.pointers])
        self.memory = np.zeros(len(heap.data) // 8 + 1, np.uint64)
        self.memory.view(np.uint8)[: len(heap.data)] = np.frombuffer(heap.data, np.uint8)
        base = int(self.memory.ctypes.data)
        for slot, target in zip(heap.pointer_slots, heap.pointer_targets, strict=True):
            self.memory[slot // 8] = base + target
        for at, piece in ((start, own), (offset, info)):
            for each in piece.handles:
                self.memory[(at + each.offset) // 8] = each.key
        self.handles = {(each.type, each.key) for each in (*own.handles, *info.handles)}
        self.info = ffi.cast(f"{name} *", base + offset)


def graphics(**members: Any) -> Bound:
    return Bound(RecordTag.GRAPHICS_PIPELINE, "graphicsPipelines", members)


def test_a_graphics_pipeline_reads_back_through_c_declarations() -> None:
    bound = graphics(
        flags=1,
        layout=f"{0xAB:016x}",
        renderPass=f"{0xCD:016x}",
        subpass=2,
        basePipelineIndex=-1,
        stages=[
            {"flags": 0, "stage": 1, "module": f"{0x11:016x}", "name": "main"},
            {
                "flags": 0,
                "stage": 16,
                "module": f"{0x12:016x}",
                "name": "fragment_main",
                "specializationInfo": {
                    "dataSize": 8,
                    "data": "AAAAAAEAAAA=",
                    "mapEntries": [
                        {"offset": 0, "size": 4, "constantID": 3},
                        {"offset": 4, "size": 4, "constantID": 9},
                    ],
                },
            },
        ],
        vertexInputState={
            "flags": 0,
            "attributes": [{"location": 1, "binding": 0, "offset": 12, "format": 106}],
            "bindings": [{"binding": 0, "stride": 24, "inputRate": 1}],
        },
        viewportState={
            "viewportCount": 1,
            "scissorCount": 1,
            "viewports": [{"x": 1, "y": 2, "width": 3.5, "height": 4, "minDepth": 0, "maxDepth": 1}],
            "scissors": [{"x": -5, "y": 6, "width": 7, "height": 8}],
        },
        multisampleState={"rasterizationSamples": 4, "minSampleShading": 0.25, "sampleMask": [0xF]},
        colorBlendState={
            "logicOp": 3,
            "blendConstants": [0.5, 1, 2, 4],
            "attachments": [{"blendEnable": 1, "srcColorBlendFactor": 6, "colorWriteMask": 15}],
        },
        depthStencilState={
            "depthCompareOp": 4,
            "front": {"compareOp": 7, "reference": 0xFFFFFFFF},
            "back": {"passOp": 2},
            "maxDepthBounds": 1,
        },
        dynamicState={"flags": 0, "dynamicState": [0, 1]},
        pNext=[
            {
                "sType": 1000044002,
                "viewMask": 3,
                "colorAttachmentFormats": [37],
                "depthAttachmentFormat": 126,
            },
            {"sType": 1000470005, "flags": 1 << 33},
        ],
    )
    info = bound.info
    assert info.sType == 28
    assert (info.flags, info.layout, info.renderPass, info.subpass) == (1, 0xAB, 0xCD, 2)
    assert info.basePipelineIndex == -1
    assert info.stageCount == 2
    assert [info.pStages[i].module for i in range(2)] == [0x11, 0x12]
    assert ffi.string(ffi.cast("char *", info.pStages[1].pName)) == b"fragment_main"
    special = info.pStages[1].pSpecializationInfo
    assert (special.mapEntryCount, special.dataSize) == (2, 8)
    assert [special.pMapEntries[i].constantID for i in range(2)] == [3, 9]
    assert special.pMapEntries[1].offset == 4
    assert bytes(ffi.buffer(special.pData, 8)) == struct.pack("<II", 0, 1)
    vertex = info.pVertexInputState
    assert (vertex.vertexAttributeDescriptionCount, vertex.vertexBindingDescriptionCount) == (1, 1)
    attribute = vertex.pVertexAttributeDescriptions[0]
    assert (attribute.location, attribute.format, attribute.offset) == (1, 106, 12)
    assert vertex.pVertexBindingDescriptions[0].stride == 24
    scissor = info.pViewportState.pScissors[0]
    assert (scissor.offset.x, scissor.offset.y) == (-5, 6)
    assert (scissor.extent.width, scissor.extent.height) == (7, 8)
    assert info.pViewportState.pViewports[0].width == 3.5
    assert info.pMultisampleState.pSampleMask[0] == 0xF
    assert info.pMultisampleState.minSampleShading == 0.25
    blend = info.pColorBlendState
    assert list(blend.blendConstants) == [0.5, 1, 2, 4]
    assert blend.attachmentCount == 1
    assert blend.pAttachments[0].srcColorBlendFactor == 6
    depth = info.pDepthStencilState
    assert (depth.front.compareOp, depth.front.reference, depth.back.passOp) == (7, 0xFFFFFFFF, 2)
    assert depth.maxDepthBounds == 1
    assert [info.pDynamicState.pDynamicStates[i] for i in range(2)] == [0, 1]
    rendering = ffi.cast("VkPipelineRenderingCreateInfo *", info.pNext)
    assert (rendering.viewMask, rendering.colorAttachmentCount, rendering.depthAttachmentFormat) == (
        3,
        1,
        126,
    )
    flags_2 = ffi.cast("VkPipelineCreateFlags2CreateInfo *", rendering.pNext)
    assert flags_2.flags == 1 << 33
    assert flags_2.pNext == ffi.NULL
    assert bound.handles == {
        ("VkPipelineLayout", 0xAB),
        ("VkRenderPass", 0xCD),
        ("VkShaderModule", 0x11),
        ("VkShaderModule", 0x12),
    }


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({"viewportState": {"viewportCount": 2, "viewports": [{"x": 0}]}}, "viewportCount is 2"),
        ({"multisampleState": {"rasterizationSamples": 64, "sampleMask": [1]}}, "pSampleMask has 1"),
        ({"dynamicState": {"dynamicStateCount": 3}}, "'dynamicState' is missing"),
        ({"stages": [{"name": "a\0b" * 100_000}]}, r"^.{,100}: a string holds a NUL"),
        (
            {"rasterizationState": {"lineWidth": 1e300}},
            "RasterizationStateCreateInfo: float too large",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(members: dict[str, Any], what: str) -> None:
    with pytest.raises(CreateInfoError, match=what):
        graphics(**members)
