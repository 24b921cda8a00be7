"""The bisection: tries variations in order, distributes them over processes, and makes the profile.

    survey ─> baseline without the orchestrator's features ─> these features, by feedback
           ─> baseline that can forbid compiling, if that does not change keys
           ─> structures, extensions, versions, names, environment ─> members of structures that matter
           ─> with each feature that matters, all that do not matter alone ─> structures ─> members

Blocking. Writes temporary files only.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from queue import LifoQueue
from typing import Final, TypeVar

from attrs import define, field, frozen
from msgspec.structs import replace

from orchestrator.children.parent import ChildGroup
from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.request import CACHE_CONTROL, ORCHESTRATOR_FEATURES, Feature
from orchestrator.key_dependence.judging import Verdict, judge
from orchestrator.key_dependence.messages import (
    Aspect,
    Look,
    Looked,
    LookJob,
    ProbeGroup,
    ProbeKind,
    Surveyed,
    SurveyJob,
    Variation,
    in_words,
)
from orchestrator.key_dependence.processes import KeyDependenceError, Prober
from orchestrator.key_dependence.variations import (
    besides_features,
    out_of_reach,
    parts,
    set_here,
    structures,
)
from orchestrator.stores.profile_file import KeyProfile, NotTried, ProbedKind, Tried

Progress = Callable[[str, int, int], None]
"""Called with the current variation, the number of those tried, and of those planned (findings add more)."""

_PROCESSES_MOST: Final = 8
_BESIDE_MOST: Final = 8
_BESIDE_VERSIONS: Final = ("1.3", "1.4")
_TIME_IS_UP: Final = "the time limit"
_FEEDBACK: Final = "creation feedback"
_FORBIDDEN: Final = "compiling forbidden (FAIL_ON_PIPELINE_COMPILE_REQUIRED)"
_T = TypeVar("_T")
_R = TypeVar("_R")


def find_key_dependence(
    selector: str,
    *,
    only: Collection[str] = (),
    time_limit_s: float | None = None,
    opener: str = "",
    on_progress: Progress = lambda *_: None,
) -> tuple[DeviceIdentity, KeyProfile]:
    """Find what a driver's pipeline-cache keys depend on besides the pipeline; the device, and its profile.

    Blocking; takes a minute or several.

    Args:
        selector: The device, as for `open_device`.
        only: Try only variations whose text contains one of these words, such as "shaderObject" or
            "environment"; empty for all.
        time_limit_s: Begin no variation after this time, s; the profile lists what was left out.
        opener: "package.module:function" that opens the device in a child instead, called with the request.
        on_progress: Called from several threads, but never concurrently.

    Raises:
        NoDeviceError: There is no such device.
        KeyDependenceError: The device cannot be examined.
    """
    began, made_at = time.monotonic(), time.time()
    on_progress("which pipelines and which features there are", 0, 0)
    target, children = SurveyJob(device=selector, opener=opener), ChildGroup()
    with closing(Prober(children)) as maker, tempfile.TemporaryDirectory() as folder:
        found = maker.ask(target)
        if not isinstance(found, Surveyed):
            raise KeyDependenceError(found.reason)
        deadline = None if time_limit_s is None else began + time_limit_s
        lookers = [Prober(children) for _ in os.sched_getaffinity(0)][:_PROCESSES_MOST]
        bisection = _Bisection(
            target, found, only, deadline, on_progress, Path(folder), children, maker, lookers
        )
        bisection.run()
        return found.identity, bisection.profile(made_at, time.monotonic() - began)


@frozen
class _Baseline:
    """What variations are compared with."""

    folder: str = ""
    cache_control: bool = False
    usable: dict[str, tuple[int, ...]] = field(factory=dict)  # by group: places of pipelines that can tell
    refused: dict[str, str] = field(factory=dict)  # by group: why there is none


@define(eq=False)
class _Bisection:
    target: SurveyJob
    found: Surveyed
    only: Collection[str]
    deadline: float | None
    on_progress: Progress
    folder: Path
    children: ChildGroup
    maker: Prober
    lookers: list[Prober]
    idle: LifoQueue[Prober] = field(factory=LifoQueue)  # those that no thread uses
    baseline: _Baseline = field(factory=_Baseline)
    methods: list[str] = field(factory=list)
    verdicts: list[Verdict] = field(factory=list)
    unreachable: list[tuple[Variation, str]] = field(factory=list)
    not_tried: list[NotTried] = field(factory=list)
    notes: list[str] = field(factory=list)
    lock: threading.Lock = field(factory=threading.Lock)
    done: int = 0
    total: int = 0

    def run(self) -> None:
        if not self.found.groups:
            raise KeyDependenceError(f"{self.target.device} takes none of the sample set's pipelines")
        features = [each for each in self.found.features if self._is_chosen(_feature_text(each))]
        others = [each for each in besides_features(self.found) if self._is_chosen(each.text)]
        self.unreachable = [row for row in out_of_reach(self.found) if self._is_chosen(row[0].text)]
        if not (features or others or self.unreachable):
            raise KeyDependenceError(
                f"nothing that is tried has {' or '.join(self.only)} in its name",
                "leave out --only to try everything, or name a part of Vulkan's name, such as shaderObject",
            )
        for each in self.lookers:
            self.idle.put(each)
        try:
            judged = self._own_features(features)
            if self.baseline.usable:
                features = [each for each in features if each not in judged]
                self.verdicts += self._narrow([*structures(features), *others])
                self.verdicts += self._narrow(self._beside(features))
        finally:
            for each in self.lookers:
                each.close()

    def _is_chosen(self, text: str) -> bool:
        return not self.only or any(each.lower() in text.lower() for each in self.only)

    # --- baselines

    def _own_features(self, chosen: Iterable[Feature]) -> set[Feature]:
        # Feedback alone judges the orchestrator's own features, compiling is forbidden for all others.
        own = ORCHESTRATOR_FEATURES & set(self.found.features)
        judged: set[Feature] = set()
        harmless = True
        if self.found.feedback:
            self._make_baseline(cache_control=False)
            if self.baseline.usable:
                judged = {CACHE_CONTROL, *chosen} & own
                self.verdicts += self._try(structures(sorted(judged)))
                harmless = any(
                    each.variation.features == {CACHE_CONTROL}
                    and each.tried
                    and not each.missed | each.untried
                    for each in self.verdicts
                )
        if self.found.cache_control and harmless:
            by_feedback = self.baseline
            self._make_baseline(cache_control=True)
            if by_feedback.usable and not self.baseline.usable:
                self.notes.append("forbidding compiles gives no results; only creation feedback was used")
                self.baseline = by_feedback
        if not judged and self.found.cache_control:
            reason = "it is needed to detect hits, because creation feedback does not show them"
            name = "::".join(CACHE_CONTROL)
            self.not_tried.append(NotTried(aspect=Aspect.FEATURE.value, name=name, reason=reason))
            judged.add(CACHE_CONTROL)
        return judged

    def _make_baseline(self, *, cache_control: bool) -> None:
        self._report("the baseline, twice")
        self.baseline = _Baseline(tempfile.mkdtemp(dir=self.folder), cache_control)
        for group in self.found.groups:
            made = _looked(self.maker, replace(self._job(group), make=True))
            with self._prober() as looker:  # a process that is new to it
                again = made if made.reason else _looked(looker, self._job(group))
            if again.reason:
                self.baseline.refused[group.name] = again.reason
                self.notes.append(f"baseline {group.name}: {again.reason}")
            elif again.identity:
                looks = zip(again.looks, again.in_empty, made.in_empty, strict=True)
                telling = (Look.HIT, Look.MISS, Look.MISS)
                if usable := tuple(place for place, each in enumerate(looks) if each == telling):
                    self.baseline.usable[group.name] = usable
        if self.baseline.usable:
            self.methods.insert(0, _FORBIDDEN if cache_control else _FEEDBACK)

    def _job(self, group: ProbeGroup, variation: Variation | None = None) -> LookJob:
        return LookJob(
            device=self.target.device,
            opener=self.target.opener,
            group=group,
            application=self.found.application,
            directory=self.baseline.folder,
            pipeline_cache_uuid=self.found.identity.pipeline_cache_uuid.hex(),
            cache_control=self.baseline.cache_control,
            variation=variation,
            usable=self.baseline.usable.get(group.name, ()),
        )

    @property
    def _groups(self) -> list[ProbeGroup]:
        return [each for each in self.found.groups if each.name in self.baseline.usable]

    # --- rounds

    def _beside(self, features: Sequence[Feature]) -> list[Variation]:
        # With a feature that matters, all features and versions of Vulkan that do not matter alone.
        alone = {
            feature
            for each in self.verdicts
            if each.missed and len(each.variation.features) == 1
            for feature in each.variation.features
        }
        untried = {feature for each in self.verdicts if not each.tried for feature in each.variation.features}
        rest = frozenset(features) - alone - untried
        # One member represents all members of a structure that matter.
        ones = [next(members) for _, members in groupby(sorted(alone), key=itemgetter(0))]
        if len(ones) > _BESIDE_MOST:
            self.notes.append(f"{len(ones)} features matter; combinations were tried with {_BESIDE_MOST}")
        tried = [
            each.variation
            for each in self.verdicts
            if each.variation.name in _BESIDE_VERSIONS and each.tried and not each.missed
        ]
        if rest:
            tried.append(Variation(aspect=Aspect.FEATURE, name=f"{len(rest)} features", features=rest))
        return [
            replace(each, given=frozenset({feature}), groups=self._groups_of(feature))
            for feature in ones[:_BESIDE_MOST]
            for each in tried
        ]

    def _groups_of(self, feature: Feature) -> tuple[str, ...]:
        kinds = {kind for each in self.verdicts if feature in each.variation.features for kind in each.missed}
        return tuple(
            group.name
            for group in self._groups
            if feature not in group.features and any(each.probe in kinds for each in group.pipelines)
        )

    def _narrow(self, variations: Sequence[Variation]) -> list[Verdict]:
        # What matters, or cannot be tried with all pipelines, is tried again in parts. It stays only where
        # no part matters alone.
        tried = self._try(variations)
        opened = [
            each
            for each in tried
            if parts(each.variation) and (each.missed or each.obstacles or not each.tried)
        ]
        if not opened:
            return tried
        narrower = self._narrow([part for each in opened for part in parts(each.variation)])
        for whole in opened:
            found = {
                kind
                for each in narrower
                if each.variation.features < whole.variation.features
                and each.variation.given == whole.variation.given
                for kind in each.missed
            }
            if whole.missed <= found or not whole.tried:
                tried.remove(whole)
        return tried + narrower

    def _try(self, variations: Sequence[Variation]) -> list[Verdict]:
        self.total += len(variations)
        return self._in_threads(self._verdict, variations)

    def _verdict(self, variation: Variation) -> Verdict:
        groups = [each for each in self._groups if not variation.groups or each.name in variation.groups]
        jobs = [self._job(each, variation) for each in groups]
        is_late = self.deadline is not None and time.monotonic() >= self.deadline
        lost = _TIME_IS_UP if is_late else ""
        if not is_late:
            self._report(variation.text, done=1)
        answers = []
        with self._prober(variation) as prober:
            for job in jobs:
                answer = Looked(reason=lost) if lost else _looked(prober, job)
                if prober.child is None:  # a process that dies costs the variation
                    lost = answer.reason
                answers.append((job, answer))
        return judge(variation, answers)

    @contextmanager
    def _prober(self, variation: Variation | None = None) -> Iterator[Prober]:
        """A process for one thread; one of its own for a variation of the process."""
        if variation is not None and variation.own_process:
            executable = self.folder / variation.executable if variation.executable else None
            with closing(Prober(self.children, variation.environment, executable)) as own:
                yield own
            return
        looker = self.idle.get()
        try:
            yield looker
        finally:
            self.idle.put(looker)

    def _in_threads(self, function: Callable[[_T], _R], arguments: Iterable[_T]) -> list[_R]:
        with ThreadPoolExecutor(len(self.lookers)) as pool:
            try:
                return list(pool.map(function, arguments))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.children.end()
                raise

    # --- the profile

    def profile(self, made_at: float, took_s: float) -> KeyProfile:
        depends, independent = [], []
        for each in self.verdicts:
            if each.missed:
                depends.append(_tried(each, each.missed))
            elif each.tried:
                independent.append(_tried(each, each.tried))
            else:
                reason = next(iter(each.reasons.values()), "no pipeline was usable")
                self.not_tried.append(_not_tried(each.variation, reason))
            if each.tried and each.obstacles:
                reasons = "; ".join(
                    f"with the baseline {', '.join(names)}: {why}" for why, names in each.obstacles.items()
                )
                self.not_tried.append(_not_tried(each.variation, reasons))
        self.not_tried += [_not_tried(each, reason) for each, reason in self.unreachable]
        self.notes += [
            f"the device does not support {count} pipelines of the sample set: {reason}"
            for reason, count in self.found.left_out.items()
        ]
        return KeyProfile.of(
            self.found.identity,
            made_at=made_at,
            took_s=took_s,
            api_version=self.found.application.api_version,
            method=" and ".join(self.methods),
            environment=set_here(self.found.identity.driver_id),
            kinds=tuple(self._kind(each) for each in ProbeKind),
            depends=tuple(depends),
            independent=tuple(independent),
            not_tried=tuple(self.not_tried),
            notes=tuple(dict.fromkeys(self.notes)),
            whole=not self.only and all(each.reason != _TIME_IS_UP for each in self.not_tried),
        )

    def _kind(self, kind: ProbeKind) -> ProbedKind:
        pipelines = useful = 0
        refused = ""
        for group in self.found.groups:
            places = {place for place, each in enumerate(group.pipelines) if each.probe is kind}
            pipelines += len(places)
            useful += len(places & set(self.baseline.usable.get(group.name, ())))
            refused = refused or (self.baseline.refused.get(group.name, "") if places else "")
        problem = ""
        if not pipelines:
            problem = "the device supports none of the sample set's"
        elif not useful:
            problem = refused or "the same device in a new process does not hit, or hits in an empty cache"
        return ProbedKind(kind=kind.value, pipelines=pipelines, usable=useful, problem=problem)

    def _report(self, what: str, done: int = 0) -> None:
        with self.lock:
            self.done += done
            self.on_progress(what, self.done, self.total)


def _looked(prober: Prober, job: LookJob) -> Looked:
    answer = prober.ask(job)
    return answer if isinstance(answer, Looked) else Looked(reason="the process sent another answer")


def _feature_text(feature: Feature) -> str:
    return f"{Aspect.FEATURE.value} {'::'.join(feature)}"


def _not_tried(variation: Variation, reason: str) -> NotTried:
    beside = f", beside {in_words(variation.given)}" if variation.given else ""
    return NotTried(aspect=variation.aspect.value, name=f"{variation.name}{beside}", reason=reason)


def _tried(verdict: Verdict, kinds: frozenset[ProbeKind]) -> Tried:
    variation = verdict.variation
    return Tried(
        aspect=variation.aspect.value,
        name=variation.name,
        kinds=tuple(kind.value for kind in ProbeKind if kind in kinds),
        untried=tuple(kind.value for kind in ProbeKind if kind in verdict.untried),
        features=tuple(sorted(variation.features)),
        given=tuple(sorted(variation.given | set(verdict.prerequisites))),
        environment=variation.environment,
        identity=verdict.identity,
    )
