"""Records are encoded both ways, documented, and plain; those of parts add up to that of the whole."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.devices.image import PipelineKind
from orchestrator.process import StageClock
from orchestrator.run.records import (
    ApiVersion,
    Calls,
    CompileReport,
    Counts,
    Hash,
    Nanoseconds,
    OutcomeStatus,
    OutcomeTable,
    PipelineOutcome,
    Record,
    Stage,
    decode_json,
    decode_msgpack,
    encode_hook,
    encode_json,
    encode_msgpack,
    encode_report,
    plain_text,
)
from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.records import PipelineJob, RecordTag
from orchestrator.sets.sample import sample_path
from orchestrator.stores.culprits import Culprit
from tests.drivers import REPOSITORY
from tests.run.report_page import fields_of, is_documented, page, parts_of, reachable
from tests.run.small_sets import Opener, add_sample, compiled, write_small_set

RECORDS = [each for each in reachable(CompileReport) if issubclass(each, Record)]


class Sneaky(str):
    """Text that msgspec will not encode."""

    __slots__ = ()

    def __str__(self) -> str:
        return self


# --- any record


def strategy_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type that a record holds; text is of a subclass, and not always what UTF-8 can carry."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*map(strategy_of, arguments))
    if origin is tuple:
        if Ellipsis in arguments:
            return st.lists(strategy_of(arguments[0]), max_size=3).map(tuple)
        return st.tuples(*map(strategy_of, arguments))
    if origin is dict:
        return st.dictionaries(strategy_of(arguments[0]), strategy_of(arguments[1]), max_size=3)
    if hint is OutcomeTable:
        return tables()
    if hint is Calls:
        return calls()
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    if isinstance(hint, type) and issubclass(hint, Record):
        return record_of(hint)
    if is_documented(hint):  # of another room
        clean = {name: clean_strategy_of(kind) for name, _, kind in fields_of(hint)}
        if hint is Culprit:
            clean |= {"key": st.integers(0, 2**64 - 1).map("{:016x}".format), "seen_at": st.floats(0, 2**37)}
        return st.builds(hint, **clean)
    return SCALARS[hint]


def clean_strategy_of(hint: Any) -> st.SearchStrategy[Any]:
    """For values of other rooms, whose text comes from drivers and is plain."""
    if hint is str:
        return st.text(st.characters(codec="utf-8"), max_size=5)
    if typing.get_origin(hint) is tuple and Ellipsis in typing.get_args(hint):
        return st.lists(clean_strategy_of(typing.get_args(hint)[0]), max_size=2).map(tuple)
    if typing.get_origin(hint) is tuple:
        return st.tuples(*map(clean_strategy_of, typing.get_args(hint)))
    return strategy_of(hint)


SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**53),
    Nanoseconds: st.integers(-(2**51), 2**51),
    Hash: st.integers(0, 2**64 - 1).map(Hash),
    ApiVersion: st.tuples(st.integers(0, 127), st.integers(0, 1023), st.integers(0, 4095)).map(
        lambda each: ApiVersion(each[0] << 22 | each[1] << 12 | each[2])
    ),
    str: st.text(st.characters(), max_size=8).map(Sneaky),
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bytes: st.binary(max_size=20),
    Path: st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8).map(Path),
    type(None): st.none(),
    msgspec.UnsetType: st.just(msgspec.UNSET),
}


def record_of(kind: type[Record]) -> st.SearchStrategy[Any]:
    """Any record of a type."""
    return st.builds(kind, **{name: strategy_of(hint) for name, _, hint in fields_of(kind)})


@st.composite
def tables(draw: st.DrawFn) -> OutcomeTable:
    """A table of outcomes."""
    jobs = draw(
        st.lists(
            st.builds(PipelineJob, st.integers(0, 2**64 - 1), st.sampled_from(PipelineKind)),
            unique=True,
            max_size=6,
        )
    )
    statuses = [draw(st.sampled_from(OutcomeStatus)) for _ in jobs]
    table = OutcomeTable.of(jobs, statuses)
    for index, status in enumerate(statuses):
        if status in (OutcomeStatus.SKIPPED, OutcomeStatus.FAILED):
            table.settle(status, {index: draw(strategy_of(str))})
        elif status is not OutcomeStatus.NOT_RUN:
            table.driver_ns[index] = draw(st.integers(0, 2**40))
            table.worker[index] = draw(st.integers(0, 8))
    return table


@st.composite
def calls(draw: st.DrawFn) -> Calls:
    """Some calls."""
    sizes = draw(st.lists(st.integers(1, 4), max_size=4))
    numbers = st.lists(st.integers(0, 2**60), min_size=len(sizes), max_size=len(sizes))
    start, wall, cpu, driver, delay = (np.array(draw(numbers), np.int64) for _ in range(5))
    worker = np.arange(len(sizes), dtype=np.int32)
    indices = np.arange(sum(sizes), dtype=np.int32)
    return Calls(worker, start, wall, cpu, driver, delay, np.array(sizes, np.int32), indices)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_decoding_gives_an_equal_record(kind: type[Record]) -> None:
    # A whole report holds hundreds of values, so a busy machine is slow to draw them.
    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(strategy_of(kind))
    def check(record: Record) -> None:
        assert decode_json(encode_json(record), kind) == record
        assert decode_msgpack(encode_msgpack(record), kind) == record
        assert not list(impure(record))

    check()


def impure(value: Any) -> Iterator[object]:
    """The text of a record, of all it holds, that is no exact str or that UTF-8 cannot carry."""
    if isinstance(value, Record):
        for name in value.__struct_fields__:
            yield from impure(getattr(value, name))
    elif isinstance(value, tuple):
        for each in value:
            yield from impure(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from impure(each)
    elif isinstance(value, str) and not isinstance(value, enum.Enum):
        if type(value) is not str:
            yield value
        else:
            value.encode()


def test_text_becomes_plain() -> None:
    assert type(plain_text(Sneaky("a reason"))) is str
    assert plain_text("a\udcffb") == r"a\xffb"
    assert plain_text("\ud800") == r"\ud800"
    assert plain_text("Straße") == "Straße"


def test_times_are_seconds_and_hashes_hex_digits() -> None:
    outcome = PipelineOutcome(
        Hash(0xAB), PipelineKind.COMPUTE, OutcomeStatus.COMPILED, driver_ns=1_500_000_000
    )
    assert msgspec.json.decode(encode_json(outcome)) == {
        "key": "00000000000000ab",
        "kind": "compute",
        "status": "compiled",
        "driver_s": 1.5,
    }
    # A clock's reading is no duration, and stays as exact as it is.
    assert msgspec.json.decode(encode_json(Stage("open", 2**60 + 1, 1)))["start_ns"] == 2**60 + 1


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


async def test_a_report_is_written_with_the_clock_of_that_moment(tmp_path: Path) -> None:
    write_small_set(tmp_path / "set.foz", 0, 2)
    report = await compiled(tmp_path / "set.foz", None, Opener())
    document = encode_report(report, StageClock("start", 0))
    found = decode_json(document, CompileReport)
    assert found.clock.start_ns > 0
    assert encode_json(msgspec.structs.replace(found, clock=report.clock)) == encode_json(report)


# --- documentation


@pytest.mark.parametrize("kind", reachable(CompileReport), ids=lambda kind: kind.__name__)
def test_every_field_is_documented_and_every_documented_one_exists(kind: type) -> None:
    words, attributes = parts_of(kind)
    assert words
    assert all(attributes.values())
    assert sorted(attributes) == sorted(name for name, _, _ in fields_of(kind))


def test_the_page_says_what_the_types_say() -> None:
    assert (REPOSITORY / "docs" / "report.md").read_text("utf-8") == page("report")


# --- outcomes of several groups


COMPUTE = PipelineKind.COMPUTE
GRAPHICS = PipelineKind.GRAPHICS


def table(*rows: tuple[int, PipelineKind, OutcomeStatus, str, int]) -> OutcomeTable:
    made = OutcomeTable.of([PipelineJob(key, kind) for key, kind, *_ in rows], [each[2] for each in rows])
    for index, (_, _, status, reason, driver_ns) in enumerate(rows):
        made.driver_ns[index] = driver_ns
        if reason:
            made.settle(status, {index: reason})
    return made


def test_a_pipeline_in_several_parts_gets_the_worst_outcome_and_costs_what_all_did() -> None:
    S = OutcomeStatus
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
    assert both.counts(COMPUTE)[S.FAILED] == 1


@given(tables(), tables(), tables())
def test_tables_add_in_any_order(one: OutcomeTable, two: OutcomeTable, three: OutcomeTable) -> None:
    def joined(*some: OutcomeTable) -> OutcomeTable:
        return OutcomeTable.joined(some)

    whole = joined(one, two, three)
    assert joined(joined(one, two), three).counts() == whole.counts() == joined(three, two, one).counts()
    assert np.array_equal(joined(joined(three, one), two).driver_ns, whole.driver_ns)
    assert int(whole.driver_ns.sum()) == sum(int(each.driver_ns.sum()) for each in (one, two, three))
    assert joined(whole) == whole


# --- through the command line's way


async def test_a_reason_that_is_a_subclass_of_str_ends_no_report(tmp_path: Path) -> None:
    """A pipeline that fails a rule of documents: its reason is `Malformed`."""
    path = tmp_path / "set.foz"
    with Archive.open(sample_path()) as sample, ArchiveWriter(path) as writer:
        (key,) = sample.keys(RecordTag.GRAPHICS_PIPELINE)[:1]
        add_sample(writer, ())
        parsed = msgspec.json.decode(sample.payload(RecordTag.GRAPHICS_PIPELINE, key))
        (pipeline,) = parsed["graphicsPipelines"].values()
        pipeline["stages"].append(pipeline["stages"][0])
        writer.add(RecordTag.GRAPHICS_PIPELINE, key, msgspec.json.encode(parsed))
    report = await compiled(path, tmp_path / "cache", Opener())
    (failed,) = report.failed
    assert failed.reason == "pStages: VK_SHADER_STAGE_VERTEX_BIT is there twice"
    assert decode_json(encode_json(report), CompileReport) == report
