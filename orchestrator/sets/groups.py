"""Which applications a set was recorded from, and the groups of pipelines in which it is compiled.

A set's application infos (tag 0) hold VkApplicationInfo and the features that an application enabled, as far
as captures record them; its links (tag 8) say "application A used the record (tag, hash)". A driver may put
all of it into its keys. So:

- Applications that tell a driver the same are one group: names, versions, features. A feature recorded as 0
  equals one that is not recorded, and the order of the chain does not matter.
- A pipeline is in the group of each application that used it; without a link, in the first group.
- A set without applications is one group: the newest version, and the features that its pipelines need.
- Of the features that captures cannot record, a captured application may have had any; of a set that was
  packed here, it is known that those are on that its pipelines need.
- Groups are in the order of their first application; a group without pipelines is left out, unless it is the
  only one.

Links may be half of all records. Where there is one group, they are not looked at.
Records that are written here have the keys that the format's recorders compute, so a packed set merges with
captures.

Guarantees: a damaged application info or link is reported and left out, never raised. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from attrs import field, frozen

from orchestrator.devices.request import (
    BASE_FEATURES,
    ApplicationInfo,
    DeviceRequest,
    Feature,
    OtherFeatures,
)
from orchestrator.errors import RecordError
from orchestrator.registry import structs_by_type
from orchestrator.sets.archive.hashes import application_hash, link_hash
from orchestrator.sets.archive.reader import record_offset
from orchestrator.sets.records import (
    FORMAT_VERSION,
    KIND_OF_TAG,
    Damage,
    FeatureGroup,
    PipelineJob,
    PipelineJobs,
    RecordSource,
    RecordTag,
    check_version,
    document_text,
)

FeatureChain = tuple[tuple[int, dict[str, int]], ...]
"""Feature structures of a pNext chain: sType, and the recorded members with their values."""

_UInt32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
_Hash = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-fA-F]{16}\Z")]
_Report = Callable[[Damage], None] | None
_T = TypeVar("_T")

_API_VERSION_1_0 = 1 << 22
_VARIANT_1 = 1 << 29  # VK_MAKE_API_VERSION: the variant is in the three bits above the major version
_ROBUSTNESS_2 = "VkPhysicalDeviceRobustness2FeaturesKHR"
_SHADING_RATE = "VkPhysicalDeviceFragmentShadingRateFeaturesKHR"
_SHADING_RATES = (
    "pipelineFragmentShadingRate",
    "primitiveFragmentShadingRate",
    "attachmentFragmentShadingRate",
)
_MAINTENANCE_8 = "VkPhysicalDeviceMaintenance8FeaturesKHR"
# Version of the engine, as VK_MAKE_VERSION, from which on it enables maintenance8.
_MAINTENANCE_8_SINCE = {"vkd3d": 2 << 22 | 14 << 12 | 1, "DXVK": 3 << 22}


class _ApplicationInfo(msgspec.Struct, rename="camel"):
    application_name: str | None = None
    engine_name: str | None = None
    application_version: _UInt32 = 0
    engine_version: _UInt32 = 0
    api_version: _UInt32 = 0


class _Features(msgspec.Struct):
    robust_buffer_access: _UInt32 = msgspec.field(default=0, name="robustBufferAccess")
    chain: list[dict[str, _UInt32]] = msgspec.field(default_factory=list, name="pNext")
    # Of our own sets; other readers pass over it.
    others_needed: bool = msgspec.field(default=False, name="othersAsNeeded")


class _ApplicationDocument(msgspec.Struct, rename="camel"):
    version: int
    application_info: _ApplicationInfo
    physical_device_features: _Features


class _Link(msgspec.Struct):
    application: _Hash
    tag: int
    hash: _Hash


class _LinkDocument(msgspec.Struct):
    version: int
    link: _Link


_D = TypeVar("_D", _ApplicationDocument, _LinkDocument)
_application_decoder = msgspec.json.Decoder(_ApplicationDocument)
_link_decoder = msgspec.json.Decoder(_LinkDocument)


@frozen
class Application:
    """An application that a set was recorded from: VkApplicationInfo, and features as far as recorded."""

    key: int  # its hash in the set: of what it calls itself and the features it enabled
    name: str | None
    engine: str | None
    application_version: int
    engine_version: int
    api_version: int
    robust_buffer_access: bool
    features: FeatureChain = field(hash=False)
    # Whether of all other features those are on that its pipelines need, and no more. So it is in sets that
    # we pack; a capture does not know.
    others_as_needed: bool = False

    @property
    def request(self) -> DeviceRequest:
        """What a device is opened as for it: what it told the driver, as far as captures record it."""
        known = structs_by_type()
        enabled = {
            (known[s_type].name, member)
            for s_type, members in self.features
            if s_type in known
            for member, value in members.items()
            if value and any(each.name == member for each in known[s_type].members)
        }
        if self.robust_buffer_access:
            enabled.add((BASE_FEATURES, "robustBufferAccess"))
        told = ApplicationInfo(
            self.name,
            self.application_version,
            self.engine,
            self.engine_version,
            self.api_version or _API_VERSION_1_0,  # the specification takes 0 for 1.0
        )
        others = OtherFeatures.NONE if self.others_as_needed else OtherFeatures.UNRECORDED
        return DeviceRequest(told, frozenset(enabled) | self._known_of_engine(), others=others)

    def _known_of_engine(self) -> frozenset[Feature]:
        known = structs_by_type()
        recorded = {known[s_type].name for s_type, _ in self.features if s_type in known}
        found: set[Feature] = set()
        if self.engine in ("DXVK", "vkd3d") and _ROBUSTNESS_2 not in recorded:
            found.add((_ROBUSTNESS_2, "nullDescriptor"))
            if self.robust_buffer_access:
                found |= {(_ROBUSTNESS_2, "robustBufferAccess2"), (_ROBUSTNESS_2, "robustImageAccess2")}
        if self.engine == "vkd3d" and _SHADING_RATE not in recorded:
            found |= {(_SHADING_RATE, each) for each in _SHADING_RATES}
        since = _MAINTENANCE_8_SINCE.get(self.engine or "")
        if since is not None and self.engine_version >= since and _MAINTENANCE_8 not in recorded:
            found.add((_MAINTENANCE_8, "maintenance8"))
        return frozenset(found)

    @property
    def hash(self) -> int:
        """The hash recomputed: not `key` where the record is not what it is named, or a name is not UTF-8."""
        return application_hash(
            (self.application_version, self.engine_version, self.api_version),
            (self.name, self.engine),
            self.robust_buffer_access,
            self.features,
        )


class Link(msgspec.Struct, frozen=True):
    """An application used a record."""

    application: int
    tag: int
    key: int


def is_vulkan_version(version: int) -> bool:
    """Whether an instance can be created for a VkApplicationInfo::apiVersion."""
    return version == 0 or _API_VERSION_1_0 <= version < _VARIANT_1


def decode_application(key: int, payload: bytes) -> Application:
    """Decode the payload of an application info (tag 0) of that hash; RecordError where it is damaged."""
    tag = RecordTag.APPLICATION_INFO
    document = _decode(_application_decoder, tag, key, _as_utf8(document_text(payload)))
    chain = []
    for members in document.physical_device_features.chain:
        if "sType" not in members:
            raise RecordError(tag, key, "application info: a feature structure has no sType")
        chain.append((members["sType"], {name: each for name, each in members.items() if name != "sType"}))
    info = document.application_info
    if not is_vulkan_version(info.api_version):
        reason = f"apiVersion {info.api_version:#x} is no version of Vulkan (1.0 is {_API_VERSION_1_0:#x})"
        raise RecordError(tag, key, f"application info: {reason}")
    return Application(
        key=key,
        name=info.application_name,
        engine=info.engine_name,
        application_version=info.application_version,
        engine_version=info.engine_version,
        api_version=info.api_version,
        robust_buffer_access=document.physical_device_features.robust_buffer_access != 0,
        features=tuple(chain),
        others_as_needed=document.physical_device_features.others_needed,
    )


def decode_link(key: int, payload: bytes) -> Link:
    """Decode the payload of an application-blob link (tag 8) of that hash; RecordError for damage."""
    link = _decode(_link_decoder, RecordTag.APPLICATION_BLOB_LINK, key, document_text(payload)).link
    return Link(int(link.application, 16), link.tag, int(link.hash, 16))


def encode_application(application: Application) -> tuple[int, bytes]:
    """Key and payload of an application's record, whatever its `key`; empty names count as null."""
    names = {"applicationName": application.name, "engineName": application.engine}
    info = {name: each for name, each in names.items() if each} | {
        "applicationVersion": application.application_version,
        "engineVersion": application.engine_version,
        "apiVersion": application.api_version,
    }
    enabled: dict[str, object] = {"robustBufferAccess": int(application.robust_buffer_access)}
    if application.features:
        enabled["pNext"] = [{"sType": s_type, **members} for s_type, members in application.features]
    if application.others_as_needed:
        enabled["othersAsNeeded"] = True
    document = {"version": FORMAT_VERSION, "applicationInfo": info, "physicalDeviceFeatures": enabled}
    return application.hash, msgspec.json.encode(document)


