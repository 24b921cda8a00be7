"""What `compile` makes hits in an application that shares nothing with us, and the other way round.

The application is tests/hosts/host.c: its own instance, device, layouts and create infos, and of a cache file
the driver's bytes only, without our header. Every process here has the driver's own caches off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from orchestrator.devices.image import PipelineKind
from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.authoring.manifest import load_manifest, pack_manifest
from orchestrator.sets.groups import decode_link
from orchestrator.sets.records import KIND_OF_TAG, RecordTag
from tests.drivers import driver_environment, require_header, require_tool
from tests.hosts.run_host import (
    MANIFEST,
    SHADER_OBJECT,
    SHADERS,
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
    """The host, built."""
    compiler = require_tool("gcc")
    require_header("vulkan/vulkan.h", "libvulkan-dev")
    return Host.build(tmp_path_factory.mktemp("host"), compiler)


@pytest.fixture
def environment(radv: str) -> dict[str, str]:
    """The environment of every process of a test: one driver only."""
    return quiet_environment(driver_environment(radv))


@pytest.fixture
def application(host: Host) -> Application:
    """The application of the sample set."""
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
    assert sorted(by_feedback.misses) == []
    assert sorted(forbidden.misses) == []
    assert by_feedback.hits == forbidden.hits
    assert (by_feedback.exit_code, forbidden.exit_code) == (0, 0)


@each_radv
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
    for forbid in (False, True):
        assert run(application, load=empty, forbid=forbid).hits == frozenset()


@each_radv
def test_what_compile_makes_hits_in_the_application(
    run: Opened, application: Application, sample_payload: Path
) -> None:
    assert run(application, load=sample_payload).skipped == frozenset()
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
    empty = sample_statuses(radv, tmp_path / "empty", environment)
    compiled_from_empty = compiled(empty)
    for label, opened in (("same", application), ("other", application.toggled(SHADER_OBJECT))):
        payload = tmp_path / f"{label}.bin"
        saved = run(opened, save=payload)
        assert saved.exit_code == 0
        folder = tmp_path / label
        folder.mkdir(mode=0o700)
        write_private(folder / name, with_prefix_header(payload.read_bytes(), like))
        found = sample_statuses(radv, folder, environment)
        assert set(found) == set(empty)
        if label == "other":
            assert compiled(found) == compiled_from_empty
            continue
        assert saved.skipped == frozenset()
        assert sorted(each for each in saved.tried if found[each] != "cache_hit") == []
        assert len(saved.compiled) > 15
        assert compiled(found) < compiled_from_empty
        assert len(compiled_from_empty) - len(compiled(found)) == len(saved.compiled)


def feature_tables(features: dict[str, dict[str, int]]) -> list[dict[str, object]]:
    """Recorded features as a manifest names them."""
    return [
        {"structure": structure}
        | {re.sub(r"(?=[A-Z])", "_", member).lower(): True for member, value in members.items() if value}
        for structure, members in features.items()
    ]


def toml(value: object) -> str:
    """A value of a manifest's application as TOML."""
    match value:
        case dict():
            return "{ " + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + " }"
        case list():
            return "[" + ", ".join(toml(each) for each in value) + "]"
        case _:
            return json.dumps(value)


def packed(table: dict[str, object], folder: Path) -> str:
    """The sample as a set of another application, ``[application]`` of its manifest: path of the archive."""
    rows = "\n".join(f"{key} = {toml(value)}" for key, value in table.items())
    text = MANIFEST.read_text("utf-8").replace('"shaders/', f'"{SHADERS}/')
    text, replaced = re.subn(
        r"(?ms)^\[application\]\n.*?(?=^\[)", lambda _: f"[application]\n{rows}\n\n", text
    )
    assert replaced == 1
    manifest = folder / "set.toml"
    manifest.write_text(text, "utf-8")
    archive = manifest.with_suffix(".foz")
    pack_manifest(manifest, archive)
    return str(archive)


@one_radv
def test_two_applications_with_pipelines_of_their_own_each_hit_in_one_file(
    run: Opened, host: Host, radv: str, environment: dict[str, str], tmp_path: Path
) -> None:
    features = feature_tables(recorded_application("sample")["features"])
    shader_object = {"structure": "VkPhysicalDeviceShaderObjectFeaturesEXT", "shader_object": True}
    manifest = {each.name: each for each in load_manifest(MANIFEST).pipelines}
    is_compute = {name: each.kind is PipelineKind.COMPUTE for name, each in manifest.items()}
    archives, own = [], []
    for number, more in enumerate(([], [shader_object])):
        own.append({each["name"] for each in host.pipelines if is_compute[each["name"]] is bool(number)})
        folder = tmp_path / f"application{number}"
        folder.mkdir()
        table: dict[str, object] = {"name": folder.name, "features": [*features, *more]}
        with Archive.open(packed(table, folder)) as whole, ArchiveWriter(folder / "own.foz") as part:
            for tag in RecordTag:
                for key in whole.keys(tag):
                    payload = whole.payload(tag, key)
                    # Links say which pipelines are the application's.
                    of = decode_link(key, payload).tag if tag is RecordTag.APPLICATION_BLOB_LINK else tag
                    if of not in KIND_OF_TAG or (of == RecordTag.COMPUTE_PIPELINE) is bool(number):
                        part.add(tag, key, payload)
        archives.append(str(folder / "own.foz"))
    assert all(own)
    document = compile_sets(archives, radv, tmp_path / "cache", environment)
    saved = tmp_path / "payload.bin"
    saved.write_bytes(strip_prefix_header(cache_file(document).read_bytes()))
    for path, names in zip(archives, own, strict=True):
        application = host.application(recorded_application(path))
        for forbid in (False, True):
            found = run(application, load=saved, forbid=forbid)
            assert found.hits == names  # the other one's are keyed by another feature
