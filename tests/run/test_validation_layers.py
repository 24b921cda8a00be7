"""Every call of ours is valid: sets under the Khronos validation layer, in every cache mode.

Each set is compiled from nothing in each mode that changes its create infos. Some sets are so in every mode,
and once more from the cache file that this left, with rolling merges; then cache files are merged and
statistics are asked for. The layer checks parameters, object lifetimes up to the end of device and instance,
and the threads that use an object. It must say nothing but what the two tables here expect:

- FALSE_ALARMS: what the layer says only because it is older than what it watches. The newer one of
  Debian 13 says none of it.
- FAULTS_OF_SETS: what captured sets do wrong themselves. They are recorded so, drivers take them, and the
  program does not correct what an application does. Their numbers are exact: one more would be ours.

An entry that no run needs any more fails, so that the tables stay true for the versions
of the layer that they name.

Left out: the sets that crash the driver; and the one whose compute shaders take RADV 55 s, which has no
structure that the others do not have (run by hand, the layer had nothing to say about it).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import define, field, frozen

from orchestrator.devices.device import CacheMode
from orchestrator.run.options import NO_WORKER_CACHES
from tests.drivers import CORPORA, Corpus, unsupported
from tests.run.validation_layer import LAYER, LayeredRun, Message, ValidationLayer, run_layered

pytestmark = pytest.mark.driver

SELECTOR: Final = "radv:navi21"
OLD: Final = "1.3.239"
NEW: Final = "1.4.309"
BOTH: Final = (OLD, NEW)
SAMPLE: Final = "sample"
WARM_SETS: Final = ("supertuxkart", "sascha_rt", SAMPLE)
SETS: Final = (*(each.name for each in CORPORA if not each.crashes and not each.slow), SAMPLE)
# In other modes, the calls of these are given other caches, whatever the set.
CHANGING_MODES: Final = (CacheMode.PER_WORKER, CacheMode.TWO_LEVEL, CacheMode.BINARIES)
RUNS: Final = tuple(
    (name, mode) for name in SETS for mode in CacheMode if name in WARM_SETS or mode in CHANGING_MODES
)
_MODULE: Final = re.compile(r"VkShaderModule (0x[0-9a-f]+)")


@frozen
class FalseAlarm:
    """What a layer says without a fault.

    Attributes:
        id: VUID, or the layer's own name of the message.
        text: A regular expression that the rest of the message must match somewhere.
        why: Why it is no fault.
        layers: Versions of the layer that say it.
        follows: The id of another message, without which this one is no false alarm: of
            the same shader module.
        modes: Cache modes in which it is one; empty for all.
    """

    id: str
    text: str
    why: str
    layers: tuple[str, ...] = (OLD,)
    follows: str = ""
    modes: tuple[CacheMode, ...] = ()


@frozen
class FaultOfSets:
    """What captured sets do wrong.

    Attributes:
        id: VUID, or the layer's own name of the message.
        text: A regular expression that the rest of the message must match somewhere.
        why: What is wrong, and who did it.
        layers: Versions of the layer that find it.
        counts: How often in which set.
    """

    id: str
    text: str
    why: str
    layers: tuple[str, ...]
    counts: Mapping[str, int]


FALSE_ALARMS: Final = (
    FalseAlarm(
        "VUID_Undefined",
        r"Device Extension VK_\w+ is not supported by this layer",
        "The extension is newer than the layer. A recorded device had it, so it is enabled.",
    ),
    FalseAlarm(
        "UNASSIGNED-CoreValidation-Shader-InconsistentSpirv",
        r"SPIR-V module not valid: Invalid source language operand: 11\s",
        "OpSource names Slang, a source language that the layer's SPIR-V tools do not know.",
    ),
    FalseAlarm(
        "UNASSIGNED-CoreValidation-Shader-InconsistentSpirv",
        r"SPIR-V module not valid: Invalid capability operand: 5336\s",
        "RayTracingPositionFetchKHR, of VK_KHR_ray_tracing_position_fetch, is newer than the layer.",
    ),
    FalseAlarm(
        "VUID-VkPipelineShaderStageCreateInfo-module-parameter",
        r"does not contain valid spirv for stage \w+\. Invalid source language operand: 11\s",
        "As above, at the pipeline: Slang is a language newer than the layer.",
    ),
    FalseAlarm(
        "VUID-VkPipelineShaderStageCreateInfo-pSpecializationInfo-06849",
        r"attempted to apply specialization constants with spirv-opt but failed",
        "spirv-opt cannot read the module, because of Slang's number in OpSource.",
        follows="VUID-VkPipelineShaderStageCreateInfo-module-parameter",
    ),
    FalseAlarm(
        "VUID-VkShaderModuleCreateInfo-pCode-01090",
        r"A SPIR-V Capability \(Unhandled OpCapability\) was declared",
        "A capability without a name in the layer is newer than it: RayTracingPositionFetchKHR.",
    ),
    FalseAlarm(
        "VUID-VkShaderModuleCreateInfo-pCode-04146",
        r"A SPIR-V Extension \(SPV_KHR_ray_tracing_position_fetch\) was declared",
        "Of VK_KHR_ray_tracing_position_fetch, which is newer than the layer.",
    ),
)
"""What a version of the layer says without a fault."""

_MERGED_IN_USE: Final = FalseAlarm(
    "UNASSIGNED-Threading-MultipleThreads",
    r"object of type VkPipelineCache is simultaneously used",
    "VK_PIPELINE_CACHE_CREATE_INTERNALLY_SYNCHRONIZED_MERGE_BIT_KHR allows merges into a cache in use.",
    modes=(CacheMode.TWO_LEVEL,),
)
OF_MAINTENANCE8: Final = (
    FalseAlarm(
        "VUID-VkPipelineCacheCreateInfo-flags-parameter",
        r"pCreateInfo->flags contains flag bits that are not recognized",
        "VK_PIPELINE_CACHE_CREATE_INTERNALLY_SYNCHRONIZED_MERGE_BIT_KHR is newer than the layer.",
        modes=(CacheMode.TWO_LEVEL,),
    ),
    _MERGED_IN_USE,
)
"""What the layer says of mode two-level with VK_KHR_maintenance8, which no captured application enabled.

