"""The JSON documents of the verbs: one type per verb, encoded like the report of `compile`.

docs/documents.md is generated from these types. Adding a field keeps a document's version; changing or
removing one increments it. The report of `compile` is in `orchestrator.run.records`.

Assumptions: imported when a verb has results, not for its help, because the records import numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
from attrs import asdict
from msgspec import UNSET, UnsetType

from orchestrator.bench.rows import FailedSample, Start
from orchestrator.bench.statistics import Difference, Estimate, Judgement
from orchestrator.devices.device import CacheMode, DeviceFeatures
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.listing import DeadDriver
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
    """Base of all documents.

    Attributes:
        version: Version of the format.
    """

    version: int = 1


# --- devices


class ListedDevice(IdentityRecord, frozen=True, kw_only=True):
    """A device that the loader finds.

    Attributes:
        index: Its index in the list.
        selector: The value of `--device` for it.
        problem: Why it cannot be opened, or null.
        features: Its features for the orchestrator; not there if it cannot be opened.
    """

    index: int
    selector: str
    problem: str | None
    features: DeviceFeatures | UnsetType = UNSET


class DevicesDocument(Document, frozen=True, kw_only=True):
    """`devices --json`.

    Attributes:
        devices: The devices.
        dead_drivers: Drivers that ended the process that asked them; their devices are not listed.
        driver_files: If there are such drivers: what VK_DRIVER_FILES must be set to for the selectors of
            `devices`; else "".
    """

    devices: tuple[ListedDevice, ...]
    dead_drivers: tuple[DeadDriver, ...]
    driver_files: str


class FamilyRecord(Record, frozen=True, kw_only=True):
    """A family of RADV's null hardware.

    Attributes:
        selector: The value of `--device` for it.
        family: Its name, the value of RADV_FORCE_FAMILY, or of AMDGPU_GPU_ID for the drm-shim.
        device_id: VkPhysicalDeviceProperties::deviceID on null hardware; 0 if this Mesa has none.
    """

    selector: str
    family: str
    device_id: int


class FamiliesDocument(Document, frozen=True, kw_only=True):
    """`devices --device PATTERN --json`.

    Attributes:
        families: The families that match the pattern.
    """

    families: tuple[FamilyRecord, ...]


# --- list


class SetFile(Record, frozen=True, kw_only=True):
    """An archive of a set.

    Attributes:
        path: Its path.
        bytes: Its size.
        records: Number of its records, without duplicates.
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
        duplicates: Records left out because an earlier one of the same file has the same name.
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
        count: Number of records.
        stored_bytes: Their size in the files, in each of them where several have a record; not there if the
            set is not in files.
        bytes: Their size without compression; not there if the set is not in files.
    """

    count: int
    stored_bytes: int | UnsetType = UNSET
    bytes: int | UnsetType = UNSET


class ApplicationRecord(Record, frozen=True, kw_only=True):
    """The settings that a recorded application gave the driver.

    Attributes:
        key: Hash of the record.
        name: VkApplicationInfo::pApplicationName, or null.
        engine: VkApplicationInfo::pEngineName, or null.
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
    """Pipelines whose applications gave the driver the same settings.

    Attributes:
        opened_as: The request that opens their device.
        applications: Hashes of the applications.
        pipelines: Number of pipelines.
    """

    opened_as: RequestRecord
    applications: tuple[Hash, ...]
    pipelines: int


class ListDocument(Document, frozen=True, kw_only=True):
    """`list --json`.

    Attributes:
        set: The set.
        records: Records by tag.
        applications: The applications from which it was recorded.
        groups: Its pipelines by the device that they need.
        verified: Whether every record was read.
        unusable_records: Number of records that cannot be used; null if not verified.
        unchecked_records: Number of records whose content does not prove their key; null if not verified.
        damage: What could not be read.
        pipelines: With `--pipelines`: the keys by kind.
    """

    set: ListedSet
    records: dict[str, RecordCount]
    applications: tuple[ApplicationRecord, ...]
    groups: tuple[ListedGroup, ...]
    verified: bool
    unusable_records: int | None
    unchecked_records: int | None
    damage: tuple[DamageRecord, ...]
    pipelines: dict[PipelineKind, tuple[Hash, ...]] | UnsetType = UNSET


# --- inspect


class Offer(Record, frozen=True, kw_only=True):
    """Whether a device would accept a cache file.

    Attributes:
        accepted: Whether the driver would get it.
        status: The result of a load.
        field: The field that differs, or null.
        detail: The same in words.
    """

    accepted: bool
    status: LoadStatus
    field: str | None
    detail: str


