"""What the store keeps is what a program captures that shares nothing with us, and that program can use it.

The host (tests/hosts/binary_host.c) opens its own device and writes its own create
info. Ours comes from a set.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.devices.binary_data import PipelineBinary
from orchestrator.devices.modes import CacheMode
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.archive.writer import ArchiveWriter, copy_records
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.stores.binary_store import BinaryStore
from tests.contract.subject import empty_compute_shader
from tests.drivers import REPOSITORY, driver_environment, require_header, require_tool, run_on_device
from tests.run.test_captured_sets import compiled

FLAGS = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror")
GROUP_SIZE = 37


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = require_tool("gcc")
    require_header("vulkan/vulkan.h", "libvulkan-dev")
    program = tmp_path_factory.mktemp("host") / "binary_host"
    source = REPOSITORY / "tests" / "hosts" / "binary_host.c"
    subprocess.run([compiler, *FLAGS, str(source), "-o", str(program), "-lvulkan"], check=True)
    return program


def call(host: Path, selector: str, *arguments: str | Path) -> dict[str, str]:
    """Run the host; what it prints, by its first word."""
    done = subprocess.run(
        [str(host), *map(str, arguments)],
        env=driver_environment(selector),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def write_binaries(path: Path, binaries: Sequence[PipelineBinary]) -> None:
    parts = [struct.pack("<I", len(binaries))]
    for each in binaries:
        parts += [struct.pack("<I32sQ", len(each.key), each.key, len(each.data)), bytes(each.data)]
    path.write_bytes(b"".join(parts))


def compile_here(path: str, selector: str, folder: str) -> int:
    """For a process of its own: fill the store of a folder."""
    report = compiled(Path(path), selector, Path(folder), CacheMode.BINARIES)
    assert report.binaries is not None
    return report.binaries.stored


@pytest.mark.parametrize("selector", ["radv:navi21", "radv:navi31"])
def test_a_host_in_c_captures_the_same_and_creates_from_ours(
    host: Path, tmp_path: Path, selector: str
) -> None:
    code = empty_compute_shader(GROUP_SIZE)
    records = MemoryRecords("host")
    builder = PipelineSetBuilder(records)
    builder.application(name="binary host", api_version="1.3")
    builder.compute_pipeline("auto", builder.shader_module(code))
    archive = tmp_path / "set.foz"
    with ArchiveWriter(archive) as writer:
        copy_records(records, writer)
    (tmp_path / "shader.spv").write_bytes(code)

    theirs = call(host, selector, "capture", tmp_path / "shader.spv", tmp_path / "captured")
    assert (
        run_on_device(selector, f"{__name__}:compile_here", str(archive), selector, str(tmp_path / "cache"))
        == 1
    )
    with BinaryStore.open(tmp_path / "cache") as store:
        (generation,) = store.statistics().generations
        (ours,) = [
            (each.driver_key, [PipelineBinary(one.key, bytes(one.data)) for one in each.binaries])
            for each in store.pipelines(generation.about)
        ]
    # The same global key: what our device has enabled beside the host's changes nothing to the driver.
    assert generation.about.global_key.hex() == theirs["global"]
    assert ours[0].hex() == theirs["pipeline"]
    write_binaries(tmp_path / "ours", ours[1])
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "captured").read_bytes()
    assert call(host, selector, "create", tmp_path / "ours")["created"] == "yes"
