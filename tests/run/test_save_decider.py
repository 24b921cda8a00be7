"""When a save is due: by examples, and by any sequence of events."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.run.keeping import FORCED, SaveDecider
from orchestrator.run.options import SavePolicy
from orchestrator.run.records import SaveReason

POLICY = SavePolicy(quiet_ns=10, growth_pipelines=50, growth_bytes=1000, overdue_ns=100, pause_ns=20)


def decider() -> SaveDecider:
    return SaveDecider(POLICY)


def test_nothing_is_due_when_nothing_was_created() -> None:
    one = decider()
    one.loaded(5000)
    one.created(0, 0, 6000)
    assert one.due(10**9) is None
    assert [one.forced(reason) for reason in FORCED] == [None] * 3


def test_quiet_is_counted_from_the_last_pipeline() -> None:
    one = decider()
    one.created(0, 1)
    one.created(7, 1)
    assert one.due(16) is None
    assert one.due(17) is SaveReason.QUIET


def test_growth_does_not_wait() -> None:
    one = decider()
    one.created(0, 49, 999)
    assert one.due(1) is None
    one.created(1, 1)
    assert one.due(1) is SaveReason.GROWTH
    other = decider()
    other.loaded(5000)
    other.created(1, 1, 5999)
    assert other.due(1) is None
    other.created(1, 0, 6000)
    assert other.due(1) is SaveReason.GROWTH


def test_creation_that_is_never_quiet_is_saved_all_the_same() -> None:
    one = decider()
    for now in range(0, 97, 8):
        one.created(now, 1)
        assert one.due(now) is None
    assert one.due(100) is SaveReason.OVERDUE


@pytest.mark.parametrize("reason", sorted(FORCED))
def test_an_end_waits_for_nothing(reason: SaveReason) -> None:
    one = decider()
    one.created(0, 1)
    assert one.forced(reason) is reason
    one.started()
    assert one.forced(reason) is None
    one.failed(1)
    assert one.due(2) is None
    assert one.forced(reason) is reason


def test_only_an_end_forces() -> None:
    with pytest.raises(ValueError, match="quiet is no reason to force"):
        decider().forced(SaveReason.QUIET)


def test_a_cache_without_content_is_never_due() -> None:
    one = decider()
    one.created(0, 500, 36)  # what RADV gives for an empty one
    assert one.due(10**9) is None
    assert one.forced(SaveReason.EXIT) is None
    one.created(1, 0, 65)
    assert one.forced(SaveReason.EXIT) is SaveReason.EXIT


@pytest.mark.parametrize(
    ("end", "new", "reason"),
    [(SaveDecider.saved, 3, SaveReason.QUIET), (SaveDecider.failed, 53, SaveReason.GROWTH)],
    ids=["saved", "failed"],
)
def test_what_a_save_leaves_out_is_new_and_due_after_a_pause(
    end: Callable[[SaveDecider, int], None], new: int, reason: SaveReason
) -> None:
    """What was created while it went on, and where it failed, what it was to save."""
    one = decider()
    one.created(0, 50)
    one.started()
    one.created(1, 3)
    assert one.due(1000) is None
    end(one, 5)
    assert one.new_pipelines == new
    assert one.due(24) is None
    assert one.due(25) is reason


def test_a_young_cache_is_saved_sooner() -> None:
    ms = 10**6
    one = SaveDecider(SavePolicy(quiet_ns=10**15, overdue_ns=1000 * ms, pause_ns=500 * ms, age_share=0.25))
    one.created(1000 * ms, 1)
    assert one.due(1049 * ms) is None
    assert one.due(1050 * ms) is SaveReason.OVERDUE
    one.started()
    one.created(1060 * ms, 1)
    one.saved(1400 * ms)
    assert one.due(1499 * ms) is None  # a quarter of 400 ms
    assert one.due(1500 * ms) is SaveReason.OVERDUE
    one.started()
    one.saved(9000 * ms)
    one.created(9000 * ms, 1)
    assert one.due(9999 * ms) is None
    assert one.due(10_000 * ms) is SaveReason.OVERDUE


def test_a_save_begins_and_ends_once() -> None:
    one = decider()
    one.created(0, 1)
    one.started()
    with pytest.raises(RuntimeError, match="under way"):
        one.started()
    one.saved(0)
    with pytest.raises(RuntimeError, match="no save"):
        one.saved(0)
    with pytest.raises(RuntimeError, match="no save"):
        one.failed(0)


def test_a_policy_that_never_waits_is_refused() -> None:
    with pytest.raises(ValueError, match="quiet_ns"):
        SavePolicy(quiet_ns=0)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("created"), st.integers(0, 60), st.none() | st.integers(0, 5000)),
        st.tuples(st.just("ask")),
        st.tuples(st.just("force"), st.sampled_from(sorted(FORCED))),
        st.tuples(st.just("saved")),
        st.tuples(st.just("failed")),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(events=st.lists(st.tuples(st.integers(0, 40), EVENTS), max_size=12))
def test_any_sequence_of_events(events: list[tuple[int, list[tuple[object, ...]]]]) -> None:
    """Against a model that knows which pipelines are safe: never due without need, and none is forgotten."""
    one = decider()
    created, safe, in_save, now = 0, 0, 0, 0
    for step, group in events:
        now += step
        for event in group:
            if event[0] == "created":
                assert isinstance(event[1], int)
                size = event[2]
                assert size is None or isinstance(size, int)
                one.created(now, event[1], size)
                created += event[1]
            elif event[0] in {"saved", "failed"}:
                if not one.saving:
                    continue
                if event[0] == "saved":
                    one.saved(now)
                    safe = in_save
                else:
                    one.failed(now)
            else:
                if event[0] == "ask":
                    reason = one.due(now)
                else:
                    assert isinstance(event[1], SaveReason)
                    reason = one.forced(event[1])
                if reason is not None:
                    assert created > safe
                    assert one.cache_bytes is None or one.cache_bytes > 64
                    assert not one.saving
                    one.started()
                    in_save = created
            assert one.new_pipelines == created - (in_save if one.saving else safe)
            soon = now + max(POLICY.quiet_ns, POLICY.pause_ns)
            assert (one.due(soon) is not None) == (one.is_new and not one.saving)
    if one.saving:
        one.saved(now)
        safe = in_save
    # An end saves what is left, and then nothing is.
    left = one.forced(SaveReason.EXIT)
    assert (left is not None) == (created > safe and (one.cache_bytes is None or one.cache_bytes > 64))
