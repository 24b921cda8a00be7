"""What a driver's pipeline-cache keys depend on beside the pipeline, kept beside the device's cache file.

Guarantees: the file is JSON, one per device identity like the cache file, with the same name but for its ending; written atomically
under the lock of the cache file's writers, read with a cap and only where its owner is to be trusted. Loading never raises: what cannot be
used is named. Fields may be added, with a default; none changes its meaning.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from attrs import frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.request import Feature
from orchestrator.stores.atomic_file import ensure_directory, read_capped_parts, write_atomically
from orchestrator.stores.cache_content import CACHE_FILE_SUFFIX, cache_path
from orchestrator.stores.calibration_profile import ProfileIdentity
from orchestrator.stores.errors import MissingFileError, ReadError, SaveError
from orchestrator.stores.file_operations import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.trust import trust_check
from orchestrator.stores.writer_lock import writer_lock

KEY_PROFILE_SUFFIX = ".keys.json"
"""How the name of a profile ends."""

KEY_PROFILE_FORMAT = 1
_CAP = 4 << 20


class ProbedKind(msgspec.Struct, frozen=True, kw_only=True):
    """How the baseline fared for one kind of pipeline.

    Attributes:
        kind: "compute", "graphics", "pipeline library" or "ray tracing".
        pipelines: Pipelines that were looked up.
        usable: Of these, found by the same baseline in a new process and not found in an empty cache: those that can tell.
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
        identity: Whether the device had another pipelineCacheUUID then, so that even its cache file is another one.
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
        """Whether the baseline of a kind that the device takes could not tell, or the two ways of looking disagreed."""
        return bool(self.disagreements) or any(each.problem and each.pipelines for each in self.kinds)


@frozen
class KeyProfileLoad:
    """What became of a look for a profile.

    Attributes:
        path: Where it is or would be.
        profile: The profile, or None.
        problem: Why there is none although there is a file; "" where there is none.
    """

    path: Path
    profile: KeyProfile | None
    problem: str = ""


def key_profile_path(directory: Path, identity: DeviceIdentity) -> Path:
    """Where the profile of a device is kept: beside its cache file, under the same name with another ending.

    Args:
        directory: The directory of cache files.
        identity: Of the device.
    """
    return cache_path(directory, identity).with_suffix(KEY_PROFILE_SUFFIX)


def cache_file_beside(path: Path) -> Path:
    """The cache file whose writers' lock guards a file: itself, or for a profile the one that it lies beside."""
    if path.name.endswith(KEY_PROFILE_SUFFIX):
        return path.with_name(path.name.removesuffix(KEY_PROFILE_SUFFIX) + CACHE_FILE_SUFFIX)
    return path


def read_key_profile(path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> KeyProfileLoad:
    """Read a profile, whichever device it is of. Never raises.

    Args:
        path: The file.
        operations: The calls to use.
    """
    try:
        _, data = read_capped_parts(path, 0, _CAP, operations, check=trust_check(path, operations))
        profile = msgspec.json.decode(data, type=KeyProfile)
    except MissingFileError:
        return KeyProfileLoad(path, None)
    except ReadError as error:
        return KeyProfileLoad(path, None, error.reason)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return KeyProfileLoad(path, None, f"it is damaged: {error}")
    if profile.format != KEY_PROFILE_FORMAT:
        problem = f"it has format {profile.format}, and this version reads {KEY_PROFILE_FORMAT}"
        return KeyProfileLoad(path, None, problem)
    return KeyProfileLoad(path, profile)


def load_key_profile(
    directory: Path, identity: DeviceIdentity, operations: FileOperations = REAL_FILE_OPERATIONS
) -> KeyProfileLoad:
    """Look for the profile of a device. Never raises.

    Args:
        directory: The directory of cache files.
        identity: Of the device; a profile of another device or driver is not used.
        operations: The calls to use.
    """
    loaded = read_key_profile(key_profile_path(directory, identity), operations)
    if loaded.profile is None:
        return loaded
    difference = loaded.profile.identity.difference(identity)
    if difference:
        return KeyProfileLoad(loaded.path, None, f"it is of another device or driver: {difference}")
    return loaded


def save_key_profile(
    directory: Path,
    identity: DeviceIdentity,
    profile: KeyProfile,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> Path:
    """Keep a profile; replaces an earlier one.

    Args:
        directory: The directory of cache files; created, mode 0700, where it is missing.
        identity: Of the device.
        profile: What was found.
        operations: The calls to use.

    Returns:
        Where it is.

    Raises:
        SaveError: It could not be written, or another process is writing it. An old one is unchanged, unless `SaveError.replaced`.
    """
    path = key_profile_path(directory, identity)
    ensure_directory(directory, operations)
    with writer_lock(cache_path(directory, identity), operations) as held:
        if not held:
            raise SaveError(path, "locking", "another process did not finish saving in time")
        write_atomically(path, (msgspec.json.encode(profile),), operations)
    return path
