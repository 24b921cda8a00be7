"""The child's side: opens devices one after the other, and looks pipelines up in the caches of baselines.

A child has imported everything, has the images of the pipelines and loads no driver: it does each job in a
fork, and waits for it. A fork takes a tenth of the time of a new interpreter. A problem with one variation
becomes an answer, and the next variation follows. At most two devices are open at a time. Blocking; one
thread.
"""

from __future__ import annotations

import gc
import hashlib
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from attrs import define, field, frozen
from msgspec.structs import replace

from orchestrator.children.protocol import SentError
from orchestrator.children.serving import Channel
from orchestrator.devices import open_for_child
from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    CreationBatch,
    Device,
    DeviceCapabilities,
    PipelineCache,
    PreparedPipelines,
)
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.noise import is_noise
from orchestrator.devices.opening import preload
from orchestrator.devices.request import CACHE_CONTROL, ApplicationInfo, DeviceRequest, Feature, OtherFeatures
from orchestrator.errors import DeviceError, OrchestratorError
from orchestrator.key_dependence.messages import (
    NEEDED,
    TIME_IS_UP,
    Answer,
    Aspect,
    Began,
    Control,
    Job,
    JobEnded,
    Look,
    Looked,
    LookJob,
    ProbeGroup,
    SurveyJob,
    Untried,
    Variation,
    in_words,
)
from orchestrator.key_dependence.survey import canonical, features_of, survey
from orchestrator.registry.tables import AnyDevice, same_members
from orchestrator.sets.image.builder import BuiltImage, build_image
from orchestrator.sets.needs.rules import DeviceAnswers
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob
from orchestrator.sets.sample import sample_path

_READ_SIZE: Final = 1 << 16
_OUTPUT_KEPT: Final = 4096
# In place of a VkResult: the pipeline is not in the image.
_ABSENT: Final = -(1 << 31)


class _Baseline(msgspec.Struct, frozen=True):
    """A baseline: its cache data, its enabled features, and the feedback of each pipeline when cold."""

    data: bytes
    enabled: frozenset[Feature]
    cold: tuple[Look, ...]


@frozen(eq=False)
class _Bound:
    """A group's pipelines on an open device; `places` maps the image's pipelines to those of the group."""

    device: Device
    prepared: PreparedPipelines
    places: tuple[int, ...]


Request = Job

Images = dict[tuple[str, int], BuiltImage]
"""By name of the group and version of the device."""


def serve(channel: Channel[Job, Answer]) -> None:
    """Do jobs, each in a fork; `JobEnded` follows its answers. `SentError` tells what cannot be done."""
    try:
        with PipelineSet.open(sample_path()) as source:
            images: Images = {}
            for job in channel:
                preload(job.opener, job.device)
                if isinstance(job, LookJob):
                    device = AnyDevice(job.application.api_version)
                    for group in job.groups:
                        image_of(images, source, group, device)
                channel.send(_in_fork(job, source, images, channel))
    except OrchestratorError as error:
        channel.send(SentError.of(error))


def image_of(
    images: Images, source: PipelineSet, group: ProbeGroup, capabilities: DeviceCapabilities
) -> BuiltImage:
    """The image of a group's pipelines for a device: one of another device, if that decides all alike."""
    key = group.name, capabilities.api_version
    built = images.get(key)
    if built is None or not DeviceAnswers(capabilities).agrees(built.decisions):
        jobs = [PipelineJob(each.key, PipelineKind(each.kind)) for each in group.pipelines]
        built = images[key] = build_image(source, jobs, capabilities)
    return built


def _in_fork(job: Job, source: PipelineSet, images: Images, channel: Channel[Job, Answer]) -> JobEnded:
    """Do a job in a fork, which sends its answers while this process waits; returns how it ended."""
    ours, theirs = os.pipe()
    gc.freeze()  # so that garbage collection in the fork does not copy shared pages
    fork = os.fork()
    if fork == 0:
        try:
            for stream in (1, 2):
                os.dup2(theirs, stream)
            os.close(theirs)
            channel.forked()
            _do(job, source, images, channel)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a fork must not return into what its parent is doing
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(theirs)
    output = b""
    with os.fdopen(ours, "rb", buffering=0) as printed:
        while data := printed.read(_READ_SIZE):
            output = (output + data)[-_OUTPUT_KEPT:]
    status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
    said = b"".join(each for each in output.splitlines(keepends=True) if not is_noise(each))
    return JobEnded(status, said.decode("utf-8", "replace").strip())


