"""Pipelines whose documents are alike are decoded once, and each is what it is by itself."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from orchestrator.errors import RecordError
from orchestrator.sets.image.documents import PipelineDocuments, decode_document
from orchestrator.sets.records import RecordTag
from tests.sets.image.test_image_builder import LAYOUT as LAYOUT_IN_RECORDS
from tests.sets.image.test_image_builder import MODULE as IN_RECORDS
from tests.sets.image.test_image_builder import Records, hexed

TAG = RecordTag.COMPUTE_PIPELINE
LAYOUT, MODULE = "00000000000000a1", "b2b2c3c3d4d4e5e5"


def document(key: int, **members: Any) -> bytes:
    stage = {"flags": 0, "stage": 32, "module": MODULE, "name": "main"} | members.pop("stage", {})
    return json.dumps(
        {"version": 6, "computePipelines": {f"{key:016x}": {"layout": LAYOUT, "stage": stage} | members}},
        separators=(",", ":"),
    ).encode()


def specialized(content: bytes, **members: Any) -> dict[str, Any]:
    info = {"dataSize": len(content), "data": base64.b64encode(content).decode(), "mapEntries": []}
    return {"specializationInfo": info | members}


class Decoding:
    """Decodes documents, and counts how many it made something of."""

    def __init__(self) -> None:
        self.made = 0
        self.documents = PipelineDocuments(self._make)

    def _make(self, value: Any) -> Any:
        self.made += 1
        return value

    def check(self, key: int, payload: bytes) -> None:
        """What is decoded has the members and the handles that the document by itself has."""
        found = self.documents.decode(TAG, key, payload)
        value, handles = found.choose(), found.handles
        alone = decode_document(TAG, key, payload)
        assert handles[0] == 0
        assert handles[value.layout] == alone.layout
        assert handles[value.basePipelineHandle] == alone.basePipelineHandle
        assert handles[value.stage.module] == alone.stage.module
        assert value.stage.pName == alone.stage.pName
        assert value.stage.stage == alone.stage.stage
        assert value.stage.pSpecializationInfo == alone.stage.pSpecializationInfo
        assert value.pNext == alone.pNext


def test_documents_that_differ_in_hashes_and_data_are_decoded_once() -> None:
    decoding = Decoding()
    for number in range(1, 6):
        stage = {"module": f"{number + 50:016x}"} | specialized(bytes([number] * 4))
        payload = document(number, layout=f"{number % 2 + 7:016x}", stage=stage, basePipelineHandle="0" * 16)
        decoding.check(number, payload + b"\0behind")
    assert decoding.made == 1


NOT_ALIKE = {
    "a null handle": document(1, layout="0" * 16),
    "another base": document(1, basePipelineHandle="00000000000000c3"),
    "another entry point": document(1, stage={"name": "other"}),
    "another entry point of that length": document(1, stage={"name": "mine"}),
    "another flag": document(1, flags=8),
    "another flag of that length": document(1, flags=1),
    "an entry point like a hash": document(1, stage={"name": "00000000000000d4"}),
    "another such": document(1, stage={"name": "00000000000000d5"}),
    "a handle in escapes": document(1).replace(MODULE.encode(), b"\\u0062" + MODULE[1:].encode()),
    "a handle in escapes and a name like it": document(1, stage={"name": MODULE}).replace(
        b'"module":"b', b'"module":"\\u0062'
    ),
    "two pipelines": b'{"version":6,"computePipelines":{"%s":%s,"%s":{}}}'
    % (b"0" * 15 + b"1", document(1)[len(b'{"version":6,"computePipelines":{"') + 18 : -2], b"0" * 15 + b"2"),
    "two pipelines, one of another name": document(1, stage=specialized(b"abcd"))[:-2]
    + b',"x":{"stage":{"specializationInfo":{"data":"AAAA"}}}}}',
    "data of a constant": document(1, stage=specialized(b"abcd")),
    "data like a hash": document(1, stage=specialized(base64.b64decode(LAYOUT))),
    "longer data": document(1, stage=specialized(b"abcdefg", dataSize=4)),
    "shorter data": document(1, stage=specialized(b"ab", dataSize=4)),
    "no data": document(1, stage=specialized(b"")),
    "null for data": document(1, stage=specialized(b"", data=None)),
    "blanks": json.dumps(json.loads(document(1, stage=specialized(b"abcd"))), indent=1).encode(),
    "a chain": document(1, pNext=[{"sType": 1000470005, "flags": 1}]),
}


@pytest.mark.parametrize("first", NOT_ALIKE)
def test_documents_that_are_not_alike_are_told_apart(first: str) -> None:
    decoding = Decoding()
    for _ in range(2):
        decoding.check(1, NOT_ALIKE[first])
        decoding.check(1, document(1))
        for payload in NOT_ALIKE.values():
            decoding.check(1, payload)
            decoding.check(1, payload.replace(MODULE.encode(), b"00000000000000b9"))


@pytest.mark.parametrize(
    "payload",
    [
        document(2),
        document(1, layout="00000000000000A1"),
        document(1, layout="00000000000000a"),
        document(1, stage=specialized(b"", data="AB=")),
        document(1, stage=specialized(b"", data="=")),
        document(1, stage=specialized(b"", data="A===")),
        document(1, stage=specialized(b"", data="AB!=")),
        document(1).replace(b'"version":6', b'"version":7'),
    ],
)
def test_what_is_refused_by_itself_is_refused_among_its_like(payload: bytes) -> None:
    documents: PipelineDocuments[Any] = PipelineDocuments(lambda value: value)
    for known in (document(1), document(1, stage=specialized(b"abcd", dataSize=0))):
        documents.decode(TAG, 1, known)
    with pytest.raises(RecordError) as alone:
        decode_document(TAG, 1, payload)
    for _ in range(2):
        with pytest.raises(RecordError) as among:
            documents.decode(TAG, 1, payload)
        assert str(among.value) == str(alone.value)


def test_data_of_another_size_is_not_taken_for_what_was_checked() -> None:
    records = Records()
    for key, data in enumerate((b"abcd", b"efgh", b"ab", b"ijkl"), start=1):
        info = {"data": base64.b64encode(data).decode(), "mapEntries": [{"size": 4, "constantID": 7}]}
        stage = {"stage": 32, "module": hexed(IN_RECORDS), "name": "main", "specializationInfo": info}
        payload = document(key, layout=hexed(LAYOUT_IN_RECORDS), stage=stage)
        records.add(TAG, key, payload)
    built = records.built()
    assert built.image.keys.tolist() == [1, 2, 4]
    (problem,) = built.problems
    assert problem.job.key == 3
    assert problem.reason.endswith(": specialization constant 7 ends at byte 4 of data that has 2")
