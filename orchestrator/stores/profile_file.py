"""Profiles: what was measured or found out about a device and its driver, JSON beside its cache file.

`CalibrationProfile` says what is fastest; `KeyProfile` says what the driver's pipeline-cache keys depend on
beside the pipeline. One file of each per device identity. Protection: that of every kind (see kinds). Fields
may be added, with a default; none changes its meaning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import msgspec
from attrs import frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.request import Feature
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.kinds import CALIBRATION, KEY_PROFILE, Kind


class ProfileIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The device and driver that a profile is about: the fields of `DeviceIdentity` that a machine compares.

    Attributes:
        vendor_id: vendorID.
        device_id: deviceID.
        driver_version: driverVersion.
        driver_id: driverID.
        driver_abi: Bits of a pointer.
        pipeline_cache_uuid: pipelineCacheUUID, hex.
    """

    vendor_id: int
    device_id: int
    driver_version: int
    driver_id: int
    driver_abi: int
    pipeline_cache_uuid: str

    @classmethod
    def of(cls, identity: DeviceIdentity) -> Self:
        """Those of a device."""
        return cls(
            vendor_id=identity.vendor_id,
            device_id=identity.device_id,
            driver_version=identity.driver_version,
            driver_id=identity.driver_id,
            driver_abi=identity.driver_abi,
            pipeline_cache_uuid=identity.pipeline_cache_uuid.hex(),
        )

    def difference(self, identity: DeviceIdentity) -> str:
        """The first field in which a device is another one, in words; "" where there is none."""
        own = type(self).of(identity)
        for name in self.__struct_fields__:
            found, expected = getattr(self, name), getattr(own, name)
            if found != expected:
                return f"{name} is {found}, not {expected}"
        return ""


class Profile(Protocol):
    """What such a file holds.

    Attributes:
        identity: The device and driver that it is about.
        format: Number of its format.
    """

    @property
    def identity(self) -> ProfileIdentity: ...  # noqa: D102

    @property
    def format(self) -> int: ...  # noqa: D102


P = TypeVar("P", bound=Profile)


@frozen
class ProfileLoad(Generic[P]):
    """What became of a look for a profile.

    Attributes:
        path: Where it is or would be.
        profile: The profile, or None.
        problem: Why there is none although there is a file; "" where there is none.
    """

    path: Path
    profile: P | None
    problem: str = ""


@frozen
class ProfileFile(Generic[P]):
    """Files of one kind of profile.

    Attributes:
        kind: Their row in the table.
        type: What they hold.
        format: Number of the format that this version reads and writes.
    """

    kind: Kind
    type: type[P]
    format: int

    def path(self, directory: Path, identity: DeviceIdentity) -> Path:
        """Where the profile of a device is kept, in a directory of cache files."""
        return self.kind.path(cache_path(directory, identity))

    def load(
        self, directory: Path, identity: DeviceIdentity, operations: FileOperations = REAL_FILE_OPERATIONS
    ) -> ProfileLoad[P]:
        """Look for the profile of a device. Never raises.

        Args:
            directory: The directory of cache files.
            identity: Of the device; a profile of another device or driver is not used.
            operations: The calls to use.
        """

        def decode(data: bytes) -> P:
            profile = msgspec.json.decode(data, type=self.type)
            if profile.format != self.format:
                raise ValueError(f"it has format {profile.format}, and this version reads {self.format}")
            if difference := profile.identity.difference(identity):
                raise ValueError(f"it is of another device or driver: {difference}")
            return profile

        path = self.path(directory, identity)
        return ProfileLoad(path, *self.kind.read(path, decode, operations))

    def save(
        self,
        directory: Path,
        identity: DeviceIdentity,
        profile: P,
        operations: FileOperations = REAL_FILE_OPERATIONS,
    ) -> Path:
        """Keep a profile; replaces an earlier one.

        Args:
            directory: The directory of cache files; created, mode 0700, where it is missing.
            identity: Of the device.
            profile: The profile.
            operations: The calls to use.

        Returns:
            Where it is.

        Raises:
            SaveError: As `Kind.write`.
        """
        content = msgspec.json.format(msgspec.json.encode(profile), indent=1)
        return self.kind.write(cache_path(directory, identity), lambda: (content,), operations)


