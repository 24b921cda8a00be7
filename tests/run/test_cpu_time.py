"""A limit on CPU time ends a compile in order, or with an error, and is held against no pipeline."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions, simulated_identity
from orchestrator.run.limits import CpuTimeError, ended_at_cpu_limit, on_cpu_limit
from orchestrator.run.options import CompileOptions, TrialLimits
from orchestrator.run.records import OutcomeStatus
from orchestrator.stores.culprits import load_quarantine
from orchestrator.supervise.supervisor import compile_supervised
from tests.run.small_sets import compute_keys, opener
from tests.supervise.processes import children

KEYS = compute_keys()[:6]


def open_near_the_limit(request: DeviceRequest) -> SimulatedDevice:
    """The limit is reached before anything is compiled."""
    handler = signal.getsignal(signal.SIGXCPU)
    if callable(handler):
        handler(signal.SIGXCPU, None)
    return SimulatedDevice(SimulatedOptions(request=request))


@opener
def open_at_the_limit(key: int) -> None:
    """One pipeline takes the CPU time that is left, in every process."""
    if key == KEYS[3]:
        ctypes.CDLL(None).signal(signal.SIGXCPU, 0)  # Python's own is for the main thread
        os.kill(os.getpid(), signal.SIGXCPU)
        threading.Event().wait()


def open_at_the_limit_alone(request: DeviceRequest) -> SimulatedDevice:
    """One pipeline crashes the process that compiles, and takes all the CPU time of that which tries it."""

    def on_compile(key: int) -> None:
        if key == KEYS[3]:
            signal.raise_signal(signal.SIGXCPU if is_default else signal.SIGSEGV)

    is_default = signal.getsignal(signal.SIGXCPU) is signal.SIG_DFL
    return SimulatedDevice(SimulatedOptions(request=request, on_compile=on_compile))


def options(name: str) -> CompileOptions:
    return CompileOptions(workers=1, trial_limits=TrialLimits(opener=f"{__name__}:{name}"))


async def test_near_the_limit_a_run_stops_in_order(archive: Path, tmp_path: Path) -> None:
    report = await compile_supervised(
        archive, options("open_near_the_limit"), cache_directory=tmp_path / "cache"
    )
    assert report.stopped
    assert report.out_of_time
    assert report.counts()[OutcomeStatus.NOT_RUN] == len(KEYS)
    (note,) = [each for each in report.notes if "CPU time" in each]
    assert "was reached; allow more, such as with `ulimit -t" in note


@pytest.mark.parametrize("name", ["open_at_the_limit", "open_at_the_limit_alone"])
async def test_who_dies_at_the_limit_blames_nobody(archive: Path, tmp_path: Path, name: str) -> None:
    before = children()
    with pytest.raises(CpuTimeError, match=r"the limit .*on the CPU time of each process"):
        await compile_supervised(archive, options(name), cache_directory=tmp_path / "cache")
    assert children() == before
    assert load_quarantine(tmp_path / "cache", simulated_identity()).profile is None


@pytest.mark.parametrize(
    ("status", "cpu_s", "hard", "is_spent"),
    [
        (-signal.SIGXCPU, 0.0, resource.RLIM_INFINITY, True),
        (-signal.SIGKILL, 9.5, 10, True),
        (-signal.SIGKILL, 5.0, 10, False),
        (-signal.SIGKILL, 5.0, resource.RLIM_INFINITY, False),
        (-signal.SIGSEGV, 10.0, 10, False),
        (1, 10.0, 10, False),
    ],
)
def test_a_kill_counts_where_the_time_is_used_up(
    status: int, cpu_s: float, hard: int, is_spent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (hard, hard))
    assert ended_at_cpu_limit(status, cpu_s) is is_spent


@pytest.mark.parametrize(
    ("limits", "soft"),
    [
        ((100, 100), 90),
        ((16, 16), 14),
        ((4, 4), 3),
        ((1, 1), 1),
        ((50, 100), 50),
        ((50, resource.RLIM_INFINITY), 50),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), resource.RLIM_INFINITY),
    ],
)
def test_some_time_is_kept_for_saving(limits: tuple[int, int], soft: int) -> None:
    """In a process of its own, since nobody may raise a limit again."""

    def work() -> None:
        said: list[str] = []
        resource.setrlimit(resource.RLIMIT_CPU, limits)
        on_cpu_limit(lambda: said.append("near"))
        assert resource.getrlimit(resource.RLIMIT_CPU) == (soft, limits[1])
        signal.raise_signal(signal.SIGXCPU)
        assert said == ["near"]

    assert exit_code_of(work) == 0


def exit_code_of(work: Callable[[], None]) -> int:
    """Exit code of a fork that does some work; 1 if it fails."""
    process_id = os.fork()
    if process_id == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])
