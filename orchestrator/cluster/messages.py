"""What the coordinator asks of a worker of a cluster, and the answers: values that msgspec encodes.

No object of ours is pickled: a task is a function of `worker`, which takes bytes and returns bytes.
"""

from __future__ import annotations

import msgspec

from orchestrator.children.protocol import SentError
from orchestrator.devices.listing_messages import DeviceEntry
from orchestrator.errors import OrchestratorError


class ClusterError(OrchestratorError):
    """The cluster, or a machine of it, cannot do what is asked; the message names the machine and why."""


class SentFile(msgspec.Struct, frozen=True):
    """A file by its content; `path` is where it lies on the machine that names it."""

    name: str  # relative to the folder that the receiver keeps it in
    path: str
    size: int
    xxh3_128: str


class About(msgspec.Struct, frozen=True):
    """Who a worker is."""

    machine: str
    processors: int
    versions: dict[str, str]  # of what has to be the same on all machines
    is_leaving: bool = False

    def differences(self, here: About) -> list[str]:
        """What is of another version than here, in words."""
        return [
            f"it has {name} {self.versions.get(name, 'in no version')}, and this has {wanted}"
            for name, wanted in here.versions.items()
            if self.versions.get(name) != wanted
        ]


class ListDevices(msgspec.Struct, frozen=True, tag="list"):
    """Ask which devices a worker's machine has: the one that a selector names, or all."""

    selector: str = ""


class Devices(msgspec.Struct, frozen=True, tag="devices"):
    """The devices of a worker's machine."""

    found: tuple[DeviceEntry, ...]


class Locate(msgspec.Struct, frozen=True, tag="locate"):
    """Ask which of some files a worker has, by their content."""

    files: tuple[SentFile, ...]


class Located(msgspec.Struct, frozen=True, tag="located"):
    """Where a worker has each file, as far as it has them: paths that both machines have count, too."""

    paths: tuple[str, ...]


class Chunk(msgspec.Struct, frozen=True):
    """A part of a file: bytes from `offset` on."""

    file: SentFile
    offset: int
    size: int


class CompileShard(msgspec.Struct, frozen=True, tag="compile"):
    """Ask for a shard of a set to be compiled for a device."""

    run: str  # names the run of the coordinator that steers it
    archives: tuple[str, ...]  # on the worker
    options: bytes  # encoded CompileOptions, whose subset is the shard
    name: str  # of the folder of the shard, the same on every machine
    seed: tuple[SentFile, ...] = ()  # of a pack whose cache is loaded first; on the worker


class JoinPacks(msgspec.Struct, frozen=True, tag="join"):
    """Ask for packs of one device to be joined by its driver."""

    packs: tuple[tuple[SentFile, ...], ...]  # the files of each, on the worker
    name: str  # of the folder of the joined pack


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Ask for what was made for a target to be removed; its name is that of its folder."""

    name: str


class Made(msgspec.Struct, frozen=True, tag="made"):
    """The files that were made: those of a pack, its manifest last."""

    files: tuple[SentFile, ...]


Request = ListDevices | Locate | CompileShard | JoinPacks | Forget
Answer = Devices | Located | Made | SentError


class ShardProgress(msgspec.Struct, frozen=True):
    """How far a shard is; the counts of `Progress`."""

    name: str
    done: int
    compiled: int
    hits: int
    failed: int
    skipped: int
    in_flight: int
