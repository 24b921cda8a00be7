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
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

from attrs import define, field, frozen
from msgspec.structs import replace

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.request import CACHE_CONTROL, ORCHESTRATOR_FEATURES, Feature
from orchestrator.key_dependence.judging import Judged, Places, judge, usable
from orchestrator.key_dependence.messages import (
    TIME_IS_UP,
    Answer,
    Aspect,
    Began,
    Control,
    Look,
    Looked,
    LookJob,
    ProbeKind,
    Surveyed,
    SurveyJob,
    Untried,
    Variation,
    in_words,
)
from orchestrator.key_dependence.processes import JobRunner, KeyDependenceError
from orchestrator.key_dependence.variations import (
    chosen,
    chosen_features,
    in_one_process,
    in_own_processes,
    out_of_reach,
    parts,
    set_here,
    structures,
)
from orchestrator.stores.profile_file import KeyProfile, NotTried, ProbedKind, Tried

_PROCESSES_MOST: Final = 8
_BESIDE_MOST: Final = 8
_METHODS: Final = {
    False: "creation feedback",
    True: "compiling forbidden (FAIL_ON_PIPELINE_COMPILE_REQUIRED)",
}


@frozen
class KeyProgress:
    """Variations tried, variations planned so far (findings add more), and the current one."""

    done: int
    total: int
    now: str


@frozen
class KeyFindings:
    """What the keys of a device depend on: the result of a bisection."""

    identity: DeviceIdentity
    profile: KeyProfile


def find_key_dependence(
    selector: str,
    *,
    only: Collection[str] = (),
    processes: int | None = None,
    time_limit_s: float | None = None,
    opener: str = "",
    on_progress: Callable[[KeyProgress], None] = lambda _: None,
) -> KeyFindings:
    """Find what a driver's pipeline-cache keys depend on besides the pipeline.

    Blocking; takes a minute or several.

    Args:
        selector: The device, as for `open_device`.
        only: Try only variations whose text contains one of these words, such as "shaderObject" or
            "environment"; empty for all.
        processes: Number of parallel processes; None for one per processor, at most eight.
        time_limit_s: Begin no variation after this time, s; the profile lists what was left out.
        opener: "package.module:function" that opens the device in a child instead, called with the request.
        on_progress: Called from several threads, but never concurrently.

    Raises:
        NoDeviceError: There is no such device.
        KeyDependenceError: The device cannot be examined.
    """
    with tempfile.TemporaryDirectory(prefix="orchestrator-key-dependence-") as folder:
        return _Bisection(
            selector=selector,
            only=tuple(only),
            processes=processes or min(len(os.sched_getaffinity(0)), _PROCESSES_MOST),
            deadline=None if time_limit_s is None else time.monotonic() + time_limit_s,
            opener=opener,
            folder=Path(folder),
            on_progress=on_progress,
        ).run()


