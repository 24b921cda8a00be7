"""The jobs of a benchmark. Each runs in its own process, since a driver reads its environment only once.

Guarantees: every job has an answer, also if it cannot be done or its process crashes or hangs.
"""

from __future__ import annotations

import enum
import os
import time

import msgspec

from orchestrator.bench.rows import Sample, Turn
from orchestrator.children.parent import Child, Ended
from orchestrator.devices.device import CacheMode, DeviceIdentity
from orchestrator.devices.selectors import needed_at_start
from orchestrator.malloc import compiling_environment
from orchestrator.run.options import BATCH_LIMIT

_JOB_TIMEOUT_S = 3600.0
_ENDING_S = 60.0
_REASON_LENGTH = 400


class SampleJob(Turn, frozen=True, kw_only=True, tag_field="job", tag="sample"):
    """Take one sample.

    Attributes:
        set_paths: The archives, or one manifest.
        batch: Largest number of pipelines in a call.
        passes: How many times the run creates the whole set.
        cache_directory: Directory of the cache file for a warm run, which `FillJob` wrote.
        trace: File for a timeline of the run, or "".
        profiles: The directory of key profiles and quarantines, as for `compile`; "" for none.
    """

    set_paths: tuple[str, ...]
    batch: int = BATCH_LIMIT
    passes: int = 1
    cache_directory: str = ""
    trace: str = ""
    profiles: str = ""


class CacheJob(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the jobs that work on a set and its cache file.

    Attributes:
        set_paths: The archives, or one manifest.
        device: The selector.
        cache_directory: Directory of the cache file: `FillJob` writes it, `ProbeJob` reads it.
        profiles: The directory of key profiles and quarantines, as for `compile`; "" for none.
    """

    set_paths: tuple[str, ...]
    device: str
    cache_directory: str
    profiles: str = ""


class FillJob(CacheJob, frozen=True, kw_only=True, tag_field="job", tag="fill"):
    """Compile a set once, save its cache, and measure the rate of cache hits.

    Attributes:
        workers: Number of workers.
        mode: The cache topology.
        compiles: False to inspect the set and the device only.
        reuse: Keep an existing cache file that is proven, and compile nothing.
        passes: How many times the hit measurements repeat the set; 0 for no such measurements.
    """

    workers: int
    mode: CacheMode = CacheMode.SHARED
    compiles: bool = True
    reuse: bool = False
    passes: int = 8


class Filled(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="filled"):
    """The answer to a `FillJob`. If nothing was compiled, the fields after `pipelines` are 0 or empty.

    Attributes:
        set_name: File name of the set.
        set_hash: Hash over the names of its records, 16 hex digits.
        identity: The device and driver.
        pipelines: Pipelines that the device supports.
        hits: Of these, hits in the initially empty cache: the driver considers them equal to others of the
            set.
        warm_rate: Hits per second of one worker; 0 if the cache keeps nothing.
        warm_rate_most: Hits per second of all workers together.
        warnings: Warnings of the merge.
        not_kept: Why no cache file was saved, or "".
        binaries: Whether the device has pipeline binaries.
        cold_wall_ns: Elapsed time of compiling the set.
        cold_driver_ns: Driver time of compiling it, summed over the workers.
        cores: As in `Environment`.
        processor: As in `Environment`.
        python: As in `Environment`.
        orchestrator: As in `Environment`.
    """

    set_name: str
    set_hash: str
    identity: DeviceIdentity
    pipelines: int
    hits: int = 0
    warm_rate: float = 0.0
    warm_rate_most: float = 0.0
    warnings: tuple[str, ...] = ()
    not_kept: str = ""
    binaries: bool = False
    cold_wall_ns: int = 0
    cold_driver_ns: int = 0
    cores: int = 0
    processor: str = ""
    python: str = ""
    orchestrator: str = ""


class ProbeStep(enum.StrEnum):
    """A question to the driver in a new process, which knows nothing but the cache file.

    LOOK_UP: How many pipelines of the set hit?
    GROW: How large is the cache after each round of loading it, using it and reading it back?
    """

    LOOK_UP = "look up"
    GROW = "grow"


class ProbeJob(CacheJob, frozen=True, kw_only=True, tag_field="job", tag="probe"):
    """Ask a driver one question about a cache.

    Attributes:
        step: The question.
        rounds: Rounds of GROW.
    """

    step: ProbeStep
    rounds: int = 6


class Probed(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="probed"):
    """The answer to a `ProbeJob`.

    Attributes:
        hits: Number of cache hits.
        missed: Description of the pipelines that were compiled although the cache was made from the whole
            set; "" if all of them hit.
        sizes: Size of the cache after each round of GROW, bytes.
    """

    hits: int
    missed: str = ""
    sizes: tuple[int, ...] = ()


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="refused"):
    """The answer to a job that cannot be done, for example because there is no such device.

    Attributes:
        kind: Class name of the error; "crash" or "timeout" if the process crashed or hung.
        reason: The message.
    """

    kind: str
    reason: str


Job = SampleJob | FillJob | ProbeJob
Answer = Sample | Filled | Probed | Refused


def run_in_process(job: Job) -> Answer:
    """Do a job in its own process. Blocking. The answer is `Refused` if the process crashes or hangs."""
    began = time.perf_counter()
    environment = compiling_environment(os.environ | needed_at_start(job.device))
    with Child[Answer]("bench", Answer, environment=environment) as child:
        try:
            answer = child.ask(job, _JOB_TIMEOUT_S)
        except TimeoutError:
            return Refused(kind="timeout", reason=f"the sample did not end within {_JOB_TIMEOUT_S:.0f} s")
        if isinstance(answer, Ended):
            last = answer.fault or answer.output[-_REASON_LENGTH:]
            return Refused(kind="crash", reason=f"the process of the sample ended with {answer.how}: {last}")
        child.end(_ENDING_S)
    if isinstance(answer, Sample):  # the process itself does not know how long its start took
        answer = msgspec.structs.replace(answer, process_s=time.perf_counter() - began)
    return answer