Whether a merge meets a look-up depends on the clock, so no run has to show it: a test of its own does.
"""

FAULTS_OF_SETS: Final = (
    FaultOfSets(
        "UNASSIGNED-CoreValidation-Shader-InputNotProduced",
        r"(fragment|geometry) shader consumes input location \d\.\d which is not written by vertex shader",
        "The sets put vertex shaders together with shaders that were not made for them.",
        (OLD,),
        {"sascha": 48, "sascha_mismatch": 584},
    ),
    FaultOfSets(
        "VUID-RuntimeSpirv-OpEntryPoint-08743",
        r"not an Output declared in|not declared as an Output",
        "The newer layer's name for the same.",
        (NEW,),
        {"sascha": 48, "sascha_mismatch": 584},
    ),
    FaultOfSets(
        "UNASSIGNED-CoreValidation-Shader-InterfaceTypeMismatch",
        r"Type mismatch on location \d\.\d, between vertex shader and fragment shader",
        "The types of what the stages hand on differ, for the same reason.",
        (OLD,),
        {"sascha": 8, "sascha_mismatch": 7},
    ),
    FaultOfSets(
        "VUID-RuntimeSpirv-OpEntryPoint-07754",
        r"Type mismatch",
        "The newer layer's name for the same.",
        (NEW,),
        {"sascha": 8, "sascha_mismatch": 7},
    ),
    FaultOfSets(
        "VUID-VkDescriptorSetLayoutBinding-descriptorType-01510",
        r"VK_DESCRIPTOR_TYPE_INPUT_ATTACHMENT",
        "Recorded set layouts give input attachments to all stages instead of the fragment stage.",
        BOTH,
        {"sascha": 8, "sascha_mismatch": 1},
    ),
    FaultOfSets(
        "VUID-VkGraphicsPipelineCreateInfo-renderPass-06038",
        r"input attachment index \d but pSubpasses\[\d\]\.pInputAttachments is",
        "Fragment shaders read input attachments; the recorded render passes have none.",
        BOTH,
        {"sascha": 27, "sascha_mismatch": 3},
    ),
    FaultOfSets(
        "VUID-VkGraphicsPipelineCreateInfo-pStages-00736",
        r"VK_PRIMITIVE_TOPOLOGY_PATCH_LIST",
        "Recorded pipelines with tessellation name the topology of triangles.",
        (OLD,),
        {"sascha": 18},
    ),
    FaultOfSets(
        "VUID-VkGraphicsPipelineCreateInfo-pStages-08888",
        r"VK_PRIMITIVE_TOPOLOGY_PATCH_LIST",
        "The newer layer's name for the same.",
        (NEW,),
        {"sascha": 18},
    ),
    FaultOfSets(
        "VUID-VkShaderModuleCreateInfo-pCode-08737",
        r"operand ShaderViewportIndex\(70\) requires SPIR-V version 1\.5 or later",
        "A module declares a capability of SPIR-V 1.5 in SPIR-V of an earlier version.",
        (NEW,),
        {"sascha": 1},
    ),
)
"""What captured sets do wrong themselves."""

OF_IDENTIFIERS: Final = tuple(
    FalseAlarm(
        name,
        text,
        "The layer does not count the stages of a library whose modules are identifiers, so what links it "
        "seems to have none. In the library itself it takes them for what they are.",
    )
    for name, text in (
        (
            "VUID-VkGraphicsPipelineCreateInfo-pStages-06896",
            r"contains pre-raster state, but stages \(Unhandled VkShaderStageFlagBits\) does not contain any",
        ),
        ("VUID-VkGraphicsPipelineCreateInfo-stage-02096", r"State: Vertex Shader or Mesh Shader required"),
    )
)
"""What the older layer says of links of libraries that were made of identifiers."""


@define
class Verdict:
    """What the tables say to the messages of one run.

    Attributes:
        unexpected: Messages that no entry is about.
        alarms: Entries of `FALSE_ALARMS` that some message needs.
        faults: Number of messages by entry of `FAULTS_OF_SETS`.
    """

    unexpected: list[Message] = field(factory=list)
    alarms: set[FalseAlarm] = field(factory=set)
    faults: Counter[str] = field(factory=Counter)

    @classmethod
    def of(
        cls,
        run: LayeredRun,
        version: str,
        set_name: str = "",
        mode: CacheMode | None = None,
        more: tuple[FalseAlarm, ...] = (),
    ) -> Verdict:
        """Look up all messages of a run.

        Args:
            run: The run.
            version: Of the layer. All entries count for one that the tables do not name.
            set_name: Which set was compiled, or "" for none.
            mode: The cache mode, or None where it has none.
            more: False alarms of this kind of run alone.
        """
        verdict = cls()
        alarms = [
            each
            for each in (*FALSE_ALARMS, *OF_MAINTENANCE8, *more)
            if applies(each.layers, version) and (not each.modes or mode in each.modes)
        ]
        faults = [
            each for each in FAULTS_OF_SETS if applies(each.layers, version) and set_name in each.counts
        ]
        for message in run.messages:
            alarm = next((each for each in alarms if is_about(each, message, run)), None)
            fault = next((each for each in faults if says(each, message)), None)
            if alarm is not None:
                verdict.alarms.add(alarm)
            elif fault is not None:
                verdict.faults[fault.id] += 1
            else:
                verdict.unexpected.append(message)
        return verdict


def applies(layers: tuple[str, ...], version: str) -> bool:
    """Whether an entry is about a version of the layer."""
    return version in layers or version not in BOTH


def says(entry: FalseAlarm | FaultOfSets, message: Message) -> bool:
    """Whether a message has the id and the text of an entry."""
    return message.id == entry.id and re.search(entry.text, message.text) is not None


def is_about(alarm: FalseAlarm, message: Message, run: LayeredRun) -> bool:
    """Whether an entry is about a message of a run."""
    if not says(alarm, message):
        return False
    module = _MODULE.search(message.text)
    return not alarm.follows or (
        module is not None
        and any(each.id == alarm.follows and f"{module[0]}[" in each.text for each in run.messages)
    )


def listed(messages: Iterable[Message]) -> str:
    """Messages for a failed test: how often each id, and the first of each in full."""
    messages = list(messages)
    first = {each.id: each for each in reversed(messages)}
    counts = Counter(each.id for each in messages)
    return "\n".join(f"{count} x {first[name]}" for name, count in counts.most_common())


@define
class LayeredRuns:
    """The runs of this module, each made when it is first asked for.

    Attributes:
        layer: The layer.
        folder: Where their files go.
    """

    layer: ValidationLayer
    folder: Path
    _done: dict[tuple[str, CacheMode, bool], LayeredRun] = field(factory=dict)

    def compiled(self, name: str, mode: CacheMode, *, warm: bool = False) -> LayeredRun:
        """Compile a set in a process of its own, from nothing or from what an earlier run left.

        Args:
            name: One of `SETS`.
            mode: The cache mode.
            warm: Load the cache file of the cold run, and merge on the way where the mode merges.
        """
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

    def verdict(self, name: str, mode: CacheMode, *, warm: bool = False) -> Verdict:
        """What the tables say to a run."""
        return Verdict.of(self.compiled(name, mode, warm=warm), self.layer.version, name, mode)


def compiling(name: str) -> list[str]:
    """Arguments of an interpreter that compiles a set of `SETS`; what a test is about comes behind them."""
    # The older layer hands its own handles to vkGetPipelineKeyKHR, a command that it does not know.
    return [
        *("-m", "orchestrator", "compile", set_path(name), "--device", SELECTOR, "--json"),
        *("--workers", "2", "--pipeline-keys", "off"),
    ]


def set_path(name: str) -> str:
    """What the command line calls a set of `SETS`; skips the test where it is absent."""
    return name if name == SAMPLE else str(corpus_of(name).path)


def corpus_of(name: str) -> Corpus:
    """The captured set of a name."""
    return next(each for each in CORPORA if each.name == name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> LayeredRuns:
    """The runs of this module."""
    return LayeredRuns(ValidationLayer.find(), tmp_path_factory.mktemp("layers"))


def modes_under(version: str) -> list[CacheMode]:
    """The modes that a version of the layer lets through: an older one hides binaries (`keys_withheld`)."""
    knows = tuple(map(int, version.split(".")[:3])) >= (1, 3, 294)
    return [each for each in CacheMode if knows or each is not CacheMode.BINARIES]


def check(runs: LayeredRuns, name: str, mode: CacheMode, *, warm: bool) -> dict[str, Any]:
    """A run ends well and the layer says nothing unexpected; returns the run's document."""
    if mode not in modes_under(runs.layer.version):
        unsupported(f"layer {runs.layer.version} does not know VK_KHR_pipeline_binary")
    document = runs.compiled(name, mode, warm=warm).document()
    # What says nothing may not have run.
    assert f"{LAYER} {runs.layer.version}" in document["device"]["features"]["layers"]
    verdict = runs.verdict(name, mode, warm=warm)
    assert not verdict.unexpected, listed(verdict.unexpected)
    if runs.layer.version in BOTH:
        for fault in FAULTS_OF_SETS:
            expected = fault.counts.get(name, 0) if runs.layer.version in fault.layers else 0
            # Where two levels look something up in vain, a batch is asked for, then each alone, then it is
            # compiled. How many look-ups come after a merge is up to the clock.
            most = 3 * expected if mode is CacheMode.TWO_LEVEL else expected
            assert expected <= verdict.faults[fault.id] <= most, (fault.id, expected, verdict.faults)
    return document