class MadeFor(Record, frozen=True, kw_only=True):
    """An application for which a cache file was made.

    Attributes:
        opened_as: The request that opened the device.
        pipelines: Number of its pipelines.
    """

    opened_as: RequestRecord
    pipelines: int


class HeaderRecord(Record, frozen=True, kw_only=True):
    """A header in a cache file, ours or Vulkan's. Fields that it lacks are not there.

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
    """An inspected file.

    Attributes:
        path: Its path.
        kind: What it is: a `CacheFileKind`, "archive", "export of binaries", or a kind of file beside a cache
            file, of a store of binaries, or of a pack.
        good: Whether it is whole and, with `--device`, would be accepted.
        bytes: Its size, if it was read.
        status: Of a cache file: the result of a load without a device.
        reason: What is wrong, or "".
        data_hash_matches: Of a cache file: whether the driver's data agrees with its hash; null without a
            trusted hash.
        header: Of a cache file: our header, if it is proven.
        vulkan_header: Of a cache file: the header in the driver's data.
        made_for: Of a cache file: the applications for which it was made. Of a plan: the devices.
        content_hash: Of a plan: hash over the names of all records of its set.
        device: The device of `--device`.
        offered: Whether that device would accept it.
        format_version: Of an archive: version of its format.
        records: Of an archive: records by tag.
        duplicates: Of an archive: records left out because an earlier one has the same name.
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
    """`inspect --json`. Version 1 described one file and had no version.

    Attributes:
        files: The given files, in order.
        good: Number of files that are whole and, with `--device`, would be accepted.
        bad: Number of the others.
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
        output: The output file.
        status: LOADED if the driver's data was proven and written, else what is wrong.
        field: The first field that is wrong or differs, as Vulkan names it.
        detail: The same in words.
        written_bytes: Bytes of the driver's data that were written; 0 if something is wrong.
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
        kind: Its kind.
        key: Its hash.
    """

    name: str
    kind: PipelineKind
    key: Hash


class PackDocument(Document, frozen=True, kw_only=True):
    """`pack --json`.

    Attributes:
        manifest: The manifest.
        output: The archive.
        bytes: Size of the archive.
        records: Number of its records.
        modules: Number of its shader modules.
        described: Number of pipelines that the manifest describes.
        pipelines: Number of different pipelines, by kind.
        unique: Number of different pipelines.
        names: The described pipelines.
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
    """The contents of a pack for a device.

    Attributes:
        selector: Selector of the device when it was compiled for.
        device_name: Name of the device.
        driver: Name and version of its driver.
        identity: The identity for which the cache is valid; null if the device did not open.
        cache: Name of the cache file, or null.
        cache_bytes: Its size.
        binaries: Name of the file of pipeline binaries, or null.
        binaries_bytes: Its size.
        created: Number of pipelines in it.
        skipped: Number of pipelines that the device does not support.
        failed: Number of failed pipelines.
        quarantined: Number of pipelines left out because they crashed the driver.
        not_run: Number of pipelines that were not tried.
        parts: The compiled sets, or shards of sets.
        missing: Missing shards of sets that have other shards.
        problem: Why there is no cache, or null.
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
        selector: Selector of the device.
        problem: Why the compile failed, or why the pack has nothing of it; else null.
        report: The report of the compile; null if it failed or did not begin.
    """

    selector: str
    problem: str | None
    report: CompileReport | None


class TargetsDocument(Document, frozen=True, kw_only=True):
    """`compile --json` of several devices, of a pattern, or with --out.

    Attributes:
        pack: The pack that was written, or null.
        targets: The targets, in the given order.
    """

    pack: str | None
    targets: tuple[CompiledTarget, ...]


class NearestTarget(Record, frozen=True, kw_only=True):
    """The target of a pack that is most similar to a device.

    Attributes:
        target: Its selector.
        differs: The differing fields, in words.
    """

    target: str
    differs: tuple[str, ...]


class InstallDocument(Document, frozen=True, kw_only=True):
    """`install --json`.

    Attributes:
        pack: The pack.
        proven: Whether its MAC was checked, with --key.
        device_name: Name of the device.
        driver: Name and version of its driver.
        identity: The identity for which its caches are valid.
        target: Selector of the target for this device and driver, or null.
        has_cache: Whether the pack has a cache for it.
        problem: Why the target has no data, or null.
        nearest: If there is no target: the most similar one.
        created: Number of pipelines in that cache.
        cache_file: The cache file of the device.
        saved_bytes: Bytes that were written, or 0.
        not_saved: Why nothing was written, or null.
        bytes_before: Size of the driver's data before.
        bytes_after: Size of the driver's data now.
        store: The store of pipeline binaries, if the pack has some for the device; else null.
        binaries: Number of pipelines that have binaries in the pack.
        binaries_new: Bytes of binaries that were new to the store.
        notes: Remarks for the user.
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
        path: Its path.
        kind: What it is.
        files: Of a directory or a pack: number of checked files in it.
        quarantined: Of a directory: files in its quarantine.
        bytes: Of a file: its size.
        status: Of a cache file: the result of a load without a device.
        previous_generation: Of a cache file: the same for its previous generation, or null.
        records: Of an archive: its records.
        unusable_records: Of an archive: those that cannot be used.
        unchecked_records: Of an archive: those whose content does not prove their key.
        damage: Of an archive: what could not be read.
        targets: Of a pack: its contents for each device.
        signed: Of a pack: whether it has a MAC.
        proven: Of a pack: whether the MAC was checked, with --key.
        strays: Of a pack: names of other files in its directory.
        problems: What is wrong.
        next_step: What to do about it; "" if nothing is wrong.
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
    unchecked_records: int | UnsetType = UNSET
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
        good: Number of good ones.
        bad: Number of bad ones.
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
        pipelines: Number of its pipelines; null for a removed generation.
        binaries: Number of their binaries, each counted for every use; or null.
        bytes: Size of the binaries; or null.
        shared_driver_keys: Number of the driver's keys that several states have; or null.
        used_s: Time of the last use, seconds since the epoch; or null.
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
        action: The action: stat, verify, export, import or prune.
        store: Path of the store.
        generations: Its contents by device and global key.
        payloads: Number of different binaries.
        payload_bytes: Size of the different binaries.
        used_bytes: Size of the used pages of the file.
        file_bytes: Size of the file.
        bound_bytes: Size limit.
        set_aside: The file that was moved to the quarantine on opening, and why; or null.
        read_only: Why the store could only be read, or null.
        problems: The problems that `verify` found.
        pack: The pack that was written or read, or null.
        packed_pipelines: Number of pipelines in the pack.
        packed_binaries: Number of binaries in the pack.
        packed_bytes: Size of the pack.
        signed: Whether the pack is signed; of an import, whether the signature was checked.
        stored: Number of pipelines that an import stored.
        removed: Generations that `prune` removed, or would remove.
        evicted: Number of other pipelines that `prune` removed, or that an import removed to make room, those
            of the import among them; 0 if nothing was removed.
        too_large: Number of pipelines that an import did not store, because one would take too much of the
            store.
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
    too_large: int = 0
    dry_run: bool = False


