"""The verb `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from orchestrator.cli.errors import ExitCode
from orchestrator.devices import listing_service
from orchestrator.devices.listing import Listing
from orchestrator.devices.listing_service import Request
from orchestrator.devices.simulated import (
    CacheOperation,
    DriverBugs,
    SimulatedDevice,
    SimulatedOptions,
    simulated_features,
)
from orchestrator.errors import NoDeviceError
from orchestrator.stores.cache_file import cache_path, save_cache_file
from orchestrator.stores.files.recovery import forgive_loads, previous_path
from tests.cli.conftest import Call, Done
from tests.stores.faults.sets import IDENTITY, OURS, data_of, die_loading, file_of


def findings(done: Done) -> dict[str, dict[str, Any]]:
    """Findings by subject; each that is not good has a next step."""
    found: dict[str, dict[str, Any]] = {each["subject"]: each for each in done.document["findings"]}
    assert all(each["next_step"] for each in found.values() if each["state"] != "good")
    return found


def test_all_good(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    done = call("doctor", "-d", "simulated", "--cache-dir", folder, "--json")
    assert done.code == ExitCode.OK
    found = findings(done)
    assert found["device simulated, saved cache"]["detail"] == "none yet"
    assert not folder.exists()
    assert call("doctor", "-d", "simulated", "--cache-dir", folder).code == ExitCode.OK


def test_a_saved_cache_and_what_is_wrong_with_it(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    path = cache_path(folder, IDENTITY)
    save_cache_file(path, IDENTITY, data_of(OURS))

    def saved(code: ExitCode) -> dict[str, Any]:
        done = call("doctor", "-d", "simulated", "--cache-dir", folder, "--json")
        assert done.code == code
        return findings(done)["device simulated, saved cache"]

    assert "would be accepted" in saved(ExitCode.OK)["detail"]
    die_loading(path, OURS, times=2)
    assert "CRASHED_LAST_TIME" in saved(ExitCode.BAD_INPUT)["detail"]
    forgive_loads(path.parent)
    path.write_bytes(file_of(OURS)[:-1])
    assert "TRUNCATED" in saved(ExitCode.BAD_INPUT)["detail"]
    previous_path(path).write_bytes(file_of(OURS))
    previous_path(path).chmod(0o600)
    assert saved(ExitCode.OK)["state"] == "hint"
    previous_path(path).unlink()
    save_cache_file(path, evolve(IDENTITY, driver_version=99), data_of(OURS))
    assert "driverVersion" in saved(ExitCode.OK)["detail"]


def test_permissions_and_quarantine(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    (folder / "quarantine").mkdir(parents=True)
    (folder / "quarantine" / "000001-x").touch()
    folder.chmod(0o770)
    done = call("doctor", "-d", "simulated", "--cache-dir", folder, "--json")
    assert done.code == ExitCode.BAD_INPUT
    found = findings(done)
    assert "chmod go-w" in found["cache directory"]["detail"]
    assert found["quarantine"]["state"] == "hint"
    file = tmp_path / "file"
    file.touch()
    assert call("doctor", "-d", "simulated", "--cache-dir", file).code == ExitCode.BAD_INPUT


@pytest.mark.parametrize("way", ["link", "above"])
def test_a_directory_that_cannot_be_made_is_not_good(call: Call, tmp_path: Path, way: str) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    folder = tmp_path / "link" if way == "link" else tmp_path / "link" / "cache"
    done = call("doctor", "-d", "simulated", "--cache-dir", folder, "--json")
    assert done.code == ExitCode.BAD_INPUT
    found = findings(done)["cache directory"]
    assert "cannot be created" in found["detail"]
    assert "is no directory" in found["detail"]


def test_no_device(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(**_: object) -> Listing:
        raise NoDeviceError("no loader")

    monkeypatch.setattr("orchestrator.cli.doctor.list_all", none)
    done = call("doctor", "--cache-dir", tmp_path, "--json")
    assert done.code == ExitCode.NO_DEVICE
    assert findings(done)["devices"]["detail"] == "no loader"
    monkeypatch.setattr("orchestrator.cli.doctor.list_all", lambda **_: Listing(()))
    assert call("doctor", "--cache-dir", tmp_path).code == ExitCode.NO_DEVICE


def test_a_device_that_lacks_things(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = evolve(
        simulated_features(),
        externally_synchronized_caches=False,
        creation_feedback=False,
        pipeline_binaries=False,
    )
    bugs = DriverBugs(out_of_memory_operations={CacheOperation.CREATE})
    poor = SimulatedOptions(features=features, bugs=bugs)
    monkeypatch.setattr(listing_service, "open_for_child", lambda *_: SimulatedDevice(poor))
    entry = listing_service.open_and_describe("0", Request())
    monkeypatch.setattr("orchestrator.cli.doctor.list_all", lambda **_: Listing((entry,)))
    monkeypatch.setattr("orchestrator.cli.doctor.find_spirv_val", lambda: None)
    done = call("doctor", "--cache-dir", tmp_path, "--json")
    found = findings(done)
    assert done.code == ExitCode.BAD_INPUT
    assert found["device 0, pipelineCreationCacheControl"]["state"] == "hint"
    assert found["device 0, VK_EXT_pipeline_creation_feedback"]["state"] == "hint"
    assert "mode binaries" in found["device 0, VK_KHR_pipeline_binary"]["next_step"]
    assert "VK_ERROR_OUT_OF_HOST_MEMORY" in found["device 0, pipeline caches"]["detail"]
    assert found["spirv-val"]["state"] == "hint"