@pytest.mark.parametrize(("name", "mode"), RUNS, ids=[f"{name}-{mode.value}" for name, mode in RUNS])
def test_the_layer_finds_no_fault_of_ours(runs: LayeredRuns, name: str, mode: CacheMode) -> None:
    outcomes = check(runs, name, mode, warm=False)["outcomes"]
    assert outcomes["failed"] == 0
    least = 235 if name == SAMPLE else corpus_of(name).created_radv
    assert least is not None
    assert outcomes["compiled"] + outcomes["cache_hits"] >= least


@pytest.mark.parametrize(
    "mode", [each for each in CacheMode if each is not CacheMode.NONE], ids=lambda mode: mode.value
)
@pytest.mark.parametrize("name", WARM_SETS)
def test_the_layer_finds_no_fault_in_a_warm_run_that_merges_on_the_way(
    runs: LayeredRuns, name: str, mode: CacheMode
) -> None:
    document = check(runs, name, mode, warm=True)
    # Libraries without code have no binaries; what they hold is made again.
    without_code = 4 if (name, mode) == (SAMPLE, CacheMode.BINARIES) else 0
    assert document["outcomes"]["compiled"] == without_code
    assert document["outcomes"]["failed"] == 0
    assert document["outcomes"]["cache_hits"] > 0


