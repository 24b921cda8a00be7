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
        return f"{self.aspect.value} {self.name}" + (f" beside {in_words(self.given)}" if self.given else "")


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
    """Look a group's pipelines up on a device, in the cache of the group's baseline or in an empty one."""

    device: str
    opener: str
    group: ProbeGroup
    application: ApplicationInfo
    directory: str  # Directory of the baselines' caches.
    pipeline_cache_uuid: str  # pipelineCacheUUID of the device, hex.
    # Whether the baseline enables pipelineCreationCacheControl. A hit is then a pipeline that is created
    # although compiling is forbidden; else creation feedback tells.
    cache_control: bool
    make: bool = False  # Fill the cache of the baseline first, and look only in an empty one.
    variation: Variation | None = None  # The device's difference; None for the baseline, in both caches.
    usable: tuple[int, ...] = ()  # Places of the pipelines that can tell; their misses are repeated.


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


class Looked(msgspec.Struct, frozen=True, kw_only=True, tag="looked"):
    """The look-ups of a group's pipelines on one device, or the reason why there are none."""

    reason: str = ""
    looks: tuple[Look, ...] = ()  # In the cache of the baseline.
    in_empty: tuple[Look, ...] = ()  # In an empty cache, for the baseline's own device.
    identity: bool = True  # Whether the device still has the identity of the cache.
    # Features that the variation needs, and that were also in its baseline.
    prerequisites: tuple[Feature, ...] = ()


Job = SurveyJob | LookJob
Answer = Surveyed | Looked | SentError
