"""The code in docs/embedding.md and docs/library.md runs, and does what the pages say."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import orchestrator
from orchestrator import OrchestratorError, Progress, Session, session
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport, OutcomeStatus
from orchestrator.sets.sample import sample_manifest_path
from tests.drivers import REPOSITORY, run_on_device
from tests.hosts.python_host import HostSettings, PythonHost
from tests.run.small_sets import BLUR, write_small_set

PAGES = [REPOSITORY / "docs" / name for name in ("embedding.md", "library.md")]
EXAMPLES = {
    name: code
    for page in PAGES
    for name, code in re.findall(r"```python example=(\w+)\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
}
CORE = "VkPhysicalDeviceFeatures"


def example(name: str, defined: str) -> Callable[..., Any]:
    """A function or class that an example defines."""
    scope: dict[str, Any] = {"__name__": name}
    exec(compile(EXAMPLES[name], name, "exec", dont_inherit=True), scope)
    found: Callable[..., Any] = scope[defined]
    return found


def test_every_example_is_run_and_short() -> None:
    run = re.findall(r'example\("(\w+)"', Path(__file__).read_text("utf-8"))
    assert set(EXAMPLES) == set(run)
    assert {name: code.count("\n") for name, code in EXAMPLES.items() if code.count("\n") > 40} == {}


HOSTS: dict[str, Callable[..., CompileReport]] = {
    "loop": lambda *given: example("loop", "loading_screen")(*given),
    "asyncio": lambda *given: asyncio.run(example("asyncio", "loading_screen")(*given)),
    "trio": lambda *given: trio.run(example("trio", "loading_screen"), *given),
}


@pytest.mark.parametrize("host", HOSTS)
def test_a_loading_screen(host: str, tmp_path: Path) -> None:
    drawn: list[Progress] = []
    given = str(sample_manifest_path()), "simulated", str(tmp_path), drawn.append
    report = HOSTS[host](*given)
    assert report.counts()[OutcomeStatus.COMPILED] == report.set.unique
    assert report.cache_file.saved_bytes > 0
    shares = [each.share for each in drawn]
    assert shares == sorted(shares)


@pytest.mark.driver("radv:navi21")
def test_a_device_of_ones_own(tmp_path: Path) -> None:
    settings = HostSettings(device_extensions=("VK_KHR_swapchain",), features={CORE: ("tessellationShader",)})
    with PythonHost(settings) as host:
        said = host.arguments
        named = {name: said[name] for name in ("instance", "physical_device", "device", "api_version")}
        enabled = {"extensions": said["enabled_extensions"], "features": said["enabled_features"]}
        mine = example("adopted", "Mine")(**named, **enabled)
        pipelines, lacking = example("adopted", "load")("sample", mine, str(tmp_path))
    geometry = "SPIR-V capability Geometry (2): needs VkPhysicalDeviceFeatures::geometryShader"
    assert geometry in lacking.values()
    assert len(pipelines) > 50
    assert list(tmp_path.glob("*.pipeline-cache"))


def test_levels() -> None:
    builder = example("levels", "describe")(BLUR.read_bytes())
    with session(builder, "simulated", queue=False, options=CompileOptions(mode="none")) as loading:
        loading.allow(0)
        assert example("levels", "enter_castle")(_released(loading), loading.submit("forest")) == []
        assert set(loading.take()) >= set(builder.names["castle"])  # and what of the forest had begun


def _released(loading: Session) -> Session:
    loading.ready.add_done_callback(lambda _: loading.allow(None))
    while not loading.ready.done():
        time.sleep(0.001)
    return loading


def test_a_night(tmp_path: Path) -> None:
    archive = tmp_path / "set.foz"
    write_small_set(archive, 0, 4)
    failed = example("precompile", "overnight")([str(archive)], ["simulated", "navi99"], str(tmp_path))
    assert [each for each in failed if "navi99" not in each] == []
    assert len(failed) == 1


def test_a_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = example("notebook", "slowest")("sample", "simulated", str(tmp_path))
    assert capsys.readouterr().out.count(" ms\n") == 3
    assert "<td>71</td>" in report._repr_html_()  # as many compute pipelines were compiled
    (tmp_path / "pandas.py").write_text("DataFrame = dict\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(report.frame()["status"]) == {"compiled"}


def test_several_at_once(tmp_path: Path) -> None:
    trio.run(example("several", "for_all"), "sample", ["simulated"], str(tmp_path))
    assert list(tmp_path.glob("*.pipeline-cache"))


_DEVICES = """
def main(code):
    scope = {}
    exec(code, scope)
    device = scope["device_to_draw_with"]("radv:navi21")
    assert device.handles.device
    device.close()
    return scope["run_for"]("radv:navi21", ["true"])
"""


@pytest.mark.driver("radv:navi21")
def test_a_device_to_draw_with() -> None:
    assert run_on_device(None, _DEVICES, EXAMPLES["devices"]) == 0
    example("devices", "run_for")


def all_errors(of: type = OrchestratorError) -> set[type]:
    return {of}.union(*map(all_errors, of.__subclasses__()))


def test_every_error_has_an_answer() -> None:
    what_to_do = example("errors", "what_to_do")
    kinds = {getattr(orchestrator, name) for name in orchestrator.__all__} & all_errors()
    answers = {what_to_do(each.__new__(each)) for each in kinds - {OrchestratorError}}
    assert len(answers) == len(kinds) - 2  # two are of a set
    assert what_to_do(OrchestratorError("odd")) == "report it: odd"
