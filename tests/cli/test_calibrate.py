"""`orchestrator calibrate`: what it says, what it keeps, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.bench import calibration as calibrating
from orchestrator.bench.jobs import Answer, FillJob, Job, Probed, ProbeJob, SampleJob
from orchestrator.cli.errors import ExitCode
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.profile_file import load_profile
from orchestrator.stores.state import state_path
from tests.bench.support import SIMULATED, filled, sample_of
from tests.cli.conftest import Call


def quick(job: Job) -> Answer:
    """A process that needs none: a shared cache takes twice the time."""
    if isinstance(job, FillJob):
        (name,) = job.set_paths
        return filled(
            set_name=name,
            pipelines=100,
            hit_s={CacheMode.SHARED: (0.1, 0.1), CacheMode.PER_WORKER: (0.1, 0.1)},
            binaries="binaries" in name,
        )
    if isinstance(job, ProbeJob):
        return Probed(hits=100, sizes=(1000,) * job.rounds)
    assert isinstance(job, SampleJob)
    wall_ns = (2_000_000_000 if job.mode == "shared" else 1_000_000_000) * job.passes
    return sample_of(job, environment=SIMULATED, wall_ns=wall_ns)


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are there at once."""
    real = calibrating.calibrate

    def calibrate(*arguments: object, **options: object) -> calibrating.Calibrated:
        return real(*arguments, **options, run_job=quick)  # type: ignore[arg-type]

    monkeypatch.setattr("orchestrator.cli.calibrate.calibrate", calibrate)


@pytest.mark.usefixtures("instant")
def test_of_a_damaged_set_the_rest_is_measured_and_told(call: Call, cut_set: Path, tmp_path: Path) -> None:
    done = call("calibrate", "--set", cut_set, "--device", "simulated", "--cache-dir", tmp_path / "caches")
    assert done.code == ExitCode.PIPELINES_FAILED
    assert "damaged: 1 place of" in done.err.splitlines()[0]
    assert "the rest is measured" in done.err.splitlines()[-1]


@pytest.mark.usefixtures("instant")
def test_verdicts_are_said_in_80_columns_and_kept_and_compile_follows_them(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder = tmp_path / "caches"
    calibrate = ("calibrate", "--device", "simulated", "--workers", "2", "--cache-dir", folder)
    assert len(call(*calibrate).out.splitlines()) <= 40
    done = call(*calibrate, "-v")
    assert done.code == ExitCode.OK
    said = " ".join(done.out.split())
    for words in (
        "merging: 100 pipelines are found in merged",
        "shared cache, cold: slower than a cache for each",
        "cold --mode per-worker --workers 1",
        "two-level",
        "order of pipelines: given",
        "calls of",
    ):
        assert words in said
    assert str(state_path(folder)) in done.out.replace("\n", "")
    (heading,) = [each for each in done.out.splitlines() if "pipelines/s" in each]
    assert "one pass" in heading
    assert len(heading) <= 100
    arguments = ("compile", small_set, "-d", "simulated", "--in-process", "--cache-dir", folder, "--json")
    compiled = call(*arguments).document
    assert (compiled["mode"], compiled["workers"]) == ("per-worker", 1)
    assert any("by the calibration of" in note for note in compiled["notes"])
    assert call(*arguments, "--mode", "shared").document["mode"] == "shared"


@pytest.mark.usefixtures("instant")
def test_the_document_is_the_profile_and_too_few_samples_leave_it(call: Call, tmp_path: Path) -> None:
    done = call("calibrate", "--device", "simulated", "-j", "2", "--cache-dir", tmp_path, "--json")
    document = done.document
    assert document["cold"]["mode"] == "per-worker"
    assert document["merge_works"] is True
    assert document["stopped"] is None
    assert Path(document["profile"]).is_file()
    assert {each["question"] for each in document["findings"]} >= {"keeping", "merging", "read-back growth"}
    assert all(each["low"] <= each["seconds"] <= each["high"] for each in document["figures"])
    before = load_profile(tmp_path, simulated_identity()).profile
    assert before is not None
    done = call("calibrate", "-d", "simulated", "-n", "2", "-j", "2", "--cache-dir", tmp_path)
    assert "not saved: nothing could be decided: a verdict needs --samples 5 or more" in done.out
    assert "not decided" in done.out
    assert "--time-limit" not in done.out
    assert load_profile(tmp_path, simulated_identity()).profile == before


@pytest.mark.usefixtures("instant")
@pytest.mark.parametrize("json", [(), ("--json",)])
def test_what_cannot_be_saved_is_shown(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, json: tuple[str, ...]
) -> None:
    def refuse(*_: object) -> Path:
        raise SaveError(tmp_path / "profile", "fsync", "the file system is full")

    monkeypatch.setattr("orchestrator.cli.calibrate.save_profile", refuse)
    done = call("calibrate", "--device", "simulated", "-j", "2", "--cache-dir", tmp_path, *json)
    assert done.code == ExitCode.BAD_INPUT
    assert "the file system is full" in done.err
    if json:
        assert done.document["cold"]["mode"] == "per-worker"
        assert done.document["profile"] is None
    else:
        assert "cold" in done.out
        assert f"not saved: {tmp_path / 'profile'}" in done.out.replace("\n", "")


def test_a_real_calibration_of_the_simulated_device_that_runs_out_of_time(
    call: Call, small_set: Path, tmp_path: Path
) -> None:
    """The processes are real ones: the probes run, and there is no time for a sample."""
    options = ("-j", "2", "--time-limit", "0.001s", "--set", small_set, "--cache-dir", tmp_path)
    done = call("calibrate", "--device", "simulated", *options, "--json")
    assert done.code == ExitCode.OK
    document = done.document
    assert (document["cache_keeps"], document["merge_works"], document["read_back_grows"]) == (
        True,
        True,
        False,
    )
    assert "time limit" in document["stopped"]
    assert document["profile"] is None
    assert document["cold"] is None


def test_a_device_that_is_not_there(call: Call, tmp_path: Path) -> None:
    done = call("calibrate", "--device", "navi99", "--cache-dir", tmp_path)
    assert done.code == ExitCode.NO_DEVICE
