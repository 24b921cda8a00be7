"""The child's side: opens devices one after the other, and looks pipelines up in the caches of baselines.

A problem becomes the job's answer. At most two devices are open at a time. Blocking; one thread.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from attrs import define
from msgspec.structs import replace

from orchestrator.children.protocol import SentError
from orchestrator.children.serving import Channel
from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    Device,
    PipelineCache,
)
from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.devices.opening import open_for_child
from orchestrator.devices.request import CACHE_CONTROL, ApplicationInfo, DeviceRequest, Feature, OtherFeatures
from orchestrator.errors import DeviceError, OrchestratorError
from orchestrator.key_dependence.messages import (
    NEEDED,
    Answer,
    Aspect,
    Job,
    Look,
    Looked,
    LookJob,
    ProbeGroup,
    SurveyJob,
    Variation,
    in_words,
)
from orchestrator.key_dependence.survey import canonical, features_of, survey
from orchestrator.registry.tables import same_members
from orchestrator.sets.answers import AskedDevice, DeviceAnswer, changed_answer
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.built import BuiltImage
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob
from orchestrator.sets.sample import sample_path

Request = Job
_NONE: Final[frozenset[Feature]] = frozenset()


def serve(channel: Channel[Job, Answer]) -> None:
    """Do jobs; `SentError` tells what cannot be done."""
    try:
        with PipelineSet.open(sample_path()) as source:
            images = _Images(source)
            for job in channel:
                channel.send(
                    survey(job, source) if isinstance(job, SurveyJob) else _Looker(job, images).answer()
                )
    except OrchestratorError as error:
        channel.send(SentError.of(error))


class _Images:
    """The images of groups, each as it was last built: devices mostly differ in nothing that it asks."""

    def __init__(self, source: PipelineSet) -> None:
        self._source = source
        self._built: dict[str, tuple[tuple[DeviceAnswer, ...], BuiltImage]] = {}

    def of(self, group: ProbeGroup, device: Device) -> CreateInfoImage:
        answers, built = self._built.get(group.name, ((), None))
        if built is None or changed_answer(device, answers):
            jobs = [PipelineJob(each.key, PipelineKind(each.kind)) for each in group.pipelines]
            asked = AskedDevice(device)
            built = build_image(self._source, jobs, asked.capabilities)
            self._built[group.name] = asked.answers, built
        if not len(built.image):
            reason = built.problems[0].reason if built.problems else "there are none"
            raise DeviceError(f"the device supports none of the pipelines: {reason}")
        return built.image


class _Baseline(msgspec.Struct, frozen=True):
    data: bytes
    enabled: frozenset[Feature]
    problem: str = ""  # why it cannot be used


@define(eq=False)
class _Looker:
    job: LookJob
    images: _Images

    def answer(self) -> Looked:
        try:
            if self.job.variation is not None:
                return self._vary(self.job.variation)
            return self._make() if self.job.make else self._look_at_baseline()
        except OrchestratorError as error:
            return Looked(reason=str(error))

    def _make(self) -> Looked:
        self._save(_NONE, self._filled(_NONE))
        with self._opened() as device:
            return Looked(in_empty=self._looks(device, b""))

    def _look_at_baseline(self) -> Looked:
        with self._opened() as device:
            looks = self._looks(device, self._baseline(_NONE).data)
            identity = self._same_identity(device)
        with self._opened() as device:  # the other one may have kept what it loaded
            in_empty = self._looks(device, b"")
        return Looked(looks=looks, in_empty=in_empty, identity=identity)

    def _vary(self, variation: Variation) -> Looked:
        needed = {canonical(each) for each in variation.given | self.job.group.features}
        if variation.features and variation.features <= needed:
            return Looked(reason=NEEDED)
        found = self._try(variation)
        if any(found.looks[place] is Look.MISS for place in self.job.usable):
            # Drivers occasionally miss for no reason. Only a repeated miss shows a dependence.
            again = zip(found.looks, self._try(variation).looks, strict=True)
            looks = tuple(Look.HIT if Look.HIT in (one, other) else one for one, other in again)
            found = replace(found, looks=looks)
        return found

    def _try(self, variation: Variation) -> Looked:
        features = variation.given | variation.features
        with self._opened(features, variation.extensions, variation.application) as device:
            self._check(variation, device)
            baseline = self._baseline(variation.given)
            prerequisites = _NONE
            if variation.features:
                # Both devices differ in the variation's features alone, so the baseline has what they need.
                ours = {canonical(name) for each in variation.features for name in same_members(*each)}
                prerequisites = features_of(device.capabilities) - baseline.enabled - ours
            if prerequisites:
                baseline = self._baseline(variation.given | prerequisites)
                if lacking := prerequisites - baseline.enabled:
                    raise DeviceError(f"{in_words(lacking)} cannot be enabled alone")
            return Looked(
                looks=self._looks(device, baseline.data),
                identity=self._same_identity(device),
                prerequisites=tuple(sorted(prerequisites)),
            )

    def _check(self, variation: Variation, device: Device) -> None:
        has = device.capabilities
        lacking = in_words(each for each in variation.features if not has.has_feature(*each))
        lacking = lacking or ", ".join(each for each in variation.extensions if not has.has_extension(each))
        if lacking:
            raise DeviceError(f"{lacking} cannot be enabled beside the rest")
        if variation.aspect is Aspect.LAYER and variation.name not in device.features.layer_names:
            raise DeviceError("the loader does not activate it")

    def _same_identity(self, device: Device) -> bool:
        return device.identity.pipeline_cache_uuid.hex() == self.job.pipeline_cache_uuid

    # --- baselines

    def _baseline(self, more: frozenset[Feature]) -> _Baseline:
        path = self._path(more)
        if not path.exists():
            self._save(more, self._filled_and_checked(more))
        found = msgspec.msgpack.decode(path.read_bytes(), type=_Baseline)
        if found.problem:
            raise DeviceError(found.problem)
        return found

    def _filled_and_checked(self, more: frozenset[Feature]) -> _Baseline:
        try:
            made = self._filled(more)
        except OrchestratorError as error:
            return _Baseline(b"", _NONE, str(error))
        with self._opened(more) as device:
            looks = self._looks(device, made.data)
        if any(looks[place] is not Look.HIT for place in self.job.usable):
            problem = f"with {in_words(more)} the baseline does not hit its own pipelines"
            return _Baseline(b"", _NONE, problem)
        return made

    def _filled(self, more: frozenset[Feature]) -> _Baseline:
        try:
            with self._opened(more) as device, self._created(device, b"", forbid=False) as (cache, _):
                return _Baseline(device.pipeline_cache_data(cache).data, features_of(device.capabilities))
        except OrchestratorError as error:
            beside = f" with {in_words(more)}" if more else ""
            raise DeviceError(f"the baseline{beside} cannot be made: {error}") from error

    def _save(self, more: frozenset[Feature], made: _Baseline) -> None:
        path = self._path(more)  # another process may be making the same
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(msgspec.msgpack.encode(made))
        unfinished.replace(path)

    def _path(self, more: frozenset[Feature]) -> Path:
        named = hashlib.sha256(in_words(more).encode()).hexdigest()
        return Path(self.job.directory, f"{self.job.group.name} {named}.data")

    # --- the device

    def _looks(self, device: Device, data: bytes) -> tuple[Look, ...]:
        forbid = self.job.cache_control and device.features.compile_required
        with self._created(device, data, forbid=forbid) as (_, looks):
            return looks

    @contextmanager
    def _created(
        self, device: Device, data: bytes, *, forbid: bool
    ) -> Iterator[tuple[PipelineCache, tuple[Look, ...]]]:
        """Create the group's pipelines with a cache that has these data."""
        image = self.images.of(self.job.group, device)
        cache = device.create_pipeline_cache(data, name="look-up")
        try:
            with closing(device.prepare(image)) as prepared:
                indices = np.arange(len(image), dtype=np.int32)
                batch = device.create_pipelines(prepared, indices, cache, fail_on_compile_required=forbid)
            tells = forbid or device.features.creation_feedback
            looks = {
                (image.kind_of(index).value, int(image.keys[index])): _look(*outcome, forbid=forbid)
                for index, outcome in enumerate(
                    zip(batch.results.tolist(), batch.feedback_flags.tolist(), strict=True)
                )
                if tells
            }
            yield (
                cache,
                tuple(looks.get((each.kind, each.key), Look.UNKNOWN) for each in self.job.group.pipelines),
            )
        finally:
            device.destroy_pipeline_cache(cache)

    def _opened(
        self,
        features: frozenset[Feature] = _NONE,
        extensions: frozenset[str] = frozenset(),
        application: ApplicationInfo | None = None,
    ) -> closing[Device]:
        own = {CACHE_CONTROL} if self.job.cache_control else set()
        request = DeviceRequest(
            application or self.job.application,
            self.job.group.features | features | own,
            self.job.group.extensions | extensions,
            OtherFeatures.NONE,
            orchestrator_features=False,
        )
        return closing(open_for_child(self.job.opener, self.job.device, request))


def _look(result: int, flags: int, *, forbid: bool) -> Look:
    if forbid:
        return {SUCCESS: Look.HIT, PIPELINE_COMPILE_REQUIRED: Look.MISS}.get(result, Look.UNKNOWN)
    if result != SUCCESS or not flags & FEEDBACK_VALID:
        return Look.UNKNOWN
    return Look.HIT if flags & FEEDBACK_APPLICATION_CACHE_HIT else Look.MISS