def test_the_layer_finds_no_fault_where_cache_files_are_merged(runs: LayeredRuns, tmp_path: Path) -> None:
    modes = (CacheMode.SHARED, CacheMode.PER_WORKER)
    for mode in modes:
        runs.compiled(SAMPLE, mode).document()
    files = [str(path) for mode in modes for path in runs.cache_folder(SAMPLE, mode).glob("*.pipeline-cache")]
    assert len(files) == len(modes)
    output = tmp_path / "all.pipeline-cache"
    arguments = ["merge", *files, "--output", str(output), "--device", SELECTOR, "--json"]
    run = run_layered(runs.layer, SELECTOR, tmp_path / "log", ["-m", "orchestrator", *arguments])
    run.document()
    assert output.stat().st_size > 0
    verdict = Verdict.of(run, runs.layer.version)
    assert not verdict.unexpected, listed(verdict.unexpected)


def test_the_layer_finds_no_fault_where_pipelines_are_created_from_identifiers(
    runs: LayeredRuns, tmp_path: Path
) -> None:
    """The sample has libraries, ray tracing and mesh shaders: from nothing, all found, and none of them.

    What links a library that was made of identifiers is then compiled, with the library
    made again of its code.
    """
    cache = tmp_path / "cache"
    arguments = [*compiling(SAMPLE), "--identifiers", "--mode", "shared", "--cache-dir", str(cache)]

    alarms: set[FalseAlarm] = set()

    def compiled(name: str) -> dict[str, Any]:
        run = run_layered(runs.layer, SELECTOR, tmp_path / name, arguments)
        document = run.document()
        verdict = Verdict.of(run, runs.layer.version, SAMPLE, CacheMode.SHARED, OF_IDENTIFIERS)
        assert not verdict.unexpected, listed(verdict.unexpected)
        alarms.update(verdict.alarms)
        assert document["outcomes"]["failed"] == 0
        return document

    first = compiled("cold")["identifiers"]
    assert "known" not in first
    assert first["missed"] > 100
    second = compiled("warm")["identifiers"]
    assert second["created"] > 200
    assert "missed" not in second
    # With its identifiers but nothing in the cache every one is missed, libraries and links too.
    for each in cache.glob("*.pipeline-cache"):
        each.unlink()
    third = compiled("nothing in the cache")["identifiers"]
    assert third["missed"] > 100
    assert "unknown" not in third
    assert alarms.issuperset(OF_IDENTIFIERS) == (runs.layer.version == OLD)


