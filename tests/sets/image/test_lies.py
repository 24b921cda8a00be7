"""Documents that lie about their counts, arrays and handles."""

from __future__ import annotations

import pytest

from orchestrator.registry.tables import AnyDevice
from orchestrator.sets.image.builder import Problem, build_image
from orchestrator.sets.image.documents import TABLES
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob
from tests.sets.image.lies import LyingSet, arrays, places

LYING_SET = LyingSet()
# Null beside a count here means the identity, by the specification, though the registry does not say so.
IDENTITY = {"pColorAttachmentLocations"}


@pytest.fixture(scope="module")
def problems() -> dict[PipelineJob, Problem]:
    """What is wrong with the pipelines of the set, on a device that has everything."""
    source = PipelineSet.from_records(LYING_SET)
    return {each.job: each for each in build_image(source, source.pipelines, AnyDevice()).problems}


def test_every_counted_array_of_every_structure_is_lied_about() -> None:
    counted = {
        (str(place), member.name) for place in places() for member, count in arrays(place.struct) if count
    }
    lied = {(str(each.place), each.member) for each in LYING_SET.lies}
    assert counted <= lied
    assert len(counted) >= 60
    assert {place.table for place in places()} == {table for tables in TABLES.values() for table, _ in tables}


def test_honest_documents_are_taken_and_lies_fail_by_name(problems: dict[PipelineJob, Problem]) -> None:
    honest = [each for each in LYING_SET.lies if each.way == "honest"]
    assert [str(each) for each in honest if each.job in problems] == []
    for lie in LYING_SET.lies:
        if lie.way == "honest" or not lie.must_fail:
            continue
        if lie.member in IDENTITY and lie.way in ("a count without its array", "a count with null"):
            assert lie.job not in problems, lie
            continue
        problem = problems[lie.job]
        assert not problem.unsupported, (str(lie), problem.reason)
        assert any(name in problem.reason for name in lie.names), (str(lie), problem.reason)
