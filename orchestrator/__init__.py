"""Compile Vulkan pipeline sets in parallel, and know what it costs.

    PipelineSet.open           a set: archives, or one that `PipelineSetBuilder` makes of pipelines in code
    compile_set                compile it, merge, keep the cache: a `CompileReport`
    open_session               the same while a program goes on: priorities, frames, cancelling
    run_pipelines              the layer below: your device, your prepared pipelines, your caches
    open_device, list_devices  what compiles; `own_process` first in a program that owns its process
    load_into_cache, save_merged, read_cache_file   cache files that can be trusted

Only names that users build on are exported here. Each is loaded when it is first used, because everything
else pays for this module: the command line's help would take three times as long with numpy and trio.
Checkers read the imports below, the interpreter reads the table; a test compares the two.
"""

from __future__ import annotations

from orchestrator.version import VERSION

TYPE_CHECKING = False  # importing `typing` takes as long as starting Python
if TYPE_CHECKING:
    from orchestrator.devices.device import NO_SOURCE as NO_SOURCE
    from orchestrator.devices.device import CreationBatch as CreationBatch
    from orchestrator.devices.device import Device as Device
    from orchestrator.devices.device import DeviceFeatures as DeviceFeatures
    from orchestrator.devices.device import DeviceHandles as DeviceHandles
    from orchestrator.devices.device import DeviceIdentity as DeviceIdentity
    from orchestrator.devices.device import PipelineCache as PipelineCache
    from orchestrator.devices.device import PipelineCacheData as PipelineCacheData
    from orchestrator.devices.device import PipelineSource as PipelineSource
    from orchestrator.devices.device import PreparedPipelines as PreparedPipelines
    from orchestrator.devices.identified import IdentifiedModules as IdentifiedModules
    from orchestrator.devices.identified import SpirvProvider as SpirvProvider
    from orchestrator.devices.image import CreateInfoImage as CreateInfoImage
    from orchestrator.devices.image import PipelineKind as PipelineKind
    from orchestrator.devices.modes import CacheMode as CacheMode
    from orchestrator.devices.opening import adopt_device as adopt_device
    from orchestrator.devices.opening import list_devices as list_devices
    from orchestrator.devices.opening import open_device as open_device
    from orchestrator.devices.opening import own_process as own_process
    from orchestrator.devices.request import ApplicationInfo as ApplicationInfo
    from orchestrator.devices.request import DeviceRequest as DeviceRequest
    from orchestrator.devices.request import HostWishes as HostWishes
    from orchestrator.devices.request import OtherFeatures as OtherFeatures
    from orchestrator.devices.selectors import environment_of as environment_of
    from orchestrator.errors import ArchiveError as ArchiveError
    from orchestrator.errors import DeviceError as DeviceError
    from orchestrator.errors import DriverError as DriverError
    from orchestrator.errors import ExternalSynchronizationError as ExternalSynchronizationError
    from orchestrator.errors import ManifestError as ManifestError
    from orchestrator.errors import NoDeviceError as NoDeviceError
    from orchestrator.errors import OrchestratorError as OrchestratorError
    from orchestrator.errors import RecordError as RecordError
    from orchestrator.run.compile import compile_set as compile_set
    from orchestrator.run.execution import run_pipelines as run_pipelines
    from orchestrator.run.identification import Identification as Identification
    from orchestrator.run.options import BARRIER as BARRIER
    from orchestrator.run.options import ROLLING as ROLLING
    from orchestrator.run.options import CompileOptions as CompileOptions
    from orchestrator.run.options import MergePolicy as MergePolicy
    from orchestrator.run.options import ModulePolicy as ModulePolicy
    from orchestrator.run.options import PipelineKeyUse as PipelineKeyUse
    from orchestrator.run.options import RunOptions as RunOptions
    from orchestrator.run.options import SavePolicy as SavePolicy
    from orchestrator.run.options import TrialLimits as TrialLimits
    from orchestrator.run.options import available_workers as available_workers
    from orchestrator.run.records import CompileReport as CompileReport
    from orchestrator.run.records import MergeReport as MergeReport
    from orchestrator.run.records import OutcomeStatus as OutcomeStatus
    from orchestrator.run.records import PipelineOutcome as PipelineOutcome
    from orchestrator.run.records import Progress as Progress
    from orchestrator.run.records import RunReport as RunReport
    from orchestrator.run.session import DeviceLostError as DeviceLostError
    from orchestrator.run.session import News as News
    from orchestrator.run.session import PipelineSession as PipelineSession
    from orchestrator.run.session import PipelineTicket as PipelineTicket
    from orchestrator.run.session import Remainder as Remainder
    from orchestrator.run.session import open_session as open_session
    from orchestrator.run.session_thread import SessionThread as SessionThread
    from orchestrator.run.session_thread import Ticket as Ticket
    from orchestrator.run.session_thread import start_session as start_session
    from orchestrator.run.steering import Steering as Steering
    from orchestrator.schedule.options import Followers as Followers
    from orchestrator.schedule.options import Priority as Priority
    from orchestrator.schedule.options import ScheduleOptions as ScheduleOptions
    from orchestrator.schedule.scheduler import Scheduler as Scheduler
    from orchestrator.sets.archive.reader import Archive as Archive
    from orchestrator.sets.archive.reader import MemoryRecords as MemoryRecords
    from orchestrator.sets.archive.writer import ArchiveWriter as ArchiveWriter
    from orchestrator.sets.authoring.builder import PipelineSetBuilder as PipelineSetBuilder
    from orchestrator.sets.authoring.encoders import Rendering as Rendering
    from orchestrator.sets.authoring.encoders import ShaderStage as ShaderStage
    from orchestrator.sets.authoring.encoders import Subpass as Subpass
    from orchestrator.sets.image.builder import build_image as build_image
    from orchestrator.sets.image.built import BuiltImage as BuiltImage
    from orchestrator.sets.pipeline_set import PipelineSet as PipelineSet
    from orchestrator.sets.prepare import OpenedGroup as OpenedGroup
    from orchestrator.sets.prepare import opened_groups as opened_groups
    from orchestrator.sets.records import FeatureGroup as FeatureGroup
    from orchestrator.sets.subset import Subset as Subset
    from orchestrator.stores.cache_file import LoadPolicy as LoadPolicy
    from orchestrator.stores.cache_file import LoadStatus as LoadStatus
    from orchestrator.stores.cache_file import cache_path as cache_path
    from orchestrator.stores.cache_file import load_into_cache as load_into_cache
    from orchestrator.stores.cache_file import read_cache_file as read_cache_file
    from orchestrator.stores.cache_file import save_cache_file as save_cache_file
    from orchestrator.stores.cache_file import save_merged as save_merged
    from orchestrator.stores.files.atomic_file import SaveError as SaveError
    from orchestrator.stores.run_notes import (
        ShaderModuleIdentifierStore as ShaderModuleIdentifierStore,
    )
    from orchestrator.supervise.supervisor import compile_supervised as compile_supervised

