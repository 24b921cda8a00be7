"""What a device is opened as: the instance and the device of the application that will use the cache.

A driver may put anything that it was told about instance and device into the keys of its cache. What is
compiled is found again only by a device that is, to the driver, the same: same VkApplicationInfo, same
features. So a device is opened as its application's, no feature more and no feature less, and a
`DeviceRequest` says what is known of that.

`EnabledCapabilities` says what a request enables of what a device has, without opening one. It does not know
what may not be enabled together; a driver's binding does. Pure values, thread-safe.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

from attrs import evolve, field, frozen, validators

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.errors import expect
from orchestrator.registry import registry
from orchestrator.registry.tables import feature_structs, same_members

Feature = tuple[str, str]
"""A feature: its structure and its member, such as ("VkPhysicalDeviceFeatures", "geometryShader")."""

BASE_FEATURES: Final = "VkPhysicalDeviceFeatures"

#: Feature structures that the recorders of archives write down, because drivers are known to make other code,
#: or other keys, where they are enabled (format of Fossilize, version 6). What a capture does not record of
#: these was off.
RECORDED_STRUCTURES: Final = frozenset(
    {
        "VkPhysicalDeviceRobustness2FeaturesKHR",
        "VkPhysicalDeviceImageRobustnessFeatures",
        "VkPhysicalDeviceFragmentShadingRateEnumsFeaturesNV",
        "VkPhysicalDeviceFragmentShadingRateFeaturesKHR",
        "VkPhysicalDeviceMeshShaderFeaturesEXT",
        "VkPhysicalDeviceMeshShaderFeaturesNV",
        "VkPhysicalDeviceDescriptorBufferFeaturesEXT",
        "VkPhysicalDeviceShaderObjectFeaturesEXT",
        "VkPhysicalDevicePrimitivesGeneratedQueryFeaturesEXT",
        "VkPhysicalDeviceImage2DViewOf3DFeaturesEXT",
        "VkPhysicalDevicePipelineRobustnessFeatures",
        "VkPhysicalDeviceMaintenance8FeaturesKHR",
    }
)

CACHE_CONTROL: Final = (
    "VkPhysicalDevicePipelineCreationCacheControlFeatures",
    "pipelineCreationCacheControl",
)
"""For externally synchronized caches, and to forbid compiling."""

PIPELINE_BINARIES: Final = ("VkPhysicalDevicePipelineBinaryFeaturesKHR", "pipelineBinaries")
"""For binaries and keys of pipelines."""

EXECUTABLE_INFO: Final = (
    "VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR",
    "pipelineExecutableInfo",
)
"""For statistics of pipelines."""

MODULE_IDENTIFIER: Final = ("VkPhysicalDeviceShaderModuleIdentifierFeaturesEXT", "shaderModuleIdentifier")
"""For identifiers of shader modules."""

SHADER_MODULE_IDENTIFIERS: Final[frozenset[Feature]] = frozenset({MODULE_IDENTIFIER, CACHE_CONTROL})
"""What a device must be opened with to create pipelines without their SPIR-V, by identifiers of modules."""

#: Features that the orchestrator uses itself, whatever is compiled.
ORCHESTRATOR_FEATURES: Final[frozenset[Feature]] = frozenset(
    {CACHE_CONTROL, PIPELINE_BINARIES, EXECUTABLE_INFO, MODULE_IDENTIFIER}
)


_NAME: Final = validators.optional(validators.instance_of(str))
_UINT32: Final = [validators.instance_of(int), validators.ge(0), validators.lt(1 << 32)]


@frozen
class ApplicationInfo:
    """VkApplicationInfo, as a driver is told it.

    Attributes:
        application_name: pApplicationName, None for null; so for `engine_name`.
        api_version: apiVersion; 0 where it is not known, which opens the newest that loader and device have.
    """

    application_name: str | None = field(default=None, validator=_NAME)
    application_version: int = field(default=0, validator=_UINT32)
    engine_name: str | None = field(default=None, validator=_NAME)
    engine_version: int = field(default=0, validator=_UINT32)
    api_version: int = field(default=0, validator=_UINT32)


class OtherFeatures(enum.Enum):
    """What becomes of the features that a request does not name.

    Attributes:
        NONE: off.
        UNRECORDED: on where the device has them, if captures cannot record them; off if they can.
        ALL: on where the device has them, for finding out what it could take.
    """

    NONE = "none"
    UNRECORDED = "unrecorded"
    ALL = "all"


@frozen
class DeviceRequest:
    """What a device is opened as.

    Attributes:
        application: What the instance is told.
        features: Features to enable, where the device has them.
        extensions: Device extensions to enable beside those that the features belong to, where the device has
            them.
        others: What becomes of all other features.
        orchestrator_features: Whether `ORCHESTRATOR_FEATURES` are added. None: where the driver is known to
            leave its keys alone then.
    """

    application: ApplicationInfo = field(
        default=ApplicationInfo(), validator=validators.instance_of(ApplicationInfo)
    )
    features: frozenset[Feature] = field(default=frozenset(), validator=validators.instance_of(frozenset))
    extensions: frozenset[str] = field(default=frozenset(), validator=validators.instance_of(frozenset))
    others: OtherFeatures = field(default=OtherFeatures.UNRECORDED, converter=OtherFeatures)
    orchestrator_features: bool | None = field(
        default=None, validator=validators.optional(validators.instance_of(bool))
    )

    @property
    def text(self) -> str:
        """The request in words, with the version, recorded features, and what becomes of the others."""
        version = self.application.api_version
        parts = [f"Vulkan {version >> 22}.{version >> 12 & 0x3FF}" if version else "the newest Vulkan"]
        exact = self.others is OtherFeatures.NONE
        told = {each for each in self.features if not exact or is_recorded(*each)}
        parts += sorted(feature_text(*each) for each in told)
        rest = len(self.features) - len(told)
        features = "feature" if rest == 1 else "features"
        return (
            ", ".join(parts)
            + {
                OtherFeatures.NONE: f", and {rest} {features} that its pipelines need" if rest else "",
                OtherFeatures.UNRECORDED: ", and all features that captures cannot record",
                OtherFeatures.ALL: ", and all other features",
            }[self.others]
        )

    def enables(self, names: tuple[Feature, ...]) -> bool:
        """Whether a feature of the device is enabled, by all its names."""
        if not self.features.isdisjoint(names):
            return True
        own = self.orchestrator_features
        if own is not None and not ORCHESTRATOR_FEATURES.isdisjoint(names):
            return own
        return self.others is OtherFeatures.ALL or (
            self.others is OtherFeatures.UNRECORDED and not any(is_recorded(*name) for name in names)
        )

    def plus(
        self, features: frozenset[Feature] = frozenset(), extensions: frozenset[str] = frozenset()
    ) -> DeviceRequest:
        """The same with more features and extensions."""
        return evolve(self, features=self.features | features, extensions=self.extensions | extensions)


def feature_text(struct: str, member: str) -> str:
    """A feature as reports name it, such as "MeshShaderFeaturesEXT::meshShader"."""
    return f"{struct.removeprefix('VkPhysicalDevice')}::{member}"


def names_of(names: Iterable[str]) -> frozenset[str]:
    """Names of extensions.

    Raises:
        TypeError: It is one text, whose letters would be taken for names, or some are no text: bytes, as
            bindings give them, would be passed over as unknown.
    """
    if isinstance(names, str):
        raise TypeError(f"several names are expected, such as [{names!r}], not the text {names!r}")
    given = frozenset(names)
    for each in given:
        expect(each, str, "the name of an extension, as text,")
    return given


@frozen
class HostWishes:
    """What a device is opened with for its host's own use, beside what is compiled; all of it must be there.

    Attributes:
        instance_extensions: Such as those that a window wants.
        device_extensions: Such as VK_KHR_swapchain.
        queue_family: Family of the one queue; None for the first.
    """

    instance_extensions: frozenset[str] = field(default=(), converter=names_of)
    device_extensions: frozenset[str] = field(default=(), converter=names_of)
    queue_family: int | None = field(default=None, validator=validators.optional(_UINT32))


NO_WISHES: Final = HostWishes()


def is_recorded(struct: str, member: str) -> bool:
    """Whether a feature follows what was recorded: captures can record it, or it is robustness of any kind.

    The structure has the registry's own name, not an alias.
    """
    return struct in RECORDED_STRUCTURES or "obust" in member


@frozen
class EnabledCapabilities:
    """Part of what a device could offer, as a request has it."""

    supported: DeviceCapabilities
    request: DeviceRequest

    @property
    def api_version(self) -> int:
        """The smaller of the application's version and the device's."""
        told = self.request.application.api_version
        return min(told, self.supported.api_version) if told else self.supported.api_version

    def has_extension(self, name: str) -> bool:
        """Whether an extension is enabled: one all of whose features are off is not."""
        if not self.supported.has_extension(name):
            return False
        if name in self.request.extensions or self.request.others is OtherFeatures.ALL:
            return True
        structs = feature_structs().get(name, ())
        if not structs:
            return self.request.others is not OtherFeatures.NONE
        return any(
            self.has_feature(struct, member.name)
            for struct in structs
            for member in registry().struct(struct).members
        )

    def has_feature(self, struct: str, member: str) -> bool:
        """Whether a feature is enabled."""
        has = self.supported.has_feature(struct, member)
        return has and self.request.enables(same_members(struct, member))

    def property_value(self, struct: str, member: str) -> int | float | tuple[int, ...] | None:
        """Value of a property."""
        return self.supported.property_value(struct, member)

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        """Feature flags of a VkFormat."""
        return self.supported.format_features(format_number)
