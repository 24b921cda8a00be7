"""Which pipelines of the sample set are looked up, and on which baseline devices.

Three baselines: one with no feature at all, for compute and for graphics pipelines that need none; one with what graphics
pipelines of all stages and pipeline libraries need; one with ray tracing and mesh shaders. A feature that one of them cannot be
without is tried on the others.

Guarantees: pure functions of a set and of what a device could have.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from attrs import frozen

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.devices.request import BASE_FEATURES, Feature
from orchestrator.key_dependence.messages import ProbeGroup, ProbeKind, ProbePipeline
from orchestrator.registry import registry
from orchestrator.registry.tables import FEATURES_ROOT, is_collection, same_members
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.jobs import PipelineJob
from orchestrator.sets.needs.requirements import Needs
from orchestrator.sets.pipeline_set import PipelineSet

_LIBRARY: Final = "VK_KHR_pipeline_library"
_EACH: Final = 2
_EACH_COMPUTE: Final = 4
_DYNAMIC_RENDERING: Final = ("VkPhysicalDeviceDynamicRenderingFeatures", "dynamicRendering")
_GROUPS: Final[tuple[tuple[str, frozenset[Feature]], ...]] = (
    ("least", frozenset()),
    (
        "graphics",
        frozenset(
            {
                _DYNAMIC_RENDERING,
                (BASE_FEATURES, "samplerAnisotropy"),
                (BASE_FEATURES, "geometryShader"),
                (BASE_FEATURES, "tessellationShader"),
                ("VkPhysicalDeviceGraphicsPipelineLibraryFeaturesEXT", "graphicsPipelineLibrary"),
            }
        ),
    ),
    (
        "ray tracing",
        frozenset(
            {
                _DYNAMIC_RENDERING,
                ("VkPhysicalDeviceRayTracingPipelineFeaturesKHR", "rayTracingPipeline"),
                ("VkPhysicalDeviceMeshShaderFeaturesEXT", "taskShader"),
                ("VkPhysicalDeviceMeshShaderFeaturesEXT", "meshShader"),
            }
        ),
    ),
)


@frozen
class Probes:
    """What `choose_probes` found.

    Attributes:
        groups: The groups that have pipelines.
        left_out: Pipelines that the device lacks something for, by what it lacks.
    """

    groups: tuple[ProbeGroup, ...]
    left_out: dict[str, int]


def choose_probes(source: PipelineSet, supported: DeviceCapabilities) -> Probes:
    """Choose a few pipelines of each kind.

    Args:
        source: The set to choose from.
        supported: What the device could have.
    """
    taken: dict[tuple[int, PipelineKind, frozenset[Feature], bool], list[PipelineJob]] = {}
    modules: set[tuple[object, ...]] = set()
    needs_of: dict[PipelineJob, Needs] = {}
    left_out: dict[str, int] = {}
    for job in source.pipelines:
        built = build_image(source, [job], supported)
        if built.problems:
            reason = built.problems[0].reason
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        image = built.image
        links = bool(image.libraries_of(len(image) - 1))
        if _LIBRARY in built.needs.extensions and not links:
            continue  # a library comes with what links it
        features = frozenset(map(canonical, built.needs.features))
        place = next((number for number, (_, may) in enumerate(_GROUPS) if features <= may), None)
        if place is None:
            continue
        chosen = taken.setdefault((place, job.kind, features, links), [])
        # Of pipelines with the same code one is as good as the other: what is wanted is other code.
        code = (place, features, tuple(image.modules[each].key for each in image.modules_of(len(image) - 1)))
        most = _EACH_COMPUTE if job.kind is PipelineKind.COMPUTE else _EACH
        if len(chosen) < most and (links or code not in modules):
            modules.add(code)
            chosen.append(job)
            needs_of[job] = built.needs
    groups = []
    for number, (name, _) in enumerate(_GROUPS):
        jobs = [job for (place, *_), some in taken.items() if place == number for job in some]
        if not jobs:
            continue
        built = build_image(source, jobs, supported)
        groups.append(
            ProbeGroup(
                name=name,
                features=frozenset(canonical(each) for job in jobs for each in needs_of[job].features),
                extensions=frozenset(each for job in jobs for each in needs_of[job].extensions),
                pipelines=tuple(_probe(built.image, index) for index in range(len(built.image))),
            )
        )
    return Probes(tuple(groups), left_out)


def _probe(image: CreateInfoImage, index: int) -> ProbePipeline:
    kind = image.kind_of(index)
    probe = ProbeKind(kind.value.replace("_", " "))
    if kind is PipelineKind.GRAPHICS and (bool(image.is_library[index]) or image.libraries_of(index)):
        probe = ProbeKind.LIBRARY
    return ProbePipeline(int(image.keys[index]), kind.value, probe)


@lru_cache(maxsize=4096)
def canonical(feature: Feature) -> Feature:
    """The one name of a feature here: that of the extension's structure, where there is one."""
    return next((name for name in same_members(*feature) if not is_collection(name[0])), feature)


@lru_cache(maxsize=1)
def all_features() -> tuple[Feature, ...]:
    """Every feature that the registry knows, once."""
    structs = [
        BASE_FEATURES,
        *(each.name for each in registry().structs.values() if FEATURES_ROOT in each.extends),
    ]
    return tuple(
        dict.fromkeys(
            canonical((struct, member.name))
            for struct in structs
            for member in registry().struct(struct).members
            if member.type == "VkBool32"
        )
    )


def features_of(capabilities: DeviceCapabilities) -> frozenset[Feature]:
    """The features that a device has, or has enabled, each by its one name."""
    return frozenset(each for each in all_features() if capabilities.has_feature(*each))