def _do(job: Job, source: PipelineSet, images: Images, channel: Channel[Job, Answer]) -> None:
    try:
        if isinstance(job, SurveyJob):
            channel.send(survey(job, source))
        else:
            looker = _Looker(job, source, images, channel.send)
            looker.make() if job.make else looker.look()
    except OrchestratorError as error:
        channel.send(SentError.of(error))


@define(eq=False)
class _Looker:
    job: LookJob
    source: PipelineSet
    images: Images
    say: Callable[[Answer], None]
    _baselines: dict[tuple[str, frozenset[Feature]], _Baseline | str] = field(factory=dict)

    def make(self) -> None:
        """Fill the caches of the baselines, and report the look-ups in an empty cache."""
        for group in self.job.groups:
            made = self._make(group, frozenset())
            if isinstance(made, str):
                self.say(Untried(number=Control.EMPTY_CACHE, group=group.name, reason=made))
                continue
            self._keep(group, frozenset(), made)
            empty = self._control(group, Control.EMPTY_CACHE, b"")
            if isinstance(empty, Looked):
                empty = replace(empty, feedback=made.cold)
            self.say(empty)

    def look(self) -> None:
        """Try the variations, then the baselines themselves."""
        limit_s = self.job.stop_after_s
        began = time.monotonic()
        for number, variation in enumerate(self.job.variations):
            if limit_s is not None and time.monotonic() - began >= limit_s:
                self._untried(number, TIME_IS_UP)
                continue
            self.say(Began(number=number))
            os.environ.update(variation.environment)
            self._try_groups(number, variation)
        if self.job.controls:
            for group in self.job.groups:
                for control, data in (
                    (Control.BASELINE, self._kept(group).data),
                    (Control.EMPTY_CACHE, b""),
                ):
                    self.say(Began(number=control))
                    self.say(self._control(group, control, data))

    def _untried(self, number: int, reason: str) -> None:
        for group in self.job.groups:
            self.say(Untried(number=number, group=group.name, reason=reason))

    def _try_groups(self, number: int, variation: Variation) -> None:
        for group in self.job.groups:
            if variation.groups and group.name not in variation.groups:
                continue
            try:
                self.say(self._vary(number, variation, group))
            except OrchestratorError as error:
                self.say(Untried(number=number, group=group.name, reason=str(error)))

    def _control(self, group: ProbeGroup, number: Control, data: bytes) -> Answer:
        try:
            with self._opened_for(group, self._request(group)) as bound:
                forbidden, feedback = self._looked(group, bound, data)
        except OrchestratorError as error:
            return Untried(number=number, group=group.name, reason=str(error))
        return Looked(number=number, group=group.name, forbidden=forbidden, feedback=feedback)

    def _vary(self, number: int, variation: Variation, group: ProbeGroup) -> Answer:
        application = variation.application or self.job.application
        given = variation.given | group.features
        if variation.features and variation.features <= {canonical(each) for each in given}:
            return Untried(number=number, group=group.name, reason=NEEDED)
        request = self._request(
            group, variation.given | variation.features, variation.extensions, application
        )
        found = self._try(number, variation, group, request)
        expected = self.job.expected.get(group.name, ())
        if isinstance(found, Looked) and any(
            Look.MISS in (found.forbidden[place], found.feedback[place]) for place in expected
        ):
            # Drivers occasionally miss for no reason. Only a repeated miss shows a dependence.
            again = self._try(number, variation, group, request)
            if isinstance(again, Looked):
                found = replace(
                    found,
                    forbidden=_either(found.forbidden, again.forbidden),
                    feedback=_either(found.feedback, again.feedback),
                )
        return found

    def _try(
        self, number: int, variation: Variation, group: ProbeGroup, request: DeviceRequest
    ) -> Looked | Untried:
        def untried(reason: str) -> Untried:
            return Untried(number=number, group=group.name, reason=reason)

        with self._opened(request) as device:
            has = device.capabilities
            if lacking := [each for each in variation.features if not has.has_feature(*each)]:
                return untried(f"{in_words(lacking)} cannot be enabled beside the rest")
            if lacking_names := [each for each in variation.extensions if not has.has_extension(each)]:
                return untried(f"{', '.join(lacking_names)} cannot be enabled beside the rest")
            if variation.aspect is Aspect.LAYER and variation.name not in device.features.layer_names:
                return untried("the loader does not activate it")
            # The baseline also has the prerequisites of a feature, so that both differ in the feature alone.
            prerequisites: frozenset[Feature] = frozenset()
            if variation.features:
                baseline = self._baseline(group, variation.given)
                if isinstance(baseline, str):
                    return untried(baseline)
                ours = {canonical(name) for each in variation.features for name in same_members(*each)}
                prerequisites = features_of(has) - baseline.enabled - ours
            baseline = self._baseline(group, variation.given | prerequisites)
            if isinstance(baseline, str):
                return untried(baseline)
            if prerequisites and not prerequisites <= baseline.enabled:
                return untried(f"{in_words(prerequisites - baseline.enabled)} cannot be enabled alone")
            with self._bound(group, device) as bound:
                forbidden, feedback = self._looked(group, bound, baseline.data)
            return Looked(
                number=number,
                group=group.name,
                forbidden=forbidden,
                feedback=feedback,
                identity=device.identity.pipeline_cache_uuid.hex() == self.job.pipeline_cache_uuid,
                prerequisites=tuple(sorted(prerequisites)),
            )

    def _baseline(self, group: ProbeGroup, more: frozenset[Feature]) -> _Baseline | str:
        """The baseline with more features, or why there is none."""
        key = group.name, more
        found = self._baselines.get(key)
        if found is None:
            is_kept = self._path(group, more).exists()
            found = self._kept(group, more) if is_kept else self._make_and_check(group, more)
            if not is_kept and isinstance(found, _Baseline):
                self._keep(group, more, found)
            self._baselines[key] = found
        return found

    def _keep(self, group: ProbeGroup, more: frozenset[Feature], made: _Baseline) -> None:
        """Keep a baseline for all processes; another one may be doing the same."""
        path = self._path(group, more)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(msgspec.msgpack.encode(made))
        unfinished.replace(path)

    def _kept(self, group: ProbeGroup, more: frozenset[Feature] = frozenset()) -> _Baseline:
        return msgspec.msgpack.decode(self._path(group, more).read_bytes(), type=_Baseline)

    def _make_and_check(self, group: ProbeGroup, more: frozenset[Feature]) -> _Baseline | str:
        """Make a baseline that is to be kept: a second device must hit in its cache."""
        made = self._make(group, more)
        if isinstance(made, str):
            return made
        with self._opened_for(group, self._request(group, more)) as bound:
            forbidden, feedback = self._looked(group, bound, made.data)
        for place in self.job.expected.get(group.name, ()):
            if Look.HIT not in (forbidden[place], feedback[place]):
                return f"with {in_words(more)} the baseline does not hit its own pipelines"
        return made

    def _make(self, group: ProbeGroup, more: frozenset[Feature]) -> _Baseline | str:
        try:
            with self._opened_for(group, self._request(group, more)) as bound:
                device = bound.device
                cache = device.create_pipeline_cache(name="baseline")
                try:
                    cold = self._created(group, bound, cache, forbid=False)
                    data = device.pipeline_cache_data(cache).data
                finally:
                    device.destroy_pipeline_cache(cache)
                return _Baseline(data, features_of(device.capabilities), _feedback(cold, device))
        except OrchestratorError as error:
            return f"the baseline{f' with {in_words(more)}' if more else ''} cannot be made: {error}"

    def _looked(
        self, group: ProbeGroup, bound: _Bound, data: bytes
    ) -> tuple[tuple[Look, ...], tuple[Look, ...]]:
        """Look up the pipelines of a group in both ways: compiling forbidden, and feedback."""
        device = bound.device
        cache = device.create_pipeline_cache(data, name="look-up")
        try:
            if not (self.job.cache_control and device.features.compile_required):
                batch = self._created(group, bound, cache, forbid=False)
                return (Look.UNKNOWN,) * len(group.pipelines), _feedback(batch, device)
            batch = self._created(group, bound, cache, forbid=True)
            forbidden = tuple(map(_forbidden, batch.results.tolist()))
            feedback = _feedback(batch, device)
            if Look.MISS in forbidden and device.features.creation_feedback:
                # A pipeline that was not created has no feedback, so create it.
                created = _feedback(self._created(group, bound, cache, forbid=False), device)
                feedback = tuple(
                    second if look is Look.MISS else first
                    for look, first, second in zip(forbidden, feedback, created, strict=True)
                )
            return forbidden, feedback
        finally:
            device.destroy_pipeline_cache(cache)

    def _created(
        self, group: ProbeGroup, bound: _Bound, cache: PipelineCache, *, forbid: bool
    ) -> CreationBatch:
        """Create all pipelines of a group; results are in the group's order."""
        count = len(bound.places)
        made = bound.device.create_pipelines(
            bound.prepared, np.arange(count, dtype=np.int32), cache, fail_on_compile_required=forbid
        )
        size = len(group.pipelines)
        batch = CreationBatch(
            results=np.full(size, _ABSENT, np.int32),
            feedback_flags=np.zeros(size, np.uint32),
            durations_ns=np.zeros(size, np.uint64),
            handles=np.zeros(size, np.uint64),
        )
        places = np.array(bound.places, np.int64)
        batch.results[places] = made.results
        batch.feedback_flags[places] = made.feedback_flags
        return batch

    @contextmanager
    def _opened_for(self, group: ProbeGroup, request: DeviceRequest) -> Iterator[_Bound]:
        with self._opened(request) as device, self._bound(group, device) as bound:
            yield bound

    def _opened(self, request: DeviceRequest) -> closing[Device]:
        return closing(open_for_child(self.job.opener, self.job.device, request))

    @contextmanager
    def _bound(self, group: ProbeGroup, device: Device) -> Iterator[_Bound]:
        """Prepare the pipelines of a group that the device supports."""
        built = image_of(self.images, self.source, group, device.capabilities)
        if not len(built.image):
            reason = built.problems[0].reason if built.problems else "there are none"
            raise DeviceError(f"the device supports none of the pipelines: {reason}")
        place_of = {(each.kind, each.key): place for place, each in enumerate(group.pipelines)}
        places = tuple(
            place_of[built.image.kind_of(index).value, int(built.image.keys[index])]
            for index in range(len(built.image))
        )
        with closing(device.prepare(built.image)) as prepared:
            yield _Bound(device, prepared, places)

    def _request(
        self,
        group: ProbeGroup,
        more: frozenset[Feature] = frozenset(),
        extensions: frozenset[str] = frozenset(),
        application: ApplicationInfo | None = None,
    ) -> DeviceRequest:
        own = {CACHE_CONTROL} if self.job.cache_control else set()
        return DeviceRequest(
            application or self.job.application,
            group.features | more | own,
            group.extensions | extensions,
            OtherFeatures.NONE,
            orchestrator_features=False,
        )

    def _path(self, group: ProbeGroup, more: frozenset[Feature]) -> Path:
        named = hashlib.sha256(in_words(more).encode()).hexdigest()
        return Path(self.job.directory, f"{group.name} {named}.data")


def _forbidden(result: int) -> Look:
    """The look-up result for a VkResult with compiling forbidden; other errors leave it unknown."""
    if result == SUCCESS:
        return Look.HIT
    return Look.MISS if result == PIPELINE_COMPILE_REQUIRED else Look.UNKNOWN


def _feedback(batch: CreationBatch, device: Device) -> tuple[Look, ...]:
    if not device.features.creation_feedback:
        return (Look.UNKNOWN,) * len(batch.results)
    return tuple(
        Look.UNKNOWN
        if result != SUCCESS or not flags & FEEDBACK_VALID
        else (Look.HIT if flags & FEEDBACK_APPLICATION_CACHE_HIT else Look.MISS)
        for result, flags in zip(batch.results.tolist(), batch.feedback_flags.tolist(), strict=True)
    )


def _either(first: tuple[Look, ...], second: tuple[Look, ...]) -> tuple[Look, ...]:
    """HIT where either of two look-ups hit, else the first."""
    return tuple(
        Look.HIT if Look.HIT in (one, other) else one for one, other in zip(first, second, strict=True)
    )
