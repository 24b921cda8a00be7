"""The JSON documents of the verbs: one type per verb, encoded like the report of `compile`.

docs/documents.md is generated from these types. Adding a field keeps a document's version; changing or
removing one increments it. The report of `compile` is in `orchestrator.run.records`.

Assumptions: imported when a verb has results, not for its help, because the records import numpy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec
from attrs import asdict
from msgspec import UNSET, UnsetType

from orchestrator.bench.rows import Start
from orchestrator.bench.statistics import Difference, Estimate, Judgement
from orchestrator.devices.device import DeviceFeatures
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.listing import DeadDriver
from orchestrator.devices.modes import CacheMode
from orchestrator.packs.delivery import DeliveredComponent
from orchestrator.regress.comparison import ExecutableTotals, OnlyOne
from orchestrator.regress.results import Side
from orchestrator.regress.rules import RuleVerdict
from orchestrator.regress.times import TimedPipeline
from orchestrator.run.cache_joining import JoinedFile
from orchestrator.run.records import (
    ApiVersion,
    CompileReport,
    DamageRecord,
    Hash,
    IdentityRecord,
    Record,
    RequestRecord,
)
from orchestrator.stores.cache_file import LoadStatus, PipelineCacheHeader, PipelineCachePrefixHeader
from orchestrator.stores.culprits import Culprit
from orchestrator.stores.pack import PackTarget, missing_shards
from orchestrator.stores.profile_file import CalibrationProfile, KeyProfile, ProfileIdentity

_R = TypeVar("_R", bound=msgspec.Struct)


class Document(Record, frozen=True, kw_only=True):
    """Base of all documents."""

    version: int = 1  # Version of the format.


def filled(kind: type[_R], source: object, /, **more: Any) -> _R:
    """A record with the fields that another object has under the same names, and more."""
    names = [each for each in kind.__struct_fields__ if each not in more and hasattr(source, each)]
    return kind(**{each: getattr(source, each) for each in names}, **more)


class ListedDevice(IdentityRecord, frozen=True, kw_only=True):
    """A device that the loader finds."""

    index: int  # Its index in the list.
    selector: str  # The value of `--device` for it.
    problem: str | None  # Why it cannot be opened, or null.
    features: DeviceFeatures | UnsetType = UNSET  # Not there if it cannot be opened.


class DevicesDocument(Document, frozen=True, kw_only=True):
    """`devices --json`."""

    devices: tuple[ListedDevice, ...]
    dead_drivers: tuple[DeadDriver, ...]  # Drivers that ended the process; their devices are not listed.
    driver_files: str  # With dead drivers: the VK_DRIVER_FILES for which the selectors are; else "".


class FamilyRecord(Record, frozen=True, kw_only=True):
    """A family of RADV's null hardware."""

    selector: str  # The value of `--device` for it.
    family: str  # Its name, the value of RADV_FORCE_FAMILY, or of AMDGPU_GPU_ID for the drm-shim.
    device_id: int  # VkPhysicalDeviceProperties::deviceID on null hardware; 0 if this Mesa has none.


class FamiliesDocument(Document, frozen=True, kw_only=True):
    """`devices --device PATTERN --json`."""

    families: tuple[FamilyRecord, ...]  # The families that match the pattern.


class MachineRecord(Record, frozen=True, kw_only=True):
    """A worker of a cluster."""

    machine: str  # Its host name and address.
    problem: str | None  # Why it has no device, or null.
    devices: tuple[ListedDevice, ...]  # Its devices, without their features.


class ClusterDevicesDocument(Document, frozen=True, kw_only=True):
    """`devices --cluster ADDRESS --json`."""

    machines: tuple[MachineRecord, ...]  # The workers, by name.


class SetFile(Record, frozen=True, kw_only=True):
    """An archive of a set."""

    path: str
    bytes: int
    records: int  # Number of its records, without duplicates.


class ListedSet(Record, frozen=True, kw_only=True):
    """A set."""

    path: str
    files: tuple[SetFile, ...]  # Its archives.
    content_hash: Hash  # Hash over the names of its records.
    pipelines: dict[PipelineKind, int]  # Pipelines by kind.
    unique: int  # Pipelines of all kinds.
    duplicates: int  # Records left out because an earlier one of the same file has the same name.


class RecordCount(Record, frozen=True, kw_only=True):
    """Records of a tag."""

    count: int  # Number of records.
    stored_bytes: int | UnsetType = UNSET  # Their size in all files; not there if the set is not in files.
    bytes: int | UnsetType = UNSET  # Their size without compression; not there if the set is not in files.


