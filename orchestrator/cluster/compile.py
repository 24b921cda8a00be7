"""Compiles a set on the machines of a cluster: `ClusterCompiler`, one target at a time or several.

    target ── shards ──> a queue ── each machine takes the next one ──> its pack and its report come back
                                                                             │
    cache file <── one machine has the driver join the packs of all shards <─┘

A shard that came back is kept in a folder of this machine until its target is whole, so whatever dies, the
same command goes on from there.

Guarantees: a machine compiles only for devices that are, driver and all, what the target is. What a lost
machine had of a shard is done by another one; a shard that has cost `_MOST_LOST` machines is given up by
name. When the compile is stopped, the shards that run are stopped, and what they have is joined too.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import trio
from attrs import define, evolve, field
from msgspec.structs import replace

from orchestrator.children.protocol import SentError
from orchestrator.cluster.connection import Cluster, Machine, WorkerLostError, connected, processors_of
from orchestrator.cluster.messages import (
    ClusterError,
    CompileShard,
    Devices,
    Forget,
    JoinPacks,
    ListDevices,
    Made,
    SentFile,
    ShardProgress,
)
from orchestrator.cluster.report import joined_report
from orchestrator.cluster.worker import PACK, REPORT, files_of, put_cache, send_of
from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.modes import CacheMode
from orchestrator.errors import NoDeviceError, OrchestratorError
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport, Progress, ProgressCallback, decode_msgpack
from orchestrator.run.steering import Steering
from orchestrator.sets.opening import open_paths
from orchestrator.sets.records import PipelineJobs
from orchestrator.sets.subset import Subset
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.files.atomic_file import content_hash128
from orchestrator.stores.pack import Pack, PackTarget, PackWriter, manifest_of
from orchestrator.stores.profile_file import ProfileIdentity
from orchestrator.stores.run_notes import read_durations

_SHARD_S: Final = 30.0
_LEAST_SHARDS: Final = 4  # of each machine, so that none waits long for the last one
_LEAST_PIPELINES: Final = 32  # of a shard: it starts processes, and reads the set's index
_WORTH_PIPELINES: Final = 256  # of a shard when each machine has one
_UNKNOWN_NS: Final = 5_000_000  # of a pipeline of which nothing is recorded
_MOST_LOST: Final = 2
_PATIENCE_S: Final = 60.0
"""How long a target waits for a machine after it has lost all: a nanny starts another worker in seconds."""
_NO_WORKER_S: Final = 5.0


@define(eq=False)
class _Shard:
    target: _Target
    number: int
    lost: list[str] = field(factory=list)  # machines

    @property
    def name(self) -> str:
        return f"{self.target.name}/{self.number}-of-{self.target.shards}"

    @property
    def folder(self) -> Path:
        """Where it is kept once it has come back."""
        return self.target.folder / f"{self.number}-of-{self.target.shards}"


@define(eq=False)
class _Target:
    options: CompileOptions
    archives: tuple[SentFile, ...]
    jobs: PipelineJobs
    is_one_group: bool
    name: str
    folder: Path
    shards: int = 0
    device: DeviceIdentity | None = None
    seed: tuple[SentFile, ...] = ()
    began: float = field(factory=time.monotonic)
    identified: dict[str, DeviceIdentity | OrchestratorError] = field(factory=dict)  # by address
    # where a machine has the archives and the seed, by address
    placed: dict[str, tuple[tuple[str, ...], tuple[SentFile, ...]]] = field(factory=dict)
    refused: dict[str, str] = field(factory=dict)  # by name of a machine: why it gets nothing more
    running: set[int] = field(factory=set)  # shards
    told: dict[int, ShardProgress] = field(factory=dict)  # the furthest of each shard
    reports: dict[int, CompileReport] = field(factory=dict)
    losses: list[str] = field(factory=list)  # machines that were lost, in words
    used: dict[str, int] = field(factory=dict)  # workers, by name of a machine
    failed: OrchestratorError | None = None
    on_progress: ProgressCallback = lambda _: None

    def jobs_of(self, number: int) -> PipelineJobs:
        """The pipelines of a shard."""
        return Subset(number, self.shards).of(self.jobs)

    def takes(self, machine: Machine) -> bool:
        """Whether a machine may compile for it."""
        found = self.identified.get(machine.address)
        return (
            isinstance(found, DeviceIdentity)
            and ProfileIdentity.of(found) == self.identity
            and machine.name not in self.refused
            and not machine.is_leaving
        )

    @property
    def needs(self) -> frozenset[str] | None:
        """What all pipelines need of the device, once a shard has said it of a set of one group."""
        groups = next((each.set.groups for each in self.reports.values()), ())
        if not self.is_one_group or len(groups) != 1:
            return None
        return frozenset((*groups[0].opened_as.features, *groups[0].opened_as.extensions))

    @property
    def identity(self) -> ProfileIdentity:
        """Of its device, once that is chosen."""
        assert self.device is not None  # noqa: S101 - chosen before
        return ProfileIdentity.of(self.device)

    def tell(self) -> None:
        """Report how far it is."""
        counts: Counter[str] = Counter()
        for number, report in self.reports.items():
            outcomes = report.outcomes
            found = {"hits": outcomes.cache_hits, "failed": outcomes.failed, "skipped": outcomes.skipped}
            # What several applications share is compiled for each, and counts once in a report.
            counts.update({**found, "compiled": len(self.jobs_of(number)) - sum(found.values())})
        in_flight = 0
        for number, progress in self.told.items():
            if number not in self.reports:
                told = msgspec.structs.asdict(progress)
                counts.update({name: told[name] for name in ("compiled", "hits", "failed", "skipped")})
                in_flight += progress.in_flight if number in self.running else 0
        done, total = counts.total(), len(self.jobs)
        spent = time.monotonic() - self.began
        left = spent * (total - done) / done if done else None
        self.on_progress(
            Progress(
                total=total,
                done=done,
                in_flight=in_flight,
                started_ns=1,
                elapsed_s=spent,
                rate=(counts["compiled"] + counts["hits"]) / spent if spent else 0.0,
                eta_s=left,
                compiled=counts["compiled"],
                hits=counts["hits"],
                failed=counts["failed"],
                skipped=counts["skipped"],
            )
        )


@asynccontextmanager
async def cluster_compiler(address: str, folder: Path, workers: int | None) -> AsyncIterator[ClusterCompiler]:
    """Connect to a cluster, and give its machines work during a block.

    Args:
        address: Of the scheduler, or `local:N`.
        folder: Where shards are kept until their target is whole; local workers work there.
        workers: Workers of each machine; None for one a processor.

    Raises:
        ClusterError: There is no such cluster, or it is not safe.
    """
    async with connected(address, folder / "worker") as cluster, trio.open_nursery() as nursery:
        compiler = ClusterCompiler(cluster, folder / "back", workers)
        await nursery.start(compiler.serve)
        yield compiler
        nursery.cancel_scope.cancel()


@define(eq=False)
class ClusterCompiler:
    """Compiles targets on a cluster; `compile` is a compiler for `compile_targets`. One trio thread.

    Args:
        cluster: The connected cluster.
        folder: Where shards that came back are kept until their target is whole.
        workers: Workers of each machine; None for one a processor.
    """

    cluster: Cluster
    folder: Path
    workers: int | None = None
    _queue: list[_Shard] = field(factory=list)
    _lanes: set[str] = field(factory=set)
    _by_name: dict[str, _Shard] = field(factory=dict)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Give the machines work, until cancelled."""
        self.cluster.on_progress(self._take_progress)
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                for address, machine in self.cluster.machines.items():
                    if address not in self._lanes:
                        self._lanes.add(address)
                        nursery.start_soon(self._work, machine)
                await self.cluster.wait()

    async def compile(
        self,
        archives: Sequence[str],
        options: CompileOptions,
        *,
        cache_directory: Path | None,
        stop: trio.Event | Steering | None = None,
        on_stage: Callable[[str], None] = lambda _: None,
        on_progress: ProgressCallback = lambda _: None,
    ) -> CompileReport:
        """Compile a set for one device; as `compile_supervised`.

        Raises:
            NoDeviceError: No machine has the device.
            ClusterError: The cluster has no machines, or a shard has cost several.
            OrchestratorError: What every machine has raised that has the device.
        """
        assert cache_directory is not None  # noqa: S101 - a pack has one
        steering = Steering.of(stop)
        on_stage("open")
        target = await trio.to_thread.run_sync(self._target, archives, options)
        target.on_progress = on_progress
        notes = await self._choose_identity(target)
        self._divide(target, cache_directory)
        on_stage("run")
        shards = [_Shard(target, number + 1) for number in range(target.shards)]
        for each in shards:
            if not self._came_back(each):
                self._queue.append(each)
                self._by_name[each.name] = each
        self.cluster.changed()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_with, steering.stop, target)
            await self._until_done(target)
            nursery.cancel_scope.cancel()
        if target.failed is not None:
            raise target.failed
        if not target.reports:
            raise ClusterError(
                f"{options.selector}: stopped before a shard came back; run it again to continue"
            )
        on_stage("merge")
        cache_file = await self._join(target, cache_directory)
        done = {number for number, report in target.reports.items() if not report.stopped}
        lacking = [each for each in shards if each.number not in target.reports]
        report = joined_report(
            [target.reports[number] for number in sorted(target.reports)],
            PipelineJobs.joined([target.jobs_of(each.number) for each in lacking]),
            path=", ".join(map(os.fspath, archives)),
            cache_file=cache_file,
            was_loaded=bool(target.seed),
            workers=sum(target.used.values()) or 1,
            stopped=bool(lacking),
            notes=[
                *notes,
                *target.losses,
                *(f"{name} compiled nothing more: {why}" for name, why in target.refused.items()),
            ],
        )
        if len(done) == target.shards:
            shutil.rmtree(target.folder, ignore_errors=True)
            for machine in list(self.cluster.machines.values()):
                with suppress(WorkerLostError, OrchestratorError):
                    await self.cluster.ask(machine, Forget(target.name), Made)
        return report

    # --- before

    def _target(self, archives: Sequence[str], options: CompileOptions) -> _Target:
        files = tuple(send_of(Path(each), Path(each).name) for each in archives)
        with open_paths(archives) as source:
            groups = options.subset.groups_of(source)
            jobs = PipelineJobs.joined([options.subset.of(each.pipelines) for each in groups])
        about = (*(each.xxh3_128 for each in files), options.selector, str(options.mode), str(options.subset))
        name = content_hash128("\n".join(about).encode()).hex()[:24]
        return _Target(options, files, jobs, len(groups) == 1, name, self.folder / name)

    async def _identify(self, machine: Machine, target: _Target) -> None:
        """Know what a target's selector names on a machine."""
        if machine.address in target.identified:
            return
        try:
            answer = await self.cluster.ask(machine, ListDevices(target.options.selector), Devices)
            target.identified[machine.address] = answer.found[0].identity
        except OrchestratorError as error:
            target.identified[machine.address] = error
        except WorkerLostError:
            pass

    async def _choose_identity(self, target: _Target) -> list[str]:
        """Ask all machines for the target's device; returns notes about those that have another one."""
        since = trio.current_time()
        while not self.cluster.machines:
            if trio.current_time() - since > (_PATIENCE_S if self.cluster.unanswered else _NO_WORKER_S):
                break
            with trio.move_on_after(1.0):
                await self.cluster.wait()
        machines = list(self.cluster.machines.values())
        async with trio.open_nursery() as nursery:
            for each in machines:
                nursery.start_soon(self._identify, each, target)
        names = {each.address: each.name for each in machines}
        found = {names[at]: one for at, one in target.identified.items() if isinstance(one, DeviceIdentity)}
        if not found:
            why = [f"{names[at]}: {one}" for at, one in target.identified.items()]
            why += [*self.cluster.refused.values(), *self.cluster.unanswered.values()]
            said = "; ".join(why) or "it has no workers: `orchestrator worker ADDRESS` on each machine"
            kind = NoDeviceError if why else ClusterError
            raise kind(f"no machine of {self.cluster.address} has {target.options.selector}: {said}")
        identities = {name: ProfileIdentity.of(each) for name, each in found.items()}
        commonest = Counter(identities.values()).most_common(1)[0][0]
        target.device = next(each for name, each in found.items() if identities[name] == commonest)
        foreign = [
            f"{name} has another driver for {target.options.selector} and compiled nothing of it: "
            f"{', '.join(each.differences(commonest))}"
            for name, each in identities.items()
            if each != commonest
        ]
        return [*foreign, *self.cluster.refused.values()]

    def _divide(self, target: _Target, cache_directory: Path) -> None:
        """Decide how many shards there are: as before where some came back before."""
        assert target.device is not None  # noqa: S101 - chosen before
        cache_file = cache_path(cache_directory, target.device)
        target.seed = self._seed(target, cache_file)
        with suppress(OSError):
            before = [each.name.rpartition("-of-")[2] for each in target.folder.iterdir()]
            if known := Counter(each for each in before if each.isdigit()).most_common(1):
                target.shards = int(known[0][0])
                return
        machines = sum(map(target.takes, self.cluster.machines.values()))
        workers = sum(
            self.workers or processors_of(self.cluster, each)
            for each in self.cluster.machines.values()
            if target.takes(each)
        )
        estimate_s = len(target.jobs) * _UNKNOWN_NS / 1e9
        if len(times := read_durations(cache_file).duration_ns):
            estimate_s = float(times.mean()) * len(target.jobs) / 1e9
        by_time = estimate_s / max(1, workers) * max(1, machines) / _SHARD_S
        few = min(machines, len(target.jobs) // _LEAST_PIPELINES)
        most = max(1, few, len(target.jobs) // _WORTH_PIPELINES)
        target.shards = int(min(max(by_time, _LEAST_SHARDS * max(1, machines)), most))

    def _seed(self, target: _Target, cache_file: Path) -> tuple[SentFile, ...]:
        """A pack of the cache file that is there, which the shards begin with."""
        folder = target.folder / "seed" / PACK
        shutil.rmtree(folder, ignore_errors=True)
        writer = PackWriter(folder)
        if not (files := writer.files_at(cache_file)):
            return ()
        selector = target.options.selector
        writer.finish(manifest_of([PackTarget(selector=selector, identity=target.identity, files=files)]))
        return files_of(folder)

    def _came_back(self, shard: _Shard) -> bool:
        """Whether a shard came back whole in an earlier run."""
        with suppress(OSError, msgspec.MsgspecError, OrchestratorError):
            report = self._kept(shard)
            if not report.stopped:
                shard.target.reports[shard.number] = report
                return True
        return False

    def _kept(self, shard: _Shard) -> CompileReport:
        """The report of a shard that came back with its pack, proven; raises ClusterError."""
        report = decode_msgpack((shard.folder / REPORT).read_bytes(), CompileReport)
        if differences := ProfileIdentity.of(report.device.identity).differences(shard.target.identity):
            raise ClusterError(f"its driver is another one now: {', '.join(differences)}")
        for path, why in Pack.open(shard.folder / PACK).problems():
            raise ClusterError(f"{path.name}: {why}")
        return report

    # --- the machines

    async def _work(self, machine: Machine) -> None:
        """Give a machine shards until it leaves."""
        while (shard := await self._next(machine)) is not None:
            await self._give(machine, shard)
        self._lanes.discard(machine.address)
        self.cluster.changed()  # it may be back

    async def _next(self, machine: Machine) -> _Shard | None:
        """The next shard that a machine may compile; waits for one. None where the machine has left."""
        while not machine.lost.is_set():
            for target in {id(each.target): each.target for each in self._queue}.values():
                await self._identify(machine, target)
            for shard in self._queue:
                if shard.target.takes(machine):
                    self._queue.remove(shard)
                    return shard
            await self.cluster.wait()
        return None

    async def _give(self, machine: Machine, shard: _Shard) -> None:
        """Have a machine compile a shard, and take what it made; or queue the shard again."""
        target = shard.target
        target.running.add(shard.number)
        try:
            made, workers = await self._compiled(machine, shard)
            # What another machine made of it stays until this has come.
            coming = target.folder / f"coming-{shard.number}"
            shutil.rmtree(coming, ignore_errors=True)
            await self.cluster.fetch(machine, made.files, coming)
            shutil.rmtree(shard.folder, ignore_errors=True)
            coming.rename(shard.folder)
            report = self._kept(shard)
            target.used[machine.name] = workers
            if report.stopped and not report.out_of_time and not self.cluster.stopping:
                # It leaves; the next one begins with what this one has made.
                machine.is_leaving = True
                self.cluster.lose(machine, "leaves")
                self._again(shard)
            else:
                target.reports[shard.number] = report
        except WorkerLostError as error:
            target.losses.append(f"{error}; another machine compiled the rest of shard {shard.number}")
            if not machine.is_leaving and not await self.cluster.left_in_order(machine):
                shard.lost.append(str(error))
            if len(shard.lost) < _MOST_LOST:
                self._again(shard)
            else:
                lost = " and ".join(shard.lost)
                target.failed = ClusterError(f"shard {shard.number} of {target.shards} was lost: {lost}")
        except (OrchestratorError, OSError) as error:
            # The machine is to blame, or the set: another machine shows which.
            target.refused[machine.name] = str(error)
            self._again(shard)
            if not any(map(target.takes, self.cluster.machines.values())):
                target.failed = _of_machine(machine, error)
        finally:
            target.running.remove(shard.number)
            target.tell()
            self.cluster.changed()

    def _again(self, shard: _Shard) -> None:
        if not self.cluster.stopping:
            self._queue.insert(0, shard)

    async def _compiled(self, machine: Machine, shard: _Shard) -> tuple[Made, int]:
        target = shard.target
        if machine.address not in target.placed:
            archives = await self.cluster.send(machine, target.archives)
            seed = _at(target.seed, await self.cluster.send(machine, target.seed))
            target.placed[machine.address] = archives, seed
        archives, seed = target.placed[machine.address]
        if begun := _begun(shard):
            seed = _at(begun, await self.cluster.send(machine, begun))
        options = target.options.after(time.monotonic() - target.began)
        options = evolve(options, mode=options.mode or CacheMode.PER_WORKER, needs=target.needs)
        workers = self.workers or processors_of(self.cluster, machine)
        subset = Subset(shard.number, target.shards, options.subset.keys)
        request = CompileShard(
            run=self.cluster.run,
            archives=archives,
            options=msgspec.msgpack.encode(evolve(options, workers=workers, subset=subset)),
            name=shard.name,
            seed=seed,
        )
        return await self.cluster.ask(machine, request, Made), workers

    def _take_progress(self, progress: ShardProgress) -> None:
        shard = self._by_name.get(progress.name)
        if shard is not None:
            told = shard.target.told
            # A machine that begins a lost shard again is behind what was told of it.
            told[shard.number] = max(told.get(shard.number, progress), progress, key=lambda each: each.done)
            shard.target.tell()

    # --- the end

    async def _stop_with(self, stop: trio.Event, target: _Target) -> None:
        await stop.wait()
        self._queue[:] = [each for each in self._queue if each.target is not target]
        self.cluster.stopping = True
        self.cluster.changed()
        await self.cluster.tell()

    async def _until_done(self, target: _Target) -> None:
        """Wait until all shards came back, or no more will."""
        alone_since = None
        while True:
            waiting = [each for each in self._queue if each.target is target]
            if target.failed is not None:
                self._queue[:] = [each for each in self._queue if each.target is not target]
                waiting = []
            if not waiting and not target.running:
                return
            if waiting and not target.running:
                has_any = any(map(target.takes, self.cluster.machines.values()))
                alone_since = None if has_any else alone_since or time.monotonic()
                if alone_since is not None and time.monotonic() - alone_since > _PATIENCE_S:
                    said = "; ".join(f"{name}: {why}" for name, why in target.refused.items())
                    target.failed = ClusterError(
                        f"no machine is left for {target.options.selector}: {said or 'all have left'}"
                    )
                    continue
            with trio.move_on_after(1.0):
                await self.cluster.wait()

    async def _join(self, target: _Target, cache_directory: Path) -> Path | None:
        """Have a machine join the packs of the shards; returns the cache file, which is in place."""
        folders = [target.folder / f"{number}-of-{target.shards}" / PACK for number in sorted(target.reports)]
        folders = [each for each in folders if any(one.cache for one in Pack.open(each).manifest.targets)]
        packs = [files_of(each) for each in folders]
        if target.seed:
            packs.append(target.seed)
        if not packs:
            return None
        folder = Path(packs[0][0].path).parent
        if len(packs) > 1:
            folder = target.folder / "joined" / PACK
            await self._joined(target, packs, folder.parent)
        pack = Pack.open(folder)
        (found,) = (each for each in pack.manifest.targets if each.identity == target.identity)
        return put_cache(pack, found, cache_directory)

    async def _joined(self, target: _Target, packs: list[tuple[SentFile, ...]], folder: Path) -> None:
        since, refused = trio.current_time(), dict[str, OrchestratorError]()
        while trio.current_time() - since < _PATIENCE_S:
            for machine in list(self.cluster.machines.values()):
                await self._identify(machine, target)
                if machine.name in refused or not target.takes(machine):
                    continue
                try:
                    sent = [_at(each, await self.cluster.send(machine, each)) for each in packs]
                    made = await self.cluster.ask(machine, JoinPacks(tuple(sent), target.name), Made)
                    shutil.rmtree(folder, ignore_errors=True)
                    return await self.cluster.fetch(machine, made.files, folder)
                except WorkerLostError:
                    since = trio.current_time()
                except (OrchestratorError, OSError) as error:
                    refused[machine.name] = _of_machine(machine, error)
            takers = [each.name for each in self.cluster.machines.values() if target.takes(each)]
            if refused and refused.keys() >= set(takers):
                raise list(refused.values())[-1]
            with trio.move_on_after(1.0):
                await self.cluster.wait()
        raise ClusterError(f"no machine is left that can join what came back for {target.options.selector}")


def _begun(shard: _Shard) -> tuple[SentFile, ...]:
    """What a machine that left in order made of a shard."""
    with suppress(OSError, OrchestratorError):
        if any(each.cache for each in Pack.open(shard.folder / PACK).manifest.targets):
            return files_of(shard.folder / PACK)
    return ()


def _of_machine(machine: Machine, error: OrchestratorError | OSError) -> OrchestratorError:
    """An error that names the machine."""
    if isinstance(error, OSError):
        return ClusterError(f"{machine.name}: {error}")
    sent = SentError.of(error)
    found = replace(sent, message=f"{machine.name}: {sent.message}").error()
    return found if isinstance(found, OrchestratorError) else error


def _at(files: tuple[SentFile, ...], paths: tuple[str, ...]) -> tuple[SentFile, ...]:
    return tuple(replace(file, path=path) for file, path in zip(files, paths, strict=True))
