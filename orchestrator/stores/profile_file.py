"""Profiles: facts that were measured about a device and its driver, as values of the database. Thread-safe.

`CalibrationProfile` says what is fastest, `KeyProfile` what the driver's pipeline-cache keys depend on beside
the pipeline. Another driver or driver version begins anew. Fields may be added, with a default; none changes
its meaning.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Self, TypeAlias, TypeVar

import msgspec

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.request import Feature
from orchestrator.stores.cache_file import IDENTITY_FIELDS, PipelineCachePrefixHeader, cache_path
from orchestrator.stores.state import Kind, state_path
from orchestrator.version import VERSION

PROFILE_FORMAT = 1

Moment: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=253_402_300_800)]
"""Seconds since 1970, before the year 10000: what can be shown as a date."""


class ProfileIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The device and driver of a profile: the fields of `DeviceIdentity` that a machine compares."""

    vendor_id: int  # VkPhysicalDeviceProperties::vendorID.
    device_id: int  # VkPhysicalDeviceProperties::deviceID.
    driver_version: int  # VkPhysicalDeviceProperties::driverVersion.
    driver_id: int  # VkPhysicalDeviceDriverProperties::driverID.
    driver_abi: int  # Bits of a pointer in the process that the driver was loaded into.
    pipeline_cache_uuid: str  # VkPhysicalDeviceProperties::pipelineCacheUUID, hex.

    @classmethod
    def of(cls, identity: DeviceIdentity | PipelineCachePrefixHeader) -> Self:
        """Those of a device, or those that a cache file was saved for."""
        fields = {name: getattr(identity, name) for name in cls.__struct_fields__}
        return cls(**fields | {"pipeline_cache_uuid": identity.pipeline_cache_uuid.hex()})

    def differences(self, expected: ProfileIdentity) -> list[str]:
        """The fields that differ from an expected identity, in words."""
        wrong = []
        for each in self.__struct_fields__:
            found, wanted = getattr(self, each), getattr(expected, each)
            if found != wanted:
                name, text, _ = IDENTITY_FIELDS[each]
                text = str if isinstance(found, str) else text  # the UUID is hex already
                wrong.append(f"{name} is {text(found)}, not {text(wanted)}")
        return wrong


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What every profile holds."""

    identity: ProfileIdentity  # The device and driver that it is about.
    device_name: str  # Name of the device.
    driver: str  # Name and version of the driver.
    made_at: Moment  # When it was measured, seconds since 1970.
    orchestrator: str  # Version of this program.
    notes: tuple[str, ...] = ()  # Caveats.
    format: int = PROFILE_FORMAT  # Version of the layout.

    @classmethod
    def of(cls, identity: DeviceIdentity, **fields: Any) -> Self:
        """A profile about a device with these fields, made now and here unless they say otherwise."""
        about: dict[str, Any] = {
            "identity": ProfileIdentity.of(identity),
            "device_name": identity.device_name,
            "driver": " ".join(filter(None, (identity.driver_name, identity.driver_info))),
            "made_at": time.time(),
            "orchestrator": VERSION,
        }
        return cls(**about | fields)


P = TypeVar("P", bound=Profile)


class ProfileLoad(msgspec.Struct, Generic[P], frozen=True):
    """The profile in the database at `path`, if any; `problem` says why one that is there was not used."""

    path: Path
    profile: P | None
    problem: str = ""


def load_of_kind(kind: Kind[P], directory: Path, identity: DeviceIdentity) -> ProfileLoad[P]:
    """Load the profile of a device, unless it is of another device or driver. Never raises."""
    path = state_path(directory)
    profile, problem = kind.read(cache_path(directory, identity))
    if profile is not None and (wrong := profile.identity.differences(ProfileIdentity.of(identity))):
        profile, problem = None, f"it is of another device or driver: {wrong[0]}"
    return ProfileLoad(path, profile, f"{kind.name}: {problem}" if problem else "")


def save_of_kind(kind: Kind[P], directory: Path, identity: DeviceIdentity, profile: P) -> Path:
    """Save a profile in place of an earlier one; returns the database. Raises as `Kind.update`."""
    kind.update(cache_path(directory, identity), lambda _: profile)
    return state_path(directory)


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one contender: creating the caches, one pass over the set, and the merge."""

    start: str  # "cold": caches start empty; "warm": they hold the set.
    mode: str  # The cache topology.
    workers: int  # Number of workers.
    batch: int  # Largest number of pipelines in a call.
    control: bool  # Whether it is the second measurement of the baseline.
    samples: int  # Number of samples.
    seconds: float  # Median of the samples.
    low: float  # Lower end of its interval.
    high: float  # Upper end.
    pipelines_per_s: float  # Pipelines of one pass, divided by the median.
    # Whether the time includes all preparation for a single pass, as where binaries were compared.
    whole_use: bool = False


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question."""

    question: str  # The question, such as "the lock of the shared cache, cold".
    # "yes" or "no"; "faster", "slower", "no difference" or "undecided" for compared times; a number; or "not
    # measured".
    answer: str
    words: str  # The answer in a sentence or two, with its figures.
    # Time of the contender over that of the baseline, median over the pairs; None if no times were compared.
    ratio: float | None = None
    low: float | None = None  # Lower end of its interval.
    high: float | None = None  # Upper end.
    pairs: int = 0  # Number of pairs of samples.
    # Factor, at least 1, by which two measurements of the same thing differ; None if unknown.
    noise: float | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The best settings, and why."""

    mode: str  # The cache topology.
    workers: int  # Number of workers.
    words: str  # The reason, with its figures.


