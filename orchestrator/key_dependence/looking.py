"""The child's side: opens devices one after the other, and looks pipelines up in the caches of baselines.

A problem with one variation becomes an answer, and the next variation follows. At most two devices are open
at a time. Blocking; one thread.
"""

from __future__ import annotations

import hashlib
import os
import time
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
from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    Device,
    PipelineCache,
    PreparedPipelines,
)
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.opening import open_for_child
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
    JobDone,
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
from orchestrator.registry.tables import same_members
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.records import PipelineJob
from orchestrator.sets.sample import sample_path

Request = Job
_HIT: Final = FEEDBACK_VALID | FEEDBACK_APPLICATION_CACHE_HIT


def serve(channel: Channel[Job, Answer]) -> None:
    """Do jobs; `SentError` tells what cannot be done."""
    try:
        with PipelineSet.open(sample_path()) as source:
            for job in channel:
                if isinstance(job, SurveyJob):
                    channel.send(survey(job, source))
                else:
                    looker = _Looker(job, source, channel.send)
                    looker.make() if job.make else looker.look()
                channel.send(JobDone())
    except OrchestratorError as error:
        channel.send(SentError.of(error))


class _Baseline(msgspec.Struct, frozen=True):
    data: bytes
    enabled: frozenset[Feature]


@frozen(eq=False)
class _Bound:
    device: Device
    prepared: PreparedPipelines
    places: tuple[int, ...]  # of the image's pipelines in the group


