"""Requirement expressions: evaluation, normal form, and texts that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.registry.expressions import all_of, any_of, evaluate, lacking, names, normal_form

NAMES = ("VK_VERSION_1_2", "VK_KHR_a", "VK_EXT_b", "VkPhysicalDeviceVulkan12Features::descriptorIndexing")


@pytest.mark.parametrize(
    ("expression", "there", "holds"),
    [
        ("", "", True),
        ("A", "A", True),
        ("A", "B", False),
        ("A,B", "B", True),
        ("A+B", "B", False),
        ("A+(B,C)", "A C", True),
        ("A+(B,C)", "B C", False),
        ("(A+B),C", "C", True),
        # Both operators bind equally, from the left: ((A,B)+C) and ((A+B),C).
        ("A,B+C", "A", False),
        ("A,B+C", "A C", True),
        ("A+B,C", "C", True),
    ],
)
def test_evaluate(expression: str, there: str, holds: bool) -> None:
    assert evaluate(expression, lambda name: name in there.split()) is holds
    assert evaluate(normal_form(expression), lambda name: name in there.split()) is holds


@pytest.mark.parametrize(
    ("expression", "normal"),
    [
        ("", ""),
        ("((A))", "A"),
        ("A,B+C", "(A,B)+C"),
        ("(A,B),(C,A)", "A,B,C"),
        ("(A+B)+(C,D)", "A+B+(C,D)"),
        (" A + B ", "A+B"),
    ],
)
def test_normal_form(expression: str, normal: str) -> None:
    assert normal_form(expression) == normal


@pytest.mark.parametrize("text", ["A+", "+A", "(A", "A)", "A B", "()", "A & B", "A,,B", "É"])
def test_malformed(text: str) -> None:
    with pytest.raises(ValueError, match="requirement"):
        evaluate(text, lambda _: True)


def test_joining() -> None:
    assert any_of(["A", "B+C"]) == "A,(B+C)"
    assert any_of(["A", ""]) == ""  # one alternative always holds
    assert any_of([]) == ""
    assert all_of(["A", "", "B,C"]) == "A+(B,C)"
    assert all_of([]) == ""
    assert names("A+(B,A)") == ("A", "B")
    assert names("") == ()


expressions = st.recursive(
    st.sampled_from(NAMES),
    lambda inner: st.lists(inner, min_size=2, max_size=4).flatmap(
        lambda parts: st.sampled_from("+,").map(lambda sign: "(" + sign.join(parts) + ")")
    ),
    max_leaves=8,
)


@given(expressions, st.sets(st.sampled_from(NAMES)))
def test_normal_form_keeps_the_meaning(expression: str, there: set[str]) -> None:
    normal = normal_form(expression)
    assert evaluate(normal, there.__contains__) == evaluate(expression, there.__contains__)
    assert normal_form(normal) == normal
    assert set(names(normal)) == set(names(expression))


@given(expressions, st.sets(st.sampled_from(NAMES)))
def test_what_is_lacking_would_fulfil_it(expression: str, there: set[str]) -> None:
    missing = lacking(expression, there.__contains__)
    assert bool(missing) != evaluate(expression, there.__contains__)
    assert there.isdisjoint(missing)
    assert evaluate(expression, (there | set(missing)).__contains__)


def test_nothing_is_lacking_of_what_holds() -> None:
    # VK_KHR_acceleration_structure from 1.2 on: the version stands for descriptor indexing.
    expression = "(VERSION,INDEXING)+DEFERRED"
    assert lacking(expression, {"VERSION"}.__contains__) == ("DEFERRED",)
    assert lacking(expression, set[str]().__contains__) == ("VERSION", "INDEXING", "DEFERRED")
    assert lacking("", set[str]().__contains__) == ()