class ApplicationRecord(Record, frozen=True, kw_only=True):
    """The settings that a recorded application gave the driver."""

    key: Hash  # Hash of the record.
    name: str | None  # VkApplicationInfo::pApplicationName, or null.
    engine: str | None  # VkApplicationInfo::pEngineName, or null.
    application_version: int  # VkApplicationInfo::applicationVersion.
    engine_version: int  # VkApplicationInfo::engineVersion.
    api_version: ApiVersion  # VkApplicationInfo::apiVersion.
    robust_buffer_access: bool  # Whether it enabled robustBufferAccess.
    features: dict[str, dict[str, int]]  # The members of the recorded feature structures, by structure.


class ListedGroup(Record, frozen=True, kw_only=True):
    """Pipelines whose applications gave the driver the same settings."""

    opened_as: RequestRecord  # The request that opens their device.
    applications: tuple[Hash, ...]  # Hashes of the applications.
    pipelines: int


class ListedProblem(Record, frozen=True, kw_only=True):
    """Pipelines of a set that are given to no device."""

    reason: str
    outcome: Literal["skipped", "failed"]  # What becomes of them in `compile`.
    pipelines: tuple[Hash, ...]  # Their keys.


class ListDocument(Document, frozen=True, kw_only=True):
    """`list --json`."""

    set: ListedSet
    records: dict[str, RecordCount]  # Records by tag.
    applications: tuple[ApplicationRecord, ...]  # The applications from which it was recorded.
    groups: tuple[ListedGroup, ...]  # Its pipelines by the device that they need.
    verified: bool  # Whether every record was read.
    unusable_records: int | None  # Number of records that cannot be used; null if not verified.
    unchecked_records: int | None  # Records whose content does not prove their key; null if not verified.
    damage: tuple[DamageRecord, ...]  # What could not be read.
    problems: tuple[ListedProblem, ...]  # Pipelines that are given to no device; empty if not verified.
    buckets: tuple[str, ...]  # Bucket records, as they are: what Fossilize's layer divided captures by.
    pipelines: dict[PipelineKind, tuple[Hash, ...]] | UnsetType = UNSET  # The keys, with `--pipelines`.


class Offer(Record, frozen=True, kw_only=True):
    """Whether a device would accept a cache file."""

    accepted: bool  # Whether the driver would get it.
    status: LoadStatus  # The result of a load.
    field: str | None  # The field that differs, or null.
    detail: str  # The same in words.


class MadeFor(Record, frozen=True, kw_only=True):
    """An application for which a cache file was made."""

    opened_as: RequestRecord  # The request that opened the device.
    pipelines: int


class HeaderRecord(Record, frozen=True, kw_only=True):
    """A header in a cache file, ours or Vulkan's. Fields that it lacks are not there."""

    header_size: int | UnsetType = UNSET  # Of Vulkan's: its headerSize.
    data_size: int | UnsetType = UNSET  # Of ours: bytes of the driver's data.
    data_hash: str | UnsetType = UNSET  # Of ours: hash of the driver's data.
    vendor_id: int  # VkPhysicalDeviceProperties::vendorID.
    device_id: int  # VkPhysicalDeviceProperties::deviceID.
    driver_version: int | UnsetType = UNSET  # Of ours: VkPhysicalDeviceProperties::driverVersion.
    driver_abi: int | UnsetType = UNSET  # Of ours: bits of a pointer.
    driver_id: int | UnsetType = UNSET  # Of ours: VkDriverId.
    pipeline_cache_uuid: str  # VkPhysicalDeviceProperties::pipelineCacheUUID, 32 hex digits.

    @classmethod
    def of(cls, header: PipelineCacheHeader | PipelineCachePrefixHeader | None) -> Self | None:
        """The record of a header, if there is one."""
        if header is None:
            return None
        fields: dict[str, Any] = asdict(header)
        texts = {name: each.hex() for name, each in fields.items() if isinstance(each, bytes)}
        return cls(**fields | texts)


_COUNTED = ("created", "skipped", "failed", "quarantined", "not_run")


