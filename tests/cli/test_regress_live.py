"""Two drivers, compiled by `regress`: the null case, planted truths, another Mesa, crashes on one side."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.devices.selectors import environment_of
from orchestrator.devices.vulkan.manifests import driver_library
from orchestrator.regress.comparison import compare_results
from orchestrator.regress.results import read_results
from tests.campaigns import IS_WHOLE
from tests.cli.conftest import Call
from tests.drivers import CORPORA, missing
from tests.regress.support import computed, recomputed

DEVICE = "radv:navi21"
pytestmark = pytest.mark.driver
Regress = Callable[..., dict[str, Any]]


@pytest.fixture
def regress(call: Call) -> Regress:
    """Run the verb; gives the one comparison of its document."""

    def run(*arguments: object, code: int = 0) -> dict[str, Any]:
        done = call("regress", *map(str, arguments), "-d", DEVICE, "--json")
        assert done.code == code, done.err
        document: dict[str, Any] = msgspec.json.decode(done.out)
        found: dict[str, Any] = document["comparisons"][0] if "comparisons" in document else document["error"]
        return found

    return run


def corpus(name: str) -> Path:
    """A captured set."""
    return next(each for each in CORPORA if each.name == name).path


@pytest.fixture(scope="module")
def library() -> Path:
    """The installed RADV."""
    found = driver_library(environment_of(DEVICE, base={}))
    return found or missing("RADV")


def test_two_copies_of_one_build_are_identical(regress: Regress, library: Path, tmp_path: Path) -> None:
    copy = shutil.copy(library, tmp_path / "radv_copy.so")
    found = regress(
        corpus("vkcube"), "--before", "one=installed", "--after", f"other={copy}", "--fail-on", "any"
    )
    assert found["identical"]
    assert found["total"]["executables"] == 2
    assert found["before"]["build_id"] == found["after"]["build_id"]
    assert (found["before"]["library"], found["after"]["library"]) == (str(library), str(copy))


def test_one_file_twice_is_refused(regress: Regress, call: Call, library: Path) -> None:
    sides = "--before", "one=installed", "--after", f"other={library}"
    assert "are the same: both loaded" in regress(corpus("vkcube"), *sides, code=2)["message"]
    assert call("regress", corpus("vkcube"), *sides, "-d", DEVICE, "--bisect").code == 125


def test_what_is_planted_is_found_and_its_code_shown(regress: Regress, tmp_path: Path) -> None:
    sides = "--before", "plain=installed", "--after", "worse=+ACO_DEBUG=noopt"
    outputs = "-o", tmp_path / "out", "--disasm", tmp_path / "code"
    found = regress(corpus("vkcube"), *sides, *outputs, "--fail-on", "Instrs>+10%", code=1)
    change = next(each for each in found["total"]["changes"] if each["statistic"]["short"] == "Instrs")
    assert (change["better"], change["worse"]) == (0, found["total"]["executables"])
    (shader, _) = sorted({each.stem for each in (tmp_path / "code").iterdir()})
    before, after, difference = (
        (tmp_path / "code" / f"{shader}.{suffix}").read_text() for suffix in ("before", "after", "diff")
    )
    for side in (before, after):
        assert "===== NIR Shader(s) =====" in side
        assert "s_endpgm" in side
    assert before != after
    assert difference.startswith(f"--- {shader}.before\n+++ {shader}.after\n@@")
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count('<div class="sides">') == 2
    assert "NIR Shader" not in page  # the code of the machine alone


def test_another_wave_size_is_found(regress: Regress) -> None:
    sides = "--before", "plain=installed", "--after", "small=+RADV_PERFTEST=pswave32"
    found = regress(corpus("vkcube"), *sides)
    assert found["wave_size_changed"] == 1  # the fragment shader


def test_a_shader_over_the_time_limit_is_lost(regress: Regress, call: Call, tmp_path: Path) -> None:
    one = tmp_path / "one.foz"
    key = "1ab86eac67314d61"  # takes seconds
    assert call("extract", corpus("slow"), "--only", key, "-o", one).code == 0
    sides = "--before", "plain=installed", "--after", "other=+RADV_DEBUG=nocache"
    (lost,) = regress(one, *sides, "--timeout", "0.2s")["neither"]
    assert lost["status"] == "crashed"
    assert "the driver did not come back from it within 0.2 s" in lost["reason"]


def test_another_build_of_mesa_on_captured_sets(regress: Regress, other_mesa: Path, tmp_path: Path) -> None:
    sides = "--before", "new=installed", "--after", f"old={other_mesa}"
    # One set as any other, one with ray tracing, and one on which the other Mesa crashes.
    few = "supertuxkart", "sascha_rt", "sascha"
    whole = [each.name for each in CORPORA if not (each.crashes or each.slow)]
    sets = list(map(corpus, whole if IS_WHOLE else few))
    found = regress(*sets, *sides, "-o", tmp_path, code=1)
    assert found["before"]["build_id"] != found["after"]["build_id"]
    assert found["after"]["library"].startswith(str(other_mesa))
    crashed = [each for each in found["only_one"] if each["status"] == "crashed"]
    assert {each["side"] for each in crashed} == {"before"}
    assert {each["rule"]: each["broken"] for each in found["rules"]}["crash"]
    results = [read_results(tmp_path / f"{side}.results") for side in ("before", "after")]
    again = compare_results(*results)
    assert computed(again) == recomputed(*results)
    untold = [each for each in found["only_one"] if each["status"] == "untold"]
    # Of ray-tracing pipelines, Mesa 22.3 tells nothing.
    assert {name for each in untold for name, _ in each["pipelines"]} <= {"sascha_rt"}
    assert len(again.by_application) >= len(sets) - 1
