"""What docs/cache-file.md says: its table is the header that is written, and its code compiles and runs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.devices.simulated import SimulatedDevice, simulated_image
from orchestrator.stores.cache_file import PipelineCachePrefixHeader
from tests.drivers import REPOSITORY, require_header, require_tool
from tests.hosts.run_host import COMPILER_FLAGS, strip_prefix_header

PAGE = (REPOSITORY / "docs" / "cache-file.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"```(\w+ example=\w+)\n(.*?)```", PAGE, re.DOTALL))
ROWS = [
    (int(offset), int(size), name)
    for offset, size, name in re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", PAGE, re.MULTILINE)
]


def function(name: str) -> Callable[..., Any]:
    scope: dict[str, Any] = {}
    exec(EXAMPLES["python example=check"], scope)
    found: Callable[..., Any] = scope[name]
    return found


@pytest.fixture
def payload() -> bytes:
    """What the simulated driver saves of 20 pipelines."""
    device = SimulatedDevice()
    prepared = device.prepare(simulated_image(range(20)))
    cache = device.create_pipeline_cache()
    device.create_pipelines(prepared, np.arange(20, dtype=np.int32), cache)
    data = device.pipeline_cache_data(cache).data
    device.destroy_pipeline_cache(cache)
    prepared.close()
    device.close()
    return data


@pytest.fixture
def content(payload: bytes) -> bytes:
    device = SimulatedDevice()
    header = PipelineCachePrefixHeader.describe(device.identity, payload).pack()
    device.close()
    return header + payload


def test_every_block_of_code_is_tried() -> None:
    assert set(EXAMPLES) == {"c example=check", "c example=read", "python example=check"}
    assert PAGE.count("```") == 2 * len(EXAMPLES)


def test_the_table_has_every_byte_of_the_header_and_each_field_where_it_is(content: bytes) -> None:
    end = 0
    for offset, size, _ in ROWS:
        assert offset == end
        end = offset + size
    assert end == 128
    written = PipelineCachePrefixHeader.unpack(content)
    fields = {name: content[offset : offset + size] for offset, size, name in ROWS if name != "reserved"}
    assert len(fields) == 12
    assert fields["magic"].hex(" ") in PAGE
    assert fields["dataHash"] == written.data_hash
    assert fields["pipelineCacheUUID"] == written.pipeline_cache_uuid
    numbers = {
        "formatVersion": 1,
        "headerSize": 128,
        "dataSize": written.data_size,
        "vendorID": written.vendor_id,
        "deviceID": written.device_id,
        "driverVersion": written.driver_version,
        "driverABI": written.driver_abi,
        "driverID": written.driver_id,
    }
    assert {name: int.from_bytes(fields[name], "little") for name in numbers} == numbers
    assert all(not any(content[at : at + size]) for at, size, name in ROWS if name == "reserved")


def test_the_example_in_python_reads_the_driver_s_bytes_and_refuses_what_is_none(
    content: bytes, payload: bytes
) -> None:
    driver_data = function("driver_data")
    assert driver_data(content) == payload == strip_prefix_header(content)
    with pytest.raises(ValueError, match="cut off"):
        driver_data(content[:-1])
    with pytest.raises(ValueError, match="format version"):
        driver_data(payload + bytes(128))


def test_the_example_in_python_tells_hits_from_misses(content: bytes) -> None:
    device = SimulatedDevice()
    prepared = device.prepare(simulated_image(range(30)))
    data = function("driver_data")(content)
    assert function("misses")(device, prepared, data) == list(range(20, 30))
    assert function("misses")(device, prepared, b"") == list(range(30))
    prepared.close()
    device.close()


def test_the_examples_in_c_compile(tmp_path: Path) -> None:
    require_header("vulkan/vulkan.h", "libvulkan-dev")
    sources = [tmp_path / "check.c", tmp_path / "read.c"]
    for source in sources:
        source.write_text(EXAMPLES[f"c example={source.stem}"], "utf-8")
    command = [require_tool("gcc"), *COMPILER_FLAGS, "-I", str(REPOSITORY / "docs" / "examples"), "-c"]
    done = subprocess.run([*command, *map(str, sources)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
