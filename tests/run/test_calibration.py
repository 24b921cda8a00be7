"""Following a calibration: what the caller left open is chosen, and what was chosen is said."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from orchestrator.devices.device import Device
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions, simulated_features
from orchestrator.run.keeping import Decision, decide
from orchestrator.run.options import MergePolicy, SavePolicy
from orchestrator.run.records import CompileReport, OutcomeStatus
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from orchestrator.sets.subset import WHOLE, Subset
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.profile_file import CalibrationProfile, Choice, ProfileLoad, save_profile
from orchestrator.stores.run_notes import CONTENTS
from tests.run import small_sets
from tests.run.support import EACH_BATCH
from tests.stores.profiles import IDENTITY, profile
from tests.stores.stored import damage

NAVI21 = "radv:navi21"

PROFILE = profile(
    cores=4,
    cold=Choice(mode="per-worker", workers=3, words=""),
    warm=Choice(mode="shared", workers=1, words=""),
)
LOADED = ProfileLoad(Path("profile"), PROFILE)


def decided(loaded: ProfileLoad[CalibrationProfile] | None = LOADED, **given: Any) -> Decision:
    """What is decided with both left open, a warm cache and four processors, unless it is given."""
    return decide(loaded, **{"mode": None, "workers": None, "warm": True, "available": 4} | given)


def loaded_with(**changes: Any) -> ProfileLoad[CalibrationProfile]:
    return ProfileLoad(Path("profile"), msgspec.structs.replace(PROFILE, **changes))


BINARIES = loaded_with(binaries=Choice(mode="binaries", workers=2, words=""), batch=32)
NO_PROFILE: ProfileLoad[CalibrationProfile] = ProfileLoad(Path("a pack/profile"), None)
OWN, SHARED, TWO_LEVEL = CacheMode.PER_WORKER, CacheMode.SHARED, CacheMode.TWO_LEVEL


@pytest.mark.parametrize(
    ("loaded", "given", "mode", "workers", "note"),
    [
        (LOADED, {"warm": False}, OWN, 3, "2001-09-09"),
        (LOADED, {"warm": False}, OWN, 3, "cold"),
        (LOADED, {}, SHARED, 1, "warm"),
        # As many processors as were measured, fewer, or more.
        (LOADED, {"warm": False, "available": 2}, OWN, 2, "made with 4 processors, and there are 2 now"),
        (LOADED, {"available": 16}, SHARED, 16, "16 now, so that it does not say how many workers"),
        (LOADED, {"available": 16, "mode": SHARED}, SHARED, 16, ""),
        (LOADED, {"available": 16, "workers": 5}, SHARED, 5, ""),
        # A cache that should hold all is shared without a calibration.
        (None, {"held": True}, SHARED, 4, "expected to hold everything"),
        (None, {"held": True, "warm": False}, OWN, 4, ""),
        (None, {"held": False}, OWN, 4, ""),
        (None, {"held": True, "mode": OWN}, OWN, 4, ""),
        (LOADED, {"held": True}, SHARED, 1, ""),
        # Binaries where they were shown to be faster, and may be.
        (
            BINARIES,
            {"binaries": True},
            CacheMode.BINARIES,
            2,
            "mode binaries and 2 workers, by the calibration",
        ),
        (BINARIES, {"binaries": True, "warm": False}, CacheMode.BINARIES, 2, "calibration of 2001-09-09"),
        (BINARIES, {}, SHARED, 1, ""),
        (LOADED, {"binaries": True}, SHARED, 1, ""),
        # What the caller chose stays.
        (LOADED, {"workers": 7}, SHARED, 7, ""),
        (LOADED, {"mode": TWO_LEVEL}, TWO_LEVEL, 4, ""),
        # No profile, a bad one, and choices that are missing, unknown or of a cache that keeps nothing.
        (None, {"selector": "RADV NAVI21"}, OWN, 4, "`orchestrator calibrate --device 'RADV NAVI21'`"),
        (NO_PROFILE, {"selector": "lavapipe"}, OWN, 4, "--device lavapipe --cache-dir 'a pack'`"),
        (ProfileLoad(Path(), None, "it is damaged"), {"workers": 2, "warm": False}, OWN, 2, "it is damaged"),
        (loaded_with(warm=None), {}, OWN, 3, ""),
        (loaded_with(cold=None, warm=None), {"warm": False}, OWN, 4, "no calibration"),
        *(
            (
                loaded_with(cold=Choice(mode=mode, workers=1, words=""), warm=None),
                {"warm": False},
                OWN,
                4,
                "no ",
            )
            for mode in ("of the future", "none")
        ),
    ],
)
def test_what_is_decided(
    loaded: ProfileLoad[CalibrationProfile] | None,
    given: dict[str, Any],
    mode: CacheMode,
    workers: int,
    note: str,
) -> None:
    found = decided(loaded, **given)
    assert (found.mode, found.workers) == (mode, workers)
    assert note in found.note
    if "mode" in given and loaded is LOADED and mode is TWO_LEVEL:
        assert found.note == ""


def test_few_workers_take_hits_where_none_were_measured() -> None:
    assert decided(available=16).few_for_hits
    assert not decided(available=16, workers=5).few_for_hits
    assert not decided(available=2).few_for_hits


def test_a_warm_run_takes_batches_of_the_size_that_was_best() -> None:
    loaded = loaded_with(batch=32)
    warm = decided(loaded)
    assert warm.batch == 32
    assert "1 worker, batches of 32, by the calibration" in warm.note
    # From an empty cache, and with a topology of the caller's own, nothing was measured.
    others = [decided(loaded, warm=False), decided(loaded, mode=SHARED), decided(BINARIES, binaries=True)]
    assert [each.batch for each in others] == [None] * 3
    assert "batches" not in others[0].note


def test_a_second_run_of_the_same_set_shares_its_cache_and_one_of_more_does_not(folder: Path) -> None:
    with PipelineSet.open(sample_path()) as source:
        half = frozenset(job.key for job in source.pipelines[::2])
    subsets = [Subset(keys=half), Subset(keys=half), WHOLE, WHOLE]
    reports = [compiled(folder, subset=each, workers=2) for each in subsets]
    modes = [CacheMode.PER_WORKER, CacheMode.SHARED, CacheMode.PER_WORKER, CacheMode.SHARED]
    assert [each.mode for each in reports] == modes
    assert [each.counts()[OutcomeStatus.COMPILED] > 0 for each in reports] == [True, False, True, False]


def test_a_cache_file_that_was_begun_anew_is_not_taken_to_hold_what_it_held(folder: Path) -> None:
    """Times of all pipelines are known then, and say nothing of what the file holds."""
    with PipelineSet.open(sample_path()) as source:
        half = Subset(keys=frozenset(job.key for job in source.pipelines[::2]))
    whole = partial(compiled, folder, subset=WHOLE, workers=2)
    whole()
    (file,) = folder.glob("*.pipeline-cache")
    file.unlink()
    for subset in (half, WHOLE):
        report = compiled(folder, subset=subset, workers=2)
        assert report.mode is CacheMode.PER_WORKER
        assert report.counts()[OutcomeStatus.COMPILED] > 0
    assert whole().mode is CacheMode.SHARED
    # What another process saves since, noting nothing, is another file too.
    content = file.read_bytes()
    compiled(folder / "other", subset=half, workers=2)
    file.write_bytes(next((folder / "other").glob("*.pipeline-cache")).read_bytes())
    assert whole().mode is CacheMode.PER_WORKER
    # And one that was put back is what the last run noted no more.
    file.write_bytes(content)
    assert whole().counts()[OutcomeStatus.COMPILED] == 0
    assert whole().mode is CacheMode.SHARED


def test_damaged_notes_of_what_a_file_holds_are_said_and_made_anew(folder: Path) -> None:
    compiled(folder, workers=2)
    damage(folder, CONTENTS)
    report = compiled(folder, workers=2)
    assert report.mode is CacheMode.PER_WORKER
    assert report.counts()[OutcomeStatus.COMPILED] == 0
    assert any("is not known" in note and "damaged" in note for note in report.notes)
    assert (compiled(folder, workers=2)).mode is CacheMode.SHARED


@pytest.mark.driver(NAVI21)
def test_what_a_driver_found_of_its_duplicate_is_in_the_file_too(folder: Path) -> None:
    """In a cold run of the sample a third are found in the cache that their duplicate has just filled."""
    cold = compiled(folder, selector=NAVI21, workers=8, subset=Subset(1, 2))
    assert (cold.mode, cold.counts()[OutcomeStatus.CACHE_HIT] > 0) == (CacheMode.PER_WORKER, True)
    warm = compiled(folder, selector=NAVI21, workers=8, subset=Subset(1, 2))
    assert (warm.mode, warm.counts()[OutcomeStatus.COMPILED]) == (CacheMode.SHARED, 0)
    assert any("mode shared and 8 workers, few of them for hits" in note for note in warm.notes)


def test_a_compile_that_is_left_the_choice_keeps_binaries(folder: Path) -> None:
    faster = Choice(mode="binaries", workers=2, words="")
    save_profile(folder, IDENTITY, msgspec.structs.replace(PROFILE, binaries=faster))
    whole = partial(compiled, folder, subset=WHOLE)
    packed = whole(cache_file_needed=True)
    assert packed.mode is CacheMode.PER_WORKER
    assert packed.cache_file.saved_bytes
    first = whole()
    second = whole()
    assert first.mode is second.mode is CacheMode.BINARIES
    assert first.binaries is not None
    assert first.binaries.stored == first.counts()[OutcomeStatus.COMPILED] > 0
    assert second.counts()[OutcomeStatus.COMPILED] == 0
    # A driver that has lost the extension since.
    without = SimulatedDevice(SimulatedOptions(features=simulated_features(pipeline_binaries=False)))
    third = whole(device=without)
    assert third.mode is CacheMode.SHARED


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def compiled(
    folder: Path | None, *, device: Device | None = None, selector: str = "simulated", **options: Any
) -> CompileReport:
    """Compile an eighth of the sample, on the simulated device unless another one is named."""
    opener = (lambda _: device or SimulatedDevice()) if selector == "simulated" else None
    made = {"selector": selector, "mode": None, "workers": None, "subset": Subset(1, 8), **options}
    return trio.run(partial(small_sets.compiled, sample_path(), folder, opener, **made))


def test_a_compile_follows_the_profile_by_whether_a_cache_is_there(folder: Path) -> None:
    save_profile(
        folder, IDENTITY, msgspec.structs.replace(PROFILE, cold=Choice(mode="two-level", workers=1, words=""))
    )
    first = compiled(folder)
    assert (first.mode, first.workers) == (CacheMode.TWO_LEVEL, 1)
    assert any("by the calibration" in note and "cold cache" in note for note in first.notes)
    second = compiled(folder)
    assert (second.mode, second.workers) == (CacheMode.SHARED, 1)
    assert any("warm cache" in note for note in second.notes)
    assert second.counts() != first.counts()


def test_a_cache_that_does_not_load_makes_the_run_a_cold_one(folder: Path) -> None:
    save_profile(folder, IDENTITY, PROFILE)
    path = cache_path(folder, IDENTITY)
    path.write_bytes(b"damaged")
    path.chmod(0o600)
    report = compiled(folder, workers=2)
    assert (report.mode, report.workers) == (CacheMode.PER_WORKER, 2)
    assert sum("by the calibration" in note for note in report.notes) == 1
    assert any("cold cache" in note for note in report.notes)


def test_a_rolling_compile_saves_on_the_way_and_ends_with_everything(folder: Path) -> None:
    eager = SavePolicy(growth_pipelines=1, pause_ns=1)
    saves = 0
    for attempt in range(20):  # a run may end before its first fold; not twenty of them
        where = folder / str(attempt)
        report = compiled(where, mode=CacheMode.PER_WORKER, merge=EACH_BATCH, save_policy=eager, workers=2)
        assert report.cache_file.error is None
        again = compiled(where, mode=CacheMode.SHARED, workers=1)
        assert again.cache_file.saved_bytes == 0, "nothing was missing"
        saves += len(report.cache_file.saves) > 1
        if saves:
            break
    assert saves


def test_auto_with_a_rolling_merge_may_turn_out_to_be_shared(folder: Path) -> None:
    save_profile(
        folder, IDENTITY, msgspec.structs.replace(PROFILE, cold=Choice(mode="shared", workers=1, words=""))
    )
    report = compiled(folder, merge=MergePolicy(rolling=True))
    assert report.mode is CacheMode.SHARED