@define(eq=False)
class _Looker:
    job: LookJob
    source: PipelineSet
    send: Callable[[Answer], None]
    _baselines: dict[tuple[str, frozenset[Feature]], _Baseline | str] = field(factory=dict)

    def make(self) -> None:
        for group in self.job.groups:
            made = self._make(group, frozenset())
            if isinstance(made, str):
                self.send(Untried(number=Control.EMPTY_CACHE, group=group.name, reason=made))
                continue
            self._save(group, frozenset(), made)
            self.send(self._control(group, Control.EMPTY_CACHE, b""))

    def look(self) -> None:
        limit_s, began = self.job.stop_after_s, time.monotonic()
        for number, variation in enumerate(self.job.variations):
            if limit_s is not None and time.monotonic() - began >= limit_s:
                for group in self.job.groups:
                    self.send(Untried(number=number, group=group.name, reason=TIME_IS_UP))
                continue
            self.send(Began(number=number))
            os.environ.update(variation.environment)
            for group in self.job.groups:
                if variation.groups and group.name not in variation.groups:
                    continue
                try:
                    self.send(self._vary(number, variation, group))
                except OrchestratorError as error:
                    self.send(Untried(number=number, group=group.name, reason=str(error)))
        for group in self.job.groups if self.job.controls else ():
            data = self._saved(group, frozenset()).data
            for control, given in ((Control.BASELINE, data), (Control.EMPTY_CACHE, b"")):
                self.send(Began(number=control))
                self.send(self._control(group, control, given))

    def _control(self, group: ProbeGroup, number: Control, data: bytes) -> Answer:
        try:
            with self._opened(self._request(group)) as device, self._bound(group, device) as bound:
                looks = self._looked(group, bound, data)
                identity = self._same_identity(device)
        except OrchestratorError as error:
            return Untried(number=number, group=group.name, reason=str(error))
        return Looked(number=number, group=group.name, looks=looks, identity=identity)

    def _vary(self, number: int, variation: Variation, group: ProbeGroup) -> Answer:
        needed = {canonical(each) for each in variation.given | group.features}
        if variation.features and variation.features <= needed:
            return Untried(number=number, group=group.name, reason=NEEDED)
        found = self._try(number, variation, group)
        usable = self.job.usable.get(group.name, ())
        if isinstance(found, Looked) and any(found.looks[place] is Look.MISS for place in usable):
            # Drivers occasionally miss for no reason. Only a repeated miss shows a dependence.
            again = self._try(number, variation, group)
            if isinstance(again, Looked):
                both = zip(found.looks, again.looks, strict=True)
                looks = tuple(Look.HIT if Look.HIT in (one, other) else one for one, other in both)
                found = replace(found, looks=looks)
        return found

    def _try(self, number: int, variation: Variation, group: ProbeGroup) -> Looked | Untried:
        request = self._request(
            group, variation.given | variation.features, variation.extensions, variation.application
        )
        with self._opened(request) as device:
            baseline = self._baseline_for(variation, group, device)
            if isinstance(baseline, str):
                return Untried(number=number, group=group.name, reason=baseline)
            with self._bound(group, device) as bound:
                looks = self._looked(group, bound, baseline[0].data)
            return Looked(
                number=number,
                group=group.name,
                looks=looks,
                identity=self._same_identity(device),
                prerequisites=tuple(sorted(baseline[1])),
            )

    def _baseline_for(
        self, variation: Variation, group: ProbeGroup, device: Device
    ) -> tuple[_Baseline, frozenset[Feature]] | str:
        # The baseline to compare with, and the prerequisites of the variation's features that it has too, so
        # that both devices differ in the features alone; or why there is none.
        has = device.capabilities
        lacking = in_words(each for each in variation.features if not has.has_feature(*each))
        lacking = lacking or ", ".join(each for each in variation.extensions if not has.has_extension(each))
        if lacking:
            return f"{lacking} cannot be enabled beside the rest"
        if variation.aspect is Aspect.LAYER and variation.name not in device.features.layer_names:
            return "the loader does not activate it"
        baseline = self._baseline(group, variation.given)
        if isinstance(baseline, str) or not variation.features:
            return baseline if isinstance(baseline, str) else (baseline, frozenset())
        ours = {canonical(name) for each in variation.features for name in same_members(*each)}
        prerequisites = features_of(has) - baseline.enabled - ours
        if prerequisites:
            baseline = self._baseline(group, variation.given | prerequisites)
            if isinstance(baseline, str):
                return baseline
            if not prerequisites <= baseline.enabled:
                return f"{in_words(prerequisites - baseline.enabled)} cannot be enabled alone"
        return baseline, prerequisites

    def _same_identity(self, device: Device) -> bool:
        return device.identity.pipeline_cache_uuid.hex() == self.job.pipeline_cache_uuid

    # --- baselines

    def _baseline(self, group: ProbeGroup, more: frozenset[Feature]) -> _Baseline | str:
        key = group.name, more
        if key not in self._baselines:
            if self._path(group, more).exists():
                self._baselines[key] = self._saved(group, more)
            else:
                made = self._baselines[key] = self._make_and_check(group, more)
                if isinstance(made, _Baseline):
                    self._save(group, more, made)
        return self._baselines[key]

    def _make_and_check(self, group: ProbeGroup, more: frozenset[Feature]) -> _Baseline | str:
        made = self._make(group, more)
        if isinstance(made, str):
            return made
        with self._opened(self._request(group, more)) as device, self._bound(group, device) as bound:
            looks = self._looked(group, bound, made.data)
        if any(looks[place] is not Look.HIT for place in self.job.usable.get(group.name, ())):
            return f"with {in_words(more)} the baseline does not hit its own pipelines"
        return made

    def _make(self, group: ProbeGroup, more: frozenset[Feature]) -> _Baseline | str:
        try:
            with (
                self._opened(self._request(group, more)) as device,
                self._bound(group, device) as bound,
                _cache(device, b"") as cache,
            ):
                self._created(bound, cache, forbid=False)
                return _Baseline(device.pipeline_cache_data(cache).data, features_of(device.capabilities))
        except OrchestratorError as error:
            return f"the baseline{f' with {in_words(more)}' if more else ''} cannot be made: {error}"

    def _save(self, group: ProbeGroup, more: frozenset[Feature], made: _Baseline) -> None:
        path = self._path(group, more)  # another process may be making the same
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(msgspec.msgpack.encode(made))
        unfinished.replace(path)

    def _saved(self, group: ProbeGroup, more: frozenset[Feature]) -> _Baseline:
        return msgspec.msgpack.decode(self._path(group, more).read_bytes(), type=_Baseline)

    def _path(self, group: ProbeGroup, more: frozenset[Feature]) -> Path:
        named = hashlib.sha256(in_words(more).encode()).hexdigest()
        return Path(self.job.directory, f"{group.name} {named}.data")

    # --- the device

    def _looked(self, group: ProbeGroup, bound: _Bound, data: bytes) -> tuple[Look, ...]:
        with _cache(bound.device, data) as cache:
            forbid = self.job.cache_control and bound.device.features.compile_required
            found = self._created(bound, cache, forbid=forbid)
        by_place = dict(zip(bound.places, found, strict=True))
        return tuple(by_place.get(place, Look.UNKNOWN) for place in range(len(group.pipelines)))

    def _created(self, bound: _Bound, cache: PipelineCache, *, forbid: bool) -> list[Look]:
        device = bound.device
        indices = np.arange(len(bound.places), dtype=np.int32)
        batch = device.create_pipelines(bound.prepared, indices, cache, fail_on_compile_required=forbid)
        if forbid:
            known = {SUCCESS: Look.HIT, PIPELINE_COMPILE_REQUIRED: Look.MISS}
            return [known.get(result, Look.UNKNOWN) for result in batch.results.tolist()]
        return [
            (Look.HIT if flags & _HIT == _HIT else Look.MISS)
            if device.features.creation_feedback and result == SUCCESS and flags & FEEDBACK_VALID
            else Look.UNKNOWN
            for result, flags in zip(batch.results.tolist(), batch.feedback_flags.tolist(), strict=True)
        ]

    def _opened(self, request: DeviceRequest) -> closing[Device]:
        return closing(open_for_child(self.job.opener, self.job.device, request))

    @contextmanager
    def _bound(self, group: ProbeGroup, device: Device) -> Iterator[_Bound]:
        jobs = [PipelineJob(each.key, PipelineKind(each.kind)) for each in group.pipelines]
        built = build_image(self.source, jobs, device.capabilities)
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


@contextmanager
def _cache(device: Device, data: bytes) -> Iterator[PipelineCache]:
    cache = device.create_pipeline_cache(data, name="look-up")
    try:
        yield cache
    finally:
        device.destroy_pipeline_cache(cache)
