"""A driver that ends processes in every way at once: each culprit is named, with its cause, all else kept."""

from __future__ import annotations

from pathlib import Path

from orchestrator.run.options import CompileOptions, TrialLimits
from orchestrator.run.records import OutcomeStatus
from orchestrator.sets.subset import Subset
from orchestrator.stores.culprits import Cause
from orchestrator.supervise.supervisor import compile_supervised
from tests.campaigns import IS_WHOLE, tries
from tests.supervise.chaos_set import MEMORY_BYTES, Fate, write_chaos
from tests.supervise.processes import children

COUNT = tries(64, 2000)
CAUSES = {
    Fate.CRASH: (Cause.SIGNAL, {"SIGSEGV"}),
    Fate.ABORT: (Cause.SIGNAL, {"SIGABRT"}),
    Fate.EXIT: (Cause.EXIT, {""}),
    Fate.HANG: (Cause.TIMEOUT, {""}),
    Fate.MEMORY: (Cause.MEMORY, {"SIGABRT"}),
}


async def test_every_culprit_is_named_and_every_good_one_is_kept(tmp_path: Path) -> None:
    archive, cache = tmp_path / "chaos.foz", tmp_path / "cache"
    # Each hang takes the limit, which is long for the others' sake: a busy machine is no hang.
    few = not IS_WHOLE
    fates = write_chaos(archive, COUNT, hangs=1 if few else None)
    limits = TrialLimits(
        opener="tests.supervise.chaos_set:open_chaos",
        pipeline_s=3.0 if few else 1.5,
        memory_bytes=MEMORY_BYTES,
    )
    before = children()
    options = CompileOptions(mode="per-worker", workers=2, trial_limits=limits)
    report = await compile_supervised([str(archive)], options, cache_directory=cache)
    assert children() == before
    assert report.supervision is not None
    found = {int(each.key, 16): each for each in report.supervision.culprits}
    assert set(found) == {key for key, fate in fates.items() if fate is not None}
    for key, fate in fates.items():
        if fate is not None:
            cause, signals = CAUSES[fate]
            assert found[key].cause is cause, (fate, found[key])
            assert found[key].signal in signals
            assert found[key].confirmed
    good = frozenset(key for key, fate in fates.items() if fate is None)
    assert report.counts()[OutcomeStatus.COMPILED] == len(good)
    # Another process finds them all.
    again = await compile_supervised(
        [str(archive)],
        CompileOptions(
            mode="per-worker", trial_limits=TrialLimits(opener=limits.opener), subset=Subset(keys=good)
        ),
        cache_directory=cache,
    )
    assert again.counts()[OutcomeStatus.CACHE_HIT] == len(good)
