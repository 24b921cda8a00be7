"""Jobs of a benchmark, each done in a process of its own: a driver reads its target and environment once.

Guarantees: a job that cannot be done has an answer that says so, and so has one whose process crashes or
hangs.
"""

from __future__ import annotations

import enum
import sys
import time

import msgspec

from orchestrator.bench.rows import FailedSample, Sample, Turn
from orchestrator.children.parent import Child, Ended
from orchestrator.children.protocol import ChildLimits
from orchestrator.devices.device import CacheMode, DeviceIdentity
from orchestrator.devices.image import PipelineKind
from orchestrator.process import may_fork
from orchestrator.run.options import BATCH_LIMIT

_JOB_TIMEOUT_S = 3600.0
_ENDING_S = 60.0
_REASON_LENGTH = 400
_LIMITS = ChildLimits(frame_bytes=64 << 20)


class SampleJob(Turn, frozen=True, kw_only=True, tag_field="job", tag="sample"):
    """Take one sample.

    Attributes:
        set_paths: The archives, or one manifest.
        batch: Largest number of pipelines in a call.
        passes: How often the whole set is in the run.
        cache_directory: Where `FillJob` put the cache file that a warm run starts with.
        trace: Where to write a timeline of the run, or "".
        profiles: The directory of key profiles and quarantines, as `compile` has it; "" for none.
    """

    set_paths: tuple[str, ...]
    batch: int = BATCH_LIMIT
    passes: int = 1
    cache_directory: str = ""
    trace: str = ""
    profiles: str = ""


class CacheJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked about a set and its cache file.

    Attributes:
        set_paths: The archives, or one manifest.
        device: The selector.
        cache_directory: Where `FillJob` puts the cache file and `ProbeJob` finds it.
        profiles: The directory of key profiles and quarantines, as `compile` has it; "" for none.
    """

    set_paths: tuple[str, ...]
    device: str
    cache_directory: str
    profiles: str = ""


class FillJob(CacheJob, frozen=True, kw_only=True, tag_field="job", tag="fill"):
    """Compile a set once, keep its cache, and see how fast everything is found in that.

    Attributes:
        workers: Number of workers.
        mode: The cache topology.
        compiles: False: only look at the set and the device.
        reuse: Leave a cache file that is there and proven as it is; then nothing is compiled.
        passes: How often the set is in the runs that find everything; 0 for no such runs.
    """

    workers: int
    mode: CacheMode = CacheMode.SHARED
    compiles: bool = True
    reuse: bool = False
    passes: int = 8


class Filled(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="filled"):
    """What a `FillJob` found. Where nothing was compiled, what follows `pipelines` is 0 or empty.

    Attributes:
        set_name: Where the set came from.
        set_hash: Hash over the names of its records, 16 hex digits.
        identity: The device and driver: what tells one run of a benchmark from another.
        pipelines: Pipelines that the device takes.
        hits: Of these, found in the empty cache: to the driver they are the same as others of the set.
        warm_rate: Pipelines a second that one worker takes from the cache; 0 where it keeps nothing.
        warm_rate_most: The same of all workers together.
        warnings: What the merge said.
        distrusted: Kinds of pipelines whose keys, as the driver gives them, do not tell pipelines apart.
        not_kept: Why there is no cache file now, or "".
        binaries: Whether the device has pipeline binaries.
        cold_wall_ns: What compiling it took.
        cold_driver_ns: The same added up over the workers, in the driver.
    """

    set_name: str
    set_hash: str
    identity: DeviceIdentity
    pipelines: int
    hits: int = 0
    warm_rate: float = 0.0
    warm_rate_most: float = 0.0
    warnings: tuple[str, ...] = ()
    distrusted: tuple[PipelineKind, ...] = ()
    not_kept: str = ""
    binaries: bool = False
    cold_wall_ns: int = 0
    cold_driver_ns: int = 0


class ProbeStep(enum.StrEnum):
    """What is asked of a driver in a new process, which has the cache file and remembers nothing.

    LOOK_UP: How many pipelines of the set it finds.
    GROW: The size of the cache after each round of loading, using and reading it back.
    """

    LOOK_UP = "look up"
    GROW = "grow"


class ProbeJob(CacheJob, frozen=True, kw_only=True, tag_field="job", tag="probe"):
    """Ask a driver one question about a cache.

    Attributes:
        step: Which.
        rounds: How often GROW loads, uses and reads.
    """

    step: ProbeStep
    rounds: int = 6


class Probed(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="probed"):
    """What a `ProbeJob` found.

    Attributes:
        hits: Pipelines that were found in the cache.
        missed: Which were compiled although the cache holds the whole set, in words; "" where all were found.
        sizes: Size of the cache after each round of GROW, bytes.
    """

    hits: int
    missed: str = ""
    sizes: tuple[int, ...] = ()


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="refused"):
    """A job that cannot be done, such as for want of a device.

    Attributes:
        kind: Name of the error.
        reason: What is wrong.
    """

    kind: str
    reason: str


Job = SampleJob | FillJob | ProbeJob
Answer = Sample | FailedSample | Filled | Probed | Refused


def run_in_process(job: Job) -> Answer:
    """Do a job in a process of its own; one that crashes or hangs gives a `Refused`. Blocking.

    Where this process may fork, that is a fork of it, which has imported everything and no driver, as the
    child of a compile is: 0.3 to 0.5 s less, half of what a short sample takes. Else it is an interpreter.
    """
    began = time.perf_counter()
    program = None if may_fork() else sys.executable
    with Child[Answer]("bench", Answer, limits=_LIMITS, program=program) as child:
        try:
            answer = child.ask(job, _JOB_TIMEOUT_S)
        except TimeoutError:
            return Refused(kind="timeout", reason=f"the sample did not end within {_JOB_TIMEOUT_S:.0f} s")
        if isinstance(answer, Ended):
            last = answer.fault or answer.words[-_REASON_LENGTH:]
            return Refused(kind="crash", reason=f"the process of the sample ended with {answer.how}: {last}")
        child.end(_ENDING_S)
    if isinstance(answer, Sample):  # the process itself does not know what starting it took
        answer = msgspec.structs.replace(answer, process_s=time.perf_counter() - began)
    return answer
