# Purpose: what was measured about a device and its driver, kept beside its cache file, so that a run can follow it.
#
# Guarantees: the file is JSON, one per device identity like the cache file, with the same name but for its ending; written
# atomically, read with a cap and only where its owner is to be trusted. Loading never raises: what cannot be used is named.
# Fields may be added, with a default; none changes its meaning.
"""`CalibrationProfile` and its file."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec
from attrs import frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.atomic_file import ensure_directory, read_capped_parts, write_atomically
from orchestrator.stores.cache_content import cache_path
from orchestrator.stores.errors import MissingFileError, ReadError
from orchestrator.stores.file_operations import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.trust import trust_check

PROFILE_SUFFIX = ".calibration.json"
"""How the name of a profile ends."""

PROFILE_FORMAT = 1
_CAP = 4 << 20


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


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What one contender took: making the caches, one pass over the set, and the merge.

    Attributes:
        temperature: "cold" or "warm".
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

    temperature: str
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
        answer: "yes" or "no"; "faster", "slower", "no difference" or "undecided" where times were compared; a number; or
            "not measured".
        words: The answer in a sentence or two, with its figures.
        ratio: Time of the contender over that of the baseline, median over the pairs; None where nothing was compared.
        low: Lower end of its interval.
        high: Upper end.
        pairs: Number of pairs.
        noise: What the same thing measured twice differs by, as a factor of at least 1; None where it is not known.
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
        set_name: What was compiled.
        set_hash: Hash over the names of its records, 16 hex digits.
        pipelines: Pipelines of it that the device takes.
        orchestrator: Version of this project.
        python: Version of Python.
        rounds: Rounds that were taken.
        figures: What each contender took.
        findings: Questions and answers.
        cold: What to do with an empty cache; None where it was not measured.
        warm: What to do with a cache that holds the set; None where it was not measured, or where caches keep nothing.
        batch: Largest number of pipelines in a call when everything hits; None where it was not measured.
        merge_works: Whether merged caches hold what their sources held; None where it was not measured.
        cache_keeps: Whether the driver's cache keeps anything; None where it was not measured.
        read_back_grows: Whether loading and reading a cache over and over makes it grow; None where it was not measured.
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
    format: int = PROFILE_FORMAT


@frozen
class ProfileLoad:
    """What became of a look for a profile.

    Attributes:
        path: Where it is or would be.
        profile: The profile, or None.
        problem: Why there is none although there is a file; "" where there is none.
    """

    path: Path
    profile: CalibrationProfile | None
    problem: str = ""


def profile_path(directory: Path, identity: DeviceIdentity) -> Path:
    """Where the profile of a device is kept: beside its cache file, under the same name with another ending.

    Args:
        directory: The directory of cache files.
        identity: Of the device.
    """
    return cache_path(directory, identity).with_suffix(PROFILE_SUFFIX)


def load_profile(
    directory: Path, identity: DeviceIdentity, operations: FileOperations = REAL_FILE_OPERATIONS
) -> ProfileLoad:
    """Look for the profile of a device. Never raises.

    Args:
        directory: The directory of cache files.
        identity: Of the device; a profile of another device or driver is not used.
        operations: The calls to use.
    """
    path = profile_path(directory, identity)
    try:
        _, data = read_capped_parts(path, 0, _CAP, operations, check=trust_check(path, operations))
        profile = msgspec.json.decode(data, type=CalibrationProfile)
    except MissingFileError:
        return ProfileLoad(path, None)
    except ReadError as error:
        return ProfileLoad(path, None, error.reason)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return ProfileLoad(path, None, f"it is damaged: {error}")
    if profile.format != PROFILE_FORMAT:
        return ProfileLoad(
            path, None, f"it has format {profile.format}, and this version reads {PROFILE_FORMAT}"
        )
    if difference := profile.identity.difference(identity):
        return ProfileLoad(path, None, f"it is of another device or driver: {difference}")
    return ProfileLoad(path, profile)


def save_profile(
    directory: Path,
    identity: DeviceIdentity,
    profile: CalibrationProfile,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> Path:
    """Keep a profile; replaces that of an earlier calibration.

    Args:
        directory: The directory of cache files; created, mode 0700, where it is missing.
        identity: Of the device.
        profile: What was measured.
        operations: The calls to use.

    Returns:
        Where it is.

    Raises:
        SaveError: It could not be written. An old one is unchanged, unless `SaveError.replaced`.
    """
    path = profile_path(directory, identity)
    ensure_directory(directory, operations)
    write_atomically(path, (msgspec.json.format(msgspec.json.encode(profile), indent=1),), operations)
    return path
