"""The messages between a bisection and its children, which open devices: jobs, variations, answers."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from orchestrator.children.protocol import SentError
from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.request import ApplicationInfo, Feature

NEEDED: Final = "the pipelines need it, so the baseline has it"
TIME_IS_UP: Final = "the time limit"


def in_words(features: Iterable[Feature]) -> str:
    """Features as "structure::member", sorted."""
    return ", ".join(map("::".join, sorted(features)))


class Aspect(enum.StrEnum):
    """The setting that a variation changes."""

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
    """The kinds of pipelines that a driver may look up differently."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    LIBRARY = "pipeline library"
    RAY_TRACING = "ray tracing"


class Variation(msgspec.Struct, frozen=True, kw_only=True):
    """One difference from the baseline."""

    aspect: Aspect
    name: str  # A structure or "structure::member", an extension, a version, a name, or "VARIABLE=value".
    features: frozenset[Feature] = frozenset()
    extensions: frozenset[str] = frozenset()
    application: ApplicationInfo | None = None
    given: frozenset[Feature] = frozenset()  # Features that both the variation and its baseline enable.
    environment: dict[str, str] = {}
    executable: str = ""
    groups: tuple[str, ...] = ()  # Names of the groups to try; empty for all.

    @property
    def own_process(self) -> bool:
        """Whether it changes the process instead of a device in it."""
        return bool(self.environment or self.executable)

    @property
    def text(self) -> str:
        """The variation in words."""
        beside = f" beside {in_words(self.given)}" if self.given else ""
        return f"{self.aspect.value} {self.name}{beside}"


class ProbePipeline(msgspec.Struct, frozen=True):
    """A pipeline of the sample set to look up: its hash, its `PipelineKind`, the kind that it represents."""

    key: int
    kind: str
    probe: ProbeKind


class ProbeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Pipelines that share a baseline device with the features that they need, and their libraries."""

    name: str
    features: frozenset[Feature]
    extensions: frozenset[str]
    pipelines: tuple[ProbePipeline, ...]


class SurveyJob(msgspec.Struct, frozen=True, kw_only=True, tag="survey"):
    """Find what can be tried on a device; `opener` is "package.module:function" to open it instead, or ""."""

    device: str
    opener: str = ""


class LookJob(msgspec.Struct, frozen=True, kw_only=True, tag="look"):
    """Fill the caches of the baselines, or look pipelines up in them."""

    device: str
    opener: str
    groups: tuple[ProbeGroup, ...]
    application: ApplicationInfo
    directory: str  # Directory of the baselines' caches.
    pipeline_cache_uuid: str  # pipelineCacheUUID of the device, hex.
    # Whether the baseline enables pipelineCreationCacheControl. A hit is then a pipeline that is created
    # although compiling is forbidden; else creation feedback tells.
    cache_control: bool
    make: bool = False  # Only fill the caches.
    variations: tuple[Variation, ...] = ()  # The variations to try; one that changes the process is alone.
    # For each group, the places of the pipelines that can tell; their misses are repeated.
    usable: dict[str, tuple[int, ...]] = {}
    controls: bool = False  # After the variations, look up the baseline, and in an empty cache.
    stop_after_s: float | None = None  # Begin no variation after this time, s; None for no limit.


class Surveyed(msgspec.Struct, frozen=True, kw_only=True, tag="surveyed"):
    """What can be tried on a device."""

    identity: DeviceIdentity
    application: ApplicationInfo
    groups: tuple[ProbeGroup, ...]
    features: tuple[Feature, ...]
    extensions: tuple[str, ...]  # Device extensions that can be enabled alone.
    extensions_not_alone: tuple[str, ...]  # Other ones: part of the version, or exclusive with another one.
    layers: tuple[str, ...]  # Layers that the loader finds and does not activate for every program.
    layers_active: tuple[str, ...]  # Those that it does, so that the baseline has them.
    feedback: bool
    cache_control: bool
    left_out: dict[str, int] = {}  # Numbers of pipelines that the device does not support, by reason.


class Look(enum.IntEnum):
    """The result of a look-up of one pipeline."""

    MISS = 0
    HIT = 1
    UNKNOWN = 2


class Control(enum.IntEnum):
    """Numbers of look-ups without a variation."""

    BASELINE = -1
    EMPTY_CACHE = -2


class Began(msgspec.Struct, frozen=True, kw_only=True, tag="began"):
    """A variation (by its place in the job) or a `Control` begins. It is to blame if the child dies now."""

    number: int


class Looked(msgspec.Struct, frozen=True, kw_only=True, tag="looked"):
    """The look-ups of a group's pipelines on one device."""

    number: int  # Place of the variation in the job, or a `Control`.
    group: str
    looks: tuple[Look, ...]
    identity: bool = True  # Whether the device still has the identity of the cache.
    # Features that the variation needs, and that were also in its baseline.
    prerequisites: tuple[Feature, ...] = ()


class Untried(msgspec.Struct, frozen=True, kw_only=True, tag="untried"):
    """A variation, or a `Control`, cannot be tried with a group."""

    number: int
    group: str
    reason: str


class JobDone(msgspec.Struct, frozen=True, tag="done"):
    """All answers to a job were sent."""


Job = SurveyJob | LookJob
Answer = Surveyed | Began | Looked | Untried | SentError | JobDone
