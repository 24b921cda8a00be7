"""One cluster for all tests of this folder: starting one takes longer than most of what they try."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.errors import ExitCode
from tests.cli.conftest import Call
from tests.cli.conftest import call as call
from tests.cli.conftest import usual_display as usual_display
from tests.cluster.clusters import PATIENCE_S, processes_of, until
from tests.cluster.place import Compiled, Place
from tests.cluster.telling import TellingCompiler


@pytest.fixture(scope="session")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("place"))
    try:
        yield place
        for each in place.cluster.workers.values():
            each.terminate()
        for each in place.cluster.workers.values():
            assert each.wait(PATIENCE_S) == 0, "a worker leaves in order"
            until(lambda each=each: not processes_of(each.pid))  # type: ignore[misc]
    finally:
        place.cluster.stop()


@pytest.fixture
def place(shared_place: Place, tmp_path: Path) -> Place:
    """A scheduler and two workers, which are there, and where a pack may be made."""
    shared_place.make_whole(tmp_path)
    return shared_place


@pytest.fixture
def compiled(place: Place, call: Call, monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """Compile the set; what is said of its only target."""
    monkeypatch.setattr("orchestrator.cluster.compile.ClusterCompiler", TellingCompiler)

    def run(*or_codes: int) -> dict[str, Any]:
        options = ("--cluster", place.cluster.address, "-d", "simulated", "-j", "2", "--json")
        done = call("compile", place.archive, "--out", place.pack, *options)
        assert done.code in (ExitCode.OK, *or_codes), f"{done.out}\n{done.err}"
        if "targets" not in done.document:
            return {"problem": f"{done.out}{done.err}"}
        (target,) = done.document["targets"]
        assert isinstance(target, dict)
        if done.code == ExitCode.OK:
            assert place.kept() == place.keys
        return target

    return run
