"""docs/capturing.md, for real: a program that is not ours, recorded under Xvfb, and compiled here.

No package has the layer, so a machine names its folder in ORCHESTRATOR_FOSSILIZE_LAYER,
or the test is skipped.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import run_program
from tests.drivers import driver_environment, driver_manifest, require_tool, unsupported


@pytest.mark.driver
def test_a_program_is_captured_and_compiles_elsewhere(tmp_path: Path) -> None:
    layer = os.environ.get("ORCHESTRATOR_FOSSILIZE_LAYER")
    if not layer:
        unsupported("ORCHESTRATOR_FOSSILIZE_LAYER does not name the folder of VkLayer_fossilize.json")
    driver_manifest("radv:navi21")
    environment = driver_environment("lavapipe") | {
        "FOSSILIZE": "1",
        "FOSSILIZE_DUMP_PATH": str(tmp_path / "cube"),
        "VK_LAYER_PATH": layer,
        "VK_INSTANCE_LAYERS": "VK_LAYER_fossilize",
    }
    for _ in range(2):
        command = [require_tool("xvfb-run"), "-a", require_tool("vkcube"), "--c", "5"]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    captures = sorted(tmp_path.glob("cube.*.foz"))
    assert captures
    listed = run_program("list", *captures, "--json").document
    assert listed["set"]["pipelines"] == {"graphics": 1, "compute": 0, "ray_tracing": 0}
    assert listed["applications"][0]["name"] == "vkcube"
    assert listed["damage"] == []
    done = run_program("compile", *captures, "-d", "radv:navi21", "--cache-dir", tmp_path / "cache", "--json")
    assert done.code == 0, done.err
    assert done.document["outcomes"]["compiled"] == 1
