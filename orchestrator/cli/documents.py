"""What each verb writes with --json: one type a verb, encoded as the report of `compile` is.

The page docs/report.md is made from these types. Adding a field leaves a document's version; one that changes
its meaning or goes counts it up. `compile` has a module of its own (`orchestrator.run.records`).

Assumptions: loaded when a verb has something to write, not for its help, because the records bring numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
from attrs import asdict
from msgspec import UNSET, UnsetType

from orchestrator.bench.rows import Start
from orchestrator.bench.statistics import Difference, Estimate
from orchestrator.devices.device import CacheMode, DeviceFeatures
from orchestrator.devices.image import PipelineKind
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
from orchestrator.stores.profile_file import CalibrationProfile, KeyProfile, ProfileIdentity


class Document(Record, frozen=True, kw_only=True):
    """What a verb writes.

    Attributes:
        version: Version of the format.
    """

    version: int = 1


# --- devices


class ListedDevice(IdentityRecord, frozen=True, kw_only=True):
    """A device that the loader finds.

    Attributes:
        index: Its place among those that are listed.
        selector: What `--device` takes for it.
        problem: Why it cannot be opened, or null.
        features: What it offers to an orchestrator; not there where it cannot be opened.
    """

    index: int
    selector: str
    problem: str | None
    features: DeviceFeatures | UnsetType = UNSET


class DevicesDocument(Document, frozen=True, kw_only=True):
    """`devices --json`.

    Attributes:
        devices: What compiles here.
    """

    devices: tuple[ListedDevice, ...]


class FamilyRecord(Record, frozen=True, kw_only=True):
    """A family of RADV's null hardware.

    Attributes:
        selector: What `--device` takes for it.
        family: Its name, as RADV_FORCE_FAMILY takes it.
        device_id: VkPhysicalDeviceProperties::deviceID on null hardware; 0 where this Mesa has none.
    """

    selector: str
    family: str
    device_id: int


class FamiliesDocument(Document, frozen=True, kw_only=True):
    """`devices --device PATTERN --json`.

    Attributes:
        families: The families that the pattern stands for.
    """

    families: tuple[FamilyRecord, ...]


# --- list


class SetFile(Record, frozen=True, kw_only=True):
    """An archive of a set.

    Attributes:
        path: Which.
        bytes: Its size.
        records: Records in it, but for duplicates.
    """

    path: str
    bytes: int
    records: int


class ListedSet(Record, frozen=True, kw_only=True):
    """A set.

    Attributes:
        path: Its name.
        files: Its archives.
        content_hash: Hash over the names of its records.
        pipelines: Pipelines by kind.
        unique: Pipelines of all kinds.
        duplicates: Records left out because one of the same name came before.
    """

    path: str
    files: tuple[SetFile, ...]
    content_hash: Hash
    pipelines: dict[PipelineKind, int]
    unique: int
    duplicates: int


class RecordCount(Record, frozen=True, kw_only=True):
    """Records of a tag.

    Attributes:
        count: How many.
        stored_bytes: Their size in the files; not there for a set that is in no file.
        bytes: Their size without compression; likewise.
    """

    count: int
    stored_bytes: int | UnsetType = UNSET
    bytes: int | UnsetType = UNSET


class ApplicationRecord(Record, frozen=True, kw_only=True):
    """What a recorded application told the driver.

    Attributes:
        key: Hash of the record.
        name: VkApplicationInfo::pApplicationName, null for a null pointer.
        engine: VkApplicationInfo::pEngineName, null for a null pointer.
        application_version: VkApplicationInfo::applicationVersion.
        engine_version: VkApplicationInfo::engineVersion.
        api_version: VkApplicationInfo::apiVersion.
        robust_buffer_access: Whether it enabled robustBufferAccess.
        features: The members of the recorded feature structures, by structure.
    """

    key: Hash
    name: str | None
    engine: str | None
    application_version: int
    engine_version: int
    api_version: ApiVersion
    robust_buffer_access: bool
    features: dict[str, dict[str, int]]


class ListedGroup(Record, frozen=True, kw_only=True):
    """Pipelines whose applications told the driver the same.

    Attributes:
        opened_as: What their device is opened as.
        applications: Hashes of the applications.
        pipelines: How many they are.
    """

    opened_as: RequestRecord
    applications: tuple[Hash, ...]
    pipelines: int


class ListDocument(Document, frozen=True, kw_only=True):
    """`list --json`.

    Attributes:
        set: The set.
        records: Records by tag.
        applications: The applications that it was recorded from.
        groups: Its pipelines by the device that they need.
        verified: Whether every record was read.
        unusable_records: Records that cannot be used; null where not verified.
        damage: What could not be read.
        pipelines: With `--pipelines`: the keys by kind.
    """

    set: ListedSet
    records: dict[str, RecordCount]
    applications: tuple[ApplicationRecord, ...]
    groups: tuple[ListedGroup, ...]
    verified: bool
    unusable_records: int | None
    damage: tuple[DamageRecord, ...]
    pipelines: dict[PipelineKind, tuple[Hash, ...]] | UnsetType = UNSET


# --- inspect


class Offer(Record, frozen=True, kw_only=True):
    """What a device would make of a cache file.

    Attributes:
        accepted: Whether it would be given to the driver.
        status: How a load would end.
        field: The field that differs, or null.
        detail: In words.
    """

    accepted: bool
    status: LoadStatus
    field: str | None
    detail: str


class MadeFor(Record, frozen=True, kw_only=True):
    """An application that a cache file was made for.

    Attributes:
        opened_as: What the device was opened as.
        pipelines: Pipelines of it.
    """

    opened_as: RequestRecord
    pipelines: int


class HeaderRecord(Record, frozen=True, kw_only=True):
    """A header in a cache file, ours or Vulkan's; what one of them lacks is not there.

    Attributes:
        header_size: Of Vulkan's: its headerSize.
        data_size: Of ours: bytes of the driver's data.
        data_hash: Of ours: hash of the driver's data.
        vendor_id: VkPhysicalDeviceProperties::vendorID.
        device_id: VkPhysicalDeviceProperties::deviceID.
        driver_version: Of ours: VkPhysicalDeviceProperties::driverVersion.
        driver_abi: Of ours: bits of a pointer.
        driver_id: Of ours: VkDriverId.
        pipeline_cache_uuid: VkPhysicalDeviceProperties::pipelineCacheUUID, 32 hex digits.
    """

    header_size: int | UnsetType = UNSET
    data_size: int | UnsetType = UNSET
    data_hash: str | UnsetType = UNSET
    vendor_id: int
    device_id: int
    driver_version: int | UnsetType = UNSET
    driver_abi: int | UnsetType = UNSET
    driver_id: int | UnsetType = UNSET
    pipeline_cache_uuid: str

    @classmethod
    def of(cls, header: PipelineCacheHeader | PipelineCachePrefixHeader | None) -> Self | None:
        """The record of a header, if there is one."""
        if header is None:
            return None
        fields: dict[str, Any] = asdict(header)
        texts = {name: each.hex() for name, each in fields.items() if isinstance(each, bytes)}
        return cls(**fields | texts)


class InspectedFile(Record, frozen=True, kw_only=True):
    """What a file is.

    Attributes:
        path: Which.
        kind: What it is: a `CacheFileKind`, "archive", or what lies beside a cache file.
        good: Whether it is whole, and would be taken where a device is named.
        bytes: Its size, where it was read.
        status: Of a cache file: how a load without a device would end.
        reason: What is wrong; empty where nothing is.
        data_hash_matches: Of a cache file: whether the driver's data agrees with its hash; null where there
            is none to trust.
        header: Of a cache file: our header, where it is proven.
        vulkan_header: Of a cache file: the header in the driver's data.
        made_for: Of a cache file: the applications that it was made for. Of a plan: the devices.
        content_hash: Of a plan: hash over the names of all records of its set.
        device: The device that was asked for with `--device`.
        offered: What that device would make of it.
        format_version: Of an archive: version of its format.
        records: Of an archive: records by tag.
        duplicates: Of an archive: records left out because one of the same name came before.
        damage: Of an archive: damage in its headers.
        seems: Of anything else: what it seems to be.
    """

    path: str
    kind: str
    good: bool
    bytes: int | UnsetType = UNSET
    status: LoadStatus | UnsetType = UNSET
    reason: str = ""
    data_hash_matches: bool | UnsetType | None = UNSET
    header: HeaderRecord | UnsetType | None = UNSET
    vulkan_header: HeaderRecord | UnsetType | None = UNSET
    made_for: tuple[MadeFor, ...] | UnsetType = UNSET
    content_hash: Hash | UnsetType = UNSET
    device: IdentityRecord | UnsetType = UNSET
    offered: Offer | UnsetType = UNSET
    format_version: int | UnsetType = UNSET
    records: dict[str, int] | UnsetType = UNSET
    duplicates: int | UnsetType = UNSET
    damage: tuple[DamageRecord, ...] | UnsetType = UNSET
    seems: str | UnsetType = UNSET


class InspectDocument(Document, frozen=True, kw_only=True):
    """`inspect --json`. Version 1 was of one file and said no version.

    Attributes:
        files: Each file that was named, in order.
        good: How many of them are whole, and would be taken where a device is named.
        bad: How many are not.
    """

    version: int = 2
    files: tuple[InspectedFile, ...]
    good: int
    bad: int


# --- export


class ExportDocument(Document, frozen=True, kw_only=True):
    """`export --json`.

    Attributes:
        path: The cache file.
        output: The file that was to be written.
        status: LOADED where the driver's data was proven and written, else what is wrong.
        field: The first field that is wrong or differs, as Vulkan names it.
        detail: In words.
        written_bytes: Bytes of the driver's data that were written; 0 where something is wrong.
    """

    path: str
    output: str
    status: LoadStatus
    field: str | None
    detail: str
    written_bytes: int


# --- pack


class PackedName(Record, frozen=True, kw_only=True):
    """A described pipeline.

    Attributes:
        name: Its entry and permutation.
        kind: What it is.
        key: Its hash.
    """

    name: str
    kind: PipelineKind
    key: Hash


class PackDocument(Document, frozen=True, kw_only=True):
    """`pack --json`.

    Attributes:
        manifest: What was read.
        output: What was written.
        bytes: Its size.
        records: Records in it.
        modules: Shader modules among them.
        described: Pipelines that the manifest describes.
        pipelines: Different ones by kind.
        unique: Different ones.
        names: Each described pipeline.
    """

    manifest: str
    output: str
    bytes: int
    records: int
    modules: int
    described: int
    pipelines: dict[PipelineKind, int]
    unique: int
    names: tuple[PackedName, ...]


# --- packs


class PackedTarget(Record, frozen=True, kw_only=True):
    """What a pack has for a device.

    Attributes:
        selector: How the device was called where it was compiled for.
        device_name: Name of the device.
        driver: Name and version of its driver.
        identity: What the cache is valid for; null where the device did not open.
        cache: Name of the cache file, or null.
        cache_bytes: Its size.
        binaries: Name of the file of pipeline binaries, or null.
        binaries_bytes: Its size.
        created: How many pipelines are in it.
        skipped: How many the device cannot take.
        failed: How many failed.
        quarantined: How many were left out, because they ended the driver.
        not_run: How many were not come to.
        parts: The sets, or shards of sets, that were compiled.
        missing: Shards that are not there of sets of which others are.
        problem: Why there is nothing, or null.
    """

    selector: str
    device_name: str
    driver: str
    identity: ProfileIdentity | None
    cache: str | None
    cache_bytes: int
    binaries: str | None
    binaries_bytes: int
    created: int
    skipped: int
    failed: int
    quarantined: int
    not_run: int
    parts: tuple[str, ...]
    missing: tuple[str, ...]
    problem: str | None


class CompiledTarget(Record, frozen=True, kw_only=True):
    """One of several targets of a compile.

    Attributes:
        selector: How the device is called.
        problem: Why it could not be compiled for, or null.
        report: What a compile for one device gives; null where there is a problem, or it did not begin.
    """

    selector: str
    problem: str | None
    report: CompileReport | None


class TargetsDocument(Document, frozen=True, kw_only=True):
    """`compile --json` of several devices, of a pattern, or with --out.

    Attributes:
        pack: The pack that was written, or null.
        targets: The targets, in the order in which they were named.
    """

    pack: str | None
    targets: tuple[CompiledTarget, ...]


class NearestTarget(Record, frozen=True, kw_only=True):
    """The target of a pack that has most in common with a device.

    Attributes:
        target: Its selector.
        differs: The fields in which it differs, in words.
    """

    target: str
    differs: tuple[str, ...]


class InstallDocument(Document, frozen=True, kw_only=True):
    """`install --json`.

    Attributes:
        pack: The pack.
        proven: Whether its MAC was checked, with --key.
        device_name: Name of the device that is here.
        driver: Name and version of its driver.
        identity: What its caches are valid for.
        target: Selector of the target that is this device and driver, or null.
        has_cache: Whether the pack has a cache for it.
        problem: Why there is a target and nothing of it, or null.
        nearest: Where there is no target: the one that has most in common.
        created: How many pipelines that cache holds.
        cache_file: The cache file of the device.
        saved_bytes: Bytes that were written, 0 where none were.
        not_saved: Why none were, or null.
        bytes_before: Driver's data that was there before.
        bytes_after: Driver's data that is there now.
        store: The store of pipeline binaries, where the pack has some for the device; else null.
        binaries: How many pipelines those are of.
        binaries_new: Bytes of those that the store did not have before.
        notes: What a user should know.
    """

    pack: str
    proven: bool
    device_name: str
    driver: str
    identity: ProfileIdentity
    target: str | None
    has_cache: bool
    problem: str | None
    nearest: NearestTarget | None
    created: int
    cache_file: str
    saved_bytes: int
    not_saved: str | None
    bytes_before: int
    bytes_after: int
    store: str | None
    binaries: int
    binaries_new: int
    notes: tuple[str, ...]


# --- verify


class CheckedFile(Record, frozen=True, kw_only=True):
    """A file or directory that was checked.

    Attributes:
        path: Which.
        kind: What it is.
        files: Of a directory or a pack: files in it that were checked.
        quarantined: Of a directory: files in its quarantine.
        bytes: Of a file: its size.
        status: Of a cache file: how a load without a device would end.
        previous_generation: Of a cache file: the same of its previous generation, null for none.
        records: Of an archive: its records.
        unusable_records: Of an archive: those that cannot be used.
        damage: Of an archive: what could not be read.
        targets: Of a pack: what it has for each device.
        signed: Of a pack: whether it has a MAC.
        proven: Of a pack: whether that was checked, with --key.
        strays: Of a pack: names of files in its directory that are not of it.
        problems: What is wrong.
        next_step: What to do about it.
    """

    path: str
    kind: str
    files: int | UnsetType = UNSET
    quarantined: int | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    status: LoadStatus | UnsetType = UNSET
    previous_generation: LoadStatus | UnsetType | None = UNSET
    records: int | UnsetType = UNSET
    unusable_records: int | UnsetType = UNSET
    damage: tuple[DamageRecord, ...] | UnsetType = UNSET
    targets: tuple[PackedTarget, ...] | UnsetType = UNSET
    signed: bool | UnsetType = UNSET
    proven: bool | UnsetType = UNSET
    strays: tuple[str, ...] | UnsetType = UNSET
    problems: tuple[str, ...]
    next_step: str


class VerifyDocument(Document, frozen=True, kw_only=True):
    """`verify --json`.

    Attributes:
        checked: Each file and directory.
        good: How many are good.
        bad: How many are not.
    """

    checked: tuple[CheckedFile, ...]
    good: int
    bad: int


# --- binaries


class BinariesGeneration(Record, frozen=True, kw_only=True):
    """A device and a global pipeline key, in a store of binaries.

    Attributes:
        device_name: Name of the device.
        driver_name: VkPhysicalDeviceDriverProperties::driverName.
        driver_info: VkPhysicalDeviceDriverProperties::driverInfo.
        identity: The device and driver.
        global_key: vkGetPipelineKeyKHR without a create info, in hex.
        pipelines: Pipelines of it; null in what a verb removed.
        binaries: Binaries of those, each as often as it is used; or null.
        bytes: Size of those; or null.
        shared_driver_keys: Driver's keys that several states have; or null.
        used_s: When it was used last, seconds since the epoch; or null.
    """

    device_name: str
    driver_name: str
    driver_info: str
    identity: ProfileIdentity
    global_key: str
    pipelines: int | None = None
    binaries: int | None = None
    bytes: int | None = None
    shared_driver_keys: int | None = None
    used_s: int | None = msgspec.field(default=None, name="used_s")


class BinariesDocument(Document, frozen=True, kw_only=True):
    """`binaries --json`.

    Attributes:
        action: What was asked for: stat, verify, export, import or prune.
        store: Path of the store.
        generations: What it holds, of each device and global key.
        payloads: Different binaries.
        payload_bytes: Size of those: what is stored.
        used_bytes: Pages of the file that hold something.
        file_bytes: Size of the file.
        bound_bytes: What it may hold.
        set_aside: What was moved into the quarantine when it was opened, and why; or null.
        read_only: Why it could only be read, or null.
        problems: What `verify` found.
        pack: The pack that was written or read, or null.
        packed_pipelines: Pipelines in it.
        packed_binaries: Binaries in it.
        packed_bytes: Its size.
        signed: Whether it is signed; of an import, whether that was checked.
        stored: Pipelines that an import stored.
        removed: Generations that `prune` removed, or would.
        evicted: Pipelines that `prune` removed beside those, or an import.
        dry_run: Whether nothing was removed.
    """

    action: str
    store: Path
    generations: tuple[BinariesGeneration, ...]
    payloads: int
    payload_bytes: int
    used_bytes: int
    file_bytes: int
    bound_bytes: int
    set_aside: str | None
    read_only: str | None
    problems: tuple[str, ...] = ()
    pack: Path | None = None
    packed_pipelines: int = 0
    packed_binaries: int = 0
    packed_bytes: int = 0
    signed: bool = False
    stored: int = 0
    removed: tuple[BinariesGeneration, ...] = ()
    evicted: int = 0
    dry_run: bool = False


# --- merge


class MergedFile(Record, frozen=True, kw_only=True):
    """A cache file that was to be merged.

    Attributes:
        path: Which.
        status: LOADED where it was merged, else why not.
        detail: In words.
        data_bytes: Bytes of the driver's data in it.
        added_bytes: By how much it made the merged cache larger.
    """

    path: Path
    status: str
    detail: str
    data_bytes: int
    added_bytes: int


class MergeDocument(Document, frozen=True, kw_only=True):
    """`merge --json`.

    Attributes:
        device: The device that merged.
        output: The file that was to be written.
        files: What became of each file.
        merged: How many were merged.
        refused: How many were left out.
        data_bytes: Bytes of the merged cache.
        saved_bytes: Bytes that were written.
        not_saved: Why nothing was written, or null.
    """

    device: IdentityRecord
    output: str
    files: tuple[MergedFile, ...]
    merged: int
    refused: int
    data_bytes: int
    saved_bytes: int
    not_saved: str | None


class JoinedTargetRecord(PackedTarget, frozen=True, kw_only=True):
    """A target of a joined pack.

    Attributes:
        packs: The packs that had a cache for it.
        merged: Whether the driver merged those; otherwise one was copied.
    """

    packs: tuple[str, ...]
    merged: bool


class MergePacksDocument(Document, frozen=True, kw_only=True):
    """`merge --json` of packs.

    Attributes:
        output: The pack that was written.
        packs: The packs that were joined.
        signed: Whether it was signed.
        targets: What is in it.
    """

    output: str
    packs: tuple[str, ...]
    signed: bool
    targets: tuple[JoinedTargetRecord, ...]


# --- prune


class PrunedFile(Record, frozen=True, kw_only=True):
    """A file that is removed, or was to be.

    Attributes:
        path: Which.
        bytes: Its size.
        reason: Why.
        detail: In words.
        cause: Why it could not be removed; not there where it could.
    """

    path: Path
    bytes: int
    reason: str
    detail: str
    cause: str | UnsetType = UNSET


class KeptFile(Record, frozen=True, kw_only=True):
    """A file that stays.

    Attributes:
        path: Which.
        bytes: Its size.
    """

    path: Path
    bytes: int


class PruneDocument(Document, frozen=True, kw_only=True):
    """`prune --json`.

    Attributes:
        directory: The directory.
        dry_run: Whether nothing was removed.
        removed: What was removed, or would be.
        removed_bytes: Its size.
        failed: What could not be removed.
        leftovers: Leftovers of killed processes that were removed.
        kept: What stays.
        kept_bytes: Its size.
        drivers_asked: How many devices were asked what they are.
        note: Why none was, or null.
    """

    directory: Path
    dry_run: bool
    removed: tuple[PrunedFile, ...]
    removed_bytes: int
    failed: tuple[PrunedFile, ...]
    leftovers: tuple[Path, ...]
    kept: tuple[KeptFile, ...]
    kept_bytes: int
    drivers_asked: int
    note: str | None


# --- quarantine


class HeldQuarantine(Record, frozen=True, kw_only=True):
    """The pipelines in quarantine on one device and driver.

    Attributes:
        path: Where they are kept.
        problem: Why the file cannot be used, or "".
        device_name: The device.
        driver: Name and version of the driver.
        culprits: The pipelines.
    """

    path: Path
    problem: str
    device_name: str
    driver: str
    culprits: tuple[Culprit, ...]


class QuarantineDocument(Document, frozen=True, kw_only=True):
    """`quarantine --json`.

    Attributes:
        directory: The directory of cache files.
        cleared: How many pipelines `clear` took out; null for `list`.
        quarantines: What is in quarantine now.
    """

    directory: Path
    cleared: int | None
    quarantines: tuple[HeldQuarantine, ...]


# --- doctor


class DoctorFinding(Record, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        subject: What.
        state: "good", "hint" or "bad".
        detail: What was found.
        next_step: What to do about it; null where it is good.
    """

    subject: str
    state: str
    detail: str
    next_step: str | None


