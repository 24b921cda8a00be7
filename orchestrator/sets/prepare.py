"""From a set, or a subset of it, to devices opened for its groups and images of create infos: the one way.

A group's device has what its applications are known to have had. Some pipelines need more, and are then not
skipped: where the device could have it, they are put into a group of their own, with the least that they need
added. A group whose request is exact (a set without applications, or one that was packed and not captured) is
compiled on a device with what its pipelines need, and nothing else.

Guarantees: every pipeline of a group is in its image, among its problems, or in one of the groups that it is
split into.
Assumptions: opening a device twice for the same application gives the same answers. Not thread-safe; whoever
calls it may do so in any one thread at a time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Final

from attrs import Factory, evolve, field, frozen

from orchestrator.devices.device import Device, DeviceCapabilities
from orchestrator.devices.request import (
    BASE_FEATURES,
    RECORDED_STRUCTURES,
    DeviceRequest,
    EnabledCapabilities,
    Feature,
    OtherFeatures,
)
from orchestrator.errors import OrchestratorError, expect
from orchestrator.registry import registry
from orchestrator.registry.tables import FEATURES_ROOT, AnyDevice, same_members
from orchestrator.sets.answers import AskedDevice, DeviceAnswer, changed_answer
from orchestrator.sets.image.built import BuiltImage, Needs, Problem
from orchestrator.sets.pipeline_set import A_SET, PipelineSet
from orchestrator.sets.plan import PlannedGroup
from orchestrator.sets.records import FeatureGroup, PipelineJob, PipelineJobs
from orchestrator.sets.subset import WHOLE, Subset

DeviceOpener = Callable[[DeviceRequest], Device]
"""Opens a device as a request says; the caller closes it."""

_FEATURE: Final = re.compile(r"(VkPhysicalDevice\w*Features\w*)::(\w+)")
_EXTENSION: Final = re.compile(r"\bVK_[A-Z]+_\w+")
# What a pipeline lacks is told one thing at a time; more than these nobody has seen.
_MOST_ADDED: Final = 16


@frozen(eq=False)
class OpenedGroup:
    """A group, or part of it, with its device; whoever handed the group over closes the device."""

    group: FeatureGroup  # with the pipelines that were decoded, and what the device is opened as
    device: Device
    built: BuiltImage  # without what the set leaves out, and what cannot be compiled
    # Groups of the pipelines that need more than this device has, to be opened later.
    split: tuple[FeatureGroup, ...] = ()
    answers: tuple[DeviceAnswer, ...] = field(default=(), repr=False)  # what was asked to decode it
    # `built` with what the set leaves out.
    whole: BuiltImage = field(default=Factory(lambda self: self.built, takes_self=True), repr=False)

    def leaving_out(self, reasons: Mapping[int, str]) -> OpenedGroup:
        """The same group, of which the driver is not given some pipelines; see `PipelineSet.left_out`."""
        whole = built = self.built
        if reasons:
            from orchestrator.sets.image.rearranged import leave_out  # most compiles leave nothing out

            built = leave_out(whole, reasons)
        return evolve(self, built=built, whole=whole)


def _built(
    source: PipelineSet, jobs: Iterable[PipelineJob], capabilities: DeviceCapabilities, asked: AskedDevice
) -> BuiltImage:
    processes, source.decoders = source.decoders, 1  # later there are threads that compile
    if processes > 1:
        from orchestrator.sets.decoder import build_in_slices

        columns = jobs if isinstance(jobs, PipelineJobs) else PipelineJobs.of(dict.fromkeys(jobs))
        return build_in_slices(source, columns, capabilities, processes, asked)
    from orchestrator.sets.image.builder import build_image  # what a plan saves is not loaded either

    return build_image(source, jobs, capabilities)


def opened_group(
    source: PipelineSet,
    group: FeatureGroup,
    opener: DeviceOpener,
    *,
    subset: Subset = WHOLE,
    needs: Collection[str] | None = None,
    during: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Generator[OpenedGroup, None, None]:
    """Yield one group of a set on a device opened for it, which is closed with the iterator.

    What an exact group's device is opened as follows from all its pipelines, also where a subset of them is
    compiled: only then does the driver give all parts of a set the same keys. The set must stay open as long
    as modules of the image are loaded. `needs` are what all of them need, as in `CompileOptions`. `during` is
    entered around each step, "open" and "prepare".

    Raises:
        OrchestratorError: What the opener raises.
    """
    follows = group.request.others is OtherFeatures.NONE  # what it is opened as, from all its pipelines
    if follows and needs is not None and not group.applications:
        pairs = (each.split("::") for each in needs if "::" in each)
        features = frozenset((struct, member) for struct, member in pairs)
        request = group.request.plus(features, frozenset(each for each in needs if "::" not in each))
        group, follows = evolve(group, request=request), False
    with during("open"):
        device = opener(group.request)
    try:
        asked = AskedDevice(device)
        if not follows:
            with during("prepare"):
                part = evolve(group, pipelines=subset.of(group.pipelines))
                opened = evolve(_decode(source, part, asked, asked.capabilities), answers=asked.answers)
        else:
            with during("prepare"):
                settled = _settle(source, group, asked)
            answers = asked.answers
            if settled.group.request != group.request:
                device.close()
                with during("open"):
                    device = opener(settled.group.request)
                asked = AskedDevice(device)
            opened = evolve(settled, device=device, answers=answers)
            if not subset.is_whole:
                with during("prepare"):
                    opened = _part_of(source, opened, subset, asked)
        yield opened.leaving_out(source.left_out)
    finally:
        device.close()


def _part_of(source: PipelineSet, settled: OpenedGroup, subset: Subset, asked: AskedDevice) -> OpenedGroup:
    jobs = subset.of(settled.group.pipelines)
    problems = {each.job: each for each in settled.built.problems}
    built = _built(source, [job for job in jobs if job not in problems], asked.capabilities, asked)
    unfit = tuple(problems[job] for job in jobs if job in problems)
    return evolve(
        settled,
        group=evolve(settled.group, pipelines=jobs),
        built=evolve(built, problems=(*unfit, *built.problems)),
        split=tuple(each for each in settled.split if subset.of(each.pipelines)),
        answers=(*settled.answers, *asked.answers),
    )


class PlanOutdatedError(OrchestratorError):
    """A device answers otherwise than the one that a plan was made for."""


def planned_group(
    planned: PlannedGroup,
    opener: DeviceOpener,
    *,
    left_out: Mapping[int, str],
    during: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Generator[OpenedGroup, None, None]:
    """As `opened_group`, for a group that a plan holds, whole.

    Raises:
        PlanOutdatedError: The device answers otherwise; what.
        OrchestratorError: What the opener raises.
    """
    with during("open"):
        device = opener(planned.group.request)
    try:
        if changed := changed_answer(device, planned.answers):
            raise PlanOutdatedError(f"the device answers otherwise: {changed}")
        opened = OpenedGroup(planned.group, device, planned.built, answers=planned.answers)
        yield opened.leaving_out(left_out)
    finally:
        device.close()


def opened_groups(
    source: PipelineSet,
    opener: DeviceOpener,
    *,
    subset: Subset = WHOLE,
    needs: Collection[str] | None = None,
) -> Generator[OpenedGroup, None, None]:
    """Each group of a set on a device opened for it, one after the other.

    The device is closed when the next group is asked for, or the iterator is closed.

    Args:
        source: The set; it stays the caller's.
        opener: Opens a device.
        subset: Which of the set's pipelines.
        needs: What all of them need, as in `CompileOptions`.

    Raises:
        OrchestratorError: What the opener raises.
        TypeError: It is no set, or no subset.
        ValueError: The subset names a pipeline that the set does not have.
    """
    expect(source, PipelineSet, A_SET)
    expect(subset, Subset, "Subset")
    waiting = deque(subset.groups_of(source))
    while waiting:
        with closing(opened_group(source, waiting.popleft(), opener, subset=subset, needs=needs)) as groups:
            for opened in groups:
                waiting.extend(opened.split)
                yield opened


def _settle(source: PipelineSet, group: FeatureGroup, device: AskedDevice) -> OpenedGroup:
    capabilities = _could_have(group, device)
    decoded = _decode(source, group, device, capabilities)
    built = decoded.built
    if built.problems or decoded.split:
        problems = {each.job for each in built.problems}
        fit = [job for job in decoded.group.pipelines if job not in problems]
        again = _built(source, fit, capabilities, device)
        built = evolve(again, problems=(*built.problems, *again.problems))
    request = group.request.plus(built.needs.features, built.needs.extensions)
    return evolve(decoded, group=evolve(decoded.group, request=request), built=built)


def _decode(
    source: PipelineSet,
    group: FeatureGroup,
    device: AskedDevice,
    capabilities: DeviceCapabilities,
) -> OpenedGroup:
    built = _built(source, group.pipelines, capabilities, device)
    if group.added or not group.applications or not built.problems:
        return OpenedGroup(group, device.device, built)
    split, lacking = _split(source, group, device, built)
    moved = {job for each in split for job in each.pipelines}
    kept = tuple(lacking.get(each.job, each) for each in built.problems if each.job not in moved)
    if moved:
        group = evolve(group, pipelines=[job for job in group.pipelines if job not in moved])
    return OpenedGroup(group, device.device, evolve(built, problems=kept), split)


def _could_have(group: FeatureGroup, device: AskedDevice) -> DeviceCapabilities:
    # An exact group's device could have everything where no application is known, and else what the record of
    # the application says nothing of.
    if not group.applications:
        return device.supported
    return EnabledCapabilities(device.supported, evolve(group.request, others=OtherFeatures.UNRECORDED))


def features_to_record(source: PipelineSet, api_version: int) -> frozenset[Feature]:
    """The features that a set's pipelines need and that its application's record must therefore hold.

    What a pipeline needs and captures cannot record is not among them. Of several features any one of which
    is enough, one is.

    Args:
        source: The set; what an application of it records does not count.
        api_version: VkApplicationInfo::apiVersion of the application.
    """
    from orchestrator.sets.image.builder import build_image

    needs = build_image(source, source.pipelines, AnyDevice(api_version)).needs
    return frozenset(
        name for each in needs.features for name in same_members(*each) if name[0] in RECORDED_STRUCTURES
    )


def problems_anywhere(source: PipelineSet) -> tuple[Problem, ...]:
    """The pipelines of a set that no device can be given, whatever it has, and why."""
    from orchestrator.sets.image.builder import build_image

    return build_image(source, source.pipelines, AnyDevice()).problems


def _split(
    source: PipelineSet, group: FeatureGroup, device: AskedDevice, built: BuiltImage
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
        tried = _built(source, jobs, with_more(needs), device)
        unfit = {each.job for each in tried.problems}
        if fit := [job for job in jobs if job not in unfit]:
            found.setdefault(needs, []).extend(fit)
        sort(tried, needs)
    order = {job: index for index, job in enumerate(group.pipelines)}
    groups = tuple(
        FeatureGroup(
            group.request.plus(needs.features, needs.extensions),
            group.applications,
            PipelineJobs.of(sorted(jobs, key=order.__getitem__)),
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