@define(eq=False)
class _Bisection:
    selector: str
    only: tuple[str, ...]
    processes: int
    deadline: float | None
    opener: str
    folder: Path
    on_progress: Callable[[KeyProgress], None]
    runner: JobRunner = field(factory=JobRunner)
    found: Surveyed = field(init=False)
    baseline: LookJob = field(init=False)
    places: dict[str, Places] = field(factory=dict)
    verdicts: list[Judged] = field(factory=list)
    not_tried: list[NotTried] = field(factory=list)
    notes: list[str] = field(factory=list)
    problems: dict[ProbeKind, str] = field(factory=dict)
    refused: dict[str, str] = field(factory=dict)
    methods: dict[str, None] = field(factory=dict)  # in their order
    lock: threading.Lock = field(factory=threading.Lock)
    done: int = 0
    total: int = 0

    def run(self) -> KeyFindings:
        began, made_at = time.perf_counter(), time.time()
        with closing(self.runner):
            self.found = self._survey()
            judged = self._own_features()
            if self._can_tell:
                self._everything_else(judged)
        return KeyFindings(self.found.identity, self._profile(made_at, time.perf_counter() - began))

    def _survey(self) -> Surveyed:
        self._report("which pipelines and which features there are")
        answers: list[Answer] = []
        failed = self.runner.run(SurveyJob(device=self.selector, opener=self.opener), answers.append)
        if failed or not answers or not isinstance(answers[0], Surveyed):
            raise KeyDependenceError(failed or f"{self.selector}: an unexpected answer to the survey")
        found = answers[0]
        if not found.groups:
            raise KeyDependenceError(f"{self.selector} takes none of the sample set's pipelines")
        everything = [
            *in_one_process(found),
            *in_own_processes(found),
            *(each for each, _ in out_of_reach(found)),
        ]
        if not chosen_features(found.features, self.only) and not chosen(everything, self.only):
            raise KeyDependenceError(
                f"nothing that is tried has {' or '.join(self.only)} in its name",
                "leave out --only to try everything, or name a part of Vulkan's name, such as shaderObject",
            )
        return found

    @property
    def _can_tell(self) -> bool:
        return any(self.places.values())

    # --- baselines

    def _own_features(self) -> set[Feature]:
        # Feedback alone judges the orchestrator's own features, compiling is forbidden for all others.
        wanted = chosen_features(
            sorted(ORCHESTRATOR_FEATURES & set(self.found.features)),
            self.only and (*self.only, CACHE_CONTROL[1]),
        )
        judged: set[Feature] = set()
        harmless = True
        if self.found.feedback:
            self._use_baseline(cache_control=False)
            if self._can_tell:
                judged = set(wanted)
                harmless = any(
                    each.variation.features == {CACHE_CONTROL}
                    and each.tried
                    and not each.missed | each.untried
                    for each in self._try(structures(wanted))
                )
        if self.found.cache_control and harmless:
            told_before, self.problems = self._can_tell, {}
            self._use_baseline(cache_control=True)
            if told_before and not self._can_tell:
                self.notes.append("forbidding compiles gives no results; only creation feedback was used")
                self._use_baseline(cache_control=False)
        if not judged and self.found.cache_control:
            reason = "it is needed to detect hits, because creation feedback does not show them"
            name = "::".join(CACHE_CONTROL)
            self.not_tried.append(NotTried(aspect=Aspect.FEATURE.value, name=name, reason=reason))
            judged.add(CACHE_CONTROL)
        return judged

    def _use_baseline(self, *, cache_control: bool) -> None:
        self._report("the baseline, twice")
        folder = self.folder / _METHODS[cache_control]
        folder.mkdir(exist_ok=True)
        job = LookJob(
            device=self.selector,
            opener=self.opener,
            groups=self.found.groups,
            application=self.found.application,
            directory=str(folder),
            pipeline_cache_uuid=self.found.identity.pipeline_cache_uuid.hex(),
            cache_control=cache_control,
        )
        self.refused = {}
        made = self._baseline_answers(replace(job, make=True))
        cold = {each.group for each in made if isinstance(each, Looked)}
        job = replace(job, groups=tuple(each for each in job.groups if each.name in cold))
        again = self._baseline_answers(replace(job, controls=True))
        looked = [each for each in (*made, *again) if isinstance(each, Looked)]
        self.places = {
            name: usable(
                next(
                    (each for each in looked if (each.number, each.group) == (Control.BASELINE, name)), None
                ),
                [each for each in looked if (each.number, each.group) == (Control.EMPTY_CACHE, name)],
            )
            for name in cold
        }
        for each in (*made, *again):
            if isinstance(each, Untried):
                self.refused[each.group] = each.reason
                self.notes.append(f"baseline {each.group}: {each.reason}")
        if self._can_tell:
            self.methods = {_METHODS[cache_control]: None} | self.methods
        self.baseline = replace(
            job,
            groups=tuple(each for each in job.groups if self.places.get(each.name)),
            usable={name: places for name, places in self.places.items() if places},
        )

    def _baseline_answers(self, job: LookJob) -> list[Answer]:
        # If the process dies, each group gets one, so that only the culprit is lost.
        answers: list[Answer] = []
        failed = self.runner.run(job, answers.append) if job.groups else ""
        if not failed:
            return answers
        if len(job.groups) > 1:
            return [
                answer
                for each in job.groups
                for answer in self._baseline_answers(replace(job, groups=(each,)))
            ]
        return [Untried(number=Control.BASELINE, group=job.groups[0].name, reason=failed)]

    # --- rounds

    def _everything_else(self, judged: set[Feature]) -> None:
        features = chosen_features([each for each in self.found.features if each not in judged], self.only)
        self._narrow(
            [
                *structures(features),
                *chosen(in_one_process(self.found), self.only),
                *chosen(in_own_processes(self.found), self.only),
            ]
        )
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
        self._narrow(
            [
                Variation(
                    aspect=Aspect.FEATURE,
                    name=f"{len(rest)} features",
                    features=rest,
                    given=frozenset({feature}),
                    groups=self._groups_of(feature),
                )
                for feature in ones[:_BESIDE_MOST]
                if rest
            ]
        )

    def _groups_of(self, feature: Feature) -> tuple[str, ...]:
        kinds = {kind for each in self.verdicts if feature in each.variation.features for kind in each.missed}
        return tuple(
            group.name
            for group in self.baseline.groups
            if feature not in group.features and any(each.probe in kinds for each in group.pipelines)
        )

    def _narrow(self, variations: Sequence[Variation]) -> None:
        # What matters, or cannot be tried with all pipelines, is tried again in parts. It stays only where
        # no part matters alone.
        tried = self._try(variations)
        opened = [
            each
            for each in tried
            if parts(each.variation) and (each.missed or each.obstacles or not each.tried)
        ]
        if not opened:
            return
        before = len(self.verdicts)
        self._narrow([one for each in opened for one in parts(each.variation)])
        for whole in opened:
            found = {
                kind
                for each in self.verdicts[before:]
                if each.variation.features < whole.variation.features
                and each.variation.given == whole.variation.given
                for kind in each.missed
            }
            if whole.missed <= found or not whole.tried:
                self.verdicts.remove(whole)
                before -= 1

    def _try(self, variations: Sequence[Variation]) -> list[Judged]:
        answers: dict[int, list[Looked | Untried]] = {number: [] for number in range(len(variations))}
        here = [number for number, each in enumerate(variations) if not each.own_process]
        own = [[number] for number, each in enumerate(variations) if each.own_process]
        self.total += len(variations)
        # Variations that share a process take longest, so they go first.
        shared = [part for start in range(self.processes) if (part := here[start :: self.processes])]
        with ThreadPoolExecutor(self.processes) as pool:
            jobs = [pool.submit(self._look, part, variations, answers) for part in (*shared, *own)]
            try:
                for each in jobs:
                    each.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.runner.close()
                raise
        groups = {each.name: each for each in self.baseline.groups}
        found = [judge(each, answers[number], groups, self.places) for number, each in enumerate(variations)]
        self.verdicts += found
        return found

    def _look(
        self, part: Sequence[int], variations: Sequence[Variation], answers: dict[int, list[Looked | Untried]]
    ) -> None:
        # Several variations of devices, or one variation of a process. A process that dies costs what it was
        # doing; another one continues.
        while part:
            left_s = None if self.deadline is None else self.deadline - time.monotonic()
            some = tuple(variations[number] for number in part)
            began: list[int] = []

            def take(answer: Answer, part: Sequence[int] = part, began: list[int] = began) -> None:
                if isinstance(answer, Began):
                    began.append(answer.number)
                    if answer.number >= 0:
                        self._report(variations[part[answer.number]].text, done=1)
                elif isinstance(answer, Looked | Untried):
                    if answer.number >= 0:
                        answers[part[answer.number]].append(answer)
                    else:
                        self._check_control(answer)

            failed = TIME_IS_UP if left_s is not None and left_s < 0.0 else ""
            job = replace(
                self.baseline, variations=some, controls=not some[0].own_process, stop_after_s=left_s
            )
            try:
                failed = failed or self.runner.run(job, take, some[0] if some[0].own_process else None)
            except KeyDependenceError as error:
                failed = str(error)
            if failed and began and began[-1] < 0:  # all variations were tried
                self.notes.append(f"at the end of a process: {failed}")
                return
            lost = part if failed and not began else part[began[-1] : began[-1] + 1] if failed else ()
            self._lose(lost, failed, answers)
            part = part[began[-1] + 1 :] if failed and began else ()

    def _lose(self, lost: Iterable[int], reason: str, answers: dict[int, list[Looked | Untried]]) -> None:
        for number in lost:
            known = {each.group for each in answers[number]}
            answers[number] += [
                Untried(number=number, group=each.name, reason=reason)
                for each in self.baseline.groups
                if each.name not in known
            ]

    def _check_control(self, answer: Looked | Untried) -> None:
        # At the end of a process the baseline must still hit, and must not hit in an empty cache.
        if isinstance(answer, Untried):
            self.notes.append(f"baseline {answer.group}, at the end of a process: {answer.reason}")
            return
        group = next(each for each in self.baseline.groups if each.name == answer.group)
        wanted = Look.HIT if answer.number == Control.BASELINE else Look.MISS
        for place in self.places[answer.group]:
            if answer.looks[place] is not wanted:
                pipeline = group.pipelines[place]
                what = "does not hit any more" if wanted else "hits in an empty cache"
                self.problems[pipeline.probe] = (
                    f"at the end of a process the baseline's {pipeline.kind} pipeline "
                    f"{pipeline.key:016x} {what}"
                )

    # --- the profile

    def _profile(self, made_at: float, took_s: float) -> KeyProfile:
        depends, independent = [], []
        for each in self.verdicts:
            kinds = frozenset(kind for kind in each.tried if kind not in self.problems)
            missed = each.missed & kinds
            if missed:
                depends.append(_tried(each, missed))
            elif kinds:
                independent.append(_tried(each, kinds))
            else:
                reason = next(iter(each.reasons.values()), "no pipeline was usable")
                self.not_tried.append(_not_tried(each.variation, reason))
            if kinds and each.obstacles:
                reasons = "; ".join(
                    f"with the baseline {', '.join(names)}: {why}" for why, names in each.obstacles.items()
                )
                self.not_tried.append(_not_tried(each.variation, reasons))
        self.not_tried += [
            _not_tried(each, reason) for each, reason in out_of_reach(self.found) if chosen([each], self.only)
        ]
        for reason, count in self.found.left_out.items():
            self.notes.append(f"the device does not support {count} pipelines of the sample set: {reason}")
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
            whole=not self.only and all(each.reason != TIME_IS_UP for each in self.not_tried),
        )

    def _kind(self, kind: ProbeKind) -> ProbedKind:
        pipelines = useful = 0
        refused = ""
        for group in self.found.groups:
            places = {place for place, each in enumerate(group.pipelines) if each.probe is kind}
            pipelines += len(places)
            useful += len(places & set(self.places.get(group.name, ())))
            refused = refused or (self.refused.get(group.name, "") if places else "")
        problem = self.problems.get(kind, "")
        if not pipelines:
            problem = "the device supports none of the sample set's"
        elif not useful:
            problem = refused or "the same device in a new process does not hit, or hits in an empty cache"
        return ProbedKind(kind=kind.value, pipelines=pipelines, usable=useful, problem=problem)

    def _report(self, what: str, done: int = 0) -> None:
        with self.lock:
            self.done += done
            self.on_progress(KeyProgress(self.done, self.total, what))


def _not_tried(variation: Variation, reason: str) -> NotTried:
    beside = f", beside {in_words(variation.given)}" if variation.given else ""
    return NotTried(aspect=variation.aspect.value, name=f"{variation.name}{beside}", reason=reason)


def _tried(verdict: Judged, kinds: frozenset[ProbeKind]) -> Tried:
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
