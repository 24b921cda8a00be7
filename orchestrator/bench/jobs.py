"""The jobs of a benchmark. Each runs in its own process, since a driver reads its environment only once.

Guarantees: every job has an answer, also if it cannot be done or its process crashes or hangs.
"""

from __future__ import annotations

import os
import time
from typing import Final, NoReturn

import msgspec
from attrs import frozen

from orchestrator.bench.rows import ENVIRONMENT_WORDS, Environment, Sample, Turn
from orchestrator.children.parent import Child, Ended
from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.selectors import needed_at_start
from orchestrator.errors import NoDeviceError, OrchestratorError
from orchestrator.process import compiling_environment
from orchestrator.run.options import BATCH_LIMIT
from orchestrator.stores.files.atomic_file import SaveError

JOB_TIMEOUT_S = 3600.0
"""A process that does one job is ended after this time."""
_ENDING_S = 60.0
_REASON_LENGTH = 400
_HITS_MOST = 1_600_000
_FAR_APART = 4


class BenchError(OrchestratorError):
    """A benchmark cannot begin or resume; the message says why, and `next_step` what to do."""

    def __init__(self, message: str, next_step: str = "name another directory with --out") -> None:
        super().__init__(message)
        self.next_step = next_step


@frozen
class MeasurementProgress:
    """The progress of a benchmark or a calibration, as a process begins."""

    done: int  # Processes so far; of a benchmark samples, those of earlier runs among them.
    total: int  # The most that there may be: fewer where something is decided sooner.
    now: str  # What begins, in words.
    eta_s: float | None  # The longest estimated time to go, s; None while that of a sample is unknown.
    left_s: float | None = None  # Time left until the limit, s; None without a limit.


class SampleJob(Turn, frozen=True, kw_only=True, tag_field="job", tag="sample"):
    """Take one sample."""

    set_paths: tuple[str, ...]  # The archives, or one manifest.
    batch: int = BATCH_LIMIT  # Largest number of pipelines in a call.
    passes: int = 1  # How many times the run creates the whole set.
    cache_directory: str = ""  # Directory of the cache file for a warm run, which `FillJob` wrote.
    trace: str = ""  # File for a timeline of the run, or "".
    profiles: str = ""  # The directory of key profiles and quarantines, as for `compile`; "" for none.
    limit_s: float = JOB_TIMEOUT_S  # The process is ended after this time.


