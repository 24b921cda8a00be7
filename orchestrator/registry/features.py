"""Names of features and properties: which structures hold the same one, and which extension brings which.

A core version collects members of extensions' structures in VkPhysicalDeviceVulkanNNFeatures (and Properties) under the
same name, so one feature may be asked for, and enabled, by several names. Whoever compares features compares them here.

Guarantees: pure; answers are remembered. Thread-safe.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from orchestrator.registry import expressions
from orchestrator.registry.tables import registry

FEATURES_ROOT: Final = "VkPhysicalDeviceFeatures2"
PROPERTIES_ROOT: Final = "VkPhysicalDeviceProperties2"
_COLLECTIONS: Final = re.compile(r"VkPhysicalDeviceVulkan1\d(Features|Properties)")

# A property that a collection renamed when it took it over (specification, VkPhysicalDeviceVulkan11Properties).
_RENAMED: Final = {
    ("VkPhysicalDeviceVulkan11Properties", "subgroupSupportedOperations"): (
        "VkPhysicalDeviceSubgroupProperties",
        "supportedOperations",
    ),
}


@lru_cache(maxsize=4096)
def same_members(struct: str, member: str) -> tuple[tuple[str, str], ...]:
    """The structures under which a device may answer for a feature or property; the one asked for first.

    Structures of two extensions are different things even where a member has the same name (task and mesh shaders of NV
    and EXT).

    Args:
        struct: A structure of features or properties, or an alias of one.
        member: Its member.
    """
    name = registry().aliases.get(struct, struct)
    same = [(name, member)]
    if renamed := _RENAMED.get((name, member)):
        same.append(renamed)
    for other in _holders().get(member, ()):
        if other != name and (is_collection(name) or is_collection(other)):
            same.append((other, member))
    return tuple(same)


def is_collection(struct: str) -> bool:
    """Whether a structure is one in which a core version collects features or properties."""
    return _COLLECTIONS.fullmatch(struct) is not None


@lru_cache(maxsize=1)
def feature_structs() -> dict[str, tuple[str, ...]]:
    """The feature structures that each device extension provides, by its name; none has no entry."""
    found: dict[str, list[str]] = {}
    for struct in registry().structs.values():
        if FEATURES_ROOT in struct.extends:
            for name in expressions.names(struct.requires):
                if name in registry().extensions:
                    found.setdefault(name, []).append(struct.name)
    return {name: tuple(structs) for name, structs in found.items()}


@lru_cache(maxsize=1)
def _holders() -> dict[str, tuple[str, ...]]:
    """Structures of features and properties that hold a member, by the member's name."""
    holders: dict[str, list[str]] = {}
    for struct in registry().structs.values():
        if FEATURES_ROOT in struct.extends or PROPERTIES_ROOT in struct.extends:
            for member in struct.members:
                holders.setdefault(member.name, []).append(struct.name)
    return {member: tuple(structs) for member, structs in holders.items()}