# --- merge


class MergedFile(Record, frozen=True, kw_only=True):
    """A cache file to merge.

    Attributes:
        path: Its path.
        status: LOADED if it was merged, else why not.
        detail: The same in words.
        data_bytes: Size of the driver's data in it.
        added_bytes: Bytes that it added to the merged cache.
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
        output: The output file.
        files: The result for each file.
        merged: Number of merged files.
        refused: Number of files left out.
        data_bytes: Size of the merged cache.
        saved_bytes: Bytes that were written.
        not_saved: Why nothing was written, or null.
        note: What a user should know of what was written, or null.
    """

    device: IdentityRecord
    output: str
    files: tuple[MergedFile, ...]
    merged: int
    refused: int
    data_bytes: int
    saved_bytes: int
    not_saved: str | None
    note: str | None


class JoinedTargetRecord(PackedTarget, frozen=True, kw_only=True):
    """A target of a joined pack.

    Attributes:
        packs: The packs with a cache for it.
        merged: Whether the driver merged the caches; otherwise one was copied.
    """

    packs: tuple[str, ...]
    merged: bool


class LackedTarget(Record, frozen=True, kw_only=True):
    """A target that a joined pack had nothing of.

    Attributes:
        pack: The pack.
        target: Its selector there.
        problem: Why there was nothing, such as that its compile was not finished.
    """

    pack: str
    target: str
    problem: str


class MergePacksDocument(Document, frozen=True, kw_only=True):
    """`merge --json` of packs.

    Attributes:
        output: The pack that was written.
        packs: The packs that were joined.
        signed: Whether it was signed.
        targets: Its targets.
        lacked: Targets that one of the packs had nothing of.
    """

    output: str
    packs: tuple[str, ...]
    signed: bool
    targets: tuple[JoinedTargetRecord, ...]
    lacked: tuple[LackedTarget, ...]


# --- prune