class DoctorDocument(Document, frozen=True, kw_only=True):
    """`doctor --json`.

    Attributes:
        devices: The devices that could be opened.
        cache_directory: The directory of cache files.
        findings: Everything that was looked at.
        bad: How much of it is bad.
    """

    devices: tuple[IdentityRecord, ...]
    cache_directory: Path
    findings: tuple[DoctorFinding, ...]
    bad: int


class KeysDocument(KeyProfile, frozen=True, kw_only=True):
    """`doctor --keys --json`: the profile that is kept, and where.

    Attributes:
        version: Version of the document.
        profile: Where it is kept, or null.
    """

    version: int = 1
    profile: str | None


# --- calibrate


class CalibrateDocument(CalibrationProfile, frozen=True, kw_only=True):
    """`calibrate --json`: the profile that is kept, where, and why measuring ended early.

    Attributes:
        version: Version of the document.
        profile: Where it is kept, or null.
        stopped: Why measuring ended early, or null.
    """

    version: int = 1
    profile: str | None
    stopped: str | None


# --- bench and compare


class RatioRecord(Record, frozen=True, kw_only=True):
    """A ratio with its interval.

    Attributes:
        median: Median.
        low: Lower end of its interval.
        high: Upper end.
        count: Number of values.
        beyond_noise: Whether it differs from 1 by more than the same thing measured twice does.
        pairs: Pairs of samples; not there where samples are no pairs.
    """

    median: float
    low: float
    high: float
    count: int
    beyond_noise: bool
    pairs: int | UnsetType = UNSET

    @classmethod
    def of(cls, difference: Difference, *, paired: bool) -> Self:
        """The record of a difference."""
        pairs = difference.pairs if paired else UNSET
        return cls(**asdict(difference.ratio), beyond_noise=difference.beyond_noise, pairs=pairs)