class CalibrationProfile(Profile, frozen=True, kw_only=True):
    """What was measured about a device and its driver on a machine. None: it was not measured."""

    cores: int  # Number of processors.
    processor: str
    load_average: float  # Highest load of the machine during the measurement.
    driver_caches: str  # How the driver's own caches were turned off.
    set_name: str  # Name of the set that was compiled.
    set_hash: str  # Hash over the names of its records, 16 hex digits.
    pipelines: int  # Number of its pipelines that the device supports.
    python: str  # Version of Python.
    rounds: int  # Samples of the baseline of cold runs; a contender that is decided needs no more.
    figures: tuple[Figure, ...]  # The times of all contenders.
    findings: tuple[Finding, ...]  # The answers to all questions.
    cold: Choice | None  # The choice for an empty cache.
    warm: Choice | None  # The choice for a cache that holds the set; None also if caches keep nothing.
    # Largest number of pipelines in a call when everything hits.
    batch: Annotated[int, msgspec.Meta(ge=1)] | None
    merge_works: bool | None  # Whether merged caches hold what their sources held.
    cache_keeps: bool | None  # Whether the driver's cache keeps anything.
    read_back_grows: bool | None  # Whether a cache grows when it is loaded and read back repeatedly.
    order: str = ""  # In which order pipelines were assigned, a value of `Order`; "" if unknown.
    # The choice of mode binaries instead of `cold` and `warm` if no cache file is needed; None unless it was
    # shown to be faster.
    binaries: Choice | None = None


CALIBRATION: Final = Kind("calibration profile", CalibrationProfile)
load_profile = partial(load_of_kind, CALIBRATION)
save_profile = partial(save_of_kind, CALIBRATION)


class ProbedKind(msgspec.Struct, frozen=True, kw_only=True):
    """How the baseline fared for one kind of pipeline."""

    kind: str  # "compute", "graphics", "pipeline library" or "ray tracing".
    pipelines: int  # Pipelines that were looked up.
    usable: int  # Those that the same baseline finds in a new process and does not find in an empty cache.
    problem: str = ""  # Why nothing can be concluded for the kind, or "".


class Tried(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing in which a device differed from the baseline."""

    aspect: str  # "feature", "extension", "apiVersion", "environment", ...
    name: str  # What differed, such as the feature.
    # The kinds of pipelines that it was tried with; for a dependence, the kinds that missed.
    kinds: tuple[str, ...]
    untried: tuple[str, ...] = ()  # The kinds that it could not be tried with, or that cannot be without it.
    features: tuple[Feature, ...] = ()  # The features that were enabled.
    # Features that the baseline enabled too, because it can only be tried with them.
    given: tuple[Feature, ...] = ()
    environment: dict[str, str] = {}  # The variables that were set.
    identity: bool = False  # Whether it changed pipelineCacheUUID, so that the device has another cache file.

    @property
    def text(self) -> str:
        """Its text for people."""
        beside = ", ".join(f"{struct}::{member}" for struct, member in self.given)
        return f"{self.aspect} {self.name}" + (f", beside {beside}" if beside else "")


class NotTried(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that could not be tried, or not with all pipelines."""

    aspect: str  # As in `Tried`.
    name: str  # As in `Tried`.
    reason: str  # Why it could not be tried.


class KeyProfile(Profile, frozen=True, kw_only=True):
    """What a driver's keys depend on."""

    took_s: float  # Time of the measurement, s.
    api_version: int  # VkApplicationInfo::apiVersion of the baseline.
    method: str  # How hits were detected.
    kinds: tuple[ProbedKind, ...]  # The kinds of pipelines, and whether the baseline works for them.
    depends: tuple[Tried, ...]  # What changes keys.
    independent: tuple[Tried, ...]  # What does not change keys.
    not_tried: tuple[NotTried, ...]  # What could not be tried, or not with all pipelines.
    # The driver's variables that were set, so that the baseline had them. With any, the profile is not the
    # driver's own, and is not saved.
    environment: dict[str, str] = {}
    whole: bool = True  # Whether all variations that this version knows were tried.

    @property
    def says_anything(self) -> bool:
        """Whether the baseline works for any kind of pipeline."""
        return any(not each.problem for each in self.kinds)

    @property
    def is_doubtful(self) -> bool:
        """Whether the baseline fails for a kind that the device supports."""
        return any(each.problem and each.pipelines for each in self.kinds)


KEY_PROFILE: Final = Kind("key profile", KeyProfile)
load_key_profile = partial(load_of_kind, KEY_PROFILE)
save_key_profile = partial(save_of_kind, KEY_PROFILE)
KeyProfileLoad = ProfileLoad[KeyProfile]
