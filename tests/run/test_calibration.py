"""Following a calibration: what the caller left open is chosen, and what was chosen is said."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from orchestrator.devices.device import CacheMode, Device
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions, simulated_features
from orchestrator.run.keeping import Decision, decide
from orchestrator.run.options import MergePolicy, SavePolicy
from orchestrator.run.records import CompileReport, OutcomeStatus
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import WHOLE, Subset
from orchestrator.sets.sample import sample_path
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


def test_both_left_open_follow_the_temperature() -> None:
    cold = decided(warm=False)
    assert (cold.mode, cold.workers) == (CacheMode.PER_WORKER, 3)
    assert "2001-09-09" in cold.note
    assert "cold" in cold.note
    warm = decided()
    assert (warm.mode, warm.workers) == (CacheMode.SHARED, 1)


def test_a_calibration_with_fewer_processors_says_nothing_of_the_workers() -> None:
    for warm, mode in ((False, CacheMode.PER_WORKER), (True, CacheMode.SHARED)):
        grown = decided(warm=warm, available=16)
        assert (grown.mode, grown.workers, grown.few_for_hits) == (mode, 16, True)
        assert "4 processors, and there are 16 now, so that it does not say how many workers" in grown.note
        assert decided(mode=mode, warm=warm, available=16).workers == 16
        chosen = decided(workers=5, warm=warm, available=16)
        assert (chosen.workers, chosen.few_for_hits, "how many" in chosen.note) == (5, False, False)
    shrunk = decided(warm=False, available=2)
    assert (shrunk.workers, shrunk.few_for_hits) == (2, False)


def test_a_warm_run_takes_batches_of_the_size_that_was_best() -> None:
    loaded = ProfileLoad(Path("profile"), msgspec.structs.replace(PROFILE, batch=32))
    warm = decided(loaded)
    assert warm.batch == 32
    assert "1 worker, batches of 32, by the calibration" in warm.note
    cold = decided(loaded, warm=False)
    assert (cold.batch, "batches" in cold.note) == (None, False)
    # With a topology of the caller's own nothing was measured.
    assert decided(loaded, mode=CacheMode.SHARED).batch is None
    assert decided().batch is PROFILE.batch


def test_a_cache_that_should_hold_all_is_shared_without_a_calibration() -> None:
    found = decided(None, held=True)
    assert (found.mode, found.workers) == (CacheMode.SHARED, 4)
    assert "expected to hold everything" in found.note
    for changed in ({"warm": False}, {"held": False}, {"mode": CacheMode.PER_WORKER}):
        assert decided(None, **{"held": True} | changed).mode is CacheMode.PER_WORKER
    assert decided(held=True).workers == 1


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
    compiled(folder, workers=2)
    (file,) = folder.glob("*.pipeline-cache")
    file.unlink()
    for subset in (half, WHOLE):
        report = compiled(folder, subset=subset, workers=2)
        assert report.mode is CacheMode.PER_WORKER
        assert report.counts()[OutcomeStatus.COMPILED] > 0
    assert (compiled(folder, workers=2)).mode is CacheMode.SHARED
    # What another process saves since, noting nothing, is another file too.
    content = file.read_bytes()
    compiled(folder / "other", subset=half, workers=2)
    file.write_bytes(next((folder / "other").glob("*.pipeline-cache")).read_bytes())
    assert (compiled(folder, workers=2)).mode is CacheMode.PER_WORKER
    # And one that was put back is what the last run noted no more.
    file.write_bytes(content)
    assert (compiled(folder, workers=2)).counts()[OutcomeStatus.COMPILED] == 0
    assert (compiled(folder, workers=2)).mode is CacheMode.SHARED


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
    cold = compiled(folder, selector=NAVI21, workers=8)
    assert (cold.mode, cold.counts()[OutcomeStatus.CACHE_HIT] > 0) == (CacheMode.PER_WORKER, True)
    warm = compiled(folder, selector=NAVI21, workers=8)
    assert (warm.mode, warm.counts()[OutcomeStatus.COMPILED]) == (CacheMode.SHARED, 0)
    assert any("mode shared and 8 workers, few of them for hits" in note for note in warm.notes)
    (file,) = folder.glob("*.pipeline-cache")
    file.unlink()
    anew = compiled(folder, selector=NAVI21, workers=8)
    assert anew.mode is CacheMode.PER_WORKER
    assert anew.counts()[OutcomeStatus.COMPILED] > 0


def test_binaries_are_taken_where_they_were_shown_to_be_faster_and_may_be() -> None:
    faster = Choice(mode="binaries", workers=2, words="")
    loaded = ProfileLoad(Path("profile"), msgspec.structs.replace(PROFILE, binaries=faster, batch=32))
    for warm in (False, True):
        taken = decided(loaded, warm=warm, binaries=True)
        assert (taken.mode, taken.workers, taken.batch) == (CacheMode.BINARIES, 2, None)
        assert "mode binaries and 2 workers, by the calibration of 2001-09-09" in taken.note
    # Where a cache file is needed, or the device has none: what is best with a cache.
    assert decided(loaded).mode is CacheMode.SHARED
    assert decided(binaries=True).mode is (CacheMode.SHARED)


def test_a_compile_that_is_left_the_choice_keeps_binaries(folder: Path) -> None:
    faster = Choice(mode="binaries", workers=2, words="")
    save_profile(folder, IDENTITY, msgspec.structs.replace(PROFILE, binaries=faster))
    packed = compiled(folder, cache_file_needed=True)
    assert packed.mode is CacheMode.PER_WORKER
    assert packed.cache_file.saved_bytes
    first = compiled(folder)
    second = compiled(folder)
    assert first.mode is second.mode is CacheMode.BINARIES
    assert first.binaries is not None
    assert first.binaries.stored == first.counts()[OutcomeStatus.COMPILED] > 0
    assert second.counts()[OutcomeStatus.COMPILED] == 0
    # A driver that has lost the extension since.
    without = SimulatedDevice(SimulatedOptions(features=simulated_features(pipeline_binaries=False)))
    third = compiled(folder, device=without)
    assert third.mode is CacheMode.SHARED


def test_what_the_caller_chose_stays() -> None:
    given = decided(workers=7)
    assert (given.mode, given.workers) == (CacheMode.SHARED, 7)
    other = decided(mode=CacheMode.TWO_LEVEL)
    assert (other.mode, other.workers, other.note) == (CacheMode.TWO_LEVEL, 4, "")
    same = decided(mode=CacheMode.SHARED)
    assert (same.mode, same.workers, same.note) == (CacheMode.SHARED, 1, "")


def test_fewer_processors_than_were_measured_bound_the_workers() -> None:
    found = decided(warm=False, available=2)
    assert found.workers == 2
    assert "made with 4 processors, and there are 2 now" in found.note


def test_without_a_profile_the_note_says_how_to_get_one() -> None:
    nothing: ProfileLoad[CalibrationProfile] = ProfileLoad(Path("a pack/profile"), None)
    for loaded, place in ((None, ""), (nothing, " --cache-dir 'a pack'")):
        found = decided(loaded, selector="radv:navi21")
        assert (found.mode, found.workers) == (CacheMode.PER_WORKER, 4)
        assert f"`orchestrator calibrate --device radv:navi21{place}`" in found.note
    bad = decided(ProfileLoad(Path(), None, "it is damaged"), workers=2, warm=False)
    assert bad.workers == 2
    assert "it is damaged" in bad.note


def test_a_cache_that_keeps_nothing_is_never_warm() -> None:
    profile = msgspec.structs.replace(PROFILE, warm=None)
    found = decided(ProfileLoad(Path(), profile))
    assert (found.mode, found.workers) == (CacheMode.PER_WORKER, 3)


@pytest.mark.parametrize(
    "choice", [None, *(Choice(mode=each, workers=1, words="") for each in ("of the future", "none"))]
)
def test_a_choice_that_is_missing_or_unknown_is_none(choice: Choice | None) -> None:
    profile = msgspec.structs.replace(PROFILE, cold=choice, warm=None)
    found = decided(ProfileLoad(Path(), profile), warm=False)
    assert found.mode is CacheMode.PER_WORKER
    assert "no calibration" in found.note


def test_the_command_that_a_note_shows_has_the_selector_as_one_word() -> None:
    assert "--device 'RADV NAVI21'" in decided(None, selector="RADV NAVI21").note


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory that nobody else may write to."""
    tmp_path.chmod(0o700)
    return tmp_path


