"""Openers of devices that heed what is remembered of them: the key profile, and the quarantine.

A profile (`orchestrator doctor --keys`) says on what a driver's keys depend. A feature that the orchestrator
uses itself is enabled where the profile proves that keys do not depend on it, and stays off where they do:
the application's pipelines are worth more. Whatever else matters and is enabled or set here, but not in the
application's record, is told. Without a profile nothing changes.

The quarantine names the pipelines that ended the driver of this device before; they are left out of the set.
Both are kept for each device and driver, so what they say is known when the device is open.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from attrs import define, evolve, field

from orchestrator.devices.device import Device
from orchestrator.devices.image import KINDS, CreateInfoImage, PipelineKind
from orchestrator.devices.request import ORCHESTRATOR_FEATURES, DeviceRequest, Feature
from orchestrator.registry.tables import same_members
from orchestrator.sets.image.built import Problem
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import DeviceOpener
from orchestrator.sets.records import FeatureGroup
from orchestrator.stores.culprits import Culprit, load_quarantine
from orchestrator.stores.profile_file import (
    KeyProfile,
    KeyProfileLoad,
    ProfileIdentity,
    Tried,
    load_key_profile,
)

_LIBRARY = "pipeline library"


@define(eq=False)
class ProfiledOpener:
    """Opens devices, each with those of the orchestrator's features that leave the driver's keys alone.

    All the devices are of one driver. Of those that are asked for alike, the first alone is opened twice. In
    any one thread at a time.
    """

    opener: DeviceOpener
    directory: Path | None
    notes: list[str] = field(factory=list)
    _loaded: dict[ProfileIdentity, KeyProfileLoad] = field(factory=dict)
    _own: dict[tuple[object, ...], frozenset[Feature]] = field(factory=dict)

    def __call__(self, request: DeviceRequest) -> Device:
        """Open a device; the caller closes it."""
        if request.orchestrator_features is not None:
            return self.opener(request)
        asked = {name for each in request.features for name in same_members(*each)}
        # What of a request decides which of our features the device has unasked, and which it could have.
        likeness = ORCHESTRATOR_FEATURES & asked, request.others, request.application.api_version
        if likeness in self._own:
            return self.opener(_with_own(request, self._own[likeness]))
        device = self.opener(request)
        profile = self.profile(device)
        if profile is None:
            return device
        own = {each for each in ORCHESTRATOR_FEATURES - asked if device.supported.has_feature(*each)}
        on = {each for each in own if device.capabilities.has_feature(*each)}
        harmful = own & _harmful(profile)
        wanted = (on | own & _harmless(profile)) - harmful
        for _, member in sorted(harmful):
            self.notes.append(
                f"{member} is left off: this driver's keys depend on it (key profile of {_day(profile)})"
            )
        if wanted == on:
            return device
        device.close()
        self._own[likeness] = frozenset(wanted)
        return self.opener(_with_own(request, self._own[likeness]))

    def profile(self, device: Device) -> KeyProfile | None:
        """What is known of the keys of a device's driver."""
        if self.directory is None:
            return None
        about = ProfileIdentity.of(device.identity)
        if about not in self._loaded:
            loaded = self._loaded[about] = load_key_profile(self.directory, device.identity)
            if loaded.problem:
                self.notes.append(f"what is known of the driver's keys was not used: {loaded.problem}")
        return self._loaded[about].profile


def with_features(opener: DeviceOpener, features: Collection[Feature]) -> DeviceOpener:
    """An opener whose devices have some features of the orchestrator's own, where they can.

    Otherwise they are left to what is known of the driver's keys.
    """
    own = frozenset(features)
    return lambda request: opener(request.plus(own))


def key_notes(profile: KeyProfile, group: FeatureGroup, device: Device, image: CreateInfoImage) -> list[str]:
    """What matters to a driver's keys and is here, but not known to be there where the application runs."""
    kinds = _kinds(image)
    depends = [each for each in profile.depends if not kinds.isdisjoint(each.kinds)]
    found = list(dict.fromkeys(_set_here(profile, depends, device)))
    if group.applications:
        found += _beyond_the_record(depends, group, device)
    else:
        found += [_setting(each) for each in depends if each.aspect not in ("environment", "layer")]
    if not found:
        return []
    whose = "in no application's record" if group.applications else "no application is recorded"
    return [
        f"this driver's keys depend on what is set here, and {whose}: {', '.join(dict.fromkeys(found))} (key "
        f"profile of {_day(profile)}). An application finds these pipelines only where it has the same"
    ]


def _with_own(request: DeviceRequest, own: frozenset[Feature]) -> DeviceRequest:
    return evolve(request.plus(own), orchestrator_features=False)


