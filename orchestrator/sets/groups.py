"""Which applications a set was recorded from, and the groups of pipelines in which it is compiled.

A set's application infos (tag 0) hold VkApplicationInfo and the features that an application enabled, as far as captures
record them; its links (tag 8) say "application A used the record (tag, hash)". A driver may put all of it into its keys
(orchestrator/devices/request.py). From these, groups:
- Applications that tell a driver the same are one group: names, versions, features. A feature that is recorded as 0 is
  equal to one that is not recorded, and the order of the chain does not matter.
- A pipeline that applications of several groups used is in each of them.
- A pipeline without a link is in the group of the only application or, where there are several, of the first in the order
  of the set.
- A set without applications is one group: the newest version, and the features that its pipelines need.
- Of the features that captures cannot record, a captured application may have had any; of a set that was packed here, it is
  known that those are on that its pipelines need.
- Groups are in the order of their first application; a group without pipelines is left out, unless the set has no
  pipelines at all.
Links may be half of all records. Where there is one group, they are not looked at.

Records that we write are encoded here too; their keys are those that the format's recorders compute, so a
set packed here merges with captures.

Guarantees: a damaged application info or link is reported and left out, never raised. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec
from attrs import field, frozen

from orchestrator.devices.request import (
    BASE_FEATURES,
    RECORDED_STRUCTURES,
    ApplicationInfo,
    DeviceRequest,
    Feature,
    OtherFeatures,
)
from orchestrator.errors import ManifestError, RecordError
from orchestrator.registry import registry, structs_by_type
from orchestrator.sets.archive.combined import record_offset
from orchestrator.sets.archive.hashes import application_hash, link_hash
from orchestrator.sets.authoring.structures import encode_chain, handle
from orchestrator.sets.jobs import KIND_OF_TAG, PIPELINE_TAGS, PipelineJob
from orchestrator.sets.modules import PAYLOAD_VERSIONS
from orchestrator.sets.records import Damage, RecordSource, RecordTag

FeatureChain = tuple[tuple[int, dict[str, int]], ...]
"""Feature structures of a pNext chain: sType, and the recorded members with their values."""

_UInt32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
_Hash = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-fA-F]{16}\Z")]
_T = TypeVar("_T")


_API_VERSION_1_0 = 1 << 22
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


_application_decoder = msgspec.json.Decoder(_ApplicationDocument)
_link_decoder = msgspec.json.Decoder(_LinkDocument)


@frozen
class Application:
    """An application that a set was recorded from.

    Attributes:
        key: Its hash in the set: of what it calls itself and the features it enabled.
        name: VkApplicationInfo::pApplicationName, None for null.
        engine: VkApplicationInfo::pEngineName, None for null.
        application_version: VkApplicationInfo::applicationVersion.
        engine_version: VkApplicationInfo::engineVersion.
        api_version: VkApplicationInfo::apiVersion.
        robust_buffer_access: VkPhysicalDeviceFeatures::robustBufferAccess.
        features: The feature structures that it enabled, as far as they were recorded.
        others_as_needed: Whether of all other features those are on that its pipelines need, and no more. So it is in sets
            that we pack; a capture does not know.
    """

    key: int
    name: str | None
    engine: str | None
    application_version: int
    engine_version: int
    api_version: int
    robust_buffer_access: bool
    features: FeatureChain = field(hash=False)
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
            if value
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
        """What translation layers enable and their captures lack, since recorders did not write it down yet."""
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
        """The hash recomputed; other than `key` where the record is not what it is named, or a name is not UTF-8."""
        return application_hash(
            application_version=self.application_version,
            engine_version=self.engine_version,
            api_version=self.api_version,
            application_name=self.name,
            engine_name=self.engine,
            robust_buffer_access=int(self.robust_buffer_access),
            features=self.features,
        )


@frozen
class Link:
    """An application used a record.

    Attributes:
        application: Hash of the application.
        tag: What the record holds, as a number.
        key: Hash of the record.
    """

    application: int
    tag: int
    key: int


@frozen
class FeatureGroup:
    """Pipelines to compile on one device.

    Attributes:
        request: What the device is opened as.
        applications: Hashes of the applications, in the order of the set; none where the set has none.
        pipelines: Which, in the order of the set: graphics, compute, ray tracing.
        added: Features and extensions of the request that no application is known to have enabled, and that the
            pipelines need; the driver's keys of these pipelines may not be those of the application.
    """

    request: DeviceRequest
    applications: tuple[int, ...]
    pipelines: tuple[PipelineJob, ...] = field(repr=False)
    added: tuple[str, ...] = ()


def decode_application(key: int, payload: bytes, offset: int | None = None) -> Application:
    """Decode the payload of an application info (tag 0).

    Args:
        key: The record's hash.
        payload: The decompressed payload.
        offset: Where the record is in its file, for messages.

    Raises:
        RecordError: It is damaged.
    """
    document = _decode(_application_decoder, RecordTag.APPLICATION_INFO, key, _as_utf8(payload), offset)
    _check_version(document.version, RecordTag.APPLICATION_INFO, key, offset)
    chain = []
    for members in document.physical_device_features.chain:
        if "sType" not in members:
            reason = "application info: a feature structure has no sType"
            raise RecordError(RecordTag.APPLICATION_INFO, key, reason, offset)
        chain.append((members["sType"], {name: each for name, each in members.items() if name != "sType"}))
    info = document.application_info
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


def decode_link(key: int, payload: bytes, offset: int | None = None) -> Link:
    """Decode the payload of an application-blob link (tag 8).

    Args:
        key: The record's hash.
        payload: The decompressed payload.
        offset: Where the record is in its file, for messages.

    Raises:
        RecordError: It is damaged.
    """
    document = _decode(_link_decoder, RecordTag.APPLICATION_BLOB_LINK, key, payload, offset)
    _check_version(document.version, RecordTag.APPLICATION_BLOB_LINK, key, offset)
    link = document.link
    return Link(int(link.application, 16), link.tag, int(link.hash, 16))


def read_applications(
    source: RecordSource, report: Callable[[Damage], None] | None = None
) -> tuple[Application, ...]:
    """All applications of a set that can be read, in its order.

    Args:
        source: The set.
        report: Takes what is damaged.
    """
    tag = RecordTag.APPLICATION_INFO
    return tuple(_read_all(source, tag, decode_application, report))


def feature_groups(
    source: RecordSource, report: Callable[[Damage], None] | None = None
) -> tuple[FeatureGroup, ...]:
    """Group the pipelines of a set by what their applications told the driver; the rules are at the top of the module.

    Args:
        source: The set.
        report: Takes what is damaged.

    Returns:
        At least one group.
    """
    pipelines = tuple(PipelineJob(key, kind) for tag, kind in KIND_OF_TAG.items() for key in source.keys(tag))
    applications = read_applications(source, report)
    if not applications:
        return (FeatureGroup(DeviceRequest(others=OtherFeatures.NONE), (), pipelines),)
    members: dict[DeviceRequest, list[Application]] = {}
    for application in applications:
        members.setdefault(application.request, []).append(application)
    groups = list(members.items())
    if len(groups) == 1:
        return (_group(*groups[0], pipelines),)
    used = _pipelines_used(source, [each for _, each in groups], report)
    chosen: list[list[PipelineJob]] = [[] for _ in groups]
    for pipeline in pipelines:
        for index in sorted(used.get(pipeline, ())) or (0,):
            chosen[index].append(pipeline)
    result = tuple(_group(*group, each) for group, each in zip(groups, chosen, strict=True) if each)
    return result or (_group(*groups[0], ()),)


def encode_application(
    *,
    name: str,
    engine: str,
    robust_buffer_access: bool,
    features: Sequence[Mapping[str, object]],
    application_version: int,
    engine_version: int,
    api_version: str,
    format_version: int,
    where: str,
) -> tuple[int, bytes]:
    """Key and payload of an application record; the arguments are those of `PipelineSetBuilder.application`.

    Raises:
        ManifestError: The version is not one, or a feature structure or member is unknown.
    """
    version = api_version_number(api_version, where)
    for each in features:
        struct = registry().aliases.get(str(each.get("structure")), str(each.get("structure")))
        if struct in registry().structs and struct not in RECORDED_STRUCTURES:
            raise ManifestError(
                f"{where}.features: captures cannot record {struct}: leave it out, since what they cannot record is "
                f"enabled wherever the device has it. They record {', '.join(sorted(RECORDED_STRUCTURES))}, and "
                "robust_buffer_access"
            )
    chain = encode_chain("VkPhysicalDeviceFeatures2", features, f"{where}.features")
    info: dict[str, object] = {}
    if name:
        info["applicationName"] = name
    if engine:
        info["engineName"] = engine
    info |= {
        "applicationVersion": application_version,
        "engineVersion": engine_version,
        "apiVersion": version,
    }
    enabled: dict[str, object] = {"robustBufferAccess": int(robust_buffer_access)}
    if chain:
        enabled["pNext"] = chain
    enabled["othersAsNeeded"] = True
    key = application_hash(
        application_version=application_version,
        engine_version=engine_version,
        api_version=version,
        application_name=name or None,
        engine_name=engine or None,
        robust_buffer_access=int(robust_buffer_access),
        features=[_hashed(each) for each in chain],
    )
    document = {"version": format_version, "applicationInfo": info, "physicalDeviceFeatures": enabled}
    return key, msgspec.json.encode(document)


def encode_link(application: int, tag: int, key: int, format_version: int) -> tuple[int, bytes]:
    """Key and payload of the record that says that an application used another record."""
    link = {"application": handle(application), "tag": tag, "hash": handle(key)}
    return link_hash(application, tag, key), msgspec.json.encode({"version": format_version, "link": link})


def _pipelines_used(
    source: RecordSource, groups: list[list[Application]], report: Callable[[Damage], None] | None
) -> dict[PipelineJob, set[int]]:
    """For each pipeline that has links, the groups whose applications used it."""
    group_of = {application.key: index for index, group in enumerate(groups) for application in group}
    used: dict[PipelineJob, set[int]] = {}
    for link in _read_all(source, RecordTag.APPLICATION_BLOB_LINK, decode_link, report):
        if link.tag in PIPELINE_TAGS and link.application in group_of:
            job = PipelineJob(link.key, KIND_OF_TAG[RecordTag(link.tag)])
            used.setdefault(job, set()).add(group_of[link.application])
    return used


def _group(
    request: DeviceRequest, applications: Iterable[Application], pipelines: Iterable[PipelineJob]
) -> FeatureGroup:
    return FeatureGroup(request, tuple(each.key for each in applications), tuple(pipelines))


def _read_all(
    source: RecordSource,
    tag: RecordTag,
    decode: Callable[[int, bytes, int | None], _T],
    report: Callable[[Damage], None] | None,
) -> Iterable[_T]:
    """Decode all records of a tag; report the damaged ones and go on."""
    for key in source.keys(tag):
        try:
            payload = source.payload(tag, key)
        except RecordError:
            continue  # the source has it in its own damage
        try:
            yield decode(key, payload, None)
        except RecordError as error:
            if report is not None:
                report(Damage(record_offset(source, tag, key), int(tag), key, error.reason))


def _decode(
    decoder: msgspec.json.Decoder[_T], tag: RecordTag, key: int, payload: bytes, offset: int | None
) -> _T:
    end = payload.find(b"\0")
    try:
        return decoder.decode(payload if end < 0 else payload[:end])
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise RecordError(tag, key, f"{tag.name.lower()}: {error}", offset) from error


def _as_utf8(payload: bytes) -> bytes:
    """A document in UTF-8: recorders copy the names that applications give themselves byte by byte.

    Names in another encoding are read as Latin-1, since their features matter and their names are for display.
    """
    try:
        payload.decode()
    except UnicodeDecodeError:
        return payload.decode("latin-1").encode()
    return payload


def _check_version(version: int, tag: RecordTag, key: int, offset: int | None) -> None:
    if version not in PAYLOAD_VERSIONS:
        reason = f"{tag.name.lower()}: version {version} of the JSON is not supported (5 and 6 are)"
        raise RecordError(tag, key, reason, offset)


def _hashed(structure: Mapping[str, object]) -> tuple[int, dict[str, int]]:
    """sType and members of a feature structure, as the application's hash takes them."""
    numbers = {name: value for name, value in structure.items() if isinstance(value, int)}
    return numbers.pop("sType"), numbers


def feature_tables(features: Iterable[Feature]) -> list[dict[str, object]]:
    """Features as `PipelineSetBuilder.application` takes them: a table a structure, in the order of their names."""
    tables: dict[str, dict[str, object]] = {}
    for struct, member in sorted(features):
        tables.setdefault(struct, {"structure": struct})[member] = True
    return list(tables.values())


def api_version_number(text: str, where: str) -> int:
    """VkApplicationInfo::apiVersion of a text such as "1.3".

    Raises:
        ManifestError: It is not a version; names where it stands.
    """
    parts = text.split(".")
    if not 2 <= len(parts) <= 3 or not all(each.isdecimal() for each in parts):
        raise ManifestError(f'{where}.api_version: {text!r} is not a version such as "1.3"')
    major, minor, patch = (int(each) for each in (*parts, "0")[:3])
    return major << 22 | minor << 12 | patch
