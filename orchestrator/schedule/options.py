# Purpose: what a caller may decide about `CostScheduler`, in one frozen value, so that a run can name it in its
# report and two runs can be compared.
# Guarantees: an impossible value is refused when it is made.
"""`ScheduleOptions`: the settings of `CostScheduler`."""

from __future__ import annotations

import enum

from attrs import field, frozen, validators


class Followers(enum.StrEnum):
    """What becomes of a job that is the same work as another one (its leader), once the leader was created.

    CREATE: It is created too, by the leader's worker, whose cache has it by then: one compile, and every job has
        a pipeline of its own. Right where pipelines are kept, or outcomes are wanted from the driver.
    SHARE: It gets the leader's outcome and is never assigned, unless another job links it as a library.
    """

    CREATE = "create"
    SHARE = "share"


@frozen
class ScheduleOptions:
    """Settings of `CostScheduler`.

    Attributes:
        followers: What becomes of duplicates.
        pin_followers: With CREATE, only the leader's worker creates them, because only its cache has the code.
            False where all workers use one cache.
        affinity: Whether jobs that share a module or a library prefer one worker. Even so, a worker never idles
            and a long job never waits for the sake of it.
        target_ns: Time to aim at for a batch, nanoseconds. The default is for those who steer while it runs: what
            is urgent waits no longer than that for a worker. A cold run that nobody steers does well with 200 ms, for
            a call costs half a millisecond beside the driver.
        batch_limit: Largest batch.
        expect_hits: Share of jobs believed to hit before anything was learned, 0..1.
        capacity: Most jobs that may be queued; `submit` answers `Full` beyond it. None: no bound.
        streaming: Whether jobs may still be submitted: workers are told to wait, not that all is done, until
            `close` is called.
    """

    followers: Followers = Followers.CREATE
    pin_followers: bool = True
    affinity: bool = True
    target_ns: int = field(default=2_000_000, validator=validators.ge(1))
    batch_limit: int = field(default=256, validator=validators.ge(1))
    expect_hits: float = field(default=0.5, validator=[validators.ge(0.0), validators.le(1.0)])
    capacity: int | None = field(default=None, validator=validators.optional(validators.ge(1)))
    streaming: bool = False
