"""What a run and a compile are asked for, as values.

`RunOptions` is what `run_pipelines` and `open_session` take, `CompileOptions` what `compile_set` takes. Both
hold plain data only, so that they can be compared, named in a report and sent to another process.

Guarantees: a value that cannot be meant is refused when it is made, with ValueError, and one of another type
with TypeError.
"""

from __future__ import annotations

import enum
import math
import operator
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs
from attrs import Attribute, converters, evolve, field, frozen, validators

from orchestrator.devices.modes import CacheMode
from orchestrator.errors import NoDeviceError
from orchestrator.schedule.options import ScheduleOptions
from orchestrator.sets.subset import WHOLE, Subset
from orchestrator.stores.files.atomic_file import SaveError

_NO_LIMIT_NS = 1 << 62
_SOONEST_NS = 50_000_000

NO_WORKER_CACHES = frozenset({CacheMode.SHARED, CacheMode.BINARIES, CacheMode.NONE})
"""Modes in which workers have no caches of their own."""


def available_workers(cgroup: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Processors that this process may use, by affinity and cgroup quota: the default number of workers.

    Thread-safe.
    """
    quotas = [math.ceil(each) for each in _quotas(cgroup, root)]
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def _quotas(cgroup: Path, root: Path) -> Iterator[float]:
    """Quotas of this process's cgroup, of version 2, and of those around it, in processors."""
    try:
        lines = cgroup.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    path = next((each[len("0::") :] for each in lines if each.startswith("0::")), "")
    # Where the path is that of another namespace, the place where it is mounted is this process's own.
    own = root / path.lstrip("/")
    for each in [own, *own.parents]:
        try:
            quota, period = map(int, (each / "cpu.max").read_text("ascii").split())
        except (OSError, ValueError):  # there is none: "max"
            quota = period = 0
        if period:
            yield quota / period
        if each == root:
            break


def directory_to_keep(cache_directory: str | os.PathLike[str] | None) -> Path | None:
    """The directory of cache files as a path; None keeps none.

    Raises:
        ValueError: The text is empty, which would be the current directory.
    """
    if cache_directory is None:
        return None
    if not os.fspath(cache_directory):
        raise ValueError(
            "'cache_directory' is empty: name a directory, '.' for the current one, or None to keep nothing"
        )
    return Path(cache_directory)


def kept_in(given: str | os.PathLike[str] | None) -> Path:
    """The directory of cache files: the given one, or the user's cache directory, which may not be there.

    Raises:
        SaveError: None is given, and the system knows none of the user.
        ValueError: The text is empty.
    """
    try:
        return directory_to_keep(given) or platformdirs.user_cache_path("orchestrator")
    except RuntimeError as error:
        raise SaveError(Path("~/.cache"), "looking for the user's cache directory", str(error)) from None


def _number(default: Any, least: float, most: float = math.inf, *, whole: bool = True, **more: Any) -> Any:
    """A field for a number within bounds, or for None."""

    def check(_options: object, attribute: Attribute[float | None], value: float | None) -> None:
        if value is None:
            return
        if not isinstance(value, int if whole else int | float):
            raise TypeError(f"{attribute.name!r} must be a {'whole ' if whole else ''}number, not {value!r}")
        if not least <= value <= most:
            above = "" if most == math.inf else f" and <= {most:g}"
            raise ValueError(f"{attribute.name!r} must be >= {least}{above}: {value}")

    return field(default=default, converter=_plain, validator=check, **more)


def _plain(value: object) -> object:
    # Another process can be sent an int, and no whole number of numpy.
    return operator.index(value) if hasattr(value, "__index__") else value


def _time_limit() -> Any:
    return _number(None, 0, 1e9, whole=False)


def _switch(default: bool) -> Any:
    # A text such as "off" would switch it on.
    return field(default=default, validator=validators.instance_of(bool))


_IS_TEXT = validators.instance_of(str)


def duration_ns(seconds: float | None) -> int | None:
    """A time limit in ns; None where there is none: for None, infinity, and what no clock can count.

    Raises:
        ValueError: It is negative, or no number.
    """
    if seconds is None:
        return None
    try:
        limit_ns = float(seconds) * 1e9 if hasattr(seconds, "__float__") else math.nan
    except OverflowError:
        return None
    if not limit_ns >= 0:
        raise ValueError(f"a time limit of {seconds!r} s: 0 or more is expected, and None for no limit")
    return None if limit_ns >= _NO_LIMIT_NS else math.ceil(limit_ns)


def sooner_ns(limit_ns: int, age_share: float, age_ns: int) -> int:
    """A limit of `MergePolicy` or `SavePolicy`, ns, for a run of this age, ns."""
    return min(limit_ns, max(_SOONEST_NS, int(age_share * age_ns))) if age_share else limit_ns


@frozen
class MergePolicy:
    """When worker caches are merged into the primary.

    Without `rolling` once, at the barrier. With it also as soon as a worker's cache holds something new and
    has an age.

    Attributes:
        age_ns: Time since the worker took the cache.
        age_share: So much of the time since the run began takes the place of `age_ns` where it is less; 0
            for never.
    """

    rolling: bool = _switch(False)
    age_ns: int = _number(2_000_000_000, 1)
    age_share: float = _number(0.0, 0, 1, whole=False)


BARRIER = MergePolicy()
"""One merge, when all workers have ended."""

ROLLING = MergePolicy(rolling=True)
"""Merges while workers run, at the default thresholds."""


_IS_MERGE = validators.optional(validators.instance_of(MergePolicy))


def _check_merge(mode: CacheMode | None, merge: MergePolicy | None) -> None:
    if merge is not None and merge.rolling and mode in NO_WORKER_CACHES:
        raise ValueError(f"mode {mode} has no worker caches, so there is nothing to merge on the way")


def _check_expected(mode: CacheMode | None, *, expect_hits: bool) -> None:
    if expect_hits and mode not in (None, CacheMode.SHARED, CacheMode.BINARIES, CacheMode.NONE):
        raise ValueError(f"where hits are expected all workers look in one place, which mode {mode} has not")


@frozen(kw_only=True)
class RunOptions:
    """How the pipelines of a prepared set are created.

    Attributes:
        workers: Number of workers, at most one thread each; None for `available_workers`.
        mode: The cache topology. PER_WORKER falls back to unflagged caches where the device has no externally
            synchronized ones, and says so in the report's notes. TWO_LEVEL falls back to PER_WORKER with a
            rolling merge where the device cannot forbid compiling.
        merge: When worker caches are merged into the primary. None for `ROLLING` in mode TWO_LEVEL, whose
            workers look things up in the primary, and `BARRIER` in the others.
        schedule: Settings of the schedule. None for those that suit the mode: `unsteered_schedule` for
            `run_pipelines`, short batches for `open_session`.
        keep: Keep the pipelines for the caller, who owns them: `OutcomeTable.handles`,
            `PipelineSession.take`. They are destroyed where there will be no report.
        time_limit_s: Seconds from the first job on in which batches may begin; None for no limit. The batches
            in flight are waited for, everything is merged, and the rest is NOT_RUN, which is what another run
            has to do. Only what is estimated to end in time begins, one job apart. A session begins with it;
            see `PipelineSession.limit_time`.
        expect_hits: Forbid compiling (VK_PIPELINE_CREATE_FAIL_ON_PIPELINE_COMPILE_REQUIRED_BIT): what the
            primary does not hold fails. In modes SHARED and BINARIES; also in NONE, where a driver finds what
            its own cache holds: each pipeline that it creates then counts as found.
    """

    workers: int | None = _number(None, 1)
    mode: CacheMode = field(default=CacheMode.PER_WORKER, converter=CacheMode)
    merge: MergePolicy | None = field(default=None, validator=_IS_MERGE)
    schedule: ScheduleOptions | None = field(
        default=None, validator=validators.optional(validators.instance_of(ScheduleOptions))
    )
    keep: bool = _switch(False)
    time_limit_s: float | None = _time_limit()
    expect_hits: bool = _switch(False)

    def __attrs_post_init__(self) -> None:
        _check_merge(self.mode, self.merge)
        _check_expected(self.mode, expect_hits=self.expect_hits)


_TARGET_NS = 200_000_000
_LEAST_TARGET_NS = 5_000_000
_BATCHES_IN_LIMIT = 20
BATCH_LIMIT = 1024
"""Largest batch where nobody steers."""


def unsteered_schedule(
    mode: CacheMode, *, batch_limit: int | None = None, limit_s: float | None = None
) -> ScheduleOptions:
    """Settings of a run that nobody steers, which `compile_set`, benchmarks and calibrations share.

    Batches aim at 200 ms, because a call costs half a millisecond beside the driver; where work may begin for
    `limit_s` only, at so little that a wrong estimate overruns it by little.
    """
    target_ns = _TARGET_NS
    if limit_s is not None:
        target_ns = round(min(_TARGET_NS, max(_LEAST_TARGET_NS, limit_s * 1e9 / _BATCHES_IN_LIMIT)))
    return ScheduleOptions(
        pin_followers=mode not in NO_WORKER_CACHES,
        target_ns=target_ns,
        batch_limit=batch_limit or BATCH_LIMIT,
        hit_share=0.0,
    )


RUN_DEFAULTS = RunOptions()
"""What is taken where nothing is said."""


class ModulePolicy(enum.StrEnum):
    """What is done about shader modules that may be invalid.

    Attributes:
        OFF: Nothing.
        WARN: spirv-val judges every module; what it refuses is noted, and compiled.
        SKIP: Pipelines with a module that it refuses are skipped: the driver is never asked.
        ISOLATE: Every pipeline is compiled in a child process first; what the driver dies of there is failed
            and named. `compile_set` needs `Steering.try_pipelines` for that.
    """

    OFF = "off"
    WARN = "warn"
    SKIP = "skip"
    ISOLATE = "isolate"


class PipelineKeyUse(enum.StrEnum):
    """Whether the driver is asked for pipeline keys, so that what is the same to it is compiled once.

    Attributes:
        AUTO: Of pipelines that have all their code in common with another and that no cache is estimated to
            hold, where several workers might compile them twice.
        ALL: Of all pipelines that no cache is estimated to hold, those that link libraries apart.
        OFF: Never; pipelines are told apart by their state alone.
    """

    AUTO = "auto"
    ALL = "all"
    OFF = "off"


@frozen
class SavePolicy:
    """When a cache file is saved on the way, so that crashes and saves both cost little.

    Attributes:
        quiet_ns: A save is due after so long without a new pipeline.
        growth_pipelines: A save is due at once with so many new pipelines.
        overdue_ns: A save is due so long after the first new pipeline, even if creation goes on.
        pause_ns: Least time between the end of a save, good or failed, and the next one that is not forced.
        age_share: So much of the time since the first new pipeline of all takes the place of `overdue_ns` and
            of `pause_ns` where it is less; 0 for never.
    """

    quiet_ns: int = _number(2_000_000_000, 1)
    growth_pipelines: int = _number(2048, 1)
    overdue_ns: int = _number(60_000_000_000, 1)
    pause_ns: int = _number(5_000_000_000, 1)
    age_share: float = _number(0.0, 0, 1, whole=False)


_LEAST_LIMIT_S = 60.0
_LIMIT_FACTOR = 20


@frozen
class TrialLimits:
    """What a child process may take that compiles, or tries pipelines.

    Time in which a driver waits for a processor counts for none of them: on a busy machine, or under a quota.

    Attributes:
        pipeline_s: Seconds for one pipeline; None for 60, or 20 times what was recorded of it, whichever is
            more.
        call_s: Seconds for any other call into the driver, such as loading a cache file or merging; None for
            60 or `pipeline_s`, whichever is more.
        memory_bytes: Memory that a child may have for its data, 0 for no limit.
        opener: "package.module:function" that opens the device in a child, where the run's own opener is a
            function that a child does not have; called with a DeviceRequest.
    """

    pipeline_s: float | None = _number(None, 1e-9, whole=False)
    call_s: float | None = _number(None, 1e-9, whole=False, kw_only=True)
    memory_bytes: int = _number(0, 0)
    opener: str = field(default="", validator=_IS_TEXT)

    def limit_s(self, recorded_ns: int = 0) -> float:
        """Seconds for a pipeline of which this was recorded, 0 for nothing."""
        if self.pipeline_s is not None:
            return self.pipeline_s
        return max(_LEAST_LIMIT_S, _LIMIT_FACTOR * recorded_ns / 1e9)

    def call_limit_s(self) -> float:
        """Seconds for a call that creates no pipeline."""
        return max(_LEAST_LIMIT_S, self.pipeline_s or 0.0) if self.call_s is None else self.call_s


@frozen(kw_only=True)
class CompileOptions:
    """How a set is compiled.

    Attributes:
        selector: Which device, as `open_device` takes it.
        driver_caches: Leave the driver's own caches on.
        workers: Number of workers; None for what a calibration of the device found best, or else one a
            processor.
        mode: The cache topology. NONE keeps no cache file. None follows the calibration that is kept in the
            cache directory. Where there is none it is SHARED if the cache file is known to hold nearly
            everything, else PER_WORKER; the report's notes say which.
        cache_file_needed: Whether mode None must keep a cache file, such as for a pack: never BINARIES then.
        save_needed: Whether it is an error, before anything is compiled, if nothing can be saved; else the
            report says so.
        merge: As in `RunOptions`. With a rolling merge the cache file is also saved on the way.
        save_policy: When the cache file is saved on the way.
        relax_driver_version: Load a cache file whose driverVersion alone differs.
        binary_store_bytes: In mode BINARIES: what the store of binaries may have on disk from now on; None
            for what was said before, or else 512 MiB.
        binary_memory_bytes: In mode BINARIES: what binaries that are pulled in ahead of time may have.
        spirv_val: What is done about shader modules that may be invalid.
        trial_limits: What a child process may take; with an `opener` of one's own, also how a child opens the
            device.
        pipeline_keys: Whether the driver is asked for pipeline keys.
        statistics_journal: Path of a journal. Every pipeline is created once, with the statistics of its code
            captured, which the journal gets (`run.statistics`); only in mode none.
        statistics_code: Whether the journal gets the internal representations of the code too.
        subset: Which of the set's pipelines; the report counts these alone.
        needs: What all pipelines of the set need of a device, where the report of another subset says it
            (`GroupRecord.opened_as`, its features and extensions). Then only the subset is decoded of a set
            that no application was recorded with.
        only_these: Keep a cache of this set alone: where its file holds pipelines that the set does not have,
            or nobody knows, begin with an empty cache, and replace the file once all was compiled. For packs
            (`cache_file_needed`) in any case, where the file is known to hold others.
        batch_limit: Largest batch; None for what suits the run.
        retry_quarantined: Try pipelines again that are in the quarantine of the cache directory: those that
            ended the driver in an earlier run, which otherwise fail without being tried.
        time_limit_s: As in `RunOptions`, counted from the first pipeline of each group of the set on, over
            all groups.
        plan: Whether the decoded set is kept beside the cache file, as a plan, and taken from there.
        open_ahead: Whether a group's device is opened, and its pipelines decoded, while the group before it
            compiles. Not where time or the memory of a child is bounded, and not with identifiers.
        identifiers: Create pipelines from identifiers of their shader modules first, and read the code only
            of those that the driver does not find so (VK_EXT_shader_module_identifier). Identifiers are kept
            in the cache directory. A set with a provider (`PipelineSet.supplied_by`) is compiled so in any
            case.
        environment: Variables of the process that compiles, beside those of this one: pairs of name and
            encoded value. Not for a compile in the caller's own process.
        expect_hits: As in `RunOptions`: nothing is compiled, and nothing is saved. The reason of what is
            missing names its application. The mode is BINARIES where that was asked for or found best by a
            calibration, else SHARED.
    """

    selector: str = field(default="", validator=_IS_TEXT)
    driver_caches: bool = _switch(False)
    workers: int | None = _number(None, 1)
    mode: CacheMode | None = field(default=None, converter=converters.optional(CacheMode))
    cache_file_needed: bool = _switch(False)
    save_needed: bool = _switch(False)
    merge: MergePolicy | None = field(default=None, validator=_IS_MERGE)
    save_policy: SavePolicy = field(factory=SavePolicy, validator=validators.instance_of(SavePolicy))
    relax_driver_version: bool = _switch(False)
    binary_store_bytes: int | None = _number(None, 4 << 20)
    binary_memory_bytes: int = _number(256 << 20, 0)
    spirv_val: ModulePolicy = field(default=ModulePolicy.OFF, converter=ModulePolicy)
    trial_limits: TrialLimits = field(factory=TrialLimits, validator=validators.instance_of(TrialLimits))
    pipeline_keys: PipelineKeyUse = field(default=PipelineKeyUse.AUTO, converter=PipelineKeyUse)
    statistics_journal: str = ""
    statistics_code: bool = _switch(False)
    subset: Subset = field(default=WHOLE, validator=validators.instance_of(Subset))
    batch_limit: int | None = _number(None, 1)
    retry_quarantined: bool = _switch(False)
    time_limit_s: float | None = _time_limit()
    plan: bool = _switch(True)
    open_ahead: bool = _switch(True)
    identifiers: bool = _switch(False)
    only_these: bool = _switch(False)
    environment: tuple[tuple[str, bytes], ...] = ()
    expect_hits: bool = _switch(False)
    needs: frozenset[str] | None = None

    def __attrs_post_init__(self) -> None:
        _check_merge(self.mode, self.merge)
        _check_expected(self.mode, expect_hits=self.expect_hits)
        try:
            self.selector.encode()
        except UnicodeEncodeError:
            raise NoDeviceError(f"no device answers to {self.selector!r}: it is not UTF-8") from None
        if self.statistics_journal and self.mode is not CacheMode.NONE:
            raise ValueError("statistics change the keys of a cache, so a journal of them needs mode none")

    @property
    def saves(self) -> bool:
        """Whether it writes caches, and what is learned of pipelines, modules and the set."""
        return not self.expect_hits

    @property
    def opens_ahead(self) -> bool:
        """Whether `open_ahead` holds beside the other options."""
        bounded = self.time_limit_s is not None or self.trial_limits.memory_bytes
        return self.open_ahead and not bounded and not self.identifiers

    def left_s(self, spent_s: float) -> float | None:
        """Seconds of the time limit that are left after so many; None where there is none."""
        return None if self.time_limit_s is None else max(0.0, self.time_limit_s - spent_s)

    def after(self, spent_s: float) -> CompileOptions:
        """These options when so many seconds of their time limit are over."""
        return evolve(self, time_limit_s=self.left_s(spent_s))


COMPILE_DEFAULTS = CompileOptions()
"""What is taken where nothing is said."""