__version__ = VERSION
_HOMES = {
    "orchestrator.devices.device": (
        "NO_SOURCE CreationBatch Device DeviceFeatures DeviceHandles DeviceIdentity PipelineCache "
        "PipelineCacheData PipelineSource PreparedPipelines"
    ),
    "orchestrator.devices.identified": "IdentifiedModules SpirvProvider",
    "orchestrator.devices.image": "CreateInfoImage PipelineKind",
    "orchestrator.devices.modes": "CacheMode",
    "orchestrator.devices.opening": "adopt_device list_devices open_device own_process",
    "orchestrator.devices.request": "ApplicationInfo DeviceRequest HostWishes OtherFeatures",
    "orchestrator.devices.selectors": "environment_of",
    "orchestrator.errors": (
        "ArchiveError DeviceError DriverError ExternalSynchronizationError ManifestError NoDeviceError "
        "OrchestratorError RecordError"
    ),
    "orchestrator.run.compile": "compile_set",
    "orchestrator.run.execution": "run_pipelines",
    "orchestrator.run.identification": "Identification",
    "orchestrator.run.options": (
        "BARRIER ROLLING CompileOptions MergePolicy ModulePolicy PipelineKeyUse RunOptions SavePolicy "
        "TrialLimits available_workers"
    ),
    "orchestrator.run.records": (
        "CompileReport MergeReport OutcomeStatus PipelineOutcome Progress RunReport"
    ),
    "orchestrator.run.session": "DeviceLostError News PipelineSession PipelineTicket Remainder open_session",
    "orchestrator.run.session_thread": "SessionThread Ticket start_session",
    "orchestrator.run.steering": "Steering",
    "orchestrator.supervise.supervisor": "compile_supervised",
    "orchestrator.schedule.options": "Followers Priority ScheduleOptions",
    "orchestrator.schedule.scheduler": "Scheduler",
    "orchestrator.sets.archive.reader": "Archive MemoryRecords",
    "orchestrator.sets.archive.writer": "ArchiveWriter",
    "orchestrator.sets.authoring.builder": "PipelineSetBuilder",
    "orchestrator.sets.authoring.encoders": "Rendering ShaderStage Subpass",
    "orchestrator.sets.image.builder": "build_image",
    "orchestrator.sets.image.built": "BuiltImage",
    "orchestrator.sets.pipeline_set": "PipelineSet",
    "orchestrator.sets.prepare": "OpenedGroup opened_groups",
    "orchestrator.sets.records": "FeatureGroup",
    "orchestrator.sets.subset": "Subset",
    "orchestrator.stores.cache_file": (
        "LoadPolicy LoadStatus cache_path load_into_cache read_cache_file save_cache_file save_merged"
    ),
    "orchestrator.stores.files.atomic_file": "SaveError",
    "orchestrator.stores.run_notes": "ShaderModuleIdentifierStore",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    """Load a public name (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return [*__all__, "__all__", "__doc__", "__version__"]
