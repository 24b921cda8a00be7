"""Finds contenders of a calibration that have fallen behind and need no further samples.

    with all workers    compared with the fastest cache by median; the baseline is never dropped
    with fewer          compared with all workers of the same topology, and dropped together with it

A contender has fallen behind if the whole interval of its ratio lies beyond noise by a factor of
`CLEAR_AFTER_ONE` after one pair, or `CLEAR` after more (see `statistics`). The check is repeated before each
round: if later controls show more noise, a dropped contender is sampled again.

Guarantees: pure. A verdict from fewer pairs than usual requires that the gap is still clear at the end. Two
equal contenders get a wrong verdict this way in about one of a hundred calibrations on a very noisy driver
(times from 40 to 215 ms for the same work), and in none of thousands with cold runs or on a quiet machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from orchestrator.bench.sample_table import Contender, SampleTable, use_of
from orchestrator.bench.statistics import CLEAR, CLEAR_AFTER_ONE, Difference, estimate
from orchestrator.devices.device import CacheMode


@frozen
class Lag:
    """Why a contender needs no further samples.

    Attributes:
        contender: The contender.
        rival: The contender that it was compared with.
        difference: Its time over the rival's; None if it was dropped because the rival fell behind.
    """

    contender: Contender
    rival: Contender
    difference: Difference | None

    @property
    def words(self) -> str:
        """The reason in words."""
        if self.difference is None or self.difference.noise is None:
            return f"{self.rival.words} fell behind, so its number of workers does not matter"
        ratio, factor = self.difference.ratio, self.difference.noise.factor
        over = (
            f"{ratio.low:.3f} to {ratio.high:.3f} over {ratio.count} pairs" if ratio.count > 1 else "1 pair"
        )
        calls = "" if self.rival.batch == self.contender.batch else f" in calls of {self.rival.batch}"
        margin = CLEAR if self.difference.pairs > 1 else CLEAR_AFTER_ONE
        return (
            f"x{ratio.median:.3f} the time of {self.rival.words}{calls} ({over}; noise is up to "
            f"x{factor:.3f}, and a contender is dropped beyond {margin:g} times the noise)"
        )


def fallen_behind(samples: SampleTable, contenders: Sequence[Contender]) -> dict[Contender, Lag]:
    """The contenders that need no further samples, and why.

    Args:
        samples: The samples so far.
        contenders: All contenders of one start: the baseline, the others with all workers, the rest.
    """
    baseline = contenders[0]
    medians = {
        each: estimate([samples.figure(row) for row in rounds.values()]).median
        for each in contenders
        if each.workers == baseline.workers
        and each.mode is not CacheMode.BINARIES  # caches race against caches only
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
        # The comparison with binaries includes preparing, as in `weigh_binaries`.
        table = SampleTable(samples.rows, use_of) if each.mode is CacheMode.BINARIES else samples
        found = table.difference(each, rival)
        if found is not None and found.clear and found.ratio.low > 1:
            behind[each] = Lag(each, rival, found)
    return behind
