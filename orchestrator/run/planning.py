"""The plan of one compile: looked for before the set is read, and made where there is none that fits.

Guarantees: a plan changes what a compile takes and not what it does. One that is damaged, of other
rules or of a device that answers otherwise is made anew, and the notes say so in one line; one that
cannot be kept is a note. Where a device has none, that of another one will do if this one answers all
that was asked of it alike. Of several processes that would make one at a time, one does, and the others
look again.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from attrs import define, field

from orchestrator.devices.device import DeviceIdentity
from orchestrator.registry import registry
from orchestrator.run.options import CompileOptions
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.plan import (
    PLAN_FORMAT,
    PlannedGroup,
    SetFacts,
    SetPlan,
    decode_plan,
    encode_plan,
)
from orchestrator.sets.prepare import OpenedGroup
from orchestrator.sets.records import FeatureGroup, PipelineJobs
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.files.atomic_file import SaveError, content_hash128, likely_cause
from orchestrator.stores.plan_file import (
    PlanIdentity,
    find_plans,
    find_plans_of_others,
    mark_used,
    read_plan,
    save_plan,
)
from orchestrator.version import VERSION

_MOST_TRIED: Final = 8
"""Plans of other devices that are tried: each takes opening the device."""


@define(eq=False)
class CompilePlan:
    """Finds, keeps and makes the plan of one compile. Its methods block; one thread at a time.

    Attributes:
        directory: The directory of cache files; None where nothing is kept.
        notes: What a reader of the report must know.
        facts: What is known of the set without reading it, where a plan is used.
        pipelines: What is compiled, likewise.
        is_partial: Whether that plan is one of which groups were still to be decoded.
    """

    source: PipelineSet
    options: CompileOptions
    directory: Path | None
    notes: list[str] = field(factory=list)
    facts: SetFacts | None = field(default=None, init=False)
    pipelines: PipelineJobs | None = field(default=None, init=False)
    is_partial: bool = field(default=False, init=False)
    _identity: PlanIdentity | None = field(default=None, init=False)
    _is_own: bool = field(default=True, init=False)
    _beside: DeviceIdentity | None = field(default=None, init=False)
    _groups: list[PlannedGroup] = field(factory=list, init=False)
    _tried: set[Path] = field(factory=set, init=False)
    _saving: threading.Lock = field(factory=threading.Lock, init=False)
    _is_saved: bool = field(default=False, init=False)
    _kept: Path | None = field(default=None, init=False)
    _turn: int = field(default=-1, init=False)

    def find(self) -> SetPlan | None:
        """The plan of the set that was kept for this device, else for another one; another one at each call.

        Where there is none, this process decodes, if need be when it is its turn; `save` or `give_turn`
        ends that.
        """
        if self.directory is None or not self.options.plan:
            return None
        identity = self._identity = _identity_of(self.source, self.options)
        if identity is None:
            return None
        plan = self._found(self.directory, identity)
        if plan is None and self.source.in_turn:
            self._take_turn(self.directory)
            plan = self._found(self.directory, identity)
        if plan is not None:
            self.give_turn()
        return plan

    def _found(self, directory: Path, identity: PlanIdentity) -> SetPlan | None:
        """The next whole plan that was not tried yet: the device's own, or if it has none, another's."""
        own = find_plans(directory, identity)
        self._is_own = bool(own)
        for path in (own[:1] or find_plans_of_others(directory, identity))[:_MOST_TRIED]:
            if path in self._tried:
                continue
            self._tried.add(path)
            stored, problem = read_plan(path, identity)
            if stored is not None:
                try:
                    plan = decode_plan(stored.data, self.source)
                except (ValueError, msgspec.MsgspecError) as error:
                    problem = str(error)
                else:
                    mark_used(path)
                    self._kept = path
                    self.facts, self.pipelines, self.is_partial = plan.facts, plan.pipelines, bool(plan.rest)
                    return plan
            if problem:
                self.outdated(problem)
        return None

    def _take_turn(self, directory: Path) -> None:
        if self._turn < 0:
            self._turn = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._turn, fcntl.LOCK_EX)

    def give_turn(self) -> None:
        """Let another process that has the set decode it, or take what this one kept."""
        turn, self._turn = self._turn, -1
        if turn >= 0:
            os.close(turn)

    def outdated(self, why: str) -> None:
        """The plan that was found does not fit."""
        self.facts = self.pipelines = None
        if self._is_own:
            self.notes.append(f"the plan of the set was made anew: {why}")

    def take(self, opened: OpenedGroup) -> None:
        """A group was decoded, or is as planned."""
        if self._identity is not None:
            self._beside = self._beside or opened.device.identity
            self._groups.append(PlannedGroup(opened.group, opened.whole, opened.answers))

    def save(self, rest: Sequence[FeatureGroup] = (), *, last: bool = True) -> None:
        """Keep what was taken; nothing where it is a plan that was found. Thread-safe.

        Args:
            rest: Groups of the set that are still to be decoded.
            last: Whether this compile decodes no more. Of what comes before that, the first is kept.
        """
        groups = tuple(self._groups)
        try:
            with self._saving:
                if last or not self._is_saved:
                    self._save(groups, tuple(rest))
                    self._is_saved = True
        except (SaveError, ValueError) as error:
            self.notes.append(f"the plan of the set was not kept: {error}")
        finally:
            self.give_turn()

    def drop(self) -> bool:
        """Remove the plan that was kept or used, and keep none; whether there was one. Thread-safe."""
        with self._saving:
            self._identity, kept, self._kept = None, self._kept, None
            if kept is None:
                return False
            try:
                kept.unlink(missing_ok=True)  # another target's compile may have done so
            except OSError as error:
                self.notes.append(f"the plan of the set could not be removed: {kept}: {likely_cause(error)}")
                return False
        self.notes.append("the plan of the set was not kept: what was compiled needed its room")
        return True

    def _save(self, groups: tuple[PlannedGroup, ...], rest: tuple[FeatureGroup, ...]) -> None:
        directory, identity, beside = self.directory, self._identity, self._beside
        if directory is None or identity is None or beside is None:
            return
        if self.facts is None or (self._is_own and self.is_partial and not rest):
            if self.source.is_changed:  # the plan would be found by the hash of other bytes
                raise ValueError("a file of the set was changed while it was read")
            plan = SetPlan(SetFacts.of(self.source), groups, rest)
            parts = encode_plan(plan, self.source.module_place)
            self._kept = save_plan(cache_path(directory, beside), identity, parts)


def proven_plan(path: Path) -> tuple[SetPlan | None, str]:
    """A plan by its file, for people, or None where it is damaged; and what is wrong with it, or ""."""
    stored, problem = read_plan(path)
    if stored is None:
        return None, problem or "there is no such file"
    try:
        plan = decode_plan(stored.data, PipelineSet.from_records(MemoryRecords()))
    except (ValueError, msgspec.MsgspecError) as error:
        return None, str(error)
    if stored.identity.rules != rules():
        return plan, "of no use: another version of the program, or of its Vulkan registry, made it"
    return plan, ""


def _identity_of(source: PipelineSet, options: CompileOptions) -> PlanIdentity | None:
    """What a plan of a set is of; None for one that was not read from files."""
    files = source.hash_files(content_hash128)
    if not files:
        return None
    return PlanIdentity(
        files_part(files, options, supplied=source.provider is not None),
        rules(),
        content_hash128(options.selector.encode()),
    )


def files_part(files: bytes, options: CompileOptions, *, supplied: bool = False) -> bytes:
    """Hash of what a plan is made of: the set's files, and the part that is compiled.

    Args:
        files: Hash of the files.
        options: Of the compile.
        supplied: Whether a provider gives the code of modules that the files lack.
    """
    subset = options.subset
    keys = None if subset.keys is None else sorted(subset.keys)
    part = msgspec.json.encode([subset.shard, subset.shards, keys, supplied])
    return content_hash128(files + part)


def rules() -> bytes:
    """Hash of the rules by which plans are made here: program, registry, ABI."""
    made_by = f"{VERSION} {PLAN_FORMAT} {registry().version} {sys.byteorder} {sys.maxsize}"
    return content_hash128(made_by.encode())
