# Purpose: from a device's calibration profile to the mode and the number of workers of a run that leaves them open.
#
#   cache file there?  warm : cold  ─> the profile's choice for it ─> mode, workers, and a note that says why
#   no profile                      ─> per-worker on all processors, and a note that says how to get one
#
# Guarantees: pure but for `load_profile`, which is the store's. What the caller chose stays; a profile made on a machine
# with more processors never asks for more workers than there are.
"""Following a calibration."""

from __future__ import annotations

import time

from attrs import frozen

from orchestrator.devices.device import CacheMode
from orchestrator.stores.calibration_profile import CalibrationProfile as CalibrationProfile
from orchestrator.stores.calibration_profile import Choice
from orchestrator.stores.calibration_profile import load_profile as load_profile
from orchestrator.stores.profile_file import ProfileLoad


@frozen
class Decision:
    """How a run goes.

    Attributes:
        mode: The cache topology.
        workers: Number of workers.
        note: Why, for the report; "" where the caller chose the mode.
        batch: Largest batch, where a calibration says and mode and temperature are those it was measured with; None: the
            usual.
    """

    mode: CacheMode
    workers: int
    note: str = ""
    batch: int | None = None


def decide(
    loaded: ProfileLoad[CalibrationProfile] | None,
    *,
    mode: CacheMode | None,
    workers: int | None,
    warm: bool,
    available: int,
    selector: str = "",
) -> Decision:
    """Choose what the caller left open.

    Args:
        loaded: What became of the look for a profile; None where there is no directory to look in.
        mode: The caller's choice, or None.
        workers: The caller's choice, or None.
        warm: Whether the run begins with a cache that holds something.
        available: Processors that there are.
        selector: What the device was called, for the note.
    """
    choice = _choice(loaded, warm=warm)
    if mode is not None:
        # A number of workers that was measured with another topology says nothing about this one.
        measured = choice.workers if choice is not None and choice.mode == mode else available
        return Decision(mode, workers or min(measured, available))
    if choice is None or loaded is None or loaded.profile is None:
        count = workers or available
        device = f" --device {selector}" if selector else ""
        what = f"calibration not used ({loaded.problem})" if loaded and loaded.problem else "no calibration"
        return Decision(
            CacheMode.PER_WORKER,
            count,
            f"{what}: mode per-worker and {_workers(count)}; `orchestrator calibrate{device}` would measure what "
            "is best on this device",
        )
    count = workers or min(choice.workers, available)
    day = time.strftime("%Y-%m-%d", time.gmtime(loaded.profile.made_at))
    temperature = "warm" if warm else "cold"
    # Batches were compared in warm runs; in cold ones they are as large as the time that they aim at allows.
    batch = loaded.profile.batch if choice is loaded.profile.warm else None
    batches = f", batches of {batch}" if batch else ""
    note = f"mode {choice.mode} and {_workers(count)}{batches}, by the calibration of {day} for a {temperature} cache"
    if loaded.profile.cores != available:
        note += f"; it was made with {loaded.profile.cores} processors, and there are {available} now"
    return Decision(CacheMode(choice.mode), count, note, batch)


def _choice(loaded: ProfileLoad[CalibrationProfile] | None, *, warm: bool) -> Choice | None:
    """The profile's choice; one that names a topology which this version lacks is none."""
    if loaded is None or loaded.profile is None:
        return None
    profile = loaded.profile
    # Where nothing warm could be measured a warm cache helps as much as none.
    choice = (profile.warm or profile.cold) if warm else profile.cold
    if choice is None or choice.mode not in tuple(CacheMode) or choice.workers < 1:
        return None
    return choice


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"
