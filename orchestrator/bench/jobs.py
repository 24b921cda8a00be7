"""Jobs of a benchmark, each done in a process of its own: a driver reads its target and its environment once.

Guarantees: a job that cannot be done has an answer that says so, and so has one whose process crashes or
hangs.
"""

from __future__ import annotations

import enum
import time

import msgspec

from orchestrator.bench.rows import FailedSample, Sample, Turn
from orchestrator.children.parent import Child, Ended
from orchestrator.children.protocol import ChildLimits
from orchestrator.devices.device import CacheMode, DeviceIdentity

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
    """

    set_paths: tuple[str, ...]
    batch: int = 64
    passes: int = 1
    cache_directory: str = ""
    trace: str = ""


class FillJob(msgspec.Struct, frozen=True, kw_only=True, tag_field="job", tag="fill"):
    """Compile a set once, keep the cache for warm runs, and see how fast one worker is with it.

    Attributes:
        set_paths: The archives, or one manifest.
        device: The selector.
        workers: Number of workers.
        cache_directory: Where to put the cache file.
        warm: Whether warm runs will need it.
        reuse: Leave a cache file that is there and proven as it is; then nothing is compiled.
    """

    set_paths: tuple[str, ...]
    device: str
    workers: int
    cache_directory: str
    warm: bool
    reuse: bool = False


class Filled(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="filled"):
    """What a `FillJob` found.

    Attributes:
        set_hash: Hash over the names of the set's records, 16 hex digits.
        identity: The device and driver: what tells one run of a benchmark from another.
        pipelines: Pipelines that the device takes.
        cold_s: What compiling them took; 0 where nothing was compiled, as in the four below.
        warm_rate: Pipelines a second that one worker takes from the cache.
        warm_rate_most: The same of all workers together.
        hit_share: Share of the pipelines found in the cache then.
        cache_bytes: Size of the cache.
    """

    set_hash: str
    identity: str
    pipelines: int
    cold_s: float
    warm_rate: float
    warm_rate_most: float
    hit_share: float
    cache_bytes: int


class ProbeStep(enum.StrEnum):
    """What a `ProbeJob` does; see orchestrator/bench/take.py."""

    COMPILE = "compile"
    LOOK_UP = "look up"
    GROW = "grow"


class ProbeJob(msgspec.Struct, frozen=True, kw_only=True, tag_field="job", tag="probe"):
    """Ask a driver one question.

    Attributes:
        step: Which.
        set_paths: The archives, or one manifest.
        device: The selector.
        cache_directory: Where COMPILE puts its cache file, and the others take it from.
        workers: Number of workers of COMPILE.
        mode: The cache topology of COMPILE.
        rounds: How often GROW loads, uses and reads.
    """

    step: ProbeStep
    set_paths: tuple[str, ...]
    device: str
    cache_directory: str
    workers: int = 1
    mode: CacheMode = CacheMode.SHARED
    rounds: int = 6


class Probed(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="probed"):
    """What a `ProbeJob` found.

    Attributes:
        set_name: Where the set came from.
        set_hash: Hash over the names of its records, 16 hex digits.
        identity: The device.
        pipelines: Pipelines that were handed to the driver.
        hits: Of these, found in the cache.
        rate: Pipelines a second.
        sizes: Size of the cache after each round of GROW.
        warnings: What the merge of COMPILE said.
    """

    set_name: str
    set_hash: str
    identity: DeviceIdentity
    pipelines: int
    hits: int
    rate: float
    sizes: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()


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
    """Do a job in a process of its own; one that crashes or hangs gives a `Refused`. Blocking."""
    began = time.perf_counter()
    with Child[Answer]("bench", Answer, limits=_LIMITS) as child:
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