class CellConditions(Record, frozen=True, kw_only=True):
    """What modes are compared under.

    Attributes:
        device: The selector.
        start: What the caches held.
        duplicates: Share of the pipelines that were in the run a second time.
        workers: Number of workers.
    """

    device: str
    start: Start
    duplicates: float
    workers: int


class CellName(CellConditions, frozen=True, kw_only=True):
    """A cell of a benchmark.

    Attributes:
        mode: The cache topology.
    """

    mode: CacheMode


class FailedCell(CellName, frozen=True, kw_only=True):
    """A sample that could not be taken.

    Attributes:
        control: Whether it was the baseline once more.
        round: Which one; -1 is the warm-up.
        reason: What happened.
    """

    control: bool
    round: int
    reason: str


class BenchCell(CellName, frozen=True, kw_only=True):
    """Figures of a cell: medians, with intervals where they are objects.

    Attributes:
        samples: Samples of it.
        throughput: Pipelines a second, the merge included.
        creation_rate: Pipelines a second up to the barrier.
        seconds: From the first job to the end of the merge.
        blocked_share: Share of the driver's time asleep in it.
        run_delay_share: Share of the calls' time waiting for a processor.
        overhead_share: Share of the calls' time outside the driver.
        efficiency: Against the same with one worker; null where that was not measured.
        inflation: CPU time of a pipeline against the same with one worker; null where that was not measured.
        open_s: Opening the device.
        merge_s: Merging.
        read_back_s: Reading the merged cache back.
        barrier_wait_s: Waiting at the barrier, all workers.
        duplicate_keys: Pipelines that more than one worker compiled.
        duplicate_s: Driver time of those, but for the first of each.
        peak_memory_bytes: Peak memory of the process.
    """

    samples: int
    throughput: Estimate
    creation_rate: Estimate
    seconds: Estimate
    blocked_share: Estimate
    run_delay_share: Estimate
    overhead_share: Estimate
    efficiency: Estimate | None
    inflation: Estimate | None
    open_s: float
    merge_s: float
    read_back_s: float
    barrier_wait_s: float
    duplicate_keys: float
    duplicate_s: float
    peak_memory_bytes: float


