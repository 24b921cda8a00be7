"""Every call of ours is valid: sets under the Khronos validation layer.

Each set is compiled from nothing, some in every cache mode and once more from the cache file that this left,
with rolling merges; then cache files are merged and identifiers are used. The layer checks parameters, object
lifetimes up to the end of device and instance, and the threads that use an object. It must say nothing but
what the tables here expect: FALSE_ALARMS, which it raises only because it is older than what it watches, and
FAULTS_OF_SETS, which captured sets have themselves and drivers take. The numbers of these are exact: one more
would be ours.

Left out: the sets that crash the driver; and the one whose compute shaders take RADV 55 s, which has no
structure that the others do not have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import define, field, frozen

from orchestrator.devices.modes import CacheMode
from orchestrator.run.options import NO_WORKER_CACHES
from tests.drivers import CORPORA, unsupported
from tests.run.validation_layer import LAYER, LayeredRun, Message, ValidationLayer, run_layered

pytestmark = pytest.mark.driver

SELECTOR: Final = "radv:navi21"
OLD: Final = "1.3.239"
NEW: Final = "1.4.309"
BOTH: Final = (OLD, NEW)
SAMPLE: Final = "sample"
CAPTURED: Final = {each.name: each for each in CORPORA if not each.crashes and not each.slow}
MODES_OF: Final = {"supertuxkart": tuple(CacheMode), SAMPLE: (CacheMode.PER_WORKER, CacheMode.BINARIES)}
"""All modes with a few pipelines; with all kinds of pipelines those that create them in different ways."""
RUNS: Final = tuple(
    (name, mode) for name in (*CAPTURED, SAMPLE) for mode in MODES_OF.get(name, (CacheMode.PER_WORKER,))
)
WARM_RUNS: Final = tuple(
    (name, mode) for name, modes in MODES_OF.items() for mode in modes if mode is not CacheMode.NONE
)
_MODULE: Final = re.compile(r"VkShaderModule (0x[0-9a-f]+)")


@frozen(eq=False)
class Entry:
    """What a layer is expected to say."""

    id: str  # VUID, or the layer's own name of the message
    text: str  # a regular expression that the rest of the message must match somewhere
    why: str
    layers: tuple[str, ...] = (OLD,)  # versions that say it
    counts: Mapping[str, int] = field(factory=dict)  # by set; empty for a false alarm, raised in any
    follows: str = ""  # the id of another message of the same module, without which this one is none
    mode: CacheMode | None = None  # the only one in which it is said

    def is_about(self, message: Message, run: LayeredRun) -> bool:
        if message.id != self.id or re.search(self.text, message.text) is None:
            return False
        module = _MODULE.search(message.text)
        return not self.follows or any(
            module is not None and each.id == self.follows and f"{module[0]}[" in each.text
            for each in run.messages
        )


_NEWER: Final = "The number of Slang, a source language, or a capability newer than the layer."
FALSE_ALARMS: Final = (
    Entry(
        "VUID_Undefined",
        r"Device Extension VK_\w+ is not supported by this layer",
        "The extension is newer than the layer. A recorded device had it, so it is enabled.",
    ),
    Entry(
        "UNASSIGNED-CoreValidation-Shader-InconsistentSpirv",
        r"SPIR-V module not valid: Invalid source language operand: 11\s",
        _NEWER,
    ),
    Entry(
        "UNASSIGNED-CoreValidation-Shader-InconsistentSpirv",
        r"SPIR-V module not valid: Invalid capability operand: 5336\s",
        _NEWER,
    ),
    Entry(
        "VUID-VkPipelineShaderStageCreateInfo-module-parameter",
        r"does not contain valid spirv for stage \w+\. Invalid source language operand: 11\s",
        _NEWER,
    ),
    Entry(
        "VUID-VkPipelineShaderStageCreateInfo-pSpecializationInfo-06849",
        r"attempted to apply specialization constants with spirv-opt but failed",
        "spirv-opt cannot read the module, because of Slang's number in OpSource.",
        follows="VUID-VkPipelineShaderStageCreateInfo-module-parameter",
    ),
    Entry(
        "VUID-VkShaderModuleCreateInfo-pCode-01090",
        r"A SPIR-V Capability \(Unhandled OpCapability\) was declared",
        _NEWER,
    ),
    Entry(
        "VUID-VkShaderModuleCreateInfo-pCode-04146",
        r"A SPIR-V Extension \(SPV_KHR_ray_tracing_position_fetch\) was declared",
        _NEWER,
    ),
)
"""What a version of the layer says without a fault."""

_MERGED_IN_USE: Final = Entry(
    "UNASSIGNED-Threading-MultipleThreads",
    r"object of type VkPipelineCache is simultaneously used",
    "VK_PIPELINE_CACHE_CREATE_INTERNALLY_SYNCHRONIZED_MERGE_BIT_KHR allows merges into a cache in use.",
    mode=CacheMode.TWO_LEVEL,
)
OF_MAINTENANCE8: Final = (
    Entry(
        "VUID-VkPipelineCacheCreateInfo-flags-parameter",
        r"pCreateInfo->flags contains flag bits that are not recognized",
        "VK_PIPELINE_CACHE_CREATE_INTERNALLY_SYNCHRONIZED_MERGE_BIT_KHR is newer than the layer.",
        mode=CacheMode.TWO_LEVEL,
    ),
    _MERGED_IN_USE,
)
"""What the layer says of mode two-level with VK_KHR_maintenance8; whether it does depends on the clock."""

OF_IDENTIFIERS: Final = tuple(
    Entry(name, text, "The layer does not count the stages of a library whose modules are identifiers.")
    for name, text in (
        (
            "VUID-VkGraphicsPipelineCreateInfo-pStages-06896",
            r"contains pre-raster state, but stages \(Unhandled VkShaderStageFlagBits\) does not contain any",
        ),
        ("VUID-VkGraphicsPipelineCreateInfo-stage-02096", r"State: Vertex Shader or Mesh Shader required"),
    )
)
"""What the older layer says of links of libraries that were made of identifiers."""

_MISMATCH: Final = "The sets put vertex shaders together with shaders that were not made for them."
_PATCHES: Final = "Recorded pipelines with tessellation name the topology of triangles."
FAULTS_OF_SETS: Final = (
    Entry(
        "UNASSIGNED-CoreValidation-Shader-InputNotProduced",
        r"(fragment|geometry) shader consumes input location \d\.\d which is not written by vertex shader",
        _MISMATCH,
        (OLD,),
        {"sascha": 48, "sascha_mismatch": 584},
    ),
    Entry(
        "VUID-RuntimeSpirv-OpEntryPoint-08743",
        r"not an Output declared in|not declared as an Output",
        _MISMATCH,
        (NEW,),
        {"sascha": 48, "sascha_mismatch": 584},
    ),
    Entry(
        "UNASSIGNED-CoreValidation-Shader-InterfaceTypeMismatch",
        r"Type mismatch on location \d\.\d, between vertex shader and fragment shader",
        _MISMATCH,
        (OLD,),
        {"sascha": 8, "sascha_mismatch": 7},
    ),
    Entry(
        "VUID-RuntimeSpirv-OpEntryPoint-07754",
        r"Type mismatch",
        _MISMATCH,
        (NEW,),
        {"sascha": 8, "sascha_mismatch": 7},
    ),
    Entry(
        "VUID-VkDescriptorSetLayoutBinding-descriptorType-01510",
        r"VK_DESCRIPTOR_TYPE_INPUT_ATTACHMENT",
        "Recorded set layouts give input attachments to all stages instead of the fragment stage.",
        BOTH,
        {"sascha": 8, "sascha_mismatch": 1},
    ),
    Entry(
        "VUID-VkGraphicsPipelineCreateInfo-renderPass-06038",
        r"input attachment index \d but pSubpasses\[\d\]\.pInputAttachments is",
        "Fragment shaders read input attachments; the recorded render passes have none.",
        BOTH,
        {"sascha": 27, "sascha_mismatch": 3},
    ),
    Entry(
        "VUID-VkGraphicsPipelineCreateInfo-pStages-00736",
        r"VK_PRIMITIVE_TOPOLOGY_PATCH_LIST",
        _PATCHES,
        (OLD,),
        {"sascha": 18},
    ),
    Entry(
        "VUID-VkGraphicsPipelineCreateInfo-pStages-08888",
        r"VK_PRIMITIVE_TOPOLOGY_PATCH_LIST",
        _PATCHES,
        (NEW,),
        {"sascha": 18},
    ),
    Entry(
        "VUID-VkShaderModuleCreateInfo-pCode-08737",
        r"operand ShaderViewportIndex\(70\) requires SPIR-V version 1\.5 or later",
        "A module declares a capability of SPIR-V 1.5 in SPIR-V of an earlier version.",
        (NEW,),
        {"sascha": 1},
    ),
)
"""What captured sets do wrong themselves."""


def judged(
    run: LayeredRun,
    version: str,
    set_name: str = "",
    mode: CacheMode | None = None,
    more: tuple[Entry, ...] = (),
) -> tuple[Counter[Entry], list[Message]]:
    """How many messages of a run each entry expects, and those that none does.

    All entries count for a version of the layer that the tables do not name.
    """
    entries = [
        each
        for each in (*FALSE_ALARMS, *OF_MAINTENANCE8, *more, *FAULTS_OF_SETS)
        if (version in each.layers or version not in BOTH)
        and (each.mode in (None, mode))
        and (not each.counts or set_name in each.counts)
    ]
    found: Counter[Entry] = Counter()
    strange = []
    for message in run.messages:
        entry = next((each for each in entries if each.is_about(message, run)), None)
        if entry is None:
            strange.append(message)
        else:
            found[entry] += 1
    return found, strange


def sorted_out(run: LayeredRun, version: str, *given: Any, **named: Any) -> Counter[Entry]:
    """As `judged`, of a run whose messages are all expected."""
    found, strange = judged(run, version, *given, **named)
    assert not strange, listed(strange)
    return found


def listed(messages: Iterable[Message]) -> str:
    """Messages for a failed test: how often each id, and the first of each in full."""
    messages = list(messages)
    first = {each.id: each for each in reversed(messages)}
    counts = Counter(each.id for each in messages)
    return "\n".join(f"{count} x {first[name]}" for name, count in counts.most_common())


@define
class LayeredRuns:
    """The runs of this module, each made when it is first asked for."""

    layer: ValidationLayer
    folder: Path
    _done: dict[tuple[str, CacheMode, bool], LayeredRun] = field(factory=dict)

    def compiled(self, name: str, mode: CacheMode, *, warm: bool = False) -> LayeredRun:
        """Compile a set in a process of its own: from nothing, or warm from what an earlier run left."""
        key = (name, mode, warm)
        if key not in self._done:
            if warm:
                self.compiled(name, mode)
            arguments = [*compiling(name), "--mode", mode.value, "--in-process"]
            if warm and mode not in NO_WORKER_CACHES:
                arguments += ["--merge", "rolling"]
            arguments += ["--cache-dir", str(self.cache_folder(name, mode))]
            folder = self.folder / f"{name}-{mode.value}{'-warm' if warm else ''}"
            self._done[key] = run_layered(self.layer, SELECTOR, folder, arguments)
        return self._done[key]

    def cache_folder(self, name: str, mode: CacheMode) -> Path:
        """Where the runs of a set and a mode keep their cache file."""
        return self.folder / f"{name}-{mode.value}-cache"

    def knows(self, mode: CacheMode) -> bool:
        """Whether the layer lets a mode through: an older one hides binaries (`keys_withheld`)."""
        is_new = tuple(map(int, self.layer.version.split(".")[:3])) >= (1, 3, 294)
        return is_new or mode is not CacheMode.BINARIES


def compiling(name: str) -> list[str]:
    """Arguments of an interpreter that compiles a set; what a test is about comes behind them."""
    # The older layer hands its own handles to vkGetPipelineKeyKHR, a command that it does not know.
    path = name if name == SAMPLE else str(CAPTURED[name].path)
    return [
        *("-m", "orchestrator", "compile", path, "--device", SELECTOR, "--json"),
        *("--workers", "2", "--pipeline-keys", "off"),
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> LayeredRuns:
    return LayeredRuns(ValidationLayer.find(), tmp_path_factory.mktemp("layers"))


def check(runs: LayeredRuns, name: str, mode: CacheMode, *, warm: bool) -> dict[str, Any]:
    """A run ends well and the layer says nothing unexpected; returns how many pipelines had which outcome."""
    version = runs.layer.version
    if not runs.knows(mode):
        unsupported(f"layer {version} does not know VK_KHR_pipeline_binary")
    run = runs.compiled(name, mode, warm=warm)
    document = run.document()
    # What says nothing may not have run.
    assert f"{LAYER} {version}" in document["device"]["features"]["layers"]
    found = sorted_out(run, version, name, mode)
    for fault in FAULTS_OF_SETS if version in BOTH else ():
        expected = fault.counts.get(name, 0) if version in fault.layers else 0
        assert found[fault] == expected, (fault.id, expected, found[fault])
    outcomes: dict[str, Any] = document["outcomes"]
    assert outcomes["failed"] == 0
    return outcomes


@pytest.mark.parametrize(("name", "mode"), RUNS, ids=[f"{name}-{mode.value}" for name, mode in RUNS])
def test_the_layer_finds_no_fault_of_ours(runs: LayeredRuns, name: str, mode: CacheMode) -> None:
    outcomes = check(runs, name, mode, warm=False)
    least = 235 if name == SAMPLE else CAPTURED[name].created_radv
    assert least is not None
    assert outcomes["compiled"] + outcomes["cache_hits"] >= least


@pytest.mark.parametrize(
    ("name", "mode"), WARM_RUNS, ids=[f"{name}-{mode.value}" for name, mode in WARM_RUNS]
)
def test_the_layer_finds_no_fault_in_a_warm_run_that_merges_on_the_way(
    runs: LayeredRuns, name: str, mode: CacheMode
) -> None:
    outcomes = check(runs, name, mode, warm=True)
    # Libraries without code have no binaries; what they hold is made again.
    assert outcomes["compiled"] == (4 if (name, mode) == (SAMPLE, CacheMode.BINARIES) else 0)
    assert outcomes["cache_hits"] > 0


def test_the_layer_finds_no_fault_where_cache_files_are_merged(runs: LayeredRuns, tmp_path: Path) -> None:
    names = ("supertuxkart", SAMPLE)
    for name in names:
        runs.compiled(name, CacheMode.PER_WORKER).document()
    folders = [runs.cache_folder(name, CacheMode.PER_WORKER) for name in names]
    files = [str(path) for folder in folders for path in folder.glob("*.pipeline-cache")]
    assert len(files) == len(names)
    output = tmp_path / "all.pipeline-cache"
    arguments = ["merge", *files, "--output", str(output), "--device", SELECTOR, "--json"]
    run = run_layered(runs.layer, SELECTOR, tmp_path / "log", ["-m", "orchestrator", *arguments])
    run.document()
    assert output.stat().st_size > 0
    sorted_out(run, runs.layer.version)


def test_the_layer_finds_no_fault_where_pipelines_are_created_from_identifiers(
    runs: LayeredRuns, tmp_path: Path
) -> None:
    """The sample has libraries, ray tracing and mesh shaders: from nothing, all found, and none of them.

    What links a library that was made of identifiers is then compiled, with the library made again of its
    code.
    """
    cache = tmp_path / "cache"
    arguments = [*compiling(SAMPLE), "--identifiers", "--mode", "shared", "--cache-dir", str(cache)]
    arguments += ["--shard", "1/2"]
    alarms: Counter[Entry] = Counter()

    def compiled(name: str) -> dict[str, Any]:
        run = run_layered(runs.layer, SELECTOR, tmp_path / name, arguments)
        alarms.update(sorted_out(run, runs.layer.version, SAMPLE, CacheMode.SHARED, OF_IDENTIFIERS))
        document = run.document()
        assert document["outcomes"]["failed"] == 0
        used: dict[str, Any] = document["identifiers"]
        return used

    first = compiled("cold")
    assert "known" not in first
    assert first["missed"] > 50
    second = compiled("warm")
    assert second["created"] > 100
    assert "missed" not in second
    # With its identifiers but nothing in the cache every one is missed, libraries and links too.
    for each in cache.glob("*.pipeline-cache"):
        each.unlink()
    third = compiled("nothing in the cache")
    assert third["missed"] > 50
    assert "unknown" not in third
    assert all(alarms[each] for each in OF_IDENTIFIERS) == (runs.layer.version == OLD)


_LEFT_BEHIND: Final = """
import numpy as np
from orchestrator.devices.device import NO_SOURCE
from orchestrator.devices.opening import open_device
from orchestrator.sets.sample import sample_path
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
device = open_device("radv:navi21")
with PipelineSet.open(sample_path()) as source:
    image = build_image(source, source.pipelines[:1], device.capabilities).image