def encode_link(application: int, tag: int, key: int) -> tuple[int, bytes]:
    """Key and payload of the record that says that an application used another record."""
    link = {"application": f"{application:016x}", "tag": tag, "hash": f"{key:016x}"}
    return link_hash(application, tag, key), msgspec.json.encode({"version": FORMAT_VERSION, "link": link})


def read_applications(source: RecordSource, report: _Report = None) -> tuple[Application, ...]:
    """All applications of a set that can be read, in its order; `report` takes what is damaged."""
    return tuple(_read_all(source, RecordTag.APPLICATION_INFO, decode_application, report))


def feature_groups(source: RecordSource, report: _Report = None) -> tuple[FeatureGroup, ...]:
    """Group the pipelines of a set by what their applications told the driver; see the top of the module."""
    pipelines = PipelineJobs.of_records(source)
    applications = read_applications(source, report)
    if not applications:
        return (FeatureGroup(DeviceRequest(others=OtherFeatures.NONE), (), pipelines),)
    groups: dict[DeviceRequest, list[int]] = {}
    for application in applications:
        groups.setdefault(application.request, []).append(application.key)
    chosen = [pipelines] * len(groups)
    if len(groups) > 1:
        used = _pipelines_used(source, list(groups.values()), report)
        rows: list[list[int]] = [[] for _ in groups]
        for row, pipeline in enumerate(pipelines):
            for group in used.get(pipeline, (0,)):
                rows[group].append(row)
        chosen = [pipelines.at(np.array(each, np.int64)) for each in rows]
    result = [
        FeatureGroup(request, tuple(members), each)
        for (request, members), each in zip(groups.items(), chosen, strict=True)
    ]
    return tuple(each for each in result if each.pipelines) or (result[0],)


