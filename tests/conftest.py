"""Fixtures for real drivers and captured sets, and the rule that nothing is left out silently in CI.

Guarantees: with CI set, a test or module that skips fails instead, unless it skips because the corpora are
absent or because a device cannot show the case (tests.drivers.unsupported). Devices that a test opened are
closed when it ends.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings

from tests.drivers import (
    CORPORA_ABSENT,
    UNSUPPORTED,
    corpora_folder,
    driver_manifest,
    in_ci,
    is_driver,
    missing,
)
from tests.isolation import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.isolation import pytest_configure as pytest_configure
from tests.isolation import pytest_runtest_protocol as pytest_runtest_protocol
from tests.isolation import pytest_runtestloop as pytest_runtestloop
from tests.isolation import pytest_sessionfinish as pytest_sessionfinish

if TYPE_CHECKING:
    from orchestrator.devices.device import Device

# A busy machine is no failure. CI does not shrink what fails, which takes minutes: a developer's run does.
settings.register_profile(
    "ours",
    parent=settings.default,
    deadline=None,
    phases=[each for each in Phase if not in_ci() or each not in (Phase.shrink, Phase.explain)],
)
settings.load_profile("ours")

OpenDriverDevice = Callable[[str], "Device"]


@pytest.fixture(autouse=True, scope="session")
def signals_are_heard() -> None:
    """Undo what a shell tells its background jobs: the program leaves an ignored signal ignored."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def the_user_keeps_nothing_of_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give the default cache directory, and Mesa's, a place that goes."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def corpora() -> Path:
    """The folder of captured sets; skips where it is absent."""
    return corpora_folder()


@pytest.fixture
def open_driver_device() -> Iterator[OpenDriverDevice]:
    """A function that opens a device by selector, such as "radv:navi21", and closes it after the test.

    One process is one target: a test of a real device takes its selector from `tests.drivers.each_driver` or
    `each_device`, or names it in its mark, and so runs in the process of that target.
    """
    from orchestrator.devices.opening import open_device
    from orchestrator.errors import NoDeviceError

    opened: list[Device] = []

    def open_driver(selector: str) -> Device:
        if is_driver(selector):
            driver_manifest(selector)
        try:
            device = open_device(selector)
        except NoDeviceError as error:
            missing(f"a device for {selector}: {error}")
        opened.append(device)
        return device

    yield open_driver
    for device in reversed(opened):
        device.close()


def _is_allowed(reason: str) -> bool:
    return reason.removeprefix("Skipped: ").startswith((CORPORA_ABSENT, UNSUPPORTED))


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    # A skip's longrepr is (path, line, reason).
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


def _fail_if_left_out(report: pytest.TestReport | pytest.CollectReport) -> None:
    if in_ci() and report.skipped and not hasattr(report, "wasxfail"):
        reason = _reason(report)
        if not _is_allowed(reason):
            report.outcome = "failed"
            report.longrepr = f"skipped, which CI does not allow: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped test into a failed one in CI."""
    report = yield
    _fail_if_left_out(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a skipped module into a failed one in CI."""
    report = yield
    _fail_if_left_out(report)
    return report