class PackedTarget(Record, frozen=True, kw_only=True):
    """The contents of a pack for a device."""

    selector: str  # Selector of the device when it was compiled for.
    device_name: str
    driver: str  # Name and version of its driver.
    identity: ProfileIdentity | None  # For which the cache is valid; null if the device did not open.
    cache: str | None  # Name of the cache file, or null.
    cache_bytes: int
    binaries: str | None  # Name of the file of pipeline binaries, or null.
    binaries_bytes: int
    driver_cache: tuple[str, ...]  # Names of the files of the driver's own cache.
    driver_cache_bytes: int
    created: int  # Number of pipelines in it.
    skipped: int  # Number of pipelines that the device does not support.
    failed: int  # Number of failed pipelines.
    quarantined: int  # Number of pipelines left out because they crashed the driver.
    not_run: int  # Number of pipelines that were not tried.
    parts: tuple[str, ...]  # The compiled sets, or shards of sets.
    missing: tuple[str, ...]  # Missing shards of sets that have other shards.
    problem: str | None  # Why there is no cache, or null.

    @classmethod
    def of(cls, target: PackTarget, **more: Any) -> Self:
        """The record of a target, with more fields."""
        cache, binaries, drivers = target.cache, target.binaries, target.driver_cache
        return filled(
            cls,
            target,
            cache=None if cache is None else cache.name,
            cache_bytes=0 if cache is None else cache.size,
            binaries=None if binaries is None else binaries.name,
            binaries_bytes=0 if binaries is None else binaries.size,
            driver_cache=tuple(each.name for each in drivers),
            driver_cache_bytes=sum(each.size for each in drivers),
            parts=tuple(each.text for each in target.parts),
            missing=tuple(missing_shards(target.parts)),
            problem=target.problem or None,
            **{each: target.count(each) for each in _COUNTED},
            **more,
        )


class InspectedFile(Record, frozen=True, kw_only=True):
    """An inspected file."""

    path: str
    # A `CacheFileKind`, "archive", "pack", "export of binaries", or a kind of file beside a cache file.
    kind: str
    good: bool  # Whether it is whole and, with `--device`, would be accepted.
    bytes: int | UnsetType = UNSET  # Its size, if it was read.
    status: LoadStatus | UnsetType = UNSET  # Of a cache file: the result of a load without a device.
    reason: str = ""  # What is wrong, or "".
    data_hash_matches: bool | UnsetType | None = UNSET  # Of a cache file; null without a trusted hash.
    header: HeaderRecord | UnsetType | None = UNSET  # Of a cache file: our header, if it is proven.
    vulkan_header: HeaderRecord | UnsetType | None = UNSET  # Of a cache file: the header in its data.
    made_for: tuple[MadeFor, ...] | UnsetType = UNSET  # Of a cache file: the applications.
    device: IdentityRecord | UnsetType = UNSET
    offered: Offer | UnsetType = UNSET  # Whether that device would accept it.
    format_version: int | UnsetType = UNSET  # Of an archive: version of its format.
    records: dict[str, int] | UnsetType = UNSET  # Of an archive: records by tag.
    duplicates: int | UnsetType = UNSET  # Of an archive: records whose name an earlier one has.
    damage: tuple[DamageRecord, ...] | UnsetType = UNSET  # Of an archive: damage in its headers.
    targets: tuple[PackedTarget, ...] | UnsetType = UNSET  # Of a pack: its contents for each device.
    seems: str | UnsetType = UNSET  # Of anything else: what it seems to be.


class InspectDocument(Document, frozen=True, kw_only=True):
    """`inspect --json`. Version 1 described one file and had no version."""

    version: int = 2
    files: tuple[InspectedFile, ...]  # The given files, in order.
    good: int  # Number of files that are whole and, with `--device`, would be accepted.
    bad: int  # Number of the others.


class ExportDocument(Document, frozen=True, kw_only=True):
    """`export --json`."""

    path: str  # The cache file.
    output: str  # The output file.
    status: LoadStatus  # LOADED if the driver's data was proven and written, else what is wrong.
    field: str | None  # The first field that is wrong or differs, as Vulkan names it.
    detail: str  # The same in words.
    written_bytes: int  # Bytes of the driver's data that were written; 0 if something is wrong.


class ExtractDocument(Document, frozen=True, kw_only=True):
    """`extract --json`."""

    output: str  # The archive.
    bytes: int  # Its size.
    records: int
    pipelines: int  # With libraries and base pipelines.


class MergedSet(Record, frozen=True, kw_only=True):
    """What one set gave to a union."""

    path: str
    records: int  # Records that no earlier one gave.
    pipelines: tuple[Hash, ...]  # Pipelines that no earlier one gave: their records are those of this set.
    known: int  # Its other pipelines, which an earlier one gave.
    damaged: int  # Its records that are missing: neither it nor an earlier one can be read there.


class SetMergeDocument(Document, frozen=True, kw_only=True):
    """`set merge --json`."""

    output: str  # The archive.
    bytes: int  # Its size.
    records: int
    pipelines: int
    sets: tuple[MergedSet, ...]  # Where they are from, in the order of the command line.


