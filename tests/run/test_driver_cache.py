"""A filled driver cache serves an application that passes no VkPipelineCache (tests/hosts/host.c)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.drivers import driver_environment, require_header, require_tool
from tests.hosts.run_host import Host, device_name, quiet_environment, recorded_application

RADV = "radv:navi31"


def test_an_application_without_a_cache_compiles_nothing(tmp_path: Path) -> None:
    environment = quiet_environment(driver_environment(RADV))
    del environment["MESA_SHADER_CACHE_DISABLE"]
    environment["MESA_SHADER_CACHE_DIR"] = str(tmp_path / "own")
    folder = tmp_path / "filled"

    def orchestrator(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "orchestrator", *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    def compiled(*more: str) -> dict[str, int]:
        done = orchestrator("compile", "sample", "-d", RADV, "--driver-cache", str(folder), "--json", *more)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout)["outcomes"])

    require_header("vulkan/vulkan.h", "libvulkan-dev")
    host = Host.build(tmp_path, require_tool("gcc"))
    application = host.application(recorded_application("sample"))
    without = host.run(application, environment, device=device_name(RADV), forbid=True)
    assert (without.exit_code, without.compiled & without.hits) == (1, frozenset())
    assert len(without.misses) > 15

    counts = compiled()
    assert counts["compiled"] > 15
    proven = compiled("--expect-hits")
    assert (proven["compiled"], proven["cache_hits"]) == (0, counts["compiled"])

    shown = orchestrator("run", str(folder), "-d", RADV, "--json")
    variables = json.loads(shown.stdout)["variables"]
    found = host.run(application, environment | variables, device=device_name(RADV), forbid=True)
    assert (found.exit_code, found.misses, found.tried) == (0, frozenset(), without.tried)

    program = (
        sys.executable,
        "-c",
        "import os; exit(len(os.environ['MESA_DISK_CACHE_READ_ONLY_FOZ_DBS']) > 9)",
    )
    assert orchestrator("run", str(folder), "-d", RADV, "--", *program).returncode == 1
    none = orchestrator("run", str(folder), "-d", RADV, "--", str(tmp_path / "nope"))
    assert (none.returncode, "cannot be started: No such file" in none.stderr) == (2, True)
    other = orchestrator("run", str(folder), "-d", "radv:navi21", "--", *program)
    assert other.returncode == 2
    assert "no driver cache for Null hardware (RADV NAVI21)" in other.stderr


def test_a_driver_that_writes_no_cache_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "orchestrator", "compile", "sample", "-d", "simulated"]
    done = subprocess.run(
        [*command, "--driver-cache", str(tmp_path / "filled")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 3
    assert "only Mesa's drivers are known to" in done.stderr
