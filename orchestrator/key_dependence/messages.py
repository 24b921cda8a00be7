"""What crosses between a bisection and the children that open devices for it: jobs, variations, answers."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.request import ApplicationInfo, Feature


def in_words(features: Iterable[Feature]) -> str:
    """Features as they are written, sorted."""
    return ", ".join(map("::".join, sorted(features)))


class Aspect(enum.StrEnum):
    """What a variation is of."""

    FEATURE = "feature"
    EXTENSION = "extension"
    API_VERSION = "apiVersion"
    APPLICATION_NAME = "application name"
    APPLICATION_VERSION = "application version"
    ENGINE_NAME = "engine name"
    ENGINE_VERSION = "engine version"
    EXECUTABLE = "executable name"
    ENVIRONMENT = "environment"
    LAYER = "layer"


class ProbeKind(enum.StrEnum):
    """The kinds of pipelines that a driver may look up in different ways."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    LIBRARY = "pipeline library"
    RAY_TRACING = "ray tracing"


class Variation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that differs from the baseline.

    Attributes:
        name: What it is called: a structure or "structure::member", an extension, a version, a name,
            "VARIABLE=value".
        features: Features that are enabled beside the baseline's.
        extensions: Extensions likewise.
        application: What the driver is told about the application instead of what the baseline tells it.
        given: Features that the baseline has as well, for what matters only beside them.
        environment: Variables of the process.
        executable: What the process's executable is called, or "".
        groups: Names of the groups to try it with; none for all.
    """

    aspect: Aspect
    name: str
    features: frozenset[Feature] = frozenset()
    extensions: frozenset[str] = frozenset()
    application: ApplicationInfo | None = None
    given: frozenset[Feature] = frozenset()
    environment: dict[str, str] = {}
    executable: str = ""
    groups: tuple[str, ...] = ()

    @property
    def own_process(self) -> bool:
        """Whether it is of the process, and not of a device in it."""
        return bool(self.environment or self.executable)

    @property
    def text(self) -> str:
        """It in words."""
        beside = f" beside {in_words(self.given)}" if self.given else ""
        return f"{self.aspect.value} {self.name}{beside}"


class ProbePipeline(msgspec.Struct, frozen=True):
    """A pipeline of the sample set that is looked up: its hash, its `PipelineKind`, what it is a probe of."""

    key: int
    kind: str
    probe: ProbeKind


class ProbeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Pipelines that share a baseline device, which has what they need; with the libraries that they link."""

    name: str
    features: frozenset[Feature]
    extensions: frozenset[str]
    pipelines: tuple[ProbePipeline, ...]


class SurveyJob(msgspec.Struct, frozen=True, kw_only=True, tag_field="job", tag="survey"):
    """Find out what can be tried on a device, named by its selector.

    `opener` is a "package.module:function" to open devices with instead, called with the request; or "".
    """

    device: str
    opener: str = ""


class LookJob(msgspec.Struct, frozen=True, kw_only=True, tag_field="job", tag="look"):
    """Make the caches of the baselines, or look pipelines up in them.

    Attributes:
        application: What the baseline tells the driver.
        directory: Where the caches of the baselines are.
        pipeline_cache_uuid: Of the device, hex.
        cache_control: Whether the baseline has pipelineCreationCacheControl, so that compiling can be
            forbidden.
        make: Make the caches, and do nothing else.
        variations: What to try.
        expected: For each group the pipelines that the baseline finds; a miss of one of these is looked at
            twice.
        controls: Look the baseline up after the variations, and in an empty cache too.
        stop_after_s: Begin no variation after this time; 0 for no limit.
    """

    device: str
    opener: str
    groups: tuple[ProbeGroup, ...]
    application: ApplicationInfo
    directory: str
    pipeline_cache_uuid: str
    cache_control: bool
    make: bool = False
    variations: tuple[Variation, ...] = ()
    expected: dict[str, tuple[int, ...]] = {}
    controls: bool = False
    stop_after_s: float = 0.0


class Surveyed(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="surveyed"):
    """What a `SurveyJob` found.

    Attributes:
        application: What the baseline tells the driver.
        groups: The pipelines, of those that the device takes.
        extensions: Device extensions that it has and that can be enabled alone.
        extensions_not_alone: Others: the version has them, or they exclude another one.
        layers: Layers that the loader finds.
        feedback: Whether the driver gives creation feedback.
        cache_control: Whether it has pipelineCreationCacheControl.
        left_out: Pipelines of the sample set that no group takes on this device, and why, counted by reason.
    """

    identity: DeviceIdentity
    application: ApplicationInfo
    groups: tuple[ProbeGroup, ...]
    features: tuple[Feature, ...]
    extensions: tuple[str, ...]
    extensions_not_alone: tuple[str, ...]
    layers: tuple[str, ...]
    feedback: bool
    cache_control: bool
    left_out: dict[str, int] = {}


class Look(enum.IntEnum):
    """What one way of looking says about one pipeline."""

    MISS = 0
    HIT = 1
    UNKNOWN = 2


class Began(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="began"):
    """A variation begins, by its place in the job: who dies now died of it."""

    number: int


class Looked(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="looked"):
    """What became of a group's pipelines on one device.

    Attributes:
        number: Place of the variation in the job; see `Control`.
        forbidden: With compiling forbidden: HIT where the pipeline was created all the same.
        feedback: What creation feedback says.
        identity: Whether the device still has the identity that the cache was made for.
        prerequisites: Features that the variation cannot be without, and that were in its baseline too.
    """

    number: int
    group: str
    forbidden: tuple[Look, ...]
    feedback: tuple[Look, ...]
    identity: bool = True
    prerequisites: tuple[Feature, ...] = ()


class Untried(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="untried"):
    """A variation, by its place in the job, that cannot be tried with a group, by its name."""

    number: int
    group: str
    reason: str


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="refused"):
    """A job that cannot be done: the name of the error, and its text."""

    kind: str
    reason: str


class Control(enum.IntEnum):
    """Numbers of looks that are of no variation."""

    BASELINE = -1
    EMPTY_CACHE = -2


CACHE_CONTROL: Final = (
    "VkPhysicalDevicePipelineCreationCacheControlFeatures",
    "pipelineCreationCacheControl",
)
"""What a device needs so that compiling can be forbidden."""

TIME_IS_UP = "the time limit"
"""Why a variation was not tried that a limit left no time for."""

Job = SurveyJob | LookJob
Answer = Surveyed | Began | Looked | Untried | Refused
