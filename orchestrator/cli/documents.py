# Purpose: the parts of JSON documents that several verbs share, so that a device, a pipeline or a damaged record
# looks the same in all of them.
# Guarantees: names are those of the values (Vulkan's words in snake_case); keys of pipelines are 16 hex digits;
# versions of the API are text; times are seconds. Fields may be added, and none changes its meaning.
"""Shared parts of the JSON documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict

from orchestrator.cli.text import key_text, version_text
from orchestrator.devices.device import DeviceFeatures, DeviceIdentity
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.request import DeviceRequest
from orchestrator.sets.records import Damage, RecordTag


def device_document(identity: DeviceIdentity, features: DeviceFeatures | None = None) -> dict[str, Any]:
    """A device: its identity and, where known, what it offers to an orchestrator."""
    document = {
        **asdict(identity),
        "pipeline_cache_uuid": identity.pipeline_cache_uuid.hex(),
        "api_version": version_text(identity.api_version),
    }
    if features is not None:
        document["features"] = asdict(features)
    return document


def request_document(request: DeviceRequest) -> dict[str, Any]:
    """What a device is opened as."""
    told = request.application
    return {
        "application": told.application_name,
        "application_version": told.application_version,
        "engine": told.engine_name,
        "engine_version": told.engine_version,
        "api_version": version_text(told.api_version) if told.api_version else None,
        "features": sorted(f"{struct}::{member}" for struct, member in request.features),
        "extensions": sorted(request.extensions),
        "others": request.others.value,
    }


def kinds_document(counts: Mapping[PipelineKind, int]) -> dict[str, int]:
    """Pipelines by kind; every kind has an entry."""
    return {kind.value: counts.get(kind, 0) for kind in PipelineKind}


def damage_document(damage: Damage) -> dict[str, Any]:
    """Something in a set that could not be read."""
    return {
        "offset": damage.offset,
        "tag": None if damage.tag is None else tag_name(damage.tag),
        "key": None if damage.key is None else key_text(damage.key),
        "reason": damage.reason,
    }


def tag_name(tag: int) -> str:
    """Name of a record tag, such as ``shader_module``; its number where it is not known."""
    try:
        return RecordTag(tag).name.lower()
    except ValueError:
        return str(tag)


def seconds(nanoseconds: int) -> float:
    """Nanoseconds as seconds."""
    return nanoseconds / 1e9
