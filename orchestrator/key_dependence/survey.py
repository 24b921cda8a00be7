"""Finds what can be tried on a device: probe pipelines of the sample set, features, extensions and layers.

Three groups of pipelines have one baseline each: without any feature, for compute and simple graphics
pipelines; with the features of graphics pipelines of all stages and of pipeline libraries; with ray tracing
and mesh shaders. A feature that one group needs is tried with the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from typing import Final

from orchestrator.devices.device import Device, DeviceCapabilities
from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.devices.opening import list_layers, open_for_child
from orchestrator.devices.request import (
    BASE_FEATURES,
    CACHE_CONTROL,
    ApplicationInfo,
    DeviceRequest,
    Feature,
    OtherFeatures,
)
from orchestrator.key_dependence.messages import ProbeGroup, ProbeKind, ProbePipeline, Surveyed, SurveyJob
from orchestrator.registry import registry
from orchestrator.registry.tables import FEATURES_ROOT, NEWEST_VERSION, is_collection, same_members
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.built import Needs
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob

_PATCH: Final = 0xFFF
_LIBRARY: Final = "VK_KHR_pipeline_library"
_DYNAMIC_RENDERING: Final = ("VkPhysicalDeviceDynamicRenderingFeatures", "dynamicRendering")
_GROUPS: Final[dict[str, frozenset[Feature]]] = {
    "least": frozenset(),
    "graphics": frozenset(
        {
            _DYNAMIC_RENDERING,
            (BASE_FEATURES, "samplerAnisotropy"),
            (BASE_FEATURES, "geometryShader"),
            (BASE_FEATURES, "tessellationShader"),
            ("VkPhysicalDeviceGraphicsPipelineLibraryFeaturesEXT", "graphicsPipelineLibrary"),
        }
    ),
    "ray tracing": frozenset(
        {
            _DYNAMIC_RENDERING,
            ("VkPhysicalDeviceRayTracingPipelineFeaturesKHR", "rayTracingPipeline"),
            ("VkPhysicalDeviceMeshShaderFeaturesEXT", "taskShader"),
            ("VkPhysicalDeviceMeshShaderFeaturesEXT", "meshShader"),
        }
    ),
}
"""Features that the pipelines of a group may need; a pipeline is in the first group that has its own."""
_EACH: Final = {PipelineKind.COMPUTE: 4, PipelineKind.GRAPHICS: 2, PipelineKind.RAY_TRACING: 2}
"""Pipelines of a kind with the same features."""
_ALIKE: Final = 4
"""Of pipelines with the same code only so many are looked at alone: it takes milliseconds each."""


def survey(job: SurveyJob, source: PipelineSet) -> Surveyed:
    """Find what can be tried on a device with the sample set; OrchestratorError if it cannot be opened."""
    with closing(_opened(job)) as device:
        supported = device.supported
        groups, left_out = _choose_probes(source, supported)
        names = [
            name
            for name, known in registry().extensions.items()
            if known.device and supported.has_extension(name)
        ]
        with closing(_opened(job, names)) as other:
            alone = {each for each in names if other.capabilities.has_extension(each)}
        layers = () if job.opener else list_layers(job.device)
        active = device.features.layer_names
        return Surveyed(
            identity=device.identity,
            application=ApplicationInfo(
                api_version=min(device.capabilities.api_version & ~_PATCH, NEWEST_VERSION)
            ),
            groups=groups,
            features=tuple(each for each in all_features() if supported.has_feature(*each)),
            extensions=tuple(name for name in names if name in alone),
            extensions_not_alone=tuple(name for name in names if name not in alone),
            layers=tuple(each for each in layers if each not in active),
            layers_active=tuple(each for each in layers if each in active),
            feedback=device.features.creation_feedback,
            cache_control=supported.has_feature(*CACHE_CONTROL),
            left_out=left_out,
        )


def _opened(job: SurveyJob, extensions: Iterable[str] = ()) -> Device:
    """Open the device without any feature."""
    request = DeviceRequest(
        extensions=frozenset(extensions), others=OtherFeatures.NONE, orchestrator_features=False
    )
    return open_for_child(job.opener, job.device, request)


def _choose_probes(
    source: PipelineSet, supported: DeviceCapabilities
) -> tuple[tuple[ProbeGroup, ...], dict[str, int]]:
    """Choose a few pipelines of each kind; also the numbers of unsupported pipelines by reason."""
    whole = build_image(source, source.pipelines, supported)
    image = whole.image
    alike: Counter[tuple[object, ...]] = Counter()
    seen: set[tuple[object, ...]] = set()
    taken: dict[tuple[str, PipelineKind, frozenset[Feature], bool], list[tuple[PipelineJob, Needs]]] = {}
    for index in range(len(image)):
        job = PipelineJob(int(image.keys[index]), image.kind_of(index))
        links = bool(image.libraries_of(index))
        modules = tuple(image.modules[each].key for each in image.modules_of(index))
        alike[modules, links] += 1
        if alike[modules, links] > _ALIKE:
            continue
        needs = build_image(source, [job], supported).needs
        features = frozenset(map(canonical, needs.features))
        group = next((name for name, may in _GROUPS.items() if features <= may), None)
        if group is None or (_LIBRARY in needs.extensions and not links):
            continue  # linked pipelines bring their libraries
        chosen = taken.setdefault((group, job.kind, features, links), [])
        code = (group, features, modules)  # probes should differ in it
        if len(chosen) < _EACH[job.kind] and (links or code not in seen):
            seen.add(code)
            chosen.append((job, needs))
    groups = []
    for name in _GROUPS:
        probes = [probe for (group, *_), some in taken.items() if group == name for probe in some]
        if not probes:
            continue
        image = build_image(source, [job for job, _ in probes], supported).image
        groups.append(
            ProbeGroup(
                name=name,
                features=frozenset(canonical(each) for _, needs in probes for each in needs.features),
                extensions=frozenset(each for _, needs in probes for each in needs.extensions),
                pipelines=tuple(_probe(image, index) for index in range(len(image))),
            )
        )
    return tuple(groups), dict(Counter(each.reason for each in whole.problems))


def _probe(image: CreateInfoImage, index: int) -> ProbePipeline:
    kind = image.kind_of(index)
    probe = ProbeKind(kind.value.replace("_", " "))
    if kind is PipelineKind.GRAPHICS and (bool(image.is_library[index]) or image.libraries_of(index)):
        probe = ProbeKind.LIBRARY
    return ProbePipeline(int(image.keys[index]), kind.value, probe)


@cache
def canonical(feature: Feature) -> Feature:
    """The canonical name of a feature: that of the extension's structure, if there is one."""
    return next((name for name in same_members(*feature) if not is_collection(name[0])), feature)


@cache
def all_features() -> tuple[Feature, ...]:
    """All features of the registry, by canonical name."""
    extending = (each.name for each in registry().structs.values() if FEATURES_ROOT in each.extends)
    members = (
        canonical((struct, member.name))
        for struct in (BASE_FEATURES, *extending)
        for member in registry().struct(struct).members
        if member.type == "VkBool32"
    )
    return tuple(dict.fromkeys(members))


def features_of(capabilities: DeviceCapabilities) -> frozenset[Feature]:
    """The features in a device's capabilities, by canonical name."""
    return frozenset(each for each in all_features() if capabilities.has_feature(*each))
