"""What is tried: the variations of a bisection, round by round.

Features are tried structure by structure. Of a structure that matters, or that cannot be enabled as a whole, each member is tried
alone; where none of them matters alone the structure is named. What matters alone is then in the baseline of another round, in which
all that does not matter alone is tried again.

Guarantees: pure, but for the files of application profiles that `environments.known_names` reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from attrs import evolve

from orchestrator.devices.request import ApplicationInfo, Feature
from orchestrator.key_dependence.environments import environments, known_names, layer_environment
from orchestrator.key_dependence.messages import Aspect, Surveyed, Variation

_MINORS = range(5)
_A_VERSION = 7 << 22 | 1 << 12


def chosen(variations: Iterable[Variation], only: Collection[str]) -> list[Variation]:
    """Those variations whose text has one of some words in it, whatever their case; all without words."""
    words = [each.lower() for each in only]
    return [each for each in variations if not words or any(word in each.text.lower() for word in words)]


def chosen_features(
    features: Mapping[str, Sequence[str]], only: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """As `chosen`, of features by structure: the members that are wanted."""
    words = [each.lower() for each in only]
    left = {
        struct: tuple(
            member
            for member in members
            if not words
            or any(word in f"{Aspect.FEATURE.value} {struct}::{member}".lower() for word in words)
        )
        for struct, members in features.items()
    }
    return {struct: members for struct, members in left.items() if members}


def structures(
    features: Mapping[str, Sequence[str]], given: frozenset[Feature] = frozenset()
) -> list[Variation]:
    """A variation for each structure, with all its members; a structure of one member is that member's."""
    return [
        Variation(
            aspect=Aspect.FEATURE,
            name=struct if len(members) > 1 else f"{struct}::{members[0]}",
            features=frozenset((struct, member) for member in members),
            given=given,
        )
        for struct, members in sorted(features.items())
    ]


def members(variation: Variation) -> list[Variation]:
    """A variation for each member of a structure; none where it has one only."""
    if len(variation.features) < 2:
        return []
    return [
        Variation(
            aspect=Aspect.FEATURE,
            name=f"{struct}::{member}",
            features=frozenset({(struct, member)}),
            given=variation.given,
        )
        for struct, member in sorted(variation.features)
    ]


def without(features: Mapping[str, Sequence[str]], known: Collection[Feature]) -> dict[str, tuple[str, ...]]:
    """Features by structure, without some of them."""
    left = {
        struct: tuple(member for member in some if (struct, member) not in known)
        for struct, some in features.items()
    }
    return {struct: some for struct, some in left.items() if some}


def in_one_process(found: Surveyed) -> list[Variation]:
    """What is of a device, beside its features: extensions, versions, names."""
    return [
        *(
            Variation(aspect=Aspect.EXTENSION, name=name, extensions=frozenset({name}))
            for name in found.extensions
        ),
        *_versions(found.application),
        *_names(found),
    ]


def in_own_processes(found: Surveyed) -> list[Variation]:
    """What is of a process: the environment, layers, the name of the executable."""
    driver_id = found.identity.driver_id
    return [
        *(
            Variation(aspect=Aspect.ENVIRONMENT, name=name, environment=variables)
            for name, variables in environments(driver_id)
        ),
        *(
            Variation(aspect=Aspect.LAYER, name=layer, environment=layer_environment(layer))
            for layer in found.layers
        ),
        *(
            Variation(aspect=Aspect.EXECUTABLE, name=name, executable=name)
            for name in known_names(driver_id).executables
        ),
    ]


def _versions(base: ApplicationInfo) -> list[Variation]:
    others = [1 << 22 | minor << 12 for minor in _MINORS]
    return [
        Variation(
            aspect=Aspect.API_VERSION,
            name=f"{version >> 22}.{version >> 12 & 0x3FF}"
            + (f".{version & 0xFFF}" if version & 0xFFF else ""),
            application=evolve(base, api_version=version),
        )
        for version in (*others, base.api_version | 1)
        if version != base.api_version
    ]


def _names(found: Surveyed) -> list[Variation]:
    base, known = found.application, known_names(found.identity.driver_id)
    version = f"{_A_VERSION >> 22}.{_A_VERSION >> 12 & 0x3FF}"
    return [
        *(
            Variation(
                aspect=Aspect.APPLICATION_NAME, name=name, application=evolve(base, application_name=name)
            )
            for name in known.applications
        ),
        Variation(
            aspect=Aspect.APPLICATION_VERSION,
            name=version,
            application=evolve(base, application_version=_A_VERSION),
        ),
        *(
            Variation(aspect=Aspect.ENGINE_NAME, name=name, application=evolve(base, engine_name=name))
            for name in known.engines
        ),
        Variation(
            aspect=Aspect.ENGINE_VERSION, name=version, application=evolve(base, engine_version=_A_VERSION)
        ),
    ]
