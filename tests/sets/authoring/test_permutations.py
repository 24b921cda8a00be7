"""Permutations: order, names and limits."""

import pytest

from orchestrator.errors import ManifestError
from orchestrator.sets.authoring.manifest import MAX_PERMUTATIONS, PermutationsTable, permutations_of


def test_nothing_permuted_is_one_without_a_label() -> None:
    (only,) = permutations_of(PermutationsTable(), "here", kind="compute")
    assert (only.label, only.specialization, only.state, only.fields) == ("", {}, {}, {})


def test_the_last_dimension_is_the_fastest() -> None:
    table = PermutationsTable(
        specialization={"SIZE": [32, 64]},
        state={"blend": ["opaque", {"blend_enable": True}]},
        depth_format=["d16_unorm"],
    )
    found = list(permutations_of(table, "here", kind="graphics"))
    assert [each.label for each in found] == [
        "[SIZE=32,blend=opaque,depth_format=d16_unorm]",
        "[SIZE=32,blend={blend_enable=true},depth_format=d16_unorm]",
        "[SIZE=64,blend=opaque,depth_format=d16_unorm]",
        "[SIZE=64,blend={blend_enable=true},depth_format=d16_unorm]",
    ]
    assert found[0].specialization == {"SIZE": 32}
    assert found[0].state == {"blend": "opaque"}
    assert found[0].fields == {"depth_format": "d16_unorm"}


def test_too_many_are_refused_before_any_is_made() -> None:
    side: list[bool | int | float] = list(range(MAX_PERMUTATIONS))
    table = PermutationsTable(specialization={"A": side, "B": side, "C": side, "D": side})
    with pytest.raises(
        ManifestError, match=r"here: 4096 x 4096 x 4096 x 4096 = \d+ permutations; the limit is 4096"
    ):
        next(permutations_of(table, "here", kind="compute"))


def test_exactly_the_limit_is_taken() -> None:
    table = PermutationsTable(specialization={"A": list(range(64)), "B": list(range(64))})
    assert sum(1 for _ in permutations_of(table, "here", kind="compute")) == MAX_PERMUTATIONS


def test_an_empty_dimension_is_a_mistake() -> None:
    with pytest.raises(ManifestError, match=r"permutations\.specialization\.A lists no values"):
        next(permutations_of(PermutationsTable(specialization={"A": []}), "here", kind="compute"))


def test_only_graphics_pipelines_have_state() -> None:
    with pytest.raises(ManifestError, match="only graphics pipelines"):
        next(permutations_of(PermutationsTable(state={"blend": ["alpha"]}), "here", kind="compute"))
