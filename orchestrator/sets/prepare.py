"""From a group of a set to a device opened for it and an image of create infos: the one way.

A group's device has what its applications are known to have had. Some pipelines need more, and are then not skipped:
where the device could have it, they are put into a group of their own, with the least that they need added. A group whose
request is exact (a set without applications, or one that was packed and not captured) is compiled on a device with what its
pipelines need, and nothing else.

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
    EnabledCapabilities,
    Feature,
    OtherFeatures,
)
from orchestrator.registry import registry
from orchestrator.registry.tables import FEATURES_ROOT, AnyDevice, same_members
from orchestrator.sets.groups import FeatureGroup
from orchestrator.sets.image.builder import BuiltImage, Problem, build_image
from orchestrator.sets.jobs import PipelineJob
from orchestrator.sets.needs.requirements import Needs
from orchestrator.sets.pipeline_set import PipelineSet

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
    exact = group.request.others is OtherFeatures.NONE
    built = build_image(source, group.pipelines, _could_have(group, device))
    if group.added or not group.applications:
        split: tuple[FeatureGroup, ...] = ()
    else:
        split, lacking = _split(source, group, device, built)
        moved = {job for each in split for job in each.pipelines}
        kept = tuple(lacking.get(each.job, each) for each in built.problems if each.job not in moved)
        group = evolve(group, pipelines=tuple(job for job in group.pipelines if job not in moved))
        built = evolve(built, problems=kept)
    if exact:
        if built.problems or split:
            # What these need does not count: they are not compiled here.
            problems = {each.job for each in built.problems}
            fit = [job for job in group.pipelines if job not in problems]
            again = build_image(source, fit, _could_have(group, device))
            built = evolve(again, problems=(*built.problems, *again.problems))
        group = evolve(group, request=group.request.plus(built.needs.features, built.needs.extensions))
    return DecodedGroup(group, built, split)


def _could_have(group: FeatureGroup, device: Device) -> DeviceCapabilities:
    """What a group's device has; of an exact one, what it could have for what the pipelines turn out to need.

    That is everything where no application is known, and else what its record says nothing of.
    """
    if group.request.others is not OtherFeatures.NONE:
        return device.capabilities
    if not group.applications:
        return device.supported
    return EnabledCapabilities(device.supported, evolve(group.request, others=OtherFeatures.UNRECORDED))


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


def _split(
    source: PipelineSet, group: FeatureGroup, device: Device, built: BuiltImage
) -> tuple[tuple[FeatureGroup, ...], dict[PipelineJob, Problem]]:
    """The groups of those pipelines that the device could take with more than the group's request.

    And of those that it could not take so either, what is lacking then.
    """
    lacking: dict[PipelineJob, Problem] = {}
    found: dict[Needs, list[PipelineJob]] = {}
    waiting: dict[Needs, list[PipelineJob]] = {}
    request = evolve(group.request, others=OtherFeatures.UNRECORDED)

    def with_more(needs: Needs) -> DeviceCapabilities:
        return EnabledCapabilities(device.supported, request.plus(needs.features, needs.extensions))

    def sort(problems: BuiltImage, so_far: Needs) -> None:
        enabled = with_more(so_far)
        for each in problems.problems:
            more = _missing(each.reason, enabled, device.supported, so_far) if each.unsupported else None
            if more is not None and len(more.features) + len(more.extensions) <= _MOST_ADDED:
                waiting.setdefault(more, []).append(each.job)
            else:
                lacking[each.job] = each

    sort(built, Needs())
    while waiting:
        needs, jobs = waiting.popitem()
        tried = build_image(source, jobs, with_more(needs))
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