prepared = device.prepare(image)
device.create_pipelines(prepared, np.array([0], np.int32), NO_SOURCE, keep=True)
device.close()
"""


def test_the_layer_would_find_what_is_not_destroyed(runs: LayeredRuns, tmp_path: Path) -> None:
    run = run_layered(runs.layer, SELECTOR, tmp_path, ["-c", _LEFT_BEHIND])
    assert run.returncode == 0, run.stderr
    _, (found,) = judged(run, runs.layer.version)
    # One rule under two numbers: of the older layer and of the newer one.
    assert found.id in ("VUID-vkDestroyDevice-device-00378", "VUID-vkDestroyDevice-device-05137")
    assert "VkPipeline " in found.text


def test_devices_are_valid_of_every_version_and_with_any_features(runs: LayeredRuns, tmp_path: Path) -> None:
    source = """
import itertools
from orchestrator.devices.opening import open_device
from orchestrator.devices.request import ApplicationInfo, DeviceRequest, OtherFeatures
for minor, others, own in itertools.product(range(5), OtherFeatures, (True, False)):
    application = ApplicationInfo(api_version=1 << 22 | minor << 12)
    request = DeviceRequest(application, others=others, orchestrator_features=own)
    open_device("radv:navi21", request=request).close()
# Ray tracing depends on descriptor indexing, which a version stands for.
traced = {("VkPhysicalDeviceRayTracingPipelineFeaturesKHR", "rayTracingPipeline")}
for minor, more in itertools.product((1, 2, 3), (
    ("VkPhysicalDeviceScalarBlockLayoutFeatures", "scalarBlockLayout"),
    ("VkPhysicalDeviceShaderDrawParametersFeatures", "shaderDrawParameters"),
)):
    application = ApplicationInfo(api_version=1 << 22 | minor << 12)
    request = DeviceRequest(application, frozenset({*traced, more}), others=OtherFeatures.NONE)
    open_device("radv:navi21", request=request).close()
"""
    run = run_layered(runs.layer, SELECTOR, tmp_path, ["-c", source])
    assert run.returncode == 0, run.stderr
    sorted_out(run, runs.layer.version)


def test_what_a_host_took_ends_with_the_device_of_the_session(runs: LayeredRuns, tmp_path: Path) -> None:
    source = f"""
from orchestrator import session
with session("sample", {SELECTOR!r}, cache={str(tmp_path / "cache")!r}, workers=1) as loading:
    loading.submit().result()
    assert loading.take()
"""
    run = run_layered(runs.layer, SELECTOR, tmp_path / "log", ["-c", source])
    assert run.returncode == 0, run.stderr
    sorted_out(run, runs.layer.version, SAMPLE)
