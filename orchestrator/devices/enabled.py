"""What a `DeviceRequest` enables of all that a device could have: the same rule for any device, without opening one.

What may not be enabled together is not looked at here; a driver's binding knows that when it opens a device.

Guarantees: pure; thread-safe.
"""

from __future__ import annotations

from attrs import frozen

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.request import ORCHESTRATOR_FEATURES, DeviceRequest, OtherFeatures, is_recorded
from orchestrator.registry import registry
from orchestrator.registry.features import feature_structs, same_members


@frozen
class EnabledCapabilities:
    """Part of what a device could offer, as a request has it.

    Attributes:
        supported: What it could offer.
        request: What it is opened as.
    """

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
        if not self.supported.has_feature(struct, member):
            return False
        names = same_members(struct, member)
        if not self.request.features.isdisjoint(names) or self.request.others is OtherFeatures.ALL:
            return True
        own = self.request.orchestrator_features
        if own is not None and not ORCHESTRATOR_FEATURES.isdisjoint(names):
            return own
        return self.request.others is OtherFeatures.UNRECORDED and not any(
            is_recorded(*name) for name in names
        )

    def property_value(self, struct: str, member: str) -> int | float | tuple[int, ...] | None:
        """Value of a property."""
        return self.supported.property_value(struct, member)

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        """Feature flags of a VkFormat."""
        return self.supported.format_features(format_number)
