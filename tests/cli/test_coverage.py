"""The verb `coverage`: by the notes of a pack, and proven by looking everything up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.errors import ExitCode
from tests.cli.conftest import Call
from tests.run.small_sets import TWO_APPLICATIONS, write_applications, write_small_set


def covered(call: Call, *arguments: object, code: int) -> dict[str, Any]:
    done = call("coverage", *arguments, "--json")
    assert done.code == code
    (target,) = done.document["targets"]
    return dict(target)


def test_what_a_new_build_of_a_game_adds(
    call: Call, small_set: Path, small_pack: Path, tmp_path: Path
) -> None:
    pack, new = small_pack, tmp_path / "new.foz"
    added = {f"{each:016x}" for each in write_small_set(new, 0, 18)[16:]}
    assert covered(call, small_set, pack, code=ExitCode.OK)["held"] == 16
    page = tmp_path / "page.html"
    noted = covered(call, new, pack, "--page", page, code=ExitCode.PIPELINES_FAILED)
    assert set(re.findall("[0-9a-f]{16}", page.read_text("utf-8"))) == added
    proven = covered(call, new, pack, "--run", code=ExitCode.PIPELINES_FAILED)
    assert (noted.pop("proven"), proven.pop("proven")) == (False, True)
    assert noted == proven
    assert set(proven["missing"]) == added
    assert (proven["held"], proven["timed"]) == (16, 0)
    assert proven["missing_s"] > 0, "they count as the mean of what was compiled"
    shown = call("coverage", new, pack)
    assert f"missing: simulated: {min(added)}, {max(added)}" in shown.out
    assert call("compile", new, "-d", "simulated", "--out", pack).code == ExitCode.OK
    assert covered(call, new, pack, "--run", code=ExitCode.OK)["missing"] == []
    assert call("verify", pack, "--complete").code == ExitCode.OK


def test_a_target_that_is_not_here_is_judged_by_its_notes(
    call: Call, small_set: Path, small_pack: Path
) -> None:
    manifest = small_pack / "manifest.json"
    manifest.write_text(re.sub(r'("selector": ?)"simulated"', r'\1"gone"', manifest.read_text("utf-8")))
    target = covered(call, small_set, small_pack, "--run", code=ExitCode.OK)
    assert (target["held"], target["proven"]) == (16, False)
    assert "gone" in target["problem"]


def test_the_pipelines_of_another_application_are_missing(call: Call, tmp_path: Path) -> None:
    pack, path, other = tmp_path / "pack", tmp_path / "set.foz", tmp_path / "other.foz"
    one, two = TWO_APPLICATIONS
    write_applications(path, [one])
    write_applications(other, [two])
    assert call("compile", path, "-d", "simulated", "--out", pack).code == ExitCode.OK
    assert covered(call, path, pack, code=ExitCode.OK)["held"] == 2
    target = covered(call, other, pack, code=ExitCode.PIPELINES_FAILED)
    assert (target["held"], len(target["missing"])) == (0, 2)
    assert "compiled for another version of the application" in target["problem"]


@pytest.mark.driver("radv:navi21")
def test_half_a_set_on_a_real_driver(call: Call, tmp_path: Path) -> None:
    pack, part = tmp_path / "pack", tmp_path / "part.foz"
    write_small_set(part, 0, 24)
    options = ("-d", "radv:navi21", "--out", pack)
    assert call("compile", part, *options, "--shard", "1/2").code == ExitCode.OK
    noted = covered(call, part, pack, code=ExitCode.PIPELINES_FAILED)
    proven = covered(call, part, pack, "--run", code=ExitCode.PIPELINES_FAILED)
    # The driver finds some by what it has of others: their keys are its own.
    assert set(proven["missing"]) <= set(noted["missing"])
    assert 0 < noted["held"] <= proven["held"] < proven["pipelines"]
