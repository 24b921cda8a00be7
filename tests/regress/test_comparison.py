"""What is joined and summed, against the same arithmetic in plain loops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from orchestrator.regress.comparison import SideComparison, compare_results
from orchestrator.regress.directions import statistic_of
from orchestrator.regress.reports import mesa_block
from orchestrator.regress.results import Lost, ResultBuilder, ResultError, Results, Side, read_results
from orchestrator.regress.rules import FailRule, judge
from tests.regress.support import Row, computed, random_rows, recomputed, write_csv


def compared(folder: Path, before: Sequence[Row], after: Sequence[Row]) -> SideComparison:
    """Two CSV files, compared."""
    paths = write_csv(folder / "before.csv", before), write_csv(folder / "after.csv", after)
    return compare_results(*map(read_results, paths))


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_sums_are_those_of_plain_loops(tmp_path: Path, share: float) -> None:
    found = compared(tmp_path, random_rows(0, 0.0), random_rows(1, share)[5:])
    assert computed(found) == recomputed(found.before, found.after)
    parts = [each.executables for each in found.by_application.values()]
    assert sum(parts) == found.total.executables == 395
    assert found.only_one[0].side == "before"


def test_the_block_is_that_of_mesas_commit_messages(tmp_path: Path) -> None:
    def rows(sizes: list[int], waves: int) -> list[Row]:
        return [
            ("a.foz", key, "fs", {"Code size": size, "Spilled SGPRs": 0, "Subgroups per SIMD": waves})
            for key, size in enumerate(sizes)
        ]

    found = compared(tmp_path, rows([100, 100, 200, 80], 16), rows([90, 130, 200, 80], 16))
    assert mesa_block(found.total) == [
        "Totals from 2 (50.00% of 4) affected shaders:",
        "CodeSize: 200 -> 220 (+10.00%); split: -5.00%, +15.00%",
    ]
    lost = compared(tmp_path, rows([100], 16), rows([100], 8))
    assert mesa_block(lost.total)[1] == "MaxWaves: 16 -> 8 (-50.00%)"
    assert (lost.total.changes[0].better, lost.total.changes[0].worse) == (0, 1)
    assert lost.new_of("occupancy").tolist() == [0]


def test_executables_of_one_name_are_told_apart_by_their_numbers(tmp_path: Path) -> None:
    before: list[Row] = [("rt", 1, "raygen", {"Code size": size}) for size in (10, 20, 30)]
    after: list[Row] = [("rt", 1, "raygen", {"Code size": size}) for size in (10, 25, 30)]
    found = compared(tmp_path, before, after)
    assert (found.total.executables, found.total.affected) == (3, 1)
    fewer = compared(tmp_path, before, after[:2])
    assert (fewer.total.executables, fewer.unlike) == (2, 1)


def test_names_are_exact_and_unknown_ones_have_no_direction(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        [("a", 1, "fs", {"SGPRs": 8, "Pre-Sched SGPRs": 5, "Sparkles": 1})],
        [("a", 1, "fs", {"Pre-Sched SGPRs": 6, "Spilled SGPRs": 8, "Sparkles": 2})],
    )
    changed = {each.statistic.name: each.statistic.direction for each in found.total.changes}
    assert changed == {"Pre-Sched SGPRs": "worse", "Sparkles": "changed"}


def test_new_spills_are_those_where_none_was(tmp_path: Path) -> None:
    spills = [(0, 4), (4, 8), (4, 0), (0, 0)]
    sides = (
        [("a", key, "fs", {"Spilled VGPRs": each[at]}) for key, each in enumerate(spills)] for at in (0, 1)
    )
    assert compared(tmp_path, *sides).new_of("spill").tolist() == [0]


def test_the_smallest_comes_first_of_what_one_debugs(tmp_path: Path) -> None:
    values = [(500, 600), (90, 91), (100, 190), (10, 10)]
    before, after = (
        [("a", key, "fs", {"Code size": each[at]}) for key, each in enumerate(values)] for at in (0, 1)
    )
    found = compared(tmp_path, before, after)
    size = next(iter(found.deltas))
    orders = [found.worst(size, order, 9).tolist() for order in ("absolute", "relative", "smallest")]
    assert orders == [[0, 2, 1], [2, 0, 1], [1, 2, 0]]


def test_an_application_of_which_a_side_has_lost_all_is_told(tmp_path: Path) -> None:
    def side(*crashed: int) -> Results:
        builder = ResultBuilder()
        lost = [Lost("games/a.foz", key, "crashed", "SIGSEGV") for key in crashed]
        if not crashed:
            return read_results(write_csv(tmp_path / "some.csv", [("a", 1, "cs", {"Code size": 8})]))
        return builder.done(Side(name="lost"), lost)

    found = compare_results(side(), side(1, 2))
    assert [(each.side, each.status, len(each.pipelines)) for each in found.only_one] == [
        ("before", "crashed", 1)
    ]
    assert judge(FailRule.parse("crash"), found).broken
    both = compare_results(side(1), side(1))
    assert [(each.status, each.pipelines) for each in both.neither] == [("crashed", (("a", 1),))]


def test_results_survive_being_saved(tmp_path: Path) -> None:
    before = read_results(write_csv(tmp_path / "before.csv", random_rows(0, 0.0)))
    before.save(tmp_path / "saved.results")
    found = compare_results(before, read_results(tmp_path / "saved.results"))
    assert found.is_identical
    assert found.total.executables == 400


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no heading"),
        ("a,b\n1,2\n", "line 1 comes before any heading"),
        ("Database,Pipeline hash\nx,1\n", "lacks Executable name"),
        ("Database,Pipeline hash,Executable name\nx,1\n", "line 2 has 2 fields, its heading 3"),
        ("Database,Pipeline hash,Executable name,SGPRs\nx,1,fs,many\n", "column 'SGPRs'"),
        ("Database,Pipeline hash,Executable name\nx,zz,fs\n", "zz"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "some.csv"
    path.write_text(text)
    with pytest.raises(ResultError, match=words):
        read_results(path)


def test_a_damaged_result_file_is_refused(tmp_path: Path) -> None:
    results = read_results(write_csv(tmp_path / "some.csv", random_rows(0, 0.0)))
    path = tmp_path / "saved.results"
    results.save(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ResultError, match="no result file"):
        read_results(path)
    structs.replace(results, name=results.name[:-1]).save(path)
    with pytest.raises(ResultError, match="differ in length"):
        read_results(path)
    structs.replace(results, name=results.name + 7).save(path)
    with pytest.raises(ResultError, match="names what the file does not have"):
        read_results(path)


def test_the_table_of_directions_has_words_that_are_known() -> None:
    assert statistic_of("Code size", "radv").role == "size"
    assert statistic_of("Subgroups per SIMD").direction == "better"
    assert statistic_of("Driver pipeline hash").direction == "ignored"
    assert statistic_of("Some hash").direction == "hash"