class SetDifference(Record, frozen=True, kw_only=True):
    """How some pipelines of two sets differ."""

    name: str  # Their kind, or what their application calls itself.
    key: Hash | UnsetType | None = UNSET  # Of an application; null where none is linked to them.
    only_first: int
    both: int
    only_second: int


class SetDiffDocument(Document, frozen=True, kw_only=True):
    """`set diff --json`."""

    same: bool  # Whether both have the same pipelines, used by the same applications.
    kinds: tuple[SetDifference, ...]
    applications: tuple[SetDifference, ...]
    only_first: tuple[Hash, ...]
    only_second: tuple[Hash, ...]


class SetSampleDocument(Document, frozen=True, kw_only=True):
    """`set sample --json`."""

    output: str  # The archive.
    bytes: int  # Its size.
    records: int
    pipelines: int  # With libraries and base pipelines.
    of_pipelines: int  # Pipelines of the whole set that can be read.
    damaged: int  # Pipelines that need what cannot be read.
    cost_share: (
        float  # What it holds of the cost of the whole set, 0 to 1; without --by-cost all cost the same.
    )
    timed: int  # Pipelines of the whole set whose cost is a recorded time; the others are estimates.
    times_of: str | None  # The cache file whose device the times are of.


class RefreshedCompile(Record, frozen=True, kw_only=True):
    """What became of a compile that the cache directory remembers."""

    set: tuple[str, ...]  # Paths of its archives.
    selector: str  # Selector of its device; "" for the first one.
    pack: str = ""  # Path of the pack that it is for; "" where the cache directory keeps it.
    # "needed": it does not fit, and was not compiled yet. "left": its set or its device is not there.
    outcome: Literal["fits", "needed", "compiled", "failed", "left"]
    detail: str = ""  # Why, or how many pipelines.


class RefreshDocument(Document, frozen=True, kw_only=True):
    """`refresh --json`."""

    compiles: tuple[RefreshedCompile, ...] = ()
    # With `--systemd`: texts of units by file name.
    units: dict[str, str] = msgspec.field(default_factory=dict)


class CoveredTarget(Record, frozen=True, kw_only=True):
    """What a target of a pack has of a set."""

    selector: str  # Selector of the device when it was compiled for.
    device_name: str
    driver: str  # Name and version of its driver.
    pipelines: int  # Number of pipelines of the set.
    held: int  # Number of these that its cache holds.
    left_out: int  # Number of those that the device does not support, or that its driver refuses or dies of.
    missing: tuple[Hash, ...]  # Those that a player would compile.
    missing_s: float  # Driver time of these.
    timed: int  # How many of these have a recorded time; the others count as the mean of all.
    proven: bool  # With --run: whether they were looked up while compiling was forbidden.
    problem: str | None  # Why nothing is known, or nothing was proven; else null.


class CoverageDocument(Document, frozen=True, kw_only=True):
    """`coverage --json`."""

    pack: str
    targets: tuple[CoveredTarget, ...]  # In the order of the pack.


class RunDocument(Document, frozen=True, kw_only=True):
    """`run --json`."""

    directory: str
    device_name: str
    driver: str  # Name and version of its driver.
    variables: dict[str, str]  # With which a program reads it.


class PackedName(Record, frozen=True, kw_only=True):
    """A described pipeline."""

    name: str  # Its entry and permutation.
    kind: PipelineKind
    key: Hash


class PackDocument(Document, frozen=True, kw_only=True):
    """`pack --json`."""

    manifest: str
    output: str  # The archive.
    bytes: int  # Size of the archive.
    records: int
    modules: int  # Number of its shader modules.
    described: int  # Number of pipelines that the manifest describes.
    pipelines: dict[PipelineKind, int]  # Number of different pipelines, by kind.
    unique: int  # Number of different pipelines.
    names: tuple[PackedName, ...]  # The described pipelines.


class CompiledTarget(Record, frozen=True, kw_only=True):
    """One of several targets of a compile."""

    selector: str  # Selector of the device.
    problem: str | None  # Why the compile failed, or why the pack has nothing of it; else null.
    report: CompileReport | None  # The report of the compile; null if it failed or did not begin.


class TargetsDocument(Document, frozen=True, kw_only=True):
    """`compile --json` of several devices, of a pattern, or with --out."""

    pack: str | None  # The pack that was written, or null.
    targets: tuple[CompiledTarget, ...]  # The targets, in the given order.


class NearestTarget(Record, frozen=True, kw_only=True):
    """The target of a pack that is most similar to a device."""

    target: str  # Its selector.
    differs: tuple[str, ...]  # The differing fields, in words.


