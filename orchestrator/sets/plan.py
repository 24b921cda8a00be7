"""A set as it was decoded for a device, in bytes: images, what was left out and why, and the modules' code.

A plan is one msgpack value; arrays are the bytes of their elements. Code is kept up to a bound; that of other
modules is read from the set again.

Guarantees: `decode_plan` gives what `encode_plan` was given.
Assumptions: whoever keeps the bytes proves by a hash that this version of the program wrote them, and lets
nobody else write them. Numbers in them are taken on that word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from attrs import evolve, frozen

from orchestrator.devices.image import ImageModule
from orchestrator.sets.answers import DeviceAnswer
from orchestrator.sets.image.built import (
    BuiltImage,
    EncodedModule,
    ModuleCode,
    decode_modules,
    decode_value,
    encode_modules,
    encode_value,
)
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import Damage, FeatureGroup

PLAN_FORMAT: Final = 10
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
        applications = tuple(each.name or "" for each in source.applications)
        return cls(source.content_hash(), len(source), applications, source.damage)


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


class _Encoded(msgspec.Struct, array_like=True):
    plan: SetPlan  # without the modules of its images
    modules: list[list[EncodedModule]]  # of each group


def encode_plan(plan: SetPlan) -> bytes:
    """A plan in bytes."""
    modules, left = list[list[EncodedModule]](), _MOST_CODE
    for each in plan.groups:
        modules.append(encode_modules(each.built.image.modules, left))
        left -= sum(len(one.code) for one in modules[-1])
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
        _with_modules(each, decode_modules(modules, code))
        for each, modules in zip(encoded.plan.groups, encoded.modules, strict=True)
    ]
    return evolve(encoded.plan, groups=tuple(groups))


def _with_modules(planned: PlannedGroup, modules: Sequence[ImageModule]) -> PlannedGroup:
    image = evolve(planned.built.image, modules=tuple(modules))
    return evolve(planned, built=evolve(planned.built, image=image))