class BenchGroup(CellConditions, frozen=True, kw_only=True):
    """The modes under the same conditions against their baseline.

    Attributes:
        baseline: The mode that the others are compared with.
        noise: What the baseline measured twice differs by, as a factor; null without a control.
        throughput_ratios: Each other mode's throughput over the baseline's, the merge included.
        creation_rate_ratios: The same without the merge.
        locking: per-worker-internal over per-worker; null where one was not measured.
    """

    baseline: CacheMode
    noise: float | None
    throughput_ratios: dict[CacheMode, RatioRecord]
    creation_rate_ratios: dict[CacheMode, RatioRecord]
    locking: RatioRecord | None


class BenchDocument(Document, frozen=True, kw_only=True):
    """`bench --json`.

    Attributes:
        results: The file of all samples.
        samples: Samples in it.
        planned: Samples that the matrix has.
        resumed: Samples that were there before.
        stopped: Why it ended early, or null.
        failed: Samples that could not be taken.
        cells: Figures of each cell.
        groups: The modes of each group of cells against their baseline.
        verdicts: What the figures say, in sentences.
        warnings: What a reader of them must know.
        report: The page, or null where none was written.
    """

    results: str
    samples: int
    planned: int
    resumed: int
    stopped: str | None
    failed: tuple[FailedCell, ...]
    cells: tuple[BenchCell, ...]
    groups: tuple[BenchGroup, ...]
    verdicts: tuple[str, ...]
    warnings: tuple[str, ...]
    report: str | None