class InstallDocument(Document, frozen=True, kw_only=True):
    """`install --json`."""

    pack: str
    proven: bool  # Whether its signature was checked, with --trust.
    device_name: str
    driver: str  # Name and version of its driver.
    identity: ProfileIdentity  # The identity for which its caches are valid.
    target: str | None  # Selector of the target for this device and driver, or null.
    has_cache: bool  # Whether the pack has a cache for it.
    problem: str | None  # Why the target has no data, or null.
    nearest: NearestTarget | None  # If there is no target: the most similar one.
    created: int  # Number of pipelines in that cache.
    cache_file: str  # The cache file of the device.
    saved_bytes: int  # Bytes that were written, or 0.
    not_saved: str | None  # Why nothing was written, or null.
    bytes_before: int  # Size of the driver's data before.
    bytes_after: int  # Size of the driver's data now.
    store: str | None  # The store of pipeline binaries, if the pack has some for the device; else null.
    binaries: int  # Number of pipelines that have binaries in the pack.
    binaries_new: int  # Bytes of binaries that were new to the store.
    notes: tuple[str, ...]  # Remarks for the user.


class CheckedFile(Record, frozen=True, kw_only=True):
    """A file or directory that was checked."""

    path: str
    kind: str  # What it is.
    files: int | UnsetType = UNSET  # Of a directory or a pack: number of checked files in it.
    quarantined: int | UnsetType = UNSET  # Of a directory: files in its quarantine.
    bytes: int | UnsetType = UNSET  # Of a file: its size.
    status: LoadStatus | UnsetType = UNSET  # Of a cache file: the result of a load without a device.
    previous_generation: LoadStatus | UnsetType | None = UNSET  # Of a cache file: its status, or null.
    records: int | UnsetType = UNSET  # Of an archive: its records.
    unusable_records: int | UnsetType = UNSET  # Of an archive: those that cannot be used.
    unchecked_records: int | UnsetType = UNSET  # Of an archive: those whose content does not prove their key.
    damage: tuple[DamageRecord, ...] | UnsetType = UNSET  # Of an archive: what could not be read.
    targets: tuple[PackedTarget, ...] | UnsetType = UNSET  # Of a pack: its contents for each device.
    signed: bool | UnsetType = UNSET  # Of a pack: whether it has a signature.
    proven: bool | UnsetType = UNSET  # Of a pack: whether the signature was checked, with --trust.
    strays: tuple[str, ...] | UnsetType = UNSET  # Of a pack: names of other files in its directory.
    problems: tuple[str, ...]  # What is wrong.
    next_step: str  # What to do about it; "" if nothing is wrong.


class VerifyDocument(Document, frozen=True, kw_only=True):
    """`verify --json`."""

    checked: tuple[CheckedFile, ...]  # Each file and directory.
    good: int  # Number of good ones.
    bad: int  # Number of bad ones.


class BinariesGeneration(Record, frozen=True, kw_only=True):
    """A device and a global pipeline key, in a store of binaries."""

    device_name: str
    driver_name: str  # VkPhysicalDeviceDriverProperties::driverName.
    driver_info: str  # VkPhysicalDeviceDriverProperties::driverInfo.
    identity: ProfileIdentity  # The device and driver.
    global_key: str  # vkGetPipelineKeyKHR without a create info, in hex.
    pipelines: int | None = None  # Number of its pipelines; null for a removed generation.
    binaries: int | None = None  # Number of their binaries, each counted for every use; or null.
    bytes: int | None = None  # Size of the binaries; or null.
    shared_driver_keys: int | None = None  # Number of the driver's keys that several states have; or null.
    used_s: int | None = msgspec.field(default=None, name="used_s")  # Last use, since the epoch; or null.


class BinariesDocument(Document, frozen=True, kw_only=True):
    """`binaries --json`."""

    action: str  # The action: stat, verify, export, import or prune.
    store: Path
    generations: tuple[BinariesGeneration, ...]  # Its contents by device and global key.
    payloads: int  # Number of different binaries.
    payload_bytes: int  # Size of the different binaries.
    used_bytes: int  # Size of the used pages of the file.
    file_bytes: int
    bound_bytes: int  # Size limit.
    set_aside: str | None  # The file that was moved to the quarantine on opening, and why; or null.
    read_only: str | None  # Why the store could only be read, or null.
    problems: tuple[str, ...] = ()  # The problems that `verify` found.
    pack: Path | None = None  # The pack that was written or read, or null.
    packed_pipelines: int = 0  # Number of pipelines in the pack.
    packed_binaries: int = 0  # Number of binaries in the pack.
    packed_bytes: int = 0  # Size of the pack.
    signed: bool = False  # Whether the pack is signed; of an import, whether the signature was checked.
    stored: int = 0  # Number of pipelines that an import stored.
    removed: tuple[BinariesGeneration, ...] = ()  # Generations that `prune` removed, or would remove.
    evicted: int = 0  # Other pipelines that `prune` removed, or an import to make room, its own among them.
    too_large: int = 0  # Pipelines that an import did not store: one would take too much of the store.
    dry_run: bool = False  # Whether nothing was removed.


