"""When a save is due: by examples, and by any sequence of events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.run.keeping import SaveDecider
from orchestrator.run.options import SavePolicy
from orchestrator.run.records import SaveReason

POLICY = SavePolicy(quiet_ns=10, growth_pipelines=50, overdue_ns=100, pause_ns=20)


def decider() -> SaveDecider:
    return SaveDecider(POLICY)


def test_quiet_is_counted_from_the_last_pipeline() -> None:
    one = decider()
    one.created(0, 1)
    one.created(7, 1)
    assert one.due(16) is None
    assert one.due(17) is SaveReason.QUIET


def test_growth_does_not_wait() -> None:
    one = decider()
    one.created(0, 49)
    assert one.due(1) is None
    one.created(1, 1)
    assert one.due(1) is SaveReason.GROWTH


def test_creation_that_is_never_quiet_is_saved_all_the_same() -> None:
    one = decider()
    for now in range(0, 97, 8):
        one.created(now, 1)
        assert one.due(now) is None
    assert one.due(100) is SaveReason.OVERDUE


@pytest.mark.parametrize(
    ("worked", "new", "reason"), [(True, 3, SaveReason.QUIET), (False, 53, SaveReason.GROWTH)]
)
def test_what_a_save_leaves_out_is_new_and_due_after_a_pause(
    worked: bool, new: int, reason: SaveReason
) -> None:
    """What was created after it, and where it failed, what it was to save."""
    one = decider()
    one.created(0, 50)
    one.saved(5, worked=worked)
    one.created(6, 3)
    assert one.new_pipelines == new
    assert one.due(24) is None
    assert one.due(25) is reason


def test_a_young_cache_is_saved_sooner() -> None:
    ms = 10**6
    one = SaveDecider(SavePolicy(quiet_ns=10**15, overdue_ns=1000 * ms, pause_ns=500 * ms, age_share=0.25))
    one.created(1000 * ms, 1)
    assert one.due(1049 * ms) is None
    assert one.due(1050 * ms) is SaveReason.OVERDUE
    one.saved(1400 * ms, worked=True)
    one.created(1400 * ms, 1)
    assert one.due(1533 * ms) is None  # a quarter of the time since the first one
    assert one.due(1534 * ms) is SaveReason.OVERDUE
    one.saved(9000 * ms, worked=True)
    one.created(9000 * ms, 1)
    assert one.due(9999 * ms) is None
    assert one.due(10_000 * ms) is SaveReason.OVERDUE


def test_a_policy_that_never_waits_is_refused() -> None:
    with pytest.raises(ValueError, match="quiet_ns"):
        SavePolicy(quiet_ns=0)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 60), st.none() | st.integers(0, 5000)),  # created
        st.sampled_from(["saved", "failed"]),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(events=st.lists(st.tuples(st.integers(0, 40), EVENTS), max_size=12))
def test_any_sequence_of_events(events: list[tuple[int, list[tuple[int, int | None] | str]]]) -> None:
    """Against a model that knows which pipelines are safe: never due without need, and none is forgotten."""
    one = decider()
    created, safe, now = 0, 0, 0
    for step, group in events:
        now += step
        for event in group:
            if isinstance(event, tuple):
                one.created(now, *event)
                created += event[0]
            elif one.is_new:
                one.saved(now, worked=event == "saved")
                safe = created if event == "saved" else safe
            assert one.new_pipelines == created - safe
            assert one.is_new == (created > safe and (one.cache_bytes is None or one.cache_bytes > 64))
            soon = now + max(POLICY.quiet_ns, POLICY.pause_ns)
            assert (one.due(soon) is not None) == one.is_new
