"""Typed decoding of a set's JSON documents: what is not known is refused by name and never guessed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import RecordError
from orchestrator.registry import registry
from orchestrator.sets.image.documents import TABLES, chain_members, decode_document
from orchestrator.sets.records import RecordTag, UnknownContentError

KEY = 0x0123456789ABCDEF
NULL = "0" * 16


def payload(table: str, value: Any, version: int = 6) -> bytes:
    return json.dumps({"version": version, table: {f"{KEY:016x}": value}}).encode()


def compute(**members: Any) -> dict[str, Any]:
    stage = {"flags": 0, "stage": 32, "module": "00000000000000aa", "name": "main"}
    return {
        "flags": 0,
        "layout": "00000000000000bb",
        "basePipelineHandle": NULL,
        "basePipelineIndex": -1,
        "stage": stage,
    } | members


def decode_compute(value: Any) -> Any:
    return decode_document(RecordTag.COMPUTE_PIPELINE, KEY, payload("computePipelines", value))


def test_members_have_the_names_of_the_registry_and_handles_are_hashes() -> None:
    value = decode_compute(compute())
    assert type(value).__name__ == "VkComputePipelineCreateInfo"
    assert value.layout == 0xBB
    assert value.stage.module == 0xAA
    assert value.stage.pName == "main"
    assert value.basePipelineIndex == -1
    assert value.stage.pSpecializationInfo is None


@pytest.mark.parametrize("table", ["renderPasses", "renderPasses2"])
def test_a_render_pass_may_be_of_either_form(table: str) -> None:
    value = decode_document(
        RecordTag.RENDER_PASS, KEY, payload(table, {"flags": 0, "subpasses": [{"flags": 0}]})
    )
    assert type(value).__name__ == "VkRenderPassCreateInfo" + ("2" if table.endswith("2") else "")
    assert len(value.pSubpasses) == 1


def test_a_chain_holds_tagged_structures() -> None:
    rendering = {"sType": 1000044002, "viewMask": 0, "colorAttachmentFormats": [37, 44]}
    value = decode_document(
        RecordTag.GRAPHICS_PIPELINE, KEY, payload("graphicsPipelines", {"pNext": [rendering]})
    )
    assert type(value.pNext[0]).__name__ == "VkPipelineRenderingCreateInfo"
    assert value.pNext[0].pColorAttachmentFormats == [37, 44]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (compute(flags=1 << 32), "flags"),
        (compute(flags=-1), "flags"),
        (compute(flags="0"), "flags"),
        (compute(layout="xyz"), "layout"),
        (compute(layout="00000000000000BB"), "layout"),
        (compute(layout=12), "layout"),
        (compute(unheardOf=1), "unheardOf"),
        (compute(stage=[]), "stage"),
    ],
)
def test_a_wrong_member_is_refused_by_name(value: Any, field: str) -> None:
    with pytest.raises(RecordError) as caught:
        decode_compute(value)
    assert field in caught.value.reason
    assert caught.value.key == KEY


def test_an_unknown_structure_is_named_by_its_type() -> None:
    with pytest.raises(UnknownContentError, match="sType 4242424242"):
        decode_compute(compute(pNext=[{"sType": 4242424242}]))


def test_a_structure_that_no_set_can_hold_is_refused_by_name() -> None:
    s_type = registry().struct("VkPipelineCreationFeedbackCreateInfo").s_type
    with pytest.raises(UnknownContentError, match="VkPipelineCreationFeedbackCreateInfo"):
        decode_compute(compute(pNext=[{"sType": s_type}]))


def test_a_document_without_its_own_key_is_refused() -> None:
    with pytest.raises(RecordError, match="no entry"):
        decode_document(RecordTag.COMPUTE_PIPELINE, KEY + 1, payload("computePipelines", compute()))


def test_every_structure_that_may_be_chained_can_be_decoded() -> None:
    """The registry decides what a chain may hold: each entry, empty, is a valid document."""
    checked = 0
    for tag, tables in TABLES.items():
        for table, name in tables:
            for struct in chain_members(name):
                value = decode_document(tag, KEY, payload(table, {"pNext": [{"sType": struct.s_type}]}))
                assert type(value.pNext[0]).__name__ == struct.name
                checked += 1
    assert checked > 40  # as many as the structures that captures are known to hold


@given(st.sampled_from([*TABLES]), st.binary(max_size=200))
def test_random_bytes_are_refused_and_nothing_else(tag: RecordTag, data: bytes) -> None:
    with pytest.raises(RecordError):
        decode_document(tag, KEY, data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["flags", "stage", "layout", "pNext", "sType", "name", "stages", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from([(tag, tables[0]) for tag, tables in TABLES.items()]), _JSON)
def test_random_documents_decode_or_are_refused(table: tuple[RecordTag, tuple[str, str]], value: Any) -> None:
    tag, (name, structure) = table
    try:
        decoded = decode_document(tag, KEY, payload(name, value))
    except RecordError:
        return
    assert type(decoded).__name__ == structure