class ChangedCell(CellName, frozen=True, kw_only=True):
    """A cell in both files, named as in the second.

    Attributes:
        device_before: The selector in the first file.
        seconds_before: Median time of one pass over the set in the first file, the merge included.
        seconds_after: The same in the second.
        noise: What a baseline measured twice differs by, as a factor; null without a control.
        time: The second file's time over the first's.
        cpu: The same for CPU time of a pipeline.
        memory: The same for peak memory.
    """

    device_before: str
    seconds_before: float
    seconds_after: float
    noise: float | None
    time: RatioRecord
    cpu: RatioRecord
    memory: RatioRecord


class ComparedFile(Record, frozen=True, kw_only=True):
    """A benchmark against the first one.

    Attributes:
        path: Its file or directory, as it was named.
        summary: The sentence for a gate.
        pipelines_added: Pipelines that its set has more; null where sets are several.
        slower: Cells that take longer beyond noise and threshold.
        faster: Cells that take less time beyond them.
        undecided: Cells of which nothing can be told.
        cells: Every cell that both have.
        only_before: Cells of the first only.
        only_after: Cells of this one only.
        differences: What else is different, one sentence each.
    """

    path: Path
    summary: str
    pipelines_added: int | None
    slower: int
    faster: int
    undecided: int
    cells: tuple[ChangedCell, ...]
    only_before: tuple[CellName, ...]
    only_after: tuple[CellName, ...]
    differences: tuple[str, ...]