class PrunedFile(Record, frozen=True, kw_only=True):
    """A file to remove.

    Attributes:
        path: Its path.
        bytes: Its size.
        reason: Why it is removed.
        detail: Details of the reason.
        cause: Why it could not be removed; not there if it was removed.
    """

    path: Path
    bytes: int
    reason: str
    detail: str
    cause: str | UnsetType = UNSET


class KeptFile(Record, frozen=True, kw_only=True):
    """A file that stays.

    Attributes:
        path: Its path.
        bytes: Its size.
    """

    path: Path
    bytes: int


class PruneDocument(Document, frozen=True, kw_only=True):
    """`prune --json`.

    Attributes:
        directory: The directory.
        dry_run: Whether nothing was removed.
        removed: Files that were removed, or would be.
        removed_bytes: Their size.
        failed: Files that could not be removed.
        leftovers: Leftovers of killed processes that were removed, or would be.
        leftovers_failed: Those that could not be removed.
        kept: Files that stay.
        kept_bytes: Their size.
        drivers_asked: Number of devices whose driver build is known.
        note: Why it is unknown, or what else a reader must know of the result; or null.
    """

    directory: Path
    dry_run: bool
    removed: tuple[PrunedFile, ...]
    removed_bytes: int
    failed: tuple[PrunedFile, ...]
    leftovers: tuple[Path, ...]
    leftovers_failed: tuple[Path, ...]
    kept: tuple[KeptFile, ...]
    kept_bytes: int
    drivers_asked: int
    note: str | None


# --- quarantine


class HeldQuarantine(Record, frozen=True, kw_only=True):
    """The pipelines in quarantine on one device and driver.

    Attributes:
        path: Path of the quarantine file.
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
        cleared: Number of pipelines that `clear` removed; null for `list`.
        quarantines: The quarantines now.
    """

    directory: Path
    cleared: int | None
    quarantines: tuple[HeldQuarantine, ...]


# --- doctor


class DoctorFinding(Record, frozen=True, kw_only=True):
    """The result of one check.

    Attributes:
        subject: The subject of the check.
        state: "good", "hint" (works with limitations) or "bad".
        detail: The finding.
        next_step: What to do about it; null if it is good.
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
        findings: All findings.
        bad: Number of bad findings.
    """

    devices: tuple[IdentityRecord, ...]
    cache_directory: Path
    findings: tuple[DoctorFinding, ...]
    bad: int


class KeysDocument(KeyProfile, frozen=True, kw_only=True):
    """`doctor --keys --json`: the profile, and where it was saved.

    Attributes:
        version: Version of the document.
        profile: Where it was saved, or null.
        not_saved: Why it was not saved, or "".
    """

    version: int = 1
    profile: str | None
    not_saved: str


# --- calibrate


class CalibrateDocument(CalibrationProfile, frozen=True, kw_only=True):
    """`calibrate --json`: the profile, where it was saved, and why measuring ended early.

    Attributes:
        version: Version of the document.
        profile: Where it was saved, or null.
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
        count: Number of values, or of pairs.
        judgement: "higher" or "lower" if it differs from 1 by more than the noise, "equal" within 5 %,
            "undecided", or "not measured" if samples or control do not suffice.
    """

    median: float
    low: float
    high: float
    count: int
    judgement: Judgement

    @classmethod
    def of(cls, difference: Difference) -> Self:
        """The record of a difference."""
        return cls(**asdict(difference.ratio), judgement=difference.judgement)


class CellConditions(Record, frozen=True, kw_only=True):
    """The conditions under which modes are compared.

    Attributes:
        device: The selector.
        start: Contents of the caches.
        duplicates: Share of the pipelines that the run created a second time.
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
        control: Whether it was the second measurement of the baseline.
        round: Number of the round; -1 is the warm-up.
        reason: What happened.
    """

    control: bool
    round: int
    reason: str

    @classmethod
    def of(cls, failed: FailedSample) -> Self:
        """The record of a failure."""
        return cls(**{name: getattr(failed, name) for name in cls.__struct_fields__})


