"""Settings of a schedule. Imports nothing large, because options are made early."""

from __future__ import annotations

import enum

from attrs import field, frozen, validators


class Priority(enum.IntEnum):
    """How urgent a job is; more urgent jobs are assigned first.

    NOW: A caller waits for it.
    SOON: The default.
    BACKGROUND: Assigned when nothing else is left.
    """

    NOW = 0
    SOON = 1
    BACKGROUND = 2


class Order(enum.StrEnum):
    """In which order jobs of one priority are assigned.

    COST: The longest chain of links first.
    GIVEN: By number.
    """

    COST = "cost"
    GIVEN = "given"


@frozen
class ScheduleOptions:
    """Settings of a `Scheduler`; an impossible value is refused with ValueError, or TypeError.

    Attributes:
        order: In which order jobs are assigned.
        unites: Whether jobs that are the same work follow the first of them, their leader: they are created
            after it, and found in its worker's cache. Where they are compiled all the same, they become
            ordinary jobs for any worker.
        pin_followers: Whether only the leader's worker creates them, because only its cache has the code.
            False where all workers use one cache.
        target_ns: Time to aim at for a batch, nanoseconds. The default suits a run that is steered: an
            urgent job waits no longer than this for a worker. 200 ms suits a cold run that is not, because
            each call costs half a millisecond outside the driver.
        batch_limit: Most jobs in one batch, which is one driver call.
        hit_share: Estimated share of hits before anything was learned, 0..1, among the jobs that
            `JobGraph.hits` does not name.
        streaming: Whether jobs are entered during the run, and none at the start. Until `close`, a worker is
            told to wait where it would be told that all is done.
        few_for_hits: Whether at most two workers take expected hits at a time, until one of these had to be
            compiled. Drivers look hits up under locks: with 16 workers RADV spends on a hit 13 times what it
            takes alone.
        costs_recorded: Whether the costs of nearly all jobs are recorded compile times. The last batches are
            longer then, because their ends are known.
    """

    order: Order = field(default=Order.COST, converter=Order)
    unites: bool = field(default=True, validator=validators.instance_of(bool))
    pin_followers: bool = field(default=True, validator=validators.instance_of(bool))
    target_ns: int = field(default=2_000_000, validator=[validators.instance_of(int), validators.ge(1)])
    batch_limit: int = field(default=256, validator=[validators.instance_of(int), validators.ge(1)])
    hit_share: float = field(default=0.5, validator=[validators.ge(0.0), validators.le(1.0)])
    streaming: bool = field(default=False, validator=validators.instance_of(bool))
    few_for_hits: bool = field(default=False, validator=validators.instance_of(bool))
    costs_recorded: bool = field(default=False, validator=validators.instance_of(bool))