def test_every_entry_of_the_tables_is_needed(runs: LayeredRuns) -> None:
    version = runs.layer.version
    if version not in BOTH:
        unsupported(f"the tables are about {' and '.join(BOTH)} of the layer; this is {version}")
    needed: set[FalseAlarm] = set()
    faults: Counter[tuple[str, str]] = Counter()
    for name, mode in RUNS:
        if mode in modes_under(version):
            verdict = runs.verdict(name, mode)
            needed |= verdict.alarms
            faults.update((fault, name) for fault in verdict.faults)
    idle = [
        f"{each.id}: {each.text}" for each in FALSE_ALARMS if version in each.layers and each not in needed
    ]
    assert not idle, f"no run of layer {version} needs these entries any more: {idle}"
    # Their numbers are exact in every run, so an idle one fails there already.
    assert set(faults) == {
        (each.id, name) for each in FAULTS_OF_SETS if version in each.layers for name in each.counts
    }


_WITH_A_DEVICE: Final = """
import threading
import numpy as np
from orchestrator.devices.vulkan import context as module
from orchestrator.devices.opening import open_device
from orchestrator.devices.device import NO_SOURCE
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.vulkan.context import HostMemory
from orchestrator.sets.sample import sample_path
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet


class InterruptedMemory(HostMemory):
    interruption = None

    def _allocate(self, *arguments):
        # In the middle of a driver call, on its thread.
        interruption, InterruptedMemory.interruption = InterruptedMemory.interruption, None
        if interruption is not None:
            interruption()
        return super()._allocate(*arguments)


module.HostMemory = InterruptedMemory
maintenance8 = "VkPhysicalDeviceMaintenance8FeaturesKHR", "maintenance8"
request = DeviceRequest(features=frozenset({maintenance8}))
device = open_device("radv:navi21", request=request, count_host_memory=True)
with PipelineSet.open(sample_path()) as source:
    image = build_image(source, source.pipelines[:1], device.capabilities).image
prepared = device.prepare(image)

"""


