"""What a cache file was made for is noted beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.devices.request import ApplicationInfo, DeviceRequest, OtherFeatures
from orchestrator.stores.kinds import FEATURE_GROUPS
from orchestrator.stores.run_notes import (
    MOST_GROUPS,
    MadeFor,
    add_feature_groups,
    read_feature_groups,
)

GAME = DeviceRequest(
    ApplicationInfo("game", 1, "engine", 2, 1 << 22 | 3 << 12),
    frozenset({("VkPhysicalDeviceFeatures", "robustBufferAccess")}),
    frozenset({"VK_KHR_swapchain"}),
    OtherFeatures.NONE,
)
TOOL = DeviceRequest(ApplicationInfo("tool"))


@pytest.fixture
def cache_file(fast_path: Path) -> Path:
    return fast_path / "device.pipeline-cache"


def test_what_is_noted_is_read_back(cache_file: Path) -> None:
    assert read_feature_groups(cache_file) == ((), "")
    add_feature_groups(cache_file, [MadeFor(GAME, 3)])
    add_feature_groups(cache_file, [MadeFor(TOOL, 1)])
    assert read_feature_groups(cache_file) == ((MadeFor(GAME, 3), MadeFor(TOOL, 1)), "")
    assert FEATURE_GROUPS.path(cache_file).name == "device.groups"


def test_of_equal_requests_the_newest_counts(cache_file: Path) -> None:
    add_feature_groups(cache_file, [MadeFor(GAME, 3), MadeFor(TOOL, 1)])
    add_feature_groups(cache_file, [MadeFor(GAME, 5)])
    assert read_feature_groups(cache_file)[0] == (MadeFor(TOOL, 1), MadeFor(GAME, 5))


def test_a_file_that_is_begun_again_forgets(cache_file: Path) -> None:
    add_feature_groups(cache_file, [MadeFor(GAME, 3)])
    add_feature_groups(cache_file, [MadeFor(TOOL, 1)], anew=True)
    assert read_feature_groups(cache_file)[0] == (MadeFor(TOOL, 1),)


def test_the_newest_are_kept(cache_file: Path) -> None:
    many = [MadeFor(DeviceRequest(ApplicationInfo(str(each))), each) for each in range(MOST_GROUPS + 7)]
    add_feature_groups(cache_file, many)
    noted, _ = read_feature_groups(cache_file)
    assert noted == tuple(many[7:])


@pytest.mark.parametrize(
    "content",
    [
        b'{"format":1}',
        b'{"format":2,"groups":[]}',
        b'{"format":1,"groups":[{"pipelines":-' + b"9" * 99,
    ],
)
def test_what_is_damaged_says_so_and_is_replaced(cache_file: Path, content: bytes) -> None:
    FEATURE_GROUPS.path(cache_file).write_bytes(content)
    noted, problem = read_feature_groups(cache_file)
    assert noted == ()
    assert str(FEATURE_GROUPS.path(cache_file)) in problem
    assert add_feature_groups(cache_file, [MadeFor(GAME, 3)]) == problem
    assert read_feature_groups(cache_file) == ((MadeFor(GAME, 3),), "")
    assert add_feature_groups(cache_file, [MadeFor(TOOL, 1)]) == ""


def test_two_processes_lose_nothing_of_each_other(cache_file: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from orchestrator.devices.request import ApplicationInfo, DeviceRequest\n"
        "from orchestrator.stores.run_notes import MadeFor, add_feature_groups\n"
        "for number in range(40):\n"
        "    request = DeviceRequest(ApplicationInfo(f'{sys.argv[2]} {number}'))\n"
        "    add_feature_groups(Path(sys.argv[1]), [MadeFor(request, number)])\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(cache_file), name]) for name in ("one", "two")
    ]
    assert [each.wait() for each in writers] == [0, 0]
    names = {each.request.application.application_name for each in read_feature_groups(cache_file)[0]}
    assert names == {f"{name} {number}" for name in ("one", "two") for number in range(40)}


def test_what_is_noted_already_is_not_written_again(cache_file: Path) -> None:
    add_feature_groups(cache_file, [MadeFor(GAME, 3), MadeFor(TOOL, 1)])
    before = FEATURE_GROUPS.path(cache_file).stat().st_ino
    add_feature_groups(cache_file, [MadeFor(GAME, 3)])
    assert FEATURE_GROUPS.path(cache_file).stat().st_ino == before
    add_feature_groups(cache_file, [MadeFor(GAME, 4)])
    assert FEATURE_GROUPS.path(cache_file).stat().st_ino != before