def compiled(
    folder: Path | None, *, device: Device | None = None, selector: str = "simulated", **options: Any
) -> CompileReport:
    """Compile the sample, on the simulated device unless another one is named."""
    opener = (lambda _: device or SimulatedDevice()) if selector == "simulated" else None
    made = {"selector": selector, "mode": None, "workers": None, **options}
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


def test_a_compile_without_a_profile_is_per_worker_and_says_so(folder: Path) -> None:
    for where in (folder, None):
        report = compiled(where, workers=1)
        assert report.mode is CacheMode.PER_WORKER
        assert any("orchestrator calibrate" in note for note in report.notes)
    explicit = compiled(folder, mode=CacheMode.SHARED, workers=1)
    assert not any("calibrat" in note for note in explicit.notes)


def test_a_rolling_compile_saves_on_the_way_and_ends_with_everything(folder: Path) -> None:
    eager = SavePolicy(growth_pipelines=1, pause_ns=1)
    saves = 0
    for attempt in range(20):  # a run may end before its first fold; not twenty of them
        where = folder / str(attempt)
        report = compiled(where, mode=CacheMode.PER_WORKER, merge=EACH_BATCH, save_policy=eager, workers=2)
        assert report.cache_file.error is None
        again = compiled(where, mode=CacheMode.SHARED, workers=1)
        assert again.cache_file.saved_bytes == 0, "nothing was missing"
        saves += any("while pipelines were compiled" in note for note in report.notes)
        if saves:
            break
    assert saves


def test_auto_with_a_rolling_merge_may_turn_out_to_be_shared(folder: Path) -> None:
    save_profile(
        folder, IDENTITY, msgspec.structs.replace(PROFILE, cold=Choice(mode="shared", workers=1, words=""))
    )
    report = compiled(folder, merge=MergePolicy(rolling=True))
    assert report.mode is CacheMode.SHARED
