"""The bisection: tries variations in order, distributes them over processes, and makes the profile.

    survey ─> baselines without the orchestrator's features ─> these features, by feedback alone
           ─> baselines that can forbid compiling, if that does not change keys
           ─> structures, extensions, versions, names, environment ─> members of structures that matter
           ─> with each feature that matters, all features that do not matter alone ─> members

Blocking. Writes temporary files only.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from attrs import define, evolve, field, frozen
from msgspec.structs import replace

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.request import CACHE_CONTROL, ORCHESTRATOR_FEATURES, Feature
from orchestrator.key_dependence.judging import Usable, Verdict, judge, usable
from orchestrator.key_dependence.messages import (
    TIME_IS_UP,
    Answer,
    Aspect,
    Began,
    Control,
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
    known_names,
    members,
    set_here,
    structures,
)
from orchestrator.stores.profile_file import KeyProfile, NotTried, ProbedKind, Tried

_PROCESSES_MOST: Final = 8
_BESIDE_MOST: Final = 8
_TOGETHER: Final = 8
_FEEDBACK: Final = "creation feedback"
_FORBIDDEN: Final = "compiling forbidden (FAIL_ON_PIPELINE_COMPILE_REQUIRED)"


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
    count = processes or min(len(os.sched_getaffinity(0)), _PROCESSES_MOST)
    runner = JobRunner()
    try:
        with TemporaryDirectory(prefix="orchestrator-keys-") as folder:
            return _Bisection(
                selector=selector,
                only=tuple(only),
                processes=count,
                deadline=None if time_limit_s is None else time.monotonic() + time_limit_s,
                opener=opener,
                folder=Path(folder),
                runner=runner,
                on_progress=on_progress,
            ).run()
    finally:
        runner.close()


@define(eq=False)
class _Bisection:
    selector: str
    only: tuple[str, ...]
    processes: int
    deadline: float | None
    opener: str
    folder: Path
    runner: JobRunner
    on_progress: Callable[[KeyProgress], None]
    found: Surveyed = field(init=False)
    baseline: LookJob = field(init=False)
    can_tell: dict[str, Usable] = field(factory=dict)
    verdicts: list[Verdict] = field(factory=list)
    not_tried: list[NotTried] = field(factory=list)
    notes: list[str] = field(factory=list)
    problems: dict[ProbeKind, str] = field(factory=dict)
    refused: dict[str, str] = field(factory=dict)
    telling: threading.Lock = field(factory=threading.Lock)
    done: int = 0
    total: int = 0

    def run(self) -> KeyFindings:
        began, made_at = time.perf_counter(), time.time()
        self._tell("which pipelines and which features there are")
        answers = self.runner.run(SurveyJob(device=self.selector, opener=self.opener))
        if len(answers) != 1 or not isinstance(answers[0], Surveyed):
            raise KeyDependenceError(f"{self.selector}: an unexpected answer to the survey")
        self.found = answers[0]
        if not self.found.groups:
            raise KeyDependenceError(f"{self.selector} takes none of the sample set's pipelines")
        if self.only and not (
            chosen_features(self.found.features, self.only)
            or chosen(
                [
                    *in_one_process(self.found),
                    *in_own_processes(self.found),
                    *chain.from_iterable(self._out_of_reach().values()),
                ],
                self.only,
            )
        ):
            named = " or ".join(self.only)
            raise KeyDependenceError(
                f"nothing that is tried has {named} in its name",
                "leave out --only to try everything, or name a part of Vulkan's name, such as shaderObject",
            )
        judged = self._own_features()
        if self._any_usable:
            self._everything_else(judged)
        return KeyFindings(self.found.identity, self._profile(made_at, time.perf_counter() - began))

    @property
    def _any_usable(self) -> bool:
        return any(each.places for each in self.can_tell.values())

    # --- baselines

    def _own_features(self) -> set[Feature]:
        """Judge the orchestrator's own features by feedback alone, and choose the baseline for all others."""
        wanted = chosen_features(
            sorted(ORCHESTRATOR_FEATURES & set(self.found.features)),
            self.only and (*self.only, CACHE_CONTROL[1]),
        )
        judged: set[Feature] = set()
        harmless = True
        if self.found.feedback:
            self._use_baseline(cache_control=False)
            if self._any_usable:
                judged = set(wanted)
                harmless = any(
                    each.variation.features == {CACHE_CONTROL}
                    and each.tried
                    and not each.missed | each.untried
                    for each in self._try(structures(wanted))
                )
        if self.found.cache_control and harmless:
            before, self.problems = self.can_tell, {}
            self._use_baseline(cache_control=True)
            if not self._any_usable and any(each.places for each in before.values()):
                self.notes.append("forbidding compiles gives no results; only creation feedback was used")
                self._use_baseline(cache_control=False)
        if not judged and self.found.cache_control:
            self.not_tried.append(
                NotTried(
                    aspect=Aspect.FEATURE.value,
                    name="::".join(CACHE_CONTROL),
                    reason="it is needed to detect hits, because creation feedback does not show them",
                )
            )
            judged.add(CACHE_CONTROL)
        return judged

    def _use_baseline(self, *, cache_control: bool) -> None:
        """Fill the caches of a baseline, and determine which pipelines are usable."""
        self._tell("the baseline, twice")
        folder = self.folder / ("forbidding" if cache_control else "feedback")
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
        made = self._each_group(replace(job, make=True))
        cold = {each.group: each for each in made if isinstance(each, Looked)}
        job = replace(job, groups=tuple(each for each in job.groups if each.name in cold))
        again = self._each_group(replace(job, controls=True))
        looked = [each for each in again if isinstance(each, Looked)]
        empty = [each for each in looked if each.number == Control.EMPTY_CACHE]
        warm = {each.group: each for each in looked if each.number == Control.BASELINE and each.identity}
        self.can_tell = {
            group.name: usable(
                group,
                [cold[group.name], *(each for each in empty if each.group == group.name)],
                warm.get(group.name),
            )
            for group in job.groups
        }
        for each in (*made, *again):
            if isinstance(each, Untried):
                self.refused[each.group] = each.reason
                self.notes.append(f"baseline {each.group}: {each.reason}")
        self.baseline = replace(
            job,
            groups=tuple(each for each in job.groups if self.can_tell[each.name].places),
            expected={name: each.places for name, each in self.can_tell.items() if each.places},
        )

    def _each_group(self, job: LookJob) -> list[Answer]:
        """Do a baseline's job; if its process dies, once for each group, so that only the culprit is lost."""
        try:
            return self.runner.run(job) if job.groups else []
        except KeyDependenceError as error:
            if len(job.groups) > 1:
                return [
                    answer for each in job.groups for answer in self._each_group(replace(job, groups=(each,)))
                ]
            return [Untried(number=Control.BASELINE, group=job.groups[0].name, reason=str(error))]

    # --- rounds

    def _everything_else(self, judged: set[Feature]) -> None:
        features = chosen_features([each for each in self.found.features if each not in judged], self.only)
        devices = chosen(in_one_process(self.found), self.only)
        processes = chosen(in_own_processes(self.found), self.only)
        first = self._try([*structures(features), *devices, *processes])
        self._judge_members(first)
        alone = {
            feature
            for each in self.verdicts
            if each.missed and len(each.variation.features) == 1 and not each.variation.given
            for feature in each.variation.features
        }
        untried = {feature for each in self.verdicts if not each.tried for feature in each.variation.features}
        rest = [each for each in features if each not in alone | untried]
        # One member represents all members of a structure that matter.
        ones = [next(members) for _, members in groupby(sorted(alone), key=itemgetter(0))]
        if len(ones) > _BESIDE_MOST:
            self.notes.append(f"{len(ones)} features matter; combinations were tried with {_BESIDE_MOST}")
        self._judge_members(
            self._try_together(
                [
                    replace(each, groups=self._groups_of(feature))
                    for feature in ones[:_BESIDE_MOST]
                    for each in structures(rest, frozenset({feature}))
                ]
            )
        )

    def _groups_of(self, feature: Feature) -> tuple[str, ...]:
        """The groups with a kind of pipeline for which a feature matters."""
        kinds = {
            kind
            for each in self.verdicts
            if feature in each.variation.features and not each.variation.given
            for kind in each.missed
        }
        return tuple(
            group.name
            for group in self.baseline.groups
            if feature not in group.features and any(each.probe in kinds for each in group.pipelines)
        )

    def _try_together(self, variations: Sequence[Variation]) -> list[Verdict]:
        """Try several structures on one device; if they matter or cannot be tried together, try each alone.

        If the pipelines hit with several structures enabled, none of them matters.
        """
        needed = {feature for group in self.baseline.groups for feature in group.features}
        by_given: dict[frozenset[Feature], list[Variation]] = {}
        single = [each for each in variations if each.features & needed]
        for each in variations:
            if not each.features & needed:
                by_given.setdefault(each.given, []).append(each)
        parts = [
            some[start : start + _TOGETHER]
            for some in by_given.values()
            for start in range(0, len(some), _TOGETHER)
        ]
        several = [
            replace(
                part[0],
                name=f"{len(part)} structures",
                features=frozenset(feature for each in part for feature in each.features),
            )
            for part in parts
        ]
        found: list[Verdict] = []
        for part, verdict in zip(parts, self._try(several), strict=True):
            self.verdicts.remove(verdict)
            if verdict.missed or verdict.reasons or not verdict.tried:
                single += part
            else:
                found += [evolve(verdict, variation=each, prerequisites=()) for each in part]
        self.verdicts += found
        return found + self._try(single)

    def _judge_members(self, verdicts: Sequence[Verdict]) -> None:
        """Try the members of structures that matter, or could not be tried as a whole with all pipelines."""
        opened = [
            each
            for each in verdicts
            if each.variation.aspect is Aspect.FEATURE
            and len(each.variation.features) > 1
            and (each.missed or each.obstacles or not each.tried)
        ]
        by_member = self._try([one for each in opened for one in members(each.variation)])
        for whole in opened:
            own = [
                each
                for each in by_member
                if each.variation.features < whole.variation.features
                and each.variation.given == whole.variation.given
            ]
            found = {kind for each in own for kind in each.missed}
            if whole.missed <= found or not whole.tried:
                self.verdicts.remove(whole)

    def _try(self, variations: Sequence[Variation]) -> list[Verdict]:
        """Try variations in parallel processes; the verdicts in their order."""
        if not variations:
            return []
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
                self.runner.children.end()
                raise
        groups = {each.name: each for each in self.baseline.groups}
        found = [
            judge(each, answers[number], groups, self.can_tell) for number, each in enumerate(variations)
        ]
        self.verdicts += found
        return found

    def _look(
        self, part: Sequence[int], variations: Sequence[Variation], answers: dict[int, list[Looked | Untried]]
    ) -> None:
        """Do one job: several variations of devices, or one variation of a process."""
        some = tuple(variations[number] for number in part)
        left_s = None if self.deadline is None else self.deadline - time.monotonic()
        job = replace(self.baseline, variations=some, controls=not some[0].own_process, stop_after_s=left_s)

        def heard(answer: Answer) -> None:
            if isinstance(answer, Began):
                if answer.number >= 0:
                    with self.telling:
                        self.done += 1
                    self._tell(some[answer.number].text)
            elif isinstance(answer, Looked | Untried):
                if answer.number >= 0:
                    answers[part[answer.number]].append(answer)
                else:
                    self._check_control(answer)

        refused = TIME_IS_UP if left_s is not None and left_s < 0.0 else ""
        if not refused:
            try:
                self.runner.run(job, executable=some[0].executable, on_answer=heard)
            except KeyDependenceError as error:
                refused = str(error)  # the process could not begin
        for number in part if refused else ():
            known = {each.group for each in answers[number]}
            answers[number] += [
                Untried(number=number, group=each.name, reason=refused)
                for each in self.baseline.groups
                if each.name not in known
            ]

    def _check_control(self, answer: Looked | Untried) -> None:
        """Check at the end of a process: the baseline must still hit, and must not hit in an empty cache."""
        if isinstance(answer, Untried):
            self.notes.append(f"baseline {answer.group}, at the end of a process: {answer.reason}")
            return
        group = next(each for each in self.baseline.groups if each.name == answer.group)
        ways = self.can_tell[answer.group]
        wanted = int(answer.number == Control.BASELINE)
        for place, pipeline in enumerate(group.pipelines):
            if any(look != wanted for look in ways.looks(answer, place)):
                what = "does not hit any more" if wanted else "hits in an empty cache"
                self.problems[pipeline.probe] = (
                    f"at the end of a process the baseline's {pipeline.kind} pipeline "
                    f"{pipeline.key:016x} {what}"
                )

    # --- the profile

    def _profile(self, made_at: float, took_s: float) -> KeyProfile:
        identity = self.found.identity
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
                self.not_tried.append(_not_tried(each, reason))
            if kinds and each.obstacles:
                reasons = "; ".join(
                    f"with the baseline {', '.join(names)}: {why}" for why, names in each.obstacles.items()
                )
                self.not_tried.append(_not_tried(each, reasons))
        self.not_tried += [
            NotTried(aspect=each.aspect.value, name=each.name, reason=reason)
            for reason, some in self._out_of_reach().items()
            for each in chosen(some, self.only)
        ]
        for reason, count in self.found.left_out.items():
            self.notes.append(f"the device does not support {count} pipelines of the sample set: {reason}")
        return KeyProfile.of(
            identity,
            made_at=made_at,
            took_s=took_s,
            api_version=self.found.application.api_version,
            method=self._method(),
            environment=set_here(identity.driver_id),
            kinds=self._kinds(),
            depends=tuple(depends),
            independent=tuple(independent),
            not_tried=tuple(self.not_tried),
            disagreements=tuple(line for each in self.verdicts for line in each.disagreements),
            notes=tuple(dict.fromkeys(self.notes)),
            whole=not self.only and all(each.reason != TIME_IS_UP for each in self.not_tried),
        )

    def _out_of_reach(self) -> dict[str, list[Variation]]:
        """Variations that cannot be tried on this device, by reason."""
        known = known_names(self.found.identity.driver_id)
        return {
            reason: [Variation(aspect=aspect, name=name) for name in names]
            for aspect, names, reason in (
                (
                    Aspect.EXTENSION,
                    self.found.extensions_not_alone,
                    "the version includes it, it excludes another one, or it needs its features",
                ),
                (Aspect.LAYER, self.found.layers_active, "it is active already, so the baseline has it"),
                (
                    Aspect.APPLICATION_NAME,
                    known.unreadable,
                    "the driver has a profile for this pattern, but no matching name could be derived",
                ),
                (
                    Aspect.EXECUTABLE,
                    known.more_than_names,
                    "the driver has a profile that asks for the content of this file, or for a pattern",
                ),
            )
        }

    def _method(self) -> str:
        ways = self.can_tell.values()
        told = [_FORBIDDEN] if any(any(each.forbidden) for each in ways) else []
        told += [_FEEDBACK] if any(any(each.feedback) for each in ways) else []
        return " and ".join(told)

    def _kinds(self) -> tuple[ProbedKind, ...]:
        found = []
        for kind in ProbeKind:
            pipelines = useful = 0
            refused = ""
            for group in self.found.groups:
                ways = self.can_tell.get(group.name)
                places = [place for place, each in enumerate(group.pipelines) if each.probe is kind]
                pipelines += len(places)
                useful += len(set(places) & set(ways.places)) if ways else 0
                refused = refused or (self.refused.get(group.name, "") if places else "")
            problem = self.problems.get(kind, "")
            if not pipelines:
                problem = "the device supports none of the sample set's"
            elif not useful:
                problem = (
                    refused or "the same device in a new process does not hit, or hits in an empty cache"
                )
            found.append(ProbedKind(kind=kind.value, pipelines=pipelines, usable=useful, problem=problem))
        return tuple(found)

    def _tell(self, what: str) -> None:
        with self.telling:
            self.on_progress(KeyProgress(self.done, self.total, what))


def _not_tried(verdict: Verdict, reason: str) -> NotTried:
    variation = verdict.variation
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
