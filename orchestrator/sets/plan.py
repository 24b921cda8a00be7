"""A set as it was decoded for a device, in bytes: images, what was left out and why, and the modules' code.

A plan is one msgpack value; arrays are the bytes of their elements. Code is kept up to a bound; of the other
modules a plan says where it is in the archives.

Guarantees: `decode_plan` gives what `encode_plan` was given.
Assumptions: whoever keeps the bytes proves by a hash that this version of the program wrote them, and lets
nobody else write them. Numbers in them are taken on that word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
from attrs import evolve, frozen

from orchestrator.devices.identified import not_supplied
from orchestrator.devices.image import ImageModule, ModuleSource
from orchestrator.errors import OrchestratorError
from orchestrator.sets.answers import DeviceAnswer
from orchestrator.sets.archive.reader import Place
from orchestrator.sets.image.built import BuiltImage, ModuleCode, decode_value, encode_value
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import Damage, FeatureGroup, PipelineJobs

PLAN_FORMAT: Final = 8
"""Version of the bytes, and of what decoding makes of a set: raised where either changes."""

_MOST_CODE: Final = 16 << 20
"""Bytes of SPIR-V in a plan: to decode it again takes 10 ns a byte."""


class SetFacts(msgspec.Struct, frozen=True):
    """What a report says of a set, which need not be read for it then; with the damage found in decoding."""

    content_hash: int
    pipelines: int
    applications: tuple[str, ...]
    damage: tuple[Damage, ...]

    @classmethod
    def of(cls, source: PipelineSet) -> SetFacts:
        """What there is to say of a set that was read."""
        return cls(source.content_hash(), len(source), source.application_names, source.damage)


@frozen(eq=False)
class PlannedGroup:
    """A group that was decoded, with what was asked about its device, opened as the group's request."""

    group: FeatureGroup
    built: BuiltImage
    answers: tuple[DeviceAnswer, ...]


@frozen(eq=False)
class SetPlan:
    """A set as it was decoded for a device: its groups in the order in which they are compiled."""

    facts: SetFacts
    groups: tuple[PlannedGroup, ...]

    @property
    def pipelines(self) -> PipelineJobs:
        """All pipelines of its groups, each once, by kind and key."""
        every = PipelineJobs.joined([each.group.pipelines for each in self.groups])
        every = every.at(every.in_order())
        return every.where(every.firsts())


class _PlannedModule(msgspec.Struct, array_like=True):
    key: int
    code_size: int
    flags: int
    place: Place | None
    code: bytes


class _Encoded(msgspec.Struct, array_like=True):
    plan: SetPlan  # without the modules of its images
    modules: list[list[_PlannedModule]]  # of each group


def encode_plan(plan: SetPlan, place_of: Callable[[int], Place | None]) -> bytes:
    """A plan in bytes.

    Args:
        plan: The plan.
        place_of: Where a module is, by its hash (`PipelineSet.module_place`).

    Raises:
        ValueError: A module has no place: the set is not made of archives.
    """
    left = _MOST_CODE
    modules: list[list[_PlannedModule]] = []
    for planned in plan.groups:
        modules.append([])
        for each in planned.built.image.modules:
            place, code = place_of(each.key), b""
            if place is None and each.code_size:  # a provider has the code of a module without a size
                raise ValueError("a shader module is in no archive")
            if each.code_size <= left:
                with suppress(OrchestratorError):  # damaged, or a provider has it: whoever needs it says so
                    code = each.load()
            left -= len(code)
            modules[-1].append(_PlannedModule(each.key, each.code_size, each.flags, place, code))
    groups = tuple(_with_modules(each, ()) for each in plan.groups)
    return encode_value(_Encoded(evolve(plan, groups=groups), modules))


def decode_plan(data: bytes | memoryview, source: PipelineSet) -> SetPlan:
    """A plan from its bytes.

    Args:
        data: What `encode_plan` gave.
        source: The set that it was made of; it must stay open as long as modules of the images are loaded.

    Raises:
        ValueError: It is none.
    """
    encoded, code = decode_value(data, _Encoded), ModuleCode(source)
    groups = [
        _with_modules(
            each, [ImageModule(one.key, one.code_size, one.flags, _source_of(one, code)) for one in modules]
        )
        for each, modules in zip(encoded.plan.groups, encoded.modules, strict=True)
    ]
    return evolve(encoded.plan, groups=tuple(groups))


def _source_of(module: _PlannedModule, code: ModuleCode) -> ModuleSource:
    if module.code:
        return partial(bytes, module.code)
    if module.place is None:
        return partial(not_supplied, module.key)
    code.places[module.key] = module.place
    return partial(code.load, module.key)


def _with_modules(planned: PlannedGroup, modules: Sequence[ImageModule]) -> PlannedGroup:
    image = evolve(planned.built.image, modules=tuple(modules))
    return evolve(planned, built=evolve(planned.built, image=image))