def _pipelines_used(
    source: RecordSource, groups: list[list[int]], report: _Report
) -> dict[PipelineJob, set[int]]:
    group_of = {application: index for index, group in enumerate(groups) for application in group}
    used: dict[PipelineJob, set[int]] = {}
    for link in _read_all(source, RecordTag.APPLICATION_BLOB_LINK, decode_link, report):
        if link.tag in KIND_OF_TAG and link.application in group_of:
            job = PipelineJob(link.key, KIND_OF_TAG[RecordTag(link.tag)])
            used.setdefault(job, set()).add(group_of[link.application])
    return used


def _read_all(
    source: RecordSource, tag: RecordTag, decode: Callable[[int, bytes], _T], report: _Report
) -> Iterable[_T]:
    for key in source.keys(tag):
        try:
            payload = source.payload(tag, key)
        except RecordError:
            continue  # the source has it in its own damage
        try:
            yield decode(key, payload)
        except RecordError as error:
            if report is not None:
                report(Damage(record_offset(source, tag, key), int(tag), key, error.reason))


def _decode(decoder: msgspec.json.Decoder[_D], tag: RecordTag, key: int, text: bytes) -> _D:
    try:
        document = decoder.decode(text)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise RecordError(tag, key, f"{tag.name.lower()}: {error}") from error
    check_version(tag, key, document.version)
    return document


def _as_utf8(text: bytes) -> bytes:
    # Recorders copy the names that applications give themselves byte by byte. Names in another encoding are
    # read as Latin-1, since their features matter and their names are for display.
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1").encode()
    return text
