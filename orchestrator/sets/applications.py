# Purpose: the record that says which application a set belongs to, and the records that link others to it.
# Guarantees: keys are those that the format's recorders compute, so a set packed here merges with captures.
"""Application and link records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from orchestrator.errors import ManifestError
from orchestrator.sets.hashes import application_hash, link_hash
from orchestrator.sets.structures import encode_chain, handle


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
    version = _api_version(api_version, where)
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


def _hashed(structure: Mapping[str, object]) -> tuple[int, dict[str, int]]:
    """sType and members of a feature structure, as the application's hash takes them."""
    numbers = {name: value for name, value in structure.items() if isinstance(value, int)}
    return numbers.pop("sType"), numbers


def _api_version(text: str, where: str) -> int:
    parts = text.split(".")
    if not 2 <= len(parts) <= 3 or not all(each.isdecimal() for each in parts):
        raise ManifestError(f'{where}.api_version: {text!r} is not a version such as "1.3"')
    major, minor, patch = (int(each) for each in (*parts, "0")[:3])
    return major << 22 | minor << 12 | patch
