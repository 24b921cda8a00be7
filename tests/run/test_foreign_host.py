"""What `compile` makes hits in an application that shares nothing with us, and the other way round.

The application is tests/hosts/host.c: its own instance, device, layouts and create infos, and of a cache file
the driver's bytes only, without our header. Every process here has the driver's own caches off.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.drivers import driver_environment, require_header, require_tool
from tests.hosts.run_host import (
    Application,
    Host,
    HostRun,
    cache_file,
    compile_sets,
    compiled,
    device_name,
    quiet_environment,
    recorded_application,
    sample_statuses,
    strip_prefix_header,
    with_prefix_header,
    write_private,
)

each_radv = pytest.mark.parametrize("radv", ["radv:navi21", "radv:navi31"])
"""Runs a test once a family; every test takes ``radv: str``, and opens no device in its own process."""

one_radv = pytest.mark.parametrize("radv", ["radv:navi31"])
"""As `each_radv`, on one family: for what the others cannot show otherwise."""

Opened = Callable[..., HostRun]


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    compiler = require_tool("gcc")
    require_header("vulkan/vulkan.h", "libvulkan-dev")
    return Host.build(tmp_path_factory.mktemp("host"), compiler)


@pytest.fixture
def environment(radv: str) -> dict[str, str]:
    """The environment of every process of a test: one driver only."""
    return quiet_environment(driver_environment(radv))


@pytest.fixture
def application(host: Host) -> Application:
    return host.application(recorded_application("sample"))


@pytest.fixture
def run(host: Host, environment: dict[str, str], radv: str) -> Opened:
    """The host on the device under test: application, file to load or save, whether to forbid compiling."""
    return partial(host.run, environment=environment, device=device_name(radv))


@pytest.fixture(scope="session")
def sample_cache_files() -> dict[str, tuple[str, bytes]]:
    """Name and content of the cache file of the sample, by device: compiled once for all tests."""
    return {}


@pytest.fixture
def sample_cache_file(
    radv: str,
    environment: dict[str, str],
    tmp_path: Path,
    sample_cache_files: dict[str, tuple[str, bytes]],
) -> tuple[str, bytes]:
    """Name and content of the cache file that `compile` makes of the sample."""
    if radv not in sample_cache_files:
        path = cache_file(compile_sets(["sample"], radv, tmp_path / "sample", environment))
        sample_cache_files[radv] = (path.name, path.read_bytes())
    return sample_cache_files[radv]


@pytest.fixture
def sample_payload(sample_cache_file: tuple[str, bytes], tmp_path: Path) -> Path:
    """A file with the driver's bytes of the sample's cache file, and nothing of ours."""
    payload = tmp_path / "sample.bin"
    payload.write_bytes(strip_prefix_header(sample_cache_file[1]))
    return payload


def assert_all_hit(run: Opened, application: Application, payload: Path) -> None:
    """Every pipeline of the host is found: by creation feedback, and where compiling is forbidden."""
    by_feedback, forbidden = run(application, load=payload), run(application, load=payload, forbid=True)
    assert by_feedback.skipped == frozenset()
    assert sorted(by_feedback.misses) == []
    assert sorted(forbidden.misses) == []
    assert by_feedback.hits == forbidden.hits
    assert (by_feedback.exit_code, forbidden.exit_code) == (0, 0)


@one_radv
def test_the_host_finds_its_own_cache_and_no_other(
    run: Opened, application: Application, tmp_path: Path
) -> None:
    payload = tmp_path / "own.bin"
    saved = run(application, save=payload)
    assert saved.exit_code == 0
    assert saved.tried
    assert_all_hit(run, application, payload)
    empty = tmp_path / "empty.bin"
    empty.write_bytes(payload.read_bytes()[:32])
    assert run(application, load=empty, forbid=True).hits == frozenset()


@each_radv
def test_what_compile_makes_hits_in_the_application(
    run: Opened, application: Application, sample_payload: Path
) -> None:
    assert_all_hit(run, application, sample_payload)


@one_radv
def test_what_the_application_makes_hits_in_compile(
    run: Opened,
    application: Application,
    sample_cache_file: tuple[str, bytes],
    radv: str,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """The host's bytes go behind a header that our own writer makes; that header is not what is proven here.

    Of pipelines that are equal to the driver, one is compiled from an empty cache and the others hit. So
    exactly as many fewer are compiled as the host compiled, and none of the host's is. What only links
    libraries is left out of that count: nothing is compiled for it, and it is a hit where its libraries are.
    """
    name, like = sample_cache_file
    payload, folder = tmp_path / "saved.bin", tmp_path / "cache"
    saved = run(application, save=payload)
    assert (saved.exit_code, saved.skipped) == (0, frozenset())
    folder.mkdir(mode=0o700)
    write_private(folder / name, with_prefix_header(payload.read_bytes(), like))
    empty = sample_statuses(radv, tmp_path / "empty", environment)
    found = sample_statuses(radv, folder, environment)
    assert set(found) == set(empty)
    assert sorted(each for each in saved.tried if found[each] != "cache_hit") == []
    assert len(saved.compiled) > 15
    assert compiled(found) < compiled(empty)
    assert len(compiled(empty)) - len(compiled(found)) == len(saved.compiled)
