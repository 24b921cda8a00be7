"""Compile Vulkan pipelines before they are needed, keep the driver's cache, and know what it costs.

For example::

    report = orchestrator.compile("game.foz", "radv:navi21", cache="cache")  # a whole set, in a child process

    with orchestrator.session("game.foz", device, cache="cache") as loading: # while the program goes on
        door = loading.require("lit.door")                                   # before all else
        while not loading.done:
            loading.allow(0.004)                                             # of this frame
            draw(loading.progress)
        pipelines = loading.take()                                           # VkPipelines, by key

Jobs, and the names for them::

    a set and its cache file      compile, compile_async (in trio); CompileOptions, TrialLimits, Subset
    a loading screen              session (any thread, asyncio, trio): Session, Ticket, Progress
    a device                      list_devices, open_device, adopt_device (a host's): Device, DeviceRequest,
                                  HostWishes; own_process, environment_of: what a driver reads
    pipelines described in code   PipelineSetBuilder, Rendering, ShaderStage; ArchiveWriter
    captured pipelines            PipelineSet; SpirvProvider gives the code that they lack
    what happened                 CompileReport, PipelineOutcome, OutcomeStatus
    cache files by hand           load_into_cache, read_cache_file, save_cache_file, cache_path, LoadStatus
    errors                        OrchestratorError, and of it ArchiveError, ManifestError, NoDeviceError,
                                  DriverError, DeviceLostError, SaveError, SessionClosedError

`orchestrator.testing` has a device without a driver. docs/library.md and docs/embedding.md show each job at
work. A name is loaded when it is first used, in whatever thread.
"""

from __future__ import annotations

from orchestrator.version import VERSION

TYPE_CHECKING = False  # importing `typing` takes as long as starting Python
if TYPE_CHECKING:
    from orchestrator.devices.device import Device as Device
    from orchestrator.devices.identified import SpirvProvider as SpirvProvider
    from orchestrator.devices.opening import adopt_device as adopt_device
    from orchestrator.devices.opening import list_devices as list_devices
    from orchestrator.devices.opening import open_device as open_device
    from orchestrator.devices.opening import own_process as own_process
    from orchestrator.devices.request import DeviceRequest as DeviceRequest
    from orchestrator.devices.request import HostWishes as HostWishes
    from orchestrator.devices.selectors import environment_of as environment_of
    from orchestrator.errors import ArchiveError as ArchiveError
    from orchestrator.errors import DriverError as DriverError
    from orchestrator.errors import ManifestError as ManifestError
    from orchestrator.errors import NoDeviceError as NoDeviceError
    from orchestrator.errors import OrchestratorError as OrchestratorError
    from orchestrator.run.options import CompileOptions as CompileOptions
    from orchestrator.run.options import TrialLimits as TrialLimits
    from orchestrator.run.records import CompileReport as CompileReport
    from orchestrator.run.records import OutcomeStatus as OutcomeStatus
    from orchestrator.run.records import PipelineOutcome as PipelineOutcome
    from orchestrator.run.records import Progress as Progress
    from orchestrator.run.session import DeviceLostError as DeviceLostError
    from orchestrator.run.set_session import Session as Session
    from orchestrator.run.set_session import SessionClosedError as SessionClosedError
    from orchestrator.run.set_session import Ticket as Ticket
    from orchestrator.run.set_session import session as session
    from orchestrator.sets.archive.writer import ArchiveWriter as ArchiveWriter
    from orchestrator.sets.authoring.builder import PipelineSetBuilder as PipelineSetBuilder
    from orchestrator.sets.authoring.encoders import Rendering as Rendering
    from orchestrator.sets.authoring.encoders import ShaderStage as ShaderStage
    from orchestrator.sets.pipeline_set import PipelineSet as PipelineSet
    from orchestrator.sets.subset import Subset as Subset
    from orchestrator.stores.cache_file import LoadStatus as LoadStatus
    from orchestrator.stores.cache_file import cache_path as cache_path
    from orchestrator.stores.cache_file import load_into_cache as load_into_cache
    from orchestrator.stores.cache_file import read_cache_file as read_cache_file
    from orchestrator.stores.cache_file import save_cache_file as save_cache_file
    from orchestrator.stores.files.atomic_file import SaveError as SaveError
    from orchestrator.supervise.compiling import compile as compile  # noqa: A004 - its home says why
    from orchestrator.supervise.compiling import compile_async as compile_async

__version__ = VERSION
_HOMES = {
    "orchestrator.devices.device": "Device",
    "orchestrator.devices.identified": "SpirvProvider",
    "orchestrator.devices.opening": "adopt_device list_devices open_device own_process",
    "orchestrator.devices.request": "DeviceRequest HostWishes",
    "orchestrator.devices.selectors": "environment_of",
    "orchestrator.errors": "ArchiveError DriverError ManifestError NoDeviceError OrchestratorError",
    "orchestrator.run.options": "CompileOptions TrialLimits",
    "orchestrator.run.records": "CompileReport OutcomeStatus PipelineOutcome Progress",
    "orchestrator.run.session": "DeviceLostError",
    "orchestrator.run.set_session": "Session SessionClosedError Ticket session",
    "orchestrator.sets.archive.writer": "ArchiveWriter",
    "orchestrator.sets.authoring.builder": "PipelineSetBuilder",
    "orchestrator.sets.authoring.encoders": "Rendering ShaderStage",
    "orchestrator.sets.pipeline_set": "PipelineSet",
    "orchestrator.sets.subset": "Subset",
    "orchestrator.stores.cache_file": "LoadStatus cache_path load_into_cache read_cache_file save_cache_file",
    "orchestrator.stores.files.atomic_file": "SaveError",
    "orchestrator.supervise.compiling": "compile compile_async",
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
