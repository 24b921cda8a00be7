"""The verb `set`: unions, differences and samples of sets, as Fossilize's own programs see them, too."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import KIND_OF_TAG, RecordTag
from orchestrator.sets.sample import sample_path
from tests.cli.conftest import Call, damage
from tests.drivers import CORPORA, driver_environment, unsupported
from tests.run.small_sets import TWO_APPLICATIONS, write_applications, write_small_set

TOOLS = "ORCHESTRATOR_FOSSILIZE_TOOLS"
"""Names the folder of Fossilize's programs where they are not on the PATH."""


def records(path: Path | str) -> dict[tuple[RecordTag, int], bytes]:
    with Archive.open(path) as archive:
        return {(tag, key): archive.payload(tag, key) for tag in RecordTag for key in archive.keys(tag)}


def write_list(path: Path, names: list[tuple[RecordTag, int]]) -> Path:
    with ArchiveWriter(path) as writer:
        for tag, key in names:
            writer.add(tag, key, b"")
    return path


def test_a_union_has_each_record_once_and_says_what_came_from_which(call: Call, tmp_path: Path) -> None:
    first, second, out = (tmp_path / f"{name}.foz" for name in ("first", "second", "out"))
    write_small_set(first, 0, 12)
    write_small_set(second, 8, 16)
    done = call("set", "merge", first, second, "-o", out, "--json")
    assert done.code == 0
    assert records(out) == records(second) | records(first)
    one, other = done.document["sets"]
    assert (len(one["pipelines"]), one["known"], other["known"]) == (12, 0, 4)
    new = records(second).keys() - records(first).keys()
    assert {*other["pipelines"]} == {f"{key:016x}" for tag, key in new if tag in KIND_OF_TAG}
    assert other["records"] == len(new)


def test_a_damaged_record_is_taken_from_another_set_or_missed(call: Call, tmp_path: Path) -> None:
    good, bad, out = (tmp_path / f"{name}.foz" for name in ("good", "bad", "out"))
    write_small_set(good, 0, 4)
    shutil.copy(good, bad)
    damage(bad)
    assert call("set", "merge", bad, "-o", out).code == 1
    assert len(records(out)) == len(records(good)) - 1
    call("set", "merge", bad, good, "-o", out)
    assert records(out) == records(good)


def test_sets_differ_in_pipelines_or_in_what_an_application_enabled(call: Call, tmp_path: Path) -> None:
    first, second, other = (tmp_path / f"{name}.foz" for name in ("first", "second", "other"))
    write_small_set(first, 0, 12)
    write_small_set(second, 8, 16)
    assert call("set", "diff", first, first).code == 0
    done = call("set", "diff", first, second, "--json")
    assert done.code == 1
    assert {"name": "compute", "only_first": 8, "both": 4, "only_second": 4} in done.document["kinds"]
    assert len(done.document["only_second"]) == 4
    write_applications(first)
    write_applications(other, [TWO_APPLICATIONS[0], {"name": "two", "robust_buffer_access": False}])
    done = call("set", "diff", first, other, "--json")
    assert done.code == 1
    assert done.document["only_first"] == done.document["only_second"] == []
    sides, found = ("only_first", "both", "only_second"), done.document["applications"]
    counts = [[each[side] for side in sides] for each in found]
    assert counts == [[0, 2, 0], [2, 0, 0], [0, 0, 2]]


