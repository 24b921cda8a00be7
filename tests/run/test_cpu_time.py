"""A limit on CPU time (`ulimit -t`) ends a process, and is held against no pipeline."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from orchestrator.devices.simulated import simulated_identity
from orchestrator.run.options import CompileOptions, TrialLimits
from orchestrator.run.records import OutcomeStatus
from orchestrator.stores.culprits import load_quarantine
from orchestrator.supervise.supervisor import compile_supervised
from tests.run.small_sets import MARKER, compute_keys, opener

KEYS = compute_keys()[:6]


@opener
def open_at_the_limit(key: int) -> None:
    """One pipeline takes the CPU time that is left, in the first process."""
    marker = Path(os.environ[MARKER])
    if key == KEYS[3] and not marker.exists():
        marker.touch()
        signal.raise_signal(signal.SIGXCPU)


async def test_another_process_goes_on_after_the_limit_and_nobody_is_blamed(
    archive: Path, tmp_path: Path, marker: Path
) -> None:
    options = CompileOptions(workers=1, trial_limits=TrialLimits(opener=f"{__name__}:open_at_the_limit"))
    report = await compile_supervised(archive, options, cache_directory=tmp_path / "cache")
    counts = report.counts()
    assert counts[OutcomeStatus.COMPILED] + counts[OutcomeStatus.CACHE_HIT] == len(KEYS)
    assert report.supervision is not None
    assert [(each.how, each.by_driver) for each in report.supervision.deaths] == [("SIGXCPU", False)]
    assert load_quarantine(tmp_path / "cache", simulated_identity()).profile is None
