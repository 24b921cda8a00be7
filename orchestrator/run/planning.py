"""The plan of one compile: looked for before the set is read, and made where there is none that fits.

Guarantees: a plan changes what a compile takes and not what it does. One that is damaged, or of a device that
answers otherwise, is made anew, and the notes say so in one line; one that cannot be kept is a note. Where a
device has none, that of another one will do if this one answers all that was asked of it alike. Of several
processes that would make one at a time, one does, and the others look again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from pathlib import Path
from typing import Final

import msgspec
from attrs import define, field

from orchestrator.devices.device import DeviceIdentity
from orchestrator.registry import registry
from orchestrator.run.options import CompileOptions
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.plan import PLAN_FORMAT, PlannedGroup, SetFacts, SetPlan, decode_plan, encode_plan
from orchestrator.sets.prepare import OpenedGroup
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.files.atomic_file import SaveError, content_hash128
from orchestrator.stores.run_notes import (
    PlanIdentity,
    find_plans,
    read_plan,
    save_plan,
)
from orchestrator.version import VERSION

_ROOM: Final = 64 << 20
"""Bytes that stay free for what is compiled: a plan can be made again without a driver."""


@define(eq=False)
class CompilePlan:
    """Finds, keeps and makes the plan of one compile. Its methods block; one thread at a time."""

    source: PipelineSet
    options: CompileOptions
    directory: Path | None  # The directory of cache files; None where nothing is kept.
    notes: list[str] = field(factory=list)  # What a reader of the report must know.
    # What is known of the set without reading it, where a plan is used.
    facts: SetFacts | None = field(default=None, init=False)
    _identity: PlanIdentity | None = field(default=None, init=False)
    _is_own: bool = field(default=True, init=False)
    _beside: DeviceIdentity | None = field(default=None, init=False)
    _groups: list[PlannedGroup] = field(factory=list, init=False)
    _tried: set[PlanIdentity] = field(factory=set, init=False)
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
        found = find_plans(directory, identity)
        self._is_own = found == (identity,)
        for each in found:
            if each in self._tried:
                continue
            self._tried.add(each)
            data, problem = read_plan(directory, each)
            if data is not None:
                try:
                    plan = decode_plan(data, self.source)
                except (ValueError, msgspec.MsgspecError) as error:
                    problem = str(error)
                else:
                    self.facts = plan.facts
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
        self.facts = None
        if self._is_own:
            self.notes.append(f"the plan of the set was made anew: {why}")

    def take(self, opened: OpenedGroup) -> None:
        """A group was decoded, or is as planned."""
        if self._identity is not None:
            self._beside = self._beside or opened.device.identity
            self._groups.append(PlannedGroup(opened.group, opened.whole, opened.answers))

    def save(self) -> None:
        """Keep what was taken, which is all of the set; nothing where it is a plan that was found."""
        try:
            self._save()
        except (SaveError, ValueError, OSError) as error:
            self.notes.append(f"the plan of the set was not kept: {error}")
        finally:
            self.give_turn()

    def _save(self) -> None:
        directory, identity, beside = self.directory, self._identity, self._beside
        if directory is None or identity is None or beside is None or self.facts or not self.options.saves:
            return
        if self.source.is_changed:  # the plan would be found by the hash of other bytes
            raise ValueError("a file of the set was changed while it was read")
        plan = SetPlan(SetFacts.of(self.source), tuple(self._groups))
        data = encode_plan(plan)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if shutil.disk_usage(directory).free < _ROOM + 3 * len(data):
            raise ValueError("the file system is nearly full, and what is compiled needs the room")
        save_plan(cache_path(directory, beside), identity, [data])


def _identity_of(source: PipelineSet, options: CompileOptions) -> PlanIdentity | None:
    """What a plan of a set is of; None for one that was not read from files."""
    files = source.hash_files(content_hash128)
    if not files:
        return None
    subset = options.subset
    keys = None if subset.keys is None else sorted(subset.keys)
    # A provider may give the code of modules that the files lack.
    part = msgspec.json.encode([subset.shard, subset.shards, keys, source.provider is not None])
    rules = f"{VERSION} {PLAN_FORMAT} {registry().version} {sys.byteorder} {sys.maxsize}"
    return PlanIdentity(content_hash128(files + part + rules.encode()).hex(), options.selector)