class MergeDocument(Document, frozen=True, kw_only=True):
    """`merge --json`."""

    device: IdentityRecord  # The device that merged.
    output: str  # The output file.
    files: tuple[JoinedFile, ...]  # The result for each file.
    merged: int  # Number of merged files.
    refused: int  # Number of files left out.
    data_bytes: int  # Size of the merged cache.
    saved_bytes: int  # Bytes that were written.
    not_saved: str | None  # Why nothing was written, or null.
    note: str | None  # What a user should know of what was written, or null.


class JoinedTargetRecord(PackedTarget, frozen=True, kw_only=True):
    """A target of a joined pack."""

    packs: tuple[str, ...]  # The packs with a cache for it.
    merged: bool  # Whether the driver merged the caches; otherwise one was copied.


class LackedTarget(Record, frozen=True, kw_only=True):
    """A target that a joined pack had nothing of."""

    pack: str
    target: str  # Its selector there.
    problem: str  # Why there was nothing, such as that its compile was not finished.


class MergePacksDocument(Document, frozen=True, kw_only=True):
    """`merge --json` of packs."""

    output: str  # The pack that was written.
    packs: tuple[str, ...]  # The packs that were joined.
    signed: bool  # Whether it was signed.
    targets: tuple[JoinedTargetRecord, ...]
    lacked: tuple[LackedTarget, ...]  # Targets that one of the packs had nothing of.


class PrunedFile(Record, frozen=True, kw_only=True):
    """A file to remove."""

    path: Path
    bytes: int
    reason: str  # Why it is removed.
    detail: str  # Details of the reason.
    cause: str | UnsetType = UNSET  # Why it could not be removed; not there if it was removed.


class KeptFile(Record, frozen=True, kw_only=True):
    """A file that stays."""

    path: Path
    bytes: int


class PruneDocument(Document, frozen=True, kw_only=True):
    """`prune --json`."""

    directory: Path
    dry_run: bool  # Whether nothing was removed.
    removed: tuple[PrunedFile, ...]  # Files that were removed, or would be.
    removed_bytes: int  # Their size.
    failed: tuple[PrunedFile, ...]  # Files that could not be removed.
    leftovers: tuple[Path, ...]  # Leftovers of killed processes that were removed, or would be.
    leftovers_failed: tuple[Path, ...]  # Those that could not be removed.
    kept: tuple[KeptFile, ...]  # Files that stay.
    kept_bytes: int  # Their size.
    drivers_asked: int  # Number of devices whose driver build is known.
    note: str | None  # Why it is unknown, or what else a reader must know of the result; or null.


class HeldQuarantine(Record, frozen=True, kw_only=True):
    """The pipelines in quarantine on one device and driver."""

    path: Path  # Path of the quarantine file.
    problem: str  # Why the file cannot be used, or "".
    device_name: str = ""
    driver: str = ""  # Name and version of the driver.
    culprits: tuple[Culprit, ...] = ()  # The pipelines.


class QuarantineDocument(Document, frozen=True, kw_only=True):
    """`quarantine --json`."""

    directory: Path  # The directory of cache files.
    cleared: int | None  # Number of pipelines that `clear` removed; null for `list`.
    quarantines: tuple[HeldQuarantine, ...]  # The quarantines now.


class DoctorFinding(Record, frozen=True, kw_only=True):
    """The result of one check."""

    subject: str  # The subject of the check.
    state: str  # "good", "hint" (works with limitations) or "bad".
    detail: str  # The finding.
    next_step: str | None  # What to do about it; null if it is good.


class DoctorDocument(Document, frozen=True, kw_only=True):
    """`doctor --json`."""

    devices: tuple[IdentityRecord, ...]  # The devices that could be opened.
    cache_directory: Path  # The directory of cache files.
    findings: tuple[DoctorFinding, ...]  # All findings.
    bad: int  # Number of bad findings.


class KeysDocument(KeyProfile, frozen=True, kw_only=True):
    """`doctor --keys --json`: the profile, and where it was saved."""

    version: int = 2  # Version of the document.
    profile: str | None  # Where it was saved, or null.
    not_saved: str  # Why it was not saved, or "".


