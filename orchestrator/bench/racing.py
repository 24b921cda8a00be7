"""Which contenders of a calibration need no further sample, since they have fallen behind.

    with all workers    against the fastest cache of them, by median; the baseline is never dropped
    with fewer          against all workers with the same topology; dropped with it too

One has fallen behind where the whole interval of its ratio, over the pairs that are there, lies beyond noise
by `CLEAR_AFTER_ONE` after one pair, by `CLEAR` after more (see `statistics`). That is asked anew before each
round: where later controls show more noise, a contender is sampled again.

Guarantees: pure. A verdict over fewer pairs than usual is given only where the gap is still that clear in the
end. Where none of two differs, and controls are as recorded on a noisy driver (times from 40 to 215 ms for
one thing), one calibration in a hundred gives such a verdict all the same; with cold runs or on a quiet
machine none of thousands.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from orchestrator.bench.sample_table import Contender, SampleTable, use_of
from orchestrator.bench.statistics import CLEAR, CLEAR_AFTER_ONE, Difference, estimate
from orchestrator.devices.device import CacheMode


@frozen
class Lag:
    """Why a contender needs no further sample.

    Attributes:
        contender: Which.
        rival: What it was compared with.
        difference: Its time over the rival's; None where the rival fell behind, and it with that.
    """

    contender: Contender
    rival: Contender
    difference: Difference | None

    @property
    def words(self) -> str:
        """It in words."""
        if self.difference is None or self.difference.noise is None:
            return f"{self.rival.words} fell behind, and a number of workers for it matters no more"
        ratio, factor = self.difference.ratio, self.difference.noise.factor
        over = (
            f"{ratio.low:.3f} to {ratio.high:.3f} over {ratio.count} pairs" if ratio.count > 1 else "1 pair"
        )
        calls = "" if self.rival.batch == self.contender.batch else f" in calls of {self.rival.batch}"
        margin = CLEAR if self.difference.pairs > 1 else CLEAR_AFTER_ONE
        return (
            f"x{ratio.median:.3f} the time of {self.rival.words}{calls} ({over}; the same thing twice "
            f"differs by up to x{factor:.3f}, and {margin:g} times that is far enough behind)"
        )


def fallen_behind(samples: SampleTable, contenders: Sequence[Contender]) -> dict[Contender, Lag]:
    """The contenders that need no further sample, and why.

    Args:
        samples: What was measured so far.
        contenders: Those of one start, the baseline first and then the others with all workers.
    """
    baseline = contenders[0]
    medians = {
        each: estimate([samples.figure(row) for row in rounds.values()]).median
        for each in contenders
        if each.workers == baseline.workers
        and each.mode is not CacheMode.BINARIES  # caches are chosen among themselves
        and (rounds := samples.of(each))
    }
    if not medians:
        return {}
    leader = min(medians, key=lambda each: medians[each])
    behind: dict[Contender, Lag] = {}
    for each in contenders[1:]:
        rival = leader if each.workers == baseline.workers else each._replace(workers=baseline.workers)
        if rival in behind:
            behind[each] = Lag(each, rival, None)
            continue
        # What is prepared before counts for binaries, as in their weighing.
        table = SampleTable(samples.rows, use_of) if each.mode is CacheMode.BINARIES else samples
        found = table.difference(each, rival)
        if found is not None and found.clear and found.ratio.low > 1:
            behind[each] = Lag(each, rival, found)
    return behind
