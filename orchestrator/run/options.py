"""Settings of a compile.

What a compile was asked for, in one value.

Guarantees: a value; nothing here is decided.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path

import trio
from attrs import frozen

from orchestrator.devices.device import CacheMode
from orchestrator.run.caches import MergePolicy
from orchestrator.run.records import CompileProgress
from orchestrator.run.trial import TrialLimits
from orchestrator.run.vetting import ModulePolicy
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import DeviceOpener
from orchestrator.stores.saving import SavePolicy


class PipelineKeyUse(enum.StrEnum):
    """Whether the driver is asked for pipeline keys, so that what it compiles to the same code is compiled once.

    AUTO: Of pipelines that have all their code in common with another and that no cache is believed to hold, where
        several workers might compile them twice.
    ALL: Of all pipelines that no cache is believed to hold, those that link libraries apart.
    OFF: Never; pipelines are told apart by their state alone.
    """

    AUTO = "auto"
    ALL = "all"
    OFF = "off"


@frozen(eq=False)
class CompileSettings:
    """What `compile_set` was asked for; its arguments are described there.

    Attributes:
        source: The set.
        opener: Opens the device.
        selector: Which device, for notes and trial processes.
        workers: Number of workers, None where it is left open.
        mode: The cache topology, None where it is left open.
        merge: When worker caches are merged.
        save_policy: When the cache file is saved on the way.
        cache_directory: Where it is kept, or None.
        relax_driver_version: See `read_cache_file`.
        count_duplicate_pipeline_keys: See `run_pipelines`.
        inspect_executables: Whether the driver is asked about the code of pipelines.
        spirv_val: What is done about shader modules that may be invalid.
        trial_limits: What a trial may take.
        pipeline_keys: Whether the driver is asked for pipeline keys.
        driver_caches: Whether the driver's own caches are on.
        time_budget_s: Seconds in which batches may begin, over all groups; None: no limit.
        stop: Ends the job early when set.
        on_stage: Told what begins.
        on_progress: Told how far it is.
    """

    source: PipelineSet
    opener: DeviceOpener
    selector: str
    workers: int | None
    mode: CacheMode | None
    merge: MergePolicy | None
    save_policy: SavePolicy
    cache_directory: Path | None
    relax_driver_version: bool
    count_duplicate_pipeline_keys: bool
    inspect_executables: bool
    spirv_val: ModulePolicy
    trial_limits: TrialLimits
    pipeline_keys: PipelineKeyUse
    driver_caches: bool
    time_budget_s: float | None
    stop: trio.Event | None
    on_stage: Callable[[str], None]
    on_progress: Callable[[CompileProgress], None]

    @property
    def stopped(self) -> bool:
        """Whether the job was asked to end."""
        return self.stop is not None and self.stop.is_set()
