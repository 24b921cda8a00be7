"""Files that hold one value about a device and its driver, beside its cache file: what was measured, what was found out.

Guarantees: the file is JSON, one per device identity like the cache file, with the same name but for its ending. It is
written atomically under the lock of the cache file's writers, and read with a cap and only where its owner is to be trusted.
Loading never raises: what cannot be used is named. Thread-safe.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Generic, Protocol, Self, TypeVar

import msgspec
from attrs import frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.atomic_file import ensure_directory, read_capped_parts, write_atomically
from orchestrator.stores.beside import beside
from orchestrator.stores.cache_content import cache_path
from orchestrator.stores.errors import MissingFileError, ReadError, SaveError
from orchestrator.stores.file_operations import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.trust import trust_check
from orchestrator.stores.writer_lock import writer_lock

_CAP: Final = 4 << 20


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
    """A kind of profile.

    Attributes:
        suffix: How the names of its files end.
        type: What they hold.
        format: Number of the format that this version reads and writes.
    """

    suffix: str
    type: type[P]
    format: int

    def path(self, directory: Path, identity: DeviceIdentity) -> Path:
        """Where the profile of a device is kept.

        Args:
            directory: The directory of cache files.
            identity: Of the device.
        """
        return beside(cache_path(directory, identity), self.suffix)

    def read(self, path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> ProfileLoad[P]:
        """Read a profile, whichever device it is of. Never raises.

        Args:
            path: The file.
            operations: The calls to use.
        """
        try:
            _, data = read_capped_parts(path, 0, _CAP, operations, check=trust_check(path, operations))
            profile = msgspec.json.decode(data, type=self.type)
        except MissingFileError:
            return ProfileLoad(path, None)
        except ReadError as error:
            return ProfileLoad(path, None, error.reason)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return ProfileLoad(path, None, f"it is damaged: {error}")
        if profile.format != self.format:
            problem = f"it has format {profile.format}, and this version reads {self.format}"
            return ProfileLoad(path, None, problem)
        return ProfileLoad(path, profile)

    def load(
        self, directory: Path, identity: DeviceIdentity, operations: FileOperations = REAL_FILE_OPERATIONS
    ) -> ProfileLoad[P]:
        """Look for the profile of a device. Never raises.

        Args:
            directory: The directory of cache files.
            identity: Of the device; a profile of another device or driver is not used.
            operations: The calls to use.
        """
        loaded = self.read(self.path(directory, identity), operations)
        difference = "" if loaded.profile is None else loaded.profile.identity.difference(identity)
        if difference:
            return ProfileLoad(loaded.path, None, f"it is of another device or driver: {difference}")
        return loaded

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
            SaveError: It could not be written, or another process is writing it. An old one is unchanged, unless
                `SaveError.replaced`.
        """
        path = self.path(directory, identity)
        ensure_directory(directory, operations)
        with writer_lock(cache_path(directory, identity), operations) as held:
            if not held:
                raise SaveError(
                    path, "waiting for the lock", "another process is writing beside the same cache file"
                )
            write_atomically(path, (msgspec.json.format(msgspec.json.encode(profile), indent=1),), operations)
        return path