def _kinds(image: CreateInfoImage) -> set[str]:
    graphics = image.kinds == KINDS.index(PipelineKind.GRAPHICS)
    in_libraries = graphics & (image.is_library | image.links)
    found = {kind.value.replace("_", " ") for kind in PipelineKind if image.counts[kind]}
    if in_libraries.any():
        found.add(_LIBRARY)
    if in_libraries.sum() == graphics.sum():
        found.discard(PipelineKind.GRAPHICS.value)
    return found


def _beyond_the_record(depends: list[Tried], group: FeatureGroup, device: Device) -> Iterator[str]:
    recorded = {
        name
        for struct, member in group.request.features
        if f"{struct}::{member}" not in group.added
        for name in same_members(struct, member)
    }
    has = device.capabilities
    for each in depends:
        if each.aspect == "feature" and all(has.has_feature(*one) for one in (*each.features, *each.given)):
            yield from ("::".join(one) for one in each.features if one not in recorded)
        elif each.aspect == "extension" and has.has_extension(each.name):
            yield each.name


def _set_here(profile: KeyProfile, depends: list[Tried], device: Device) -> Iterator[str]:
    harmless = {each.name for each in profile.independent if each.aspect == "environment"}
    for each in depends:
        variable, _, _ = each.name.partition("=")
        value = os.environ.get(variable, "") if each.aspect == "environment" else ""
        words = {f"{variable}={word}" for word in re.split(r"[,;: ]+", value) if word}
        if words - harmless:
            yield f"{variable}={value}"
        if each.aspect == "layer" and each.name in device.features.layer_names:
            yield f"layer {each.name}"


def _setting(dependence: Tried) -> str:
    if dependence.aspect == "feature":
        return dependence.name.removeprefix("VkPhysicalDevice")
    return dependence.name if dependence.aspect == "extension" else dependence.aspect


def _harmful(profile: KeyProfile) -> set[Feature]:
    return {feature for each in profile.depends for feature in each.features}


def _harmless(profile: KeyProfile) -> set[Feature]:
    kinds = {each.kind for each in profile.kinds if each.pipelines}
    harmful = _harmful(profile)
    proven = [
        (feature, {*each.given} - {feature})
        for each in profile.independent
        for feature in each.features
        if len(each.features) == 1 and feature not in harmful and kinds <= {*each.kinds}
    ]
    found: set[Feature] = set()
    while more := {feature for feature, given in proven if given <= found} - found:
        found |= more
    return found


def _day(profile: KeyProfile) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(profile.made_at))


@define(eq=False)
class QuarantinedSet:
    """A set without the culprits of the devices that are opened for it. One thread at a time."""

    whole: PipelineSet
    directory: Path | None
    _reasons: dict[int, str] = field(init=False)
    _culprits: dict[int, Culprit] = field(factory=dict, init=False)
    _left_out: dict[int, Culprit] = field(factory=dict, init=False)
    _problems: list[str] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._reasons = dict(self.whole.left_out)

    @property
    def source(self) -> PipelineSet:
        """The set as the driver may be given it."""
        return self.whole.leaving_out(self._reasons)

    def opening(self, opener: DeviceOpener) -> DeviceOpener:
        """An opener that leaves the culprits of its device out of the set."""
        directory = self.directory
        if directory is None:
            return opener

        def open_and_leave_out(request: DeviceRequest) -> Device:
            device = opener(request)
            self._leave_out(directory, device)
            return device

        return open_and_leave_out

    def _leave_out(self, directory: Path, device: Device) -> None:
        loaded = load_quarantine(directory, device.identity)
        if loaded.problem:
            self._problems.append(f"the quarantine of pipelines was not used: {loaded.problem}")
        if loaded.profile is not None:
            for each in loaded.profile.culprits:
                if (key := int(each.key, 16)) not in self._reasons:
                    self._culprits[key], self._reasons[key] = each, each.reason

    def take(self, problems: Iterable[Problem]) -> None:
        """Note which of a group's problems are culprits that were left out."""
        for each in problems:
            culprit = self._culprits.get(each.job.key)
            if culprit is not None and culprit.reason == each.reason:
                self._left_out[each.job.key] = culprit

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the report must know."""
        known = len(self._left_out)
        if not known:
            return tuple(self._problems)
        several = known > 1
        return (
            *self._problems,
            f"{known} pipeline{'s are' if several else ' is'} in quarantine: {'each' if several else 'it'} "
            "ended the driver's process in an earlier run, and was not tried again (--retry-quarantined "
            "tries, `orchestrator quarantine list` shows all)",
        )
