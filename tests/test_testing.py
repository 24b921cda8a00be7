"""What users test with: the code in docs/testing.md runs, and does what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import orchestrator.testing
from orchestrator import LoadStatus, OutcomeStatus
from orchestrator.devices.request import ApplicationInfo, DeviceRequest
from orchestrator.testing import (
    FAILURES,
    CpuClock,
    DriverBugs,
    SimulatedDevice,
    SimulatedOptions,
    simulated_identity,
    simulated_opener,
)
from tests.drivers import REPOSITORY, run_on_device
from tests.run.small_sets import BLUR
from tests.stores.samples import driver_data

PAGE = (REPOSITORY / "docs" / "testing.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"```python example=(\w+)\n(.*?)```", PAGE, re.DOTALL))


def example(name: str, function: str) -> Callable[..., Any]:
    """A function that an example defines."""
    scope: dict[str, Any] = {}
    exec(EXAMPLES[name], scope)
    found: Callable[..., Any] = scope[function]
    return found


def test_every_example_is_run() -> None:
    assert set(EXAMPLES) == {"compile", "hang", "bugs", "files"}
    assert PAGE.count("```python") == len(EXAMPLES)


def test_names_of_the_page_are_there() -> None:
    imported = {
        name.strip()
        for names in re.findall(r"from orchestrator\.testing import ([^\n]+)", PAGE)
        for name in names.split(",")
    }
    assert imported <= set(dir(orchestrator.testing))
    options = re.findall(r"^\| `(\w+)(?:`|=)", PAGE, re.MULTILINE)
    assert set(options) <= {each.name for each in SimulatedOptions.__attrs_attrs__}


def test_the_first_example_is_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES["compile"]],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "OutcomeStatus.NOT_RUN: 'not_run'>: 0" in done.stdout
    assert "1 compiles of a pipeline at most" in done.stdout


def test_a_driver_that_misbehaves(tmp_path: Path) -> None:
    found = example("bugs", "statuses")(tmp_path / "cache")
    assert found == [LoadStatus.DROPPED_BY_DRIVER, LoadStatus.LOADED]


def test_a_driver_that_hangs(tmp_path: Path) -> None:
    counts = example("hang", "what_became_of_all")(BLUR.read_bytes(), str(tmp_path))
    assert counts[OutcomeStatus.COMPILED] == 10


@pytest.mark.parametrize(
    ("bugs", "words"), [({"crash": 3}, "such as {3, 7}, not as 3"), ({"hang": "abc"}, "not as 'abc'")]
)
def test_keys_that_cannot_be_meant_are_named(bugs: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        DriverBugs(**bugs)


def test_a_file_system_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    identity = simulated_identity()
    before, after = (driver_data(identity, payload) for payload in (b"before" * 50, b"after" * 50))
    cases = example("files", "saves_survive")(tmp_path / "cache" / "file", SimulatedDevice(), before, after)
    assert cases >= 10 * len(FAILURES)
    assert "the file system is full" in capsys.readouterr().out


def test_an_opener_gives_each_group_its_device() -> None:
    devices: list[SimulatedDevice] = []
    opener = simulated_opener(SimulatedOptions(clock=CpuClock()), devices.append)
    requests = [DeviceRequest(ApplicationInfo(name)) for name in ("game", "tool")]
    opened = [opener(each) for each in requests]
    assert opened == devices
    assert len({id(each) for each in devices}) == 2
    for device in devices:
        device.close()


def test_it_loads_no_binding() -> None:
    source = "import sys\ndef main():\n    import orchestrator.testing\n    return sorted(sys.modules)\n"
    loaded = set(run_on_device(None, source))
    assert "orchestrator.testing" in loaded
    assert loaded.isdisjoint({"cffi", "_cffi_backend", "orchestrator.devices.vulkan", "trio"})