class CalibrateDocument(CalibrationProfile, frozen=True, kw_only=True):
    """`calibrate --json`: the profile and where it was saved. Version 1 listed contenders as dropped."""

    version: int = 2  # Version of the document.
    profile: str | None  # Where it was saved, or null.
    stopped: str | None  # Why measuring ended early, or null.


class RatioRecord(Record, frozen=True, kw_only=True):
    """A ratio with its interval."""

    median: float
    low: float  # Lower end of its interval.
    high: float  # Upper end.
    count: int  # Number of values, or of pairs.
    # "higher" or "lower" if it differs from 1 by more than the noise, "equal" within 5 %, "undecided", also
    # where threads lacked processors, or "not measured" if samples or control do not suffice.
    judgement: Judgement

    @classmethod
    def of(cls, difference: Difference) -> Self:
        """The record of a difference."""
        return cls(**asdict(difference.ratio), judgement=difference.judgement)


class CellConditions(Record, frozen=True, kw_only=True):
    """The conditions under which modes are compared."""

    device: str  # The selector.
    start: Start  # Contents of the caches.
    duplicates: float  # Share of the pipelines that the run created a second time.
    workers: int


class CellName(CellConditions, frozen=True, kw_only=True):
    """A cell of a benchmark."""

    mode: CacheMode  # The cache topology.


class FailedCell(CellName, frozen=True, kw_only=True):
    """A sample that could not be taken."""

    control: bool  # Whether it was the second measurement of the baseline.
    round: int  # Number of the round; -1 is the warm-up.
    reason: str  # What happened.


class BenchCell(CellName, frozen=True, kw_only=True):
    """Figures of a cell: medians; those that are objects have intervals."""

    samples: int
    throughput: Estimate  # Pipelines per second of one pass over the set, keys and driver's merge included.
    creation_rate: Estimate  # Pipelines per second up to the barrier, over all passes.
    seconds: Estimate  # From the first job to the end of the merge.
    blocked_share: Estimate  # Share of the calls' time in which threads slept, at least: in the driver's own.
    asleep_share: Estimate  # The same, at most: in the whole call.
    run_delay_share: Estimate  # Share of the calls' time in which threads waited for a processor.
    overhead_share: Estimate  # Share of the calls' time outside the driver.
    efficiency: Estimate | None  # Throughput per worker against one worker; null if that was not measured.
    inflation: Estimate | None  # CPU time per pipeline against one worker; null if that was not measured.
    open_s: float  # Creating the caches.
    merge_s: float  # Merging, our own part included.
    merge_driver_s: float  # Of it, the driver's part; all of it in rows that don't tell.
    read_back_s: float  # Reading the merged cache back.
    barrier_wait_s: float  # Waiting at the barrier, all workers.
    duplicate_keys: float  # Pipelines that were compiled more than once.
    duplicate_s: float  # Driver time of their compiles without the first.
    peak_memory_bytes: float  # Peak memory of the process.


class BenchGroup(CellConditions, frozen=True, kw_only=True):
    """All modes under the same conditions against their baseline."""

    baseline: CacheMode  # The mode to compare with.
    noise: float | None  # Noise of the A/A control, as a factor; null without a control.
    throughput_ratios: dict[CacheMode, RatioRecord]  # Each other mode over the baseline, with the merge.
    creation_rate_ratios: dict[CacheMode, RatioRecord]  # The same up to the barrier, over all passes.
    locking: RatioRecord | None  # per-worker-internal over per-worker; null if one was not measured.


class BenchDocument(Document, frozen=True, kw_only=True):
    """`bench --json`. In version 2 all of the merge counted, in version 1 ratios had other verdicts."""

    version: int = 3
    results: str  # The file of all samples.
    samples: int  # Number of samples of the matrix in it.
    planned: int  # Number of samples of the matrix; of an undecided group the most that are taken.
    resumed: int  # Of `samples`, those from earlier runs.
    stopped: str | None  # Why it ended early, or null.
    failed: tuple[FailedCell, ...]  # Samples that could not be taken.
    cells: tuple[BenchCell, ...]  # Figures of each cell.
    groups: tuple[BenchGroup, ...]  # The modes of each group of cells against their baseline.
    advice: tuple[str, ...]  # Which mode to use on each device, in sentences.
    verdicts: tuple[str, ...]  # The verdicts, in sentences.
    warnings: tuple[str, ...]  # What weakens the figures.
    report: str | None  # The page, or null.