class CompareDocument(Document, frozen=True, kw_only=True):
    """`compare --json`. Version 1 was of two files, without a version.

    Attributes:
        before: What the others are compared with.
        files: Each of the others.
    """

    version: int = 2
    before: Path
    files: tuple[ComparedFile, ...]


class CompletionDocument(Document, frozen=True, kw_only=True):
    """`completion --json`.

    Attributes:
        shell: Which shell it is for.
        script: The script.
    """

    shell: str
    script: str


DOCUMENTS: Mapping[str, type[msgspec.Struct]] = {
    "devices": DevicesDocument,
    "devices --device PATTERN": FamiliesDocument,
    "list": ListDocument,
    "bench": BenchDocument,
    "compare": CompareDocument,
    "calibrate": CalibrateDocument,
    "inspect": InspectDocument,
    "export": ExportDocument,
    "pack": PackDocument,
    "verify": VerifyDocument,
    "binaries": BinariesDocument,
    "merge": MergeDocument,
    "merge PACK...": MergePacksDocument,
    "install": InstallDocument,
    "compile for several devices": TargetsDocument,
    "prune": PruneDocument,
    "quarantine": QuarantineDocument,
    "doctor": DoctorDocument,
    "doctor --keys": KeysDocument,
    "completion": CompletionDocument,
}
"""The type of each verb's document, but for `compile`'s."""
