# Purpose: real drivers keep the contract. The cases of a driver run in one process of its own, since a process opens one
# driver; each case is a test here all the same, so that a report names what failed.
"""Real drivers keep the contract."""

from __future__ import annotations

from functools import cache

import pytest

from tests.contract.cases import CASES
from tests.drivers import each_driver, run_on_device, unsupported

pytestmark = pytest.mark.driver


@cache
def outcomes(driver: str) -> dict[str, list[str]]:
    """What every case gave on a driver."""
    found: dict[str, list[str]] = run_on_device(driver, "tests.contract.subject:run_cases", driver)
    return found


@each_driver
@pytest.mark.parametrize("case", CASES)
def test_the_contract(driver: str, case: str) -> None:
    outcome, reason = outcomes(driver)[case]
    if outcome == "not shown":
        unsupported(reason)
    assert outcome == "passed", reason