class BenchCell(CellName, frozen=True, kw_only=True):
    """Figures of a cell: medians; those that are objects have intervals.

    Attributes:
        samples: Number of samples.
        throughput: Pipelines per second of one pass over the set, keys and merge included.
        creation_rate: Pipelines per second up to the barrier, over all passes.
        seconds: From the first job to the end of the merge.
        blocked_share: Share of the calls' time in which threads slept, at least: in the driver's own time.
        asleep_share: The same, at most: in the whole call.
        run_delay_share: Share of the calls' time in which threads waited for a processor.
        overhead_share: Share of the calls' time outside the driver.
        efficiency: Throughput per worker against one worker; null if one worker was not measured.
        inflation: CPU time per pipeline against one worker; null if one worker was not measured.
        open_s: Creating the caches.
        merge_s: Merging.
        read_back_s: Reading the merged cache back.
        barrier_wait_s: Waiting at the barrier, all workers.
        duplicate_keys: Pipelines that were compiled more than once.
        duplicate_s: Driver time of their compiles without the first.
        peak_memory_bytes: Peak memory of the process.
    """

    samples: int
    throughput: Estimate
    creation_rate: Estimate
    seconds: Estimate
    blocked_share: Estimate
    asleep_share: Estimate
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
    """All modes under the same conditions against their baseline.

    Attributes:
        baseline: The mode to compare with.
        noise: Noise of the A/A control, as a factor; null without a control.
        throughput_ratios: Throughput of each other mode over the baseline's, the merge included.
        creation_rate_ratios: The same up to the barrier, over all passes.
        locking: per-worker-internal over per-worker; null if one was not measured.
    """

    baseline: CacheMode
    noise: float | None
    throughput_ratios: dict[CacheMode, RatioRecord]
    creation_rate_ratios: dict[CacheMode, RatioRecord]
    locking: RatioRecord | None


class BenchDocument(Document, frozen=True, kw_only=True):
    """`bench --json`. In version 1 ratios had other verdicts, and `blocked_share` was of the driver's time.

    Attributes:
        results: The file of all samples.
        samples: Number of samples of the matrix in it.
        planned: Number of samples of the matrix.
        resumed: Of `samples`, those from earlier runs.
        stopped: Why it ended early, or null.
        failed: Samples that could not be taken.
        cells: Figures of each cell.
        groups: The modes of each group of cells against their baseline.
        advice: Which mode to use on each device, in sentences.
        verdicts: The verdicts, in sentences.
        warnings: What weakens the figures.
        report: The page, or null.
    """

    version: int = 2
    results: str
    samples: int
    planned: int
    resumed: int
    stopped: str | None
    failed: tuple[FailedCell, ...]
    cells: tuple[BenchCell, ...]
    groups: tuple[BenchGroup, ...]
    advice: tuple[str, ...]
    verdicts: tuple[str, ...]
    warnings: tuple[str, ...]
    report: str | None


class ChangedCell(CellName, frozen=True, kw_only=True):
    """A cell in both files, named as in the second.

    Attributes:
        device_before: The selector in the first file.
        seconds_before: Median time of one pass over the set in the first file, keys and merge included.
        seconds_after: The same in the second.
        noise: Noise of the A/A control, as a factor; null without a control.
        time: Time in the second file over time in the first.
        cpu: The same for CPU time per pipeline.
        memory: The same for peak memory; without a verdict if the numbers of passes differ.
    """

    device_before: str
    seconds_before: float
    seconds_after: float
    noise: float | None
    time: RatioRecord
    cpu: RatioRecord
    memory: RatioRecord


class ComparedFile(Record, frozen=True, kw_only=True):
    """A benchmark compared with the first one.

    Attributes:
        path: Its file or directory, as given.
        summary: The result in one sentence.
        pipelines_added: Increase of the number of pipelines; null if a file has several sets.
        slower: Number of cells that are slower beyond noise and threshold.
        faster: Number of cells that are faster beyond them.
        undecided: Number of cells without a verdict, or whose intervals are too wide for one.
        refused_added: Largest increase of the number of pipelines that the driver refuses, over the cells.
        skipped_added: Largest increase of the number of pipelines that are skipped, over the cells.
        cells: The cells that both have.
        only_before: Cells that only the first one has.
        only_after: Cells that only this one has.
        failed: Samples of this one that could not be taken.
        differences: Other differences, one sentence each.
    """

    path: Path
    summary: str
    pipelines_added: int | None
    slower: int
    faster: int
    undecided: int
    refused_added: int
    skipped_added: int
    cells: tuple[ChangedCell, ...]
    only_before: tuple[CellName, ...]
    only_after: tuple[CellName, ...]
    failed: tuple[FailedCell, ...]
    differences: tuple[str, ...]


class CompareDocument(Document, frozen=True, kw_only=True):
    """`compare --json`. Version 1 compared two files, in version 2 ratios had other verdicts.

    Attributes:
        before: The file to compare with.
        files: The other files.
    """

    version: int = 3
    before: Path
    files: tuple[ComparedFile, ...]


class CompletionDocument(Document, frozen=True, kw_only=True):
    """`completion --json`.

    Attributes:
        shell: The shell that it is for.
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
"""The type of each verb's document, except that of `compile`."""