class CacheJob(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the jobs that work on a set and the cache file in `cache_directory`; see `SampleJob`."""

    set_paths: tuple[str, ...]
    device: str
    cache_directory: str
    profiles: str = ""


class FillJob(CacheJob, frozen=True, kw_only=True, tag_field="job", tag="fill"):
    """Compile a set once, save its cache, and measure the rate of cache hits."""

    workers: int
    mode: CacheMode = CacheMode.SHARED
    compiles: bool = True  # False to inspect the set and the device only.
    reuse: bool = False  # Keep an existing cache file that is proven, and compile nothing.
    passes: int = 8  # How many times the hit measurements repeat the set; 0 for no such measurements.


class Filled(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="filled"):
    """The answer to a `FillJob`. If nothing was compiled, the fields after `pipelines` are 0 or empty."""

    set_name: str
    set_hash: str  # Hash over the names of its records, 16 hex digits.
    identity: DeviceIdentity
    environment: Environment
    pipelines: int  # Pipelines that the device supports.
    hits: int = 0  # Of these, hits in the initially empty cache: the driver considers them equal to others.
    # Time of one pass of hits with one worker, and with all, by contender: SHARED and PER_WORKER; s. Empty if
    # the cache keeps nothing or nothing was measured.
    hit_s: dict[CacheMode, tuple[float, float]] = {}
    warnings: tuple[str, ...] = ()  # Warnings of the merge.
    not_kept: str = ""  # Why no cache file was saved, or "".
    binaries: bool = False  # Whether the device has pipeline binaries.
    cold_wall_ns: int = 0  # Elapsed time of compiling the set.
    cold_driver_ns: int = 0  # Driver time of compiling it, summed over the workers.

    def passes(self, seconds: float, seconds_most: float) -> dict[CacheMode, int]:
        """How many times a warm run in each mode repeats the set, to keep one worker busy for so long.

        At most 1.6 million pipelines, and `seconds_most` with all workers: on some drivers many workers get
        hits a hundred times slower than one. Contenders repeat the set equally often, unless one of them
        would take `_FAR_APART` times as long: then each as often as its own time allows.
        """
        limit = _HITS_MOST / max(1, self.pipelines)
        own = {
            mode: max(1, round(min(seconds / one, seconds_most / every, limit)))
            for mode, (one, every) in self.hit_s.items()
        }
        least = min(own.values(), default=1)
        if max(own.values(), default=1) <= least * _FAR_APART:
            return dict.fromkeys(CacheMode, least)
        private = own[CacheMode.PER_WORKER]
        return dict.fromkeys(CacheMode, private) | {CacheMode.SHARED: own[CacheMode.SHARED]}


class ProbeJob(CacheJob, frozen=True, kw_only=True, tag_field="job", tag="probe"):
    """Ask a driver in a new process, which knows nothing but the cache file: how many pipelines hit?

    With `rounds`: how large is the cache after each round of loading it, using it and reading it back?
    """

    rounds: int = 0


class Probed(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="probed"):
    """The answer to a `ProbeJob`."""

    hits: int
    # Description of the pipelines that were compiled although the cache was made from the whole set; "" if
    # all of them hit.
    missed: str = ""
    sizes: tuple[int, ...] = ()  # Size of the cache after each round, bytes.


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="refused"):
    """The answer to a job that cannot be done, for example because there is no such device."""

    kind: str  # Class name of the error; "crash" or "timeout" if the process crashed or hung.
    reason: str


Job = SampleJob | FillJob | ProbeJob
Answer = Sample | Filled | Probed | Refused


def run_in_process(job: Job) -> Answer:
    """Do a job in its own process. Blocking. The answer is `Refused` if the process crashes or hangs."""
    began = time.perf_counter()
    environment = compiling_environment(os.environ | needed_at_start(job.device))
    limit_s = job.limit_s if isinstance(job, SampleJob) else JOB_TIMEOUT_S
    with Child[Answer]("bench", Answer, environment=environment) as child:
        try:
            answer = child.ask(job, limit_s)
        except TimeoutError:
            return Refused(kind="timeout", reason=f"it did not end within {limit_s:.0f} s")
        if isinstance(answer, Ended):
            last = answer.fault or answer.output[-_REASON_LENGTH:]
            return Refused(kind="crash", reason=f"the process of the sample ended with {answer.how}: {last}")
        child.end(_ENDING_S)
    if isinstance(answer, Sample):  # the process itself does not know how long its start took
        answer = msgspec.structs.replace(answer, process_s=time.perf_counter() - began)
    return answer


_MAY_DIFFER: Final = ("driver_name", "device_name", "driver_caches", "opened_as")
"""What of an `Environment` may change between the runs of a benchmark, or follows from the rest."""


def other_than(sample: Sample, found: Filled) -> str:
    """What a sample is of, in words, if not of the set, driver and machine that were found; else ""."""
    if sample.set_hash != found.set_hash:
        return f"another set ({sample.set_name}, hash {sample.set_hash}, not {found.set_hash})"
    for name, words in ENVIRONMENT_WORDS.items():
        if name in _MAY_DIFFER:
            continue
        was, now = getattr(sample.environment, name), getattr(found.environment, name)
        if was != now:
            return f"another {words} ({was}, not {now})"
    return ""


def reason_of(answer: Answer) -> str:
    """The reason of an answer other than the expected one."""
    return answer.reason if isinstance(answer, Refused) else "an unexpected answer"


def cannot(what: str, answer: Answer) -> NoReturn:
    """Raise the error for an answer other than the expected one.

    Raises:
        NoDeviceError: There is no such device.
        BenchError: Anything else.
    """
    kind = answer.kind if isinstance(answer, Refused) else ""
    if kind == NoDeviceError.__name__:
        raise NoDeviceError(reason_of(answer))
    steps = dict.fromkeys(
        ("crash", "timeout"),
        "`orchestrator compile SET` finds what ends the driver's process; then it is left out here too",
    )
    steps[SaveError.__name__] = (
        "make room there, or name another place: --out of `bench`, TMPDIR for `calibrate`"
    )
    usual = "`orchestrator list SET` shows what the set needs, `orchestrator devices` what each device offers"
    raise BenchError(f"{what}: {reason_of(answer)}", steps.get(kind, usual))
