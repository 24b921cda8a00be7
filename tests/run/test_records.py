"""Records are encoded both ways, documented, and plain; those of parts add up to that of the whole."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from orchestrator.devices.image import PipelineKind
from orchestrator.devices.modes import CacheMode
from orchestrator.process import StageClock
from orchestrator.run.records import (
    ApiVersion,
    CacheFileRecord,
    CompileReport,
    Counts,
    Death,
    DriverMessages,
    Hash,
    OutcomeStatus,
    OutcomeTable,
    PipelineOutcome,
    Record,
    Stage,
    Supervision,
    Tally,
    decode_json,
    decode_msgpack,
    encode_hook,
    encode_json,
    encode_msgpack,
    encode_report,
    plain_text,
)
from orchestrator.sets.records import PipelineJob, PipelineJobs
from orchestrator.sets.sample import sample_path
from orchestrator.sets.subset import Subset
from orchestrator.stores.culprits import Cause, Culprit
from tests.drivers import REPOSITORY
from tests.run.report_page import fields_of, page, parts_of, reachable
from tests.run.small_sets import Opener, compiled

COMPUTE, GRAPHICS = PipelineKind.COMPUTE, PipelineKind.GRAPHICS
S = OutcomeStatus


class Sneaky(str):
    """Text that msgspec will not encode."""

    __slots__ = ()

    def __str__(self) -> str:
        return self


# --- any record


@pytest.mark.parametrize("mode", [CacheMode.TWO_LEVEL, CacheMode.BINARIES, CacheMode.NONE])
async def test_decoding_gives_an_equal_report(mode: CacheMode, tmp_path: Path) -> None:
    report = await compiled(
        sample_path(),
        tmp_path,
        Opener(),
        mode=mode,
        identifiers=mode is CacheMode.TWO_LEVEL,
        subset=Subset(1, 2),
    )
    died = Supervision(
        processes=2,
        deaths=(Death(Sneaky("SIGSEGV"), "creating", 1, 1),),
        explaining_ns=5,
        culprits=(Culprit(key="0" * 16, kind="compute", cause=Cause.SIGNAL, reason="it did", seen_at=1.0),),
        messages=(DriverMessages(1, 2, "\udcff", (Hash(2**64 - 1),)),),
    )
    report = msgspec.structs.replace(report, supervision=died + died)
    report.pipelines.settle(S.FAILED, {0: Sneaky("of a subclass, as the reasons of documents are")})
    assert decode_json(encode_json(report), CompileReport) == report
    assert decode_msgpack(encode_msgpack(report), CompileReport) == report
    # With the clock of that moment, and indented for people.
    found = decode_json(encode_report(report, StageClock("start", 0)), CompileReport)
    assert found.clock.start_ns > 0
    assert msgspec.structs.replace(found, clock=report.clock) == report


def test_a_path_that_is_not_utf_8_gets_to_another_process_whole() -> None:
    record = CacheFileRecord(path=Path(os.fsdecode(b"/caches/\xff")))
    assert decode_msgpack(encode_msgpack(record), CacheFileRecord) == record
    assert decode_json(encode_json(record), CacheFileRecord).path == Path(r"/caches/\xff")


def test_text_becomes_plain() -> None:
    assert type(plain_text(Sneaky("a reason"))) is str
    assert plain_text("a\udcffb") == r"a\xffb"
    assert plain_text("\ud800") == r"\ud800"
    assert plain_text("Straße") == "Straße"


def test_times_are_seconds_and_hashes_hex_digits() -> None:
    outcome = PipelineOutcome(Hash(0xAB), COMPUTE, S.COMPILED, driver_ns=1_500_000_000)
    assert msgspec.json.decode(encode_json(outcome)) == {
        "key": "00000000000000ab",
        "kind": "compute",
        "status": "compiled",
        "driver_s": 1.5,
    }
    # A clock's reading is no duration, and stays as exact as it is.
    assert msgspec.json.decode(encode_json(Stage("open", 2**60 + 1, 1)))["start_ns"] == 2**60 + 1
    assert str(ApiVersion(1 << 22 | 4 << 12 | 335)) == "1.4.335"


@pytest.mark.parametrize(
    ("kind", "document", "where"),
    [
        (Counts, b'{"compiled":1,"cache_hits":2,"skipped":"3","failed":0}', "$.skipped"),
        (PipelineOutcome, b'{"key":"12","kind":"compute","status":"compiled"}', "16 hex digits"),
        (PipelineOutcome, b'{"key":"000000000000001x","kind":"compute","status":"compiled"}', "$.key"),
        (PipelineOutcome, b'{"key":"0000000000000012","kind":"mesh","status":"compiled"}', "$.kind"),
        (
            OutcomeTable,
            b'{"keys":"AAAAAAAAAAA=","kinds":"AA==","status":"","driver_ns":"","worker":"","reasons":{}}',
            "differ in length",
        ),
        (
            OutcomeTable,
            b'{"keys":"","kinds":"","status":"","driver_ns":"","worker":"","reasons":{"1":"no such row"}}',
            "not in it",
        ),
        (OutcomeTable, b'{"keys":"AAAA"}', "$.keys"),
    ],
)
def test_another_document_is_refused_with_the_place(kind: type[Record], document: bytes, where: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        decode_json(document, kind)
    assert where in str(caught.value)


def test_what_no_record_holds_is_not_encoded() -> None:
    with pytest.raises(NotImplementedError, match="complex"):
        encode_hook(1j)


# --- documentation


@pytest.mark.parametrize("kind", reachable(CompileReport), ids=lambda kind: kind.__name__)
def test_types_say_what_they_are_and_describe_no_field_that_is_not_there(kind: type) -> None:
    words, attributes = parts_of(kind)
    assert words
    assert attributes.keys() <= {name for name, _, _ in fields_of(kind)}


def test_the_page_says_what_the_types_say() -> None:
    assert (REPOSITORY / "docs" / "report.md").read_text("utf-8") == page("report")


# --- outcomes of several groups


def table(*rows: tuple[int, PipelineKind, OutcomeStatus, str, int]) -> OutcomeTable:
    made = OutcomeTable.of([PipelineJob(key, kind) for key, kind, *_ in rows], [each[2] for each in rows])
    made.driver_ns[:] = [each[4] for each in rows]
    for index, (_, _, status, reason, _) in enumerate(rows):
        if reason:
            made.settle(status, {index: reason})
    return made


def test_a_pipeline_in_several_groups_gets_the_worst_outcome_and_costs_what_all_did() -> None:
    first = table(
        (9, COMPUTE, S.COMPILED, "", 10),
        (3, COMPUTE, S.FAILED, "refused", 1),
        (9, GRAPHICS, S.NOT_RUN, "", 0),
    )
    second = table(
        (9, GRAPHICS, S.SKIPPED, "no feature", 0),
        (9, COMPUTE, S.CACHE_HIT, "", 2),
        (3, COMPUTE, S.COMPILED, "", 5),
    )
    both = OutcomeTable.joined([first, second])
    assert [(each.key, each.kind, each.status, each.reason, each.driver_ns) for each in both] == [
        (9, GRAPHICS, S.NOT_RUN, "", 0),
        (3, COMPUTE, S.FAILED, "refused", 6),
        (9, COMPUTE, S.COMPILED, "", 12),
    ]
    assert OutcomeTable.joined([second, first]) == both
    assert OutcomeTable.joined([both]) == both
    assert len(OutcomeTable.joined([])) == 0
    assert both.counts(COMPUTE)[S.FAILED] == 1


def test_a_tally_has_the_requested_pipelines_alone_and_all_of_them() -> None:
    tally = Tally()
    library = PipelineJob(3, GRAPHICS)
    tally.leave_out(table((3, GRAPHICS, S.COMPILED, "", 1), (4, GRAPHICS, S.FAILED, "refused", 2)), {library})
    jobs = PipelineJobs(np.array([5, 4], np.uint64), np.array([0, 0], np.uint8))
    assert [(each.key, each.status, each.reason) for each in tally.outcomes(jobs)] == [
        (4, S.FAILED, "refused"),
        (5, S.NOT_RUN, ""),
    ]