class ChangedCell(CellName, frozen=True, kw_only=True):
    """A cell in both files, named as in the second."""

    device_before: str  # The selector in the first file.
    seconds_before: float  # Median time of one pass over the set in the first file, keys and merge included.
    seconds_after: float  # The same in the second.
    noise: float | None  # Noise of the A/A control, as a factor; null without a control.
    time: RatioRecord  # Time in the second file over time in the first.
    cpu: RatioRecord  # The same for CPU time per pipeline.
    memory: RatioRecord  # The same for peak memory; without a verdict if the numbers of passes differ.


class ComparedFile(Record, frozen=True, kw_only=True):
    """A benchmark compared with the first one."""

    path: Path  # Its file or directory, as given.
    summary: str  # The result in one sentence.
    pipelines_added: int | None  # Increase of the number of pipelines; null if a file has several sets.
    slower: int  # Number of cells that are slower beyond noise.
    faster: int  # Number of cells that are faster beyond it.
    undecided: int  # Cells without a verdict, or whose intervals are too wide for one.
    refused_added: int  # Largest increase of the number of pipelines that the driver refuses, over the cells.
    skipped_added: int  # Largest increase of the number of pipelines that are skipped, over the cells.
    cells: tuple[ChangedCell, ...]  # The cells that both have.
    only_before: tuple[CellName, ...]  # Cells that only the first one has.
    only_after: tuple[CellName, ...]  # Cells that only this one has.
    failed: tuple[FailedCell, ...]  # Samples of this one that could not be taken.
    differences: tuple[str, ...]  # Other differences, one sentence each.
    rules: tuple[RuleVerdict, ...]  # What became of the rules of `--fail-on`.


class CompareDocument(Document, frozen=True, kw_only=True):
    """`compare --json`. Before version 4 a threshold decided what is slower or faster."""

    version: int = 4
    before: Path  # The file to compare with.
    files: tuple[ComparedFile, ...]  # The other files.


class CompileTimeRecord(Record, frozen=True, kw_only=True):
    """Compile time, after over before."""

    rounds: int  # Rounds A B B A.
    pipelines: int
    before_s: float  # Median of the driver's time of all pipelines.
    after_s: float
    driver: RatioRecord  # By creation feedback.
    cpu: RatioRecord  # By the CPU clocks of the threads.
    noise: float  # Noise of the A/A control, as a factor.
    verdict: str  # slower, faster, equal, undecided or not measured.
    changed: tuple[TimedPipeline, ...]  # Those whose time changed beyond noise.


class ComparedSides(Record, frozen=True, kw_only=True):
    """Two sides, on one device or on several with equal results."""

    devices: tuple[str, ...]  # Selectors; none for files.
    before: Side
    after: Side
    identical: bool
    total: ExecutableTotals
    applications: dict[str, ExecutableTotals]
    new_spills: int  # Executables that spill and did not before.
    occupancy_lost: int
    wave_size_changed: int
    only_one: tuple[OnlyOne, ...]
    neither: tuple[OnlyOne, ...]  # What both sides lack, with the reason of the side after.
    time: CompileTimeRecord | None
    rules: tuple[RuleVerdict, ...]


class RegressDocument(Document, frozen=True, kw_only=True):
    """`regress --json`."""

    version: int = 2  # Version of the document.
    comparisons: tuple[ComparedSides, ...]


class WorkerDocument(Document, frozen=True, kw_only=True):
    """`worker --json`, when it ends."""

    address: str  # The scheduler's address.
    directory: Path  # Where sets and unfinished shards are kept.


class DeliveredDocument(Document, frozen=True, kw_only=True):
    """`install --json` of a release."""

    source: str  # The directory or the address.
    proven: bool  # Whether its signature was checked, with --trust.
    name: str  # Of the program.
    release: int
    device_name: str
    driver: str  # Name and version of its driver.
    fetched_bytes: int  # Bytes that were transferred, with the index and the manifests.
    components: tuple[DeliveredComponent, ...]  # In the order in which they were installed.


class PublishDocument(Document, frozen=True, kw_only=True):
    """`publish --json`."""

    output: str  # The directory.
    name: str  # Of the program.
    release: int
    signed: bool  # Whether the index was signed.
    components: tuple[str, ...]
    files: int  # Number of files that were not there before.
    bytes: int  # Their size.


class KeyDocument(Document, frozen=True, kw_only=True):
    """`key --json`."""

    private: str  # The file of the private key.
    public: str  # That of the public one.


class CompletionDocument(Document, frozen=True, kw_only=True):
    """`completion --json`."""

    shell: str
    script: str
