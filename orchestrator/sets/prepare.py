"""From a group of a set to a device opened for it and an image of create infos: the one way.

A group's device has what its applications are known to have had. Some pipelines need more, and are then not skipped:
where the device could have it, they are put into a group of their own, with the least that they need added. A set without
applications is compiled on a device with what its pipelines need, and nothing else.

Guarantees: every pipeline of a group is in its image, among its problems, or in one of the groups that it is split into.
Assumptions: opening a device twice for the same application gives the same answers. Not thread-safe; whoever calls it
may do so in any one thread at a time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator
from typing import Final

from attrs import evolve, frozen

from orchestrator.devices.device import Device, DeviceCapabilities
from orchestrator.devices.request import (
    BASE_FEATURES,
    RECORDED_STRUCTURES,
    DeviceRequest,
    Feature,
    OtherFeatures,
)
from orchestrator.registry import registry
from orchestrator.registry.any_device import AnyDevice
from orchestrator.registry.features import FEATURES_ROOT, feature_structs, same_members
from orchestrator.sets.applications import FeatureGroup
from orchestrator.sets.image_builder import BuiltImage, Problem, build_image
from orchestrator.sets.jobs import PipelineJob
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.requirements import Needs

DeviceOpener = Callable[[DeviceRequest], Device]
"""Opens a device as a request says; the caller closes it."""

_FEATURE: Final = re.compile(r"(VkPhysicalDevice\w*Features\w*)::(\w+)")
_EXTENSION: Final = re.compile(r"\bVK_[A-Z]+_\w+")
# What a pipeline lacks is told one thing at a time; more than these nobody has seen.
_MOST_ADDED: Final = 16


@frozen(eq=False)
class DecodedGroup:
    """A group as it is to be compiled.

    Attributes:
        group: The group; its request is that of the device to compile on, which is another one than it was decoded on
            where the two requests differ.
        built: Its image, and what cannot be compiled.
        split: Groups of the pipelines that need more than this one's device has.
    """

    group: FeatureGroup
    built: BuiltImage
    split: tuple[FeatureGroup, ...] = ()


@frozen(eq=False)
class OpenedGroup:
    """A group with its device.

    Attributes:
        group: The group.
        device: The device, opened as the group's request says.
        built: The group's image, and what cannot be compiled.
    """

    group: FeatureGroup
    device: Device
    built: BuiltImage


def decode_group(source: PipelineSet, group: FeatureGroup, device: Device) -> DecodedGroup:
    """Decode a group's pipelines for a device.

    Args:
        source: The set; it must stay open as long as the image's modules are loaded.
        group: One of its groups.
        device: A device, opened as the group's request says.
    """
    if group.request.others is OtherFeatures.NONE and not group.added:
        return _decode_by_needs(source, group, device)
    built = build_image(source, group.pipelines, device.capabilities)
    if group.added:
        return DecodedGroup(group, built)
    split, lacking = _split(source, group, device, built)
    moved = {job for each in split for job in each.pipelines}
    kept = tuple(lacking.get(each.job, each) for each in built.problems if each.job not in moved)
    return DecodedGroup(group, evolve(built, problems=kept), split)


def opened_groups(source: PipelineSet, opener: DeviceOpener) -> Generator[OpenedGroup, None, None]:
    """Each group of a set with a device opened for it, one after the other.

    The device is closed when the next group is asked for, or the iterator is closed.

    Args:
        source: The set; it stays the caller's.
        opener: Opens a device.

    Raises:
        OrchestratorError: What the opener raises.
    """
    waiting = deque(source.groups)
    while waiting:
        group = waiting.popleft()
        device = opener(group.request)
        try:
            decoded = decode_group(source, group, device)
            waiting.extend(decoded.split)
            if decoded.group.request != group.request:
                device.close()
                device = opener(decoded.group.request)
            yield OpenedGroup(decoded.group, device, decoded.built)
        finally:
            device.close()


def features_to_record(source: PipelineSet, api_version: int) -> frozenset[Feature]:
    """The features that a set's pipelines need and that its application's record must therefore hold.

    What a pipeline needs and captures cannot record is not among them. Of several features any one of which is enough, one
    is.

    Args:
        source: The set; what an application of it records does not count.
        api_version: VkApplicationInfo::apiVersion of the application.
    """
    needs = build_image(source, source.pipelines, AnyDevice(api_version)).needs
    return frozenset(
        name for each in needs.features for name in same_members(*each) if name[0] in RECORDED_STRUCTURES
    )


def _decode_by_needs(source: PipelineSet, group: FeatureGroup, device: Device) -> DecodedGroup:
    """Decode against all that the device could have, and ask for what was needed of it."""
    built = build_image(source, group.pipelines, device.supported)
    needs = built.needs
    if built.problems:
        # What these need does not count: they are not compiled.
        problems = {each.job for each in built.problems}
        fit = [job for job in group.pipelines if job not in problems]
        again = build_image(source, fit, device.supported)
        built, needs = evolve(again, problems=(*built.problems, *again.problems)), again.needs
    return DecodedGroup(evolve(group, request=group.request.plus(needs.features, needs.extensions)), built)


def _split(
    source: PipelineSet, group: FeatureGroup, device: Device, built: BuiltImage
) -> tuple[tuple[FeatureGroup, ...], dict[PipelineJob, Problem]]:
    """The groups of those pipelines that the device could take with more than the group's request.

    And of those that it could not take so either, what is lacking then.
    """
    lacking: dict[PipelineJob, Problem] = {}
    found: dict[Needs, list[PipelineJob]] = {}
    waiting: dict[Needs, list[PipelineJob]] = {}

    def sort(problems: BuiltImage, so_far: Needs) -> None:
        for each in problems.problems:
            enabled = _Extended(device, so_far)
            more = _missing(each.reason, enabled, device.supported, so_far) if each.unsupported else None
            if more is not None and len(more.features) + len(more.extensions) <= _MOST_ADDED:
                waiting.setdefault(more, []).append(each.job)
            else:
                lacking[each.job] = each

    sort(built, Needs())
    while waiting:
        needs, jobs = waiting.popitem()
        tried = build_image(source, jobs, _Extended(device, needs))
        unfit = {each.job for each in tried.problems}
        if fit := [job for job in jobs if job not in unfit]:
            found.setdefault(needs, []).extend(fit)
        sort(tried, needs)
    order = {job: index for index, job in enumerate(group.pipelines)}
    groups = tuple(
        FeatureGroup(
            group.request.plus(needs.features, needs.extensions),
            group.applications,
            tuple(sorted(jobs, key=order.__getitem__)),
            (
                *sorted(needs.extensions),
                *(f"{struct}::{member}" for struct, member in sorted(needs.features)),
            ),
        )
        for needs, jobs in sorted(found.items(), key=lambda each: min(order[job] for job in each[1]))
    )
    return groups, lacking


def _missing(
    reason: str, enabled: DeviceCapabilities, supported: DeviceCapabilities, so_far: Needs
) -> Needs | None:
    """What was asked for before, and the first thing of those named in a reason that the device could have; or None."""
    for struct, member in _FEATURE.findall(reason):
        known = registry().structs.get(registry().aliases.get(struct, struct))
        is_feature = known is not None and (struct == BASE_FEATURES or FEATURES_ROOT in known.extends)
        if (
            is_feature
            and supported.has_feature(struct, member)
            and not any(enabled.has_feature(*each) for each in same_members(struct, member))
        ):
            return evolve(so_far, features=so_far.features | {(struct, member)})
    for name in _EXTENSION.findall(reason):
        known_extension = registry().extensions.get(name)
        if (
            known_extension is not None
            and known_extension.device
            and supported.has_extension(name)
            and not enabled.has_extension(name)
        ):
            return evolve(so_far, extensions=so_far.extensions | {name})
    return None


@frozen
class _Extended:
    """What a device would have with more than it was opened with."""

    device: Device
    more: Needs

    @property
    def api_version(self) -> int:
        return self.device.capabilities.api_version

    def has_extension(self, name: str) -> bool:
        if self.device.capabilities.has_extension(name) or name in self.more.extensions:
            return True
        return self.device.supported.has_extension(name) and any(
            struct in feature_structs().get(name, ())
            for feature in self.more.features
            for struct, _ in same_members(*feature)
        )

    def has_feature(self, struct: str, member: str) -> bool:
        if self.device.capabilities.has_feature(struct, member):
            return True
        added: set[Feature] = {name for each in self.more.features for name in same_members(*each)}
        return (registry().aliases.get(struct, struct), member) in added

    def property_value(self, struct: str, member: str) -> int | float | tuple[int, ...] | None:
        value = self.device.capabilities.property_value(struct, member)
        return self.device.supported.property_value(struct, member) if value is None else value

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        return self.device.capabilities.format_features(format_number)