def with_a_device(runs: LayeredRuns, folder: Path, body: str) -> LayeredRun:
    """A process that opens a device and does something with it."""
    run = run_layered(runs.layer, SELECTOR, folder, ["-c", f"{_WITH_A_DEVICE}{body}\ndevice.close()\n"])
    assert run.returncode == 0, run.stderr
    return run


def merged_in_use(runs: LayeredRuns, folder: Path, how: str) -> LayeredRun:
    """A process that merges into a cache while another thread compiles with it, which we would refuse."""
    body = f"""
from orchestrator.devices.device import PipelineCache
PipelineCache.begin_use = PipelineCache.end_use = lambda *_, **__: None
cache = device.create_pipeline_cache({how})
other = device.create_pipeline_cache()
thread = threading.Thread(target=device.merge_pipeline_caches, args=[cache, [other]])
InterruptedMemory.interruption = lambda: (thread.start(), thread.join(60.0))
device.create_pipelines(prepared, np.array([0], np.int32), cache)
assert thread.ident is not None and not thread.is_alive()
"""
    return with_a_device(runs, folder, body)


def test_the_layer_would_find_what_is_not_destroyed(runs: LayeredRuns, tmp_path: Path) -> None:
    run = with_a_device(
        runs, tmp_path, "device.create_pipelines(prepared, np.array([0], np.int32), NO_SOURCE, keep=True)"
    )
    (found,) = Verdict.of(run, runs.layer.version).unexpected
    # One rule under two numbers: of the older layer and of the newer one.
    assert found.id in ("VUID-vkDestroyDevice-device-00378", "VUID-vkDestroyDevice-device-05137")
    assert "VkPipeline " in found.text


def test_the_layer_would_find_two_threads_at_one_cache(runs: LayeredRuns, tmp_path: Path) -> None:
    if runs.layer.version != OLD:
        unsupported(f"layer {runs.layer.version} does not watch the caches of vkMergePipelineCaches")
    (found,) = Verdict.of(merged_in_use(runs, tmp_path, ""), OLD).unexpected
    assert says(_MERGED_IN_USE, found)


def test_merging_into_a_cache_that_allows_it_is_a_false_alarm(runs: LayeredRuns, tmp_path: Path) -> None:
    run = merged_in_use(runs, tmp_path, "internally_synchronized_merge=True")
    verdict = Verdict.of(run, runs.layer.version, mode=CacheMode.TWO_LEVEL)
    assert not verdict.unexpected, listed(verdict.unexpected)
    assert set(OF_MAINTENANCE8) & verdict.alarms == {
        each for each in OF_MAINTENANCE8 if runs.layer.version in each.layers
    }


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
    verdict = Verdict.of(run, runs.layer.version)
    assert not verdict.unexpected, listed(verdict.unexpected)
