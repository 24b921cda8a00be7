"""A cluster that tests share, whatever they do to it, with a device that tells of each compile."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.stores.pack import Pack, PackError
from tests.cluster.clusters import PATIENCE_S, Cluster, until
from tests.cluster.device import COMPILES
from tests.drivers import REPOSITORY
from tests.run.small_sets import write_variants

T = TypeVar("T")
Compiled = Callable[..., dict[str, Any]]
COUNT = 64  # pipelines, in two shards
WORKERS = 2


class Place:
    """The cluster, a set, and where its pack is made."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.archive = folder, folder / "game.foz"
        self.keys = set(write_variants(self.archive, COUNT))
        self.pack = folder / "pack"
        self.threads = ThreadPoolExecutor(2)
        environment = {COMPILES: str(folder / "compiles"), "PYTHONPATH": str(REPOSITORY)}
        self.cluster = Cluster(folder, program="tests.cluster.telling", environment=environment)

    def make_whole(self, folder: Path | None = None) -> None:
        """Start what does not run, and have packs made in another folder."""
        cluster = self.cluster
        if cluster.scheduler is None or cluster.scheduler.poll() is not None:
            for each in cluster.workers.values():
                each.wait(PATIENCE_S)  # they end with their scheduler
            (self.folder / "scheduler.json").unlink(missing_ok=True)
            cluster.start()
        cluster.workers = {name: each for name, each in cluster.workers.items() if each.poll() is None}
        while len(cluster.workers) < WORKERS:
            self.add()
        cluster.wait_for(WORKERS)
        if folder is not None:
            self.pack = folder / "pack"
            self.forget_compiles()

    def add(self, **variables: str) -> str:
        """Start a worker that tells of its compiles in a file of its own; its name."""
        name = f"worker{len(list(self.folder.glob('*.compiles')))}"
        file = self.folder / f"{name}.compiles"
        file.touch()
        self.cluster.add(name, environment={COMPILES: str(file)} | variables)
        return name

    @property
    def names(self) -> list[str]:
        """Of the workers."""
        return list(self.cluster.workers)

    def address(self, name: str) -> str:
        """Where a worker is now."""
        with self.cluster.client() as client:
            there = client.scheduler_info(n_workers=-1)["workers"]
        (address,) = (str(address) for address, each in there.items() if each["name"] == name)
        return address

    def do(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Have a worker's process call a function."""
        address = self.address(name)
        with self.cluster.client() as client:
            return client.run(function, *arguments, workers=[address])[address]

    def start(self) -> subprocess.Popen[bytes]:
        """Compile the set in the background."""
        return self.cluster.begin(self.archive, self.pack, "-d", "simulated")

    def compiles(self, name: str = "*") -> Counter[int]:
        """How often each pipeline's compile has begun, by one worker or by all."""
        content = b"".join(each.read_bytes() for each in self.folder.glob(f"{name}.compiles"))
        return Counter(int.from_bytes(content[at : at + 8]) for at in range(0, len(content), 8))

    def forget_compiles(self) -> None:
        """Begin to count anew."""
        for each in self.folder.glob("*.compiles"):
            each.write_bytes(b"")

    def kept(self) -> set[int]:
        """The pipelines that came back from the workers, or are in the pack."""
        found = set[int]()
        for each in (self.pack, *self.pack.parent.glob(".pack.cluster/back/*/*-of-*/pack")):
            with suppress(PackError):  # its manifest comes last
                pack = Pack.open(each)
                found |= {key for one in pack.manifest.targets for key in pack.read_notes(one).held.tolist()}
        return found

    def once_compiling(self, name: str, act: Callable[[], T]) -> Future[T]:
        """Do something in another thread as soon as a worker compiles."""

        def wait() -> T:
            until(lambda: bool(self.compiles(name)))
            return act()

        return self.threads.submit(wait)