def test_a_sample_is_the_same_each_time_fits_and_needs_nothing_else(
    call: Call, small_set: Path, compiled_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.foz"
    whole = call("set", "sample", small_set, "--max-size", "1M", "-o", out, "--json").document
    assert (whole["pipelines"], whole["cost_share"]) == (whole["of_pipelines"], 1)
    most = whole["bytes"] * 3 // 4
    given = ("set", "sample", small_set, "--max-size", str(most), "-o", out, "--json")
    plain, by_cost = call(*given), call(*given, "--by-cost", "--cache-dir", compiled_folder)
    assert plain.document["times_of"] is None
    assert plain.document["pipelines"] / plain.document["of_pipelines"] == plain.document["cost_share"]
    assert by_cost.document["times_of"] in {each.name for each in compiled_folder.iterdir()}
    assert by_cost.document["timed"] == by_cost.document["of_pipelines"] > by_cost.document["pipelines"]
    assert by_cost.document["bytes"] == out.stat().st_size <= most
    content = out.read_bytes()
    call(*given, "--by-cost", "--cache-dir", compiled_folder)
    assert out.read_bytes() == content
    done = call("compile", out, "-d", "simulated", "--in-process", "--mode", "none", "--json")
    assert done.document["outcomes"]["compiled"] == by_cost.document["pipelines"] > 0


def test_a_list_of_what_was_bound_chooses_pipelines(call: Call, tmp_path: Path) -> None:
    with Archive.open(sample_path()) as archive:
        names = [(tag, key) for tag in KIND_OF_TAG for key in archive.keys(tag)][::7]
    bound = write_list(tmp_path / "bound.foz", [*names, (RecordTag.COMPUTE_PIPELINE, 7)])
    out, keys = tmp_path / "out.foz", {key for _, key in names}
    assert call("extract", "sample", "--used", bound, "-o", out).code == 0
    with PipelineSet.open(out) as opened:
        assert keys <= {each.key for each in opened.pipelines}
        used_alone = len(opened)
    done = call("compile", "sample", "--used", bound, "-d", "simulated", "--mode", "none", "--json")
    assert sum(done.document["outcomes"].values()) == len(keys)
    size = str(out.stat().st_size)
    assert call("set", "sample", "sample", "--used", bound, "--max-size", size, "-o", out).code == 0
    with PipelineSet.open(out) as opened:
        assert keys <= {each.key for each in opened.pipelines}
        assert len(opened) == used_alone
    done = call("set", "extract", "sample", "--used", write_list(bound, names[:0]), "-o", out)
    assert done.code == 2
    assert "names no pipeline" in done.err


def test_an_option_of_another_action_is_refused(call: Call, small_set: Path, tmp_path: Path) -> None:
    done = call("set", "merge", small_set, "--only", "1", "-o", tmp_path / "out.foz")
    assert done.code == 2
    assert "set merge does not take --only" in done.err


def tool(name: str) -> str:
    found = shutil.which(name, path=os.environ.get(TOOLS))
    if found is None:
        unsupported(f"{name} is not on the PATH, and {TOOLS} names no folder that has it")
    return found


def listed(path: Path) -> dict[tuple[RecordTag, int], None]:
    """The records of an archive, as Fossilize sees them."""
    program = tool("fossilize-list")
    found: dict[tuple[RecordTag, int], None] = {}
    for tag in RecordTag:
        done = subprocess.run(
            [program, path, "--tag", str(int(tag))], capture_output=True, text=True, check=True, timeout=60
        )
        found |= {(tag, int(line, 16)): None for line in done.stdout.split()}
    return found


@pytest.mark.driver
def test_fossilize_lists_and_compiles_the_same(call: Call, tmp_path: Path) -> None:
    paths = {each.name: each.path for each in CORPORA if each.name in ("wgpu", "supertuxkart")}
    merged, out = tmp_path / "merged.foz", tmp_path / "out.foz"
    assert call("set", "merge", *paths.values(), "-o", merged).code == 0
    assert listed(merged).keys() == {name for path in paths.values() for name in listed(path)}
    done = call(
        "set", "sample", merged, "--max-size", "100K", "--by-cost", "--cache-dir", tmp_path, "-o", out
    )
    assert done.code == 0
    assert listed(out).keys() == records(out).keys()
    replayed = subprocess.run(
        [tool("fossilize-replay"), out, "--num-threads", "2"],
        env=driver_environment("radv:navi21"),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    counts = re.findall(r"INFO: +(graphics|compute) pipelines: +(\d+)", replayed.stdout + replayed.stderr)
    ours = call("compile", out, "-d", "radv:navi21", "--mode", "none", "--json").document
    for kind, count in counts:
        assert int(count) == ours["outcomes_by_kind"][kind]["compiled"]