PROFILE_FORMAT = 1


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What one contender took: making the caches, one pass over the set, and the merge.

    Attributes:
        start: What the caches held: "cold" or "warm". The file calls it a temperature.
        mode: The cache topology.
        workers: Number of workers.
        batch: Largest number of pipelines in a call.
        control: Whether it is the baseline once more.
        samples: How many samples.
        seconds: Their median.
        low: Lower end of its interval.
        high: Upper end.
        pipelines_per_s: Pipelines of one pass over the median.
    """

    start: str = msgspec.field(name="temperature")
    mode: str
    workers: int
    batch: int
    control: bool
    samples: int
    seconds: float
    low: float
    high: float
    pipelines_per_s: float


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question.

    Attributes:
        question: Which, such as "the lock of the shared cache, cold".
        answer: "yes" or "no"; "faster", "slower", "no difference" or "undecided" where times were compared; a
            number; or "not measured".
        words: The answer in a sentence or two, with its figures.
        ratio: Time of the contender over that of the baseline, median over the pairs; None where nothing was
            compared.
        low: Lower end of its interval.
        high: Upper end.
        pairs: Number of pairs.
        noise: What the same thing measured twice differs by, as a factor of at least 1; None where it is not
            known.
    """

    question: str
    answer: str
    words: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    noise: float | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do.

    Attributes:
        mode: The cache topology.
        workers: Number of workers.
        words: Why.
    """

    mode: str
    workers: int
    words: str


class CalibrationProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured about a device and its driver on a machine.

    Attributes:
        identity: What it is about.
        device_name: For people.
        driver: Name and version of the driver, for people.
        made_at: Seconds since 1970.
        cores: Processors that were there.
        processor: What the processor calls itself.
        load_average: Highest load of the machine while it was measured.
        driver_caches: How the driver's own caches were turned off.
        order: In which order pipelines were handed out, as `Order` has it; "" where that is not known.
        set_name: What was compiled.
        set_hash: Hash over the names of its records, 16 hex digits.
        pipelines: Pipelines of it that the device takes.
        orchestrator: Version of this project.
        python: Version of Python.
        rounds: Rounds that were taken.
        figures: What each contender took.
        findings: Questions and answers.
        cold: What to do with an empty cache; None where it was not measured.
        warm: What to do with a cache that holds the set; None where it was not measured, or where caches keep
            nothing.
        batch: Largest number of pipelines in a call when everything hits; None where it was not measured.
        merge_works: Whether merged caches hold what their sources held; None where it was not measured.
        cache_keeps: Whether the driver's cache keeps anything; None where it was not measured.
        read_back_grows: Whether loading and reading a cache over and over makes it grow; None where it was
            not measured.
        notes: What a reader must know.
        format: Version of this layout.
    """

    identity: ProfileIdentity
    device_name: str
    driver: str
    made_at: float
    cores: int
    processor: str
    load_average: float
    driver_caches: str
    set_name: str
    set_hash: str
    pipelines: int
    orchestrator: str
    python: str
    rounds: int
    figures: tuple[Figure, ...]
    findings: tuple[Finding, ...]
    cold: Choice | None
    warm: Choice | None
    batch: int | None
    merge_works: bool | None
    cache_keeps: bool | None
    read_back_grows: bool | None
    notes: tuple[str, ...] = ()
    order: str = ""
    format: int = PROFILE_FORMAT


_CALIBRATION = ProfileFile(CALIBRATION, CalibrationProfile, PROFILE_FORMAT)
profile_path, load_profile, save_profile = _CALIBRATION.path, _CALIBRATION.load, _CALIBRATION.save


KEY_PROFILE_FORMAT = 1


class ProbedKind(msgspec.Struct, frozen=True, kw_only=True):
    """How the baseline fared for one kind of pipeline.

    Attributes:
        kind: "compute", "graphics", "pipeline library" or "ray tracing".
        pipelines: Pipelines that were looked up.
        usable: Of these, found by the same baseline in a new process and not found in an empty cache: those
            that can tell.
        problem: Why nothing can be said of the kind, or "".
    """

    kind: str
    pipelines: int
    usable: int
    problem: str = ""


class Tried(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing in which a device differed from the baseline.

    Attributes:
        aspect: What it is of: "feature", "extension", "apiVersion", "environment", ...
        name: What it is called.
        kinds: The kinds of pipelines that it was tried with; of a dependence those that were not found.
        features: The features that were enabled.
        given: Features that the baseline had as well, since it was only tried beside them.
        environment: The variables that were set.
        identity: Whether the device had another pipelineCacheUUID then, so that even its cache file is
            another one.
    """

    aspect: str
    name: str
    kinds: tuple[str, ...]
    features: tuple[Feature, ...] = ()
    given: tuple[Feature, ...] = ()
    environment: dict[str, str] = {}
    identity: bool = False

    @property
    def text(self) -> str:
        """It in words."""
        beside = ", ".join(f"{struct}::{member}" for struct, member in self.given)
        return f"{self.aspect} {self.name}" + (f", beside {beside}" if beside else "")


class NotTried(msgspec.Struct, frozen=True, kw_only=True):
    """One thing of which nothing is known.

    Attributes:
        aspect: What it is of.
        name: What it is called.
        reason: Why.
    """

    aspect: str
    name: str
    reason: str


class KeyProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver's keys depend on.

    Attributes:
        identity: What it is about.
        device_name: For people.
        driver: Name and version of the driver, for people.
        made_at: Seconds since 1970.
        took_s: How long it took, s.
        orchestrator: Version of this project.
        api_version: VkApplicationInfo::apiVersion of the baseline.
        method: How hits were told.
        kinds: The kinds of pipelines.
        depends: What the keys depend on.
        independent: What they do not depend on.
        not_tried: What could not be tried.
        disagreements: Where compiling forbidden and creation feedback said different things.
        notes: What a reader must know.
        whole: Whether everything was tried that this version knows of, and not a choice.
        format: Version of this layout.
    """

    identity: ProfileIdentity
    device_name: str
    driver: str
    made_at: float
    took_s: float
    orchestrator: str
    api_version: int
    method: str
    kinds: tuple[ProbedKind, ...]
    depends: tuple[Tried, ...]
    independent: tuple[Tried, ...]
    not_tried: tuple[NotTried, ...]
    disagreements: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    whole: bool = True
    format: int = KEY_PROFILE_FORMAT

    @property
    def says_anything(self) -> bool:
        """Whether the baseline of any kind of pipeline could tell."""
        return any(not each.problem for each in self.kinds)

    @property
    def is_doubtful(self) -> bool:
        """Whether a kind that the device takes could not be told, or the two ways of looking disagreed."""
        return bool(self.disagreements) or any(each.problem and each.pipelines for each in self.kinds)


_KEYS = ProfileFile(KEY_PROFILE, KeyProfile, KEY_PROFILE_FORMAT)
KeyProfileLoad = ProfileLoad[KeyProfile]
key_profile_path, load_key_profile, save_key_profile = _KEYS.path, _KEYS.load, _KEYS.save
