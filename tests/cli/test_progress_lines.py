"""`--progress jsonl`: events for a parent program, which may be slow or gone."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import control
from orchestrator.cli.control import EventWriter
from orchestrator.cli.errors import ExitCode
from orchestrator.devices.image import PipelineKind
from orchestrator.run.records import Hash, Progress, SlowInFlight
from tests.cli.conftest import Call

PROGRESS = Progress(
    10,
    3,
    compiled=2,
    hits=1,
    in_flight=1,
    eta_s=4.5,
    slowest=SlowInFlight(Hash(255), PipelineKind.COMPUTE, 2, 1.5),
)

FIELDS = {
    **dict.fromkeys(("total", "done", "compiled", "hits", "skipped", "failed", "in_flight"), 1),
    **dict.fromkeys(("elapsed_s", "rate", "eta_s"), 1.0),
    "slowest": PROGRESS.slowest,
}


def events(path: Path) -> list[dict[str, object]]:
    return [json.loads(each) for each in path.read_text().splitlines()]


def test_a_compile_tells_its_parent_what_it_does(call: Call, small_set: Path, tmp_path: Path) -> None:
    path = tmp_path / "progress"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.set_inheritable(descriptor, True)  # as what a caller gives
    here = ("-d", "simulated", "--in-process", "--cache-dir", tmp_path / "cache")
    done = call("compile", small_set, *here, "--progress", f"jsonl:{descriptor}", "--json")
    os.close(descriptor)
    assert done.code == ExitCode.OK
    found = events(path)
    start, end = found[0], found[-1]
    assert (start["event"], start["version"], start["targets"]) == ("start", 1, ["simulated"])
    assert start["process_id"] == os.getpid()
    count = done.document["set"]["unique"]
    assert (start["pipelines"], start["total"]) == (count, count)
    assert (end["event"], end["exit_code"]) == ("end", 0)
    progress = [each for each in found if each["event"] == "progress"]
    assert {each["total"] for each in progress} == {count}
    assert progress[-1]["done"] == count
    assert "started_ns" not in progress[-1]
    stages = [each["name"] for each in found if each["event"] == "stage"]
    assert stages[0] == "reading the set"
    assert "compiling" in stages
    (over,) = [each for each in found if each["event"] == "done"]
    assert over["outcomes"] == {"compiled": count, "cache_hit": 0, "skipped": 0, "failed": 0, "not_run": 0}
    assert (over["stopped"], over["problem"]) == (False, None)
    assert [each["at_s"] for each in found] == sorted(each["at_s"] for each in found)  # type: ignore[type-var]


def test_a_parent_is_told_that_a_signal_stops_a_compile(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --out, which is how several targets are compiled."""
    write = EventWriter.tell

    def interrupt(self: EventWriter, event: str, **fields: Any) -> None:
        if event == "stage" and fields["name"] == "reading the set":
            signal.raise_signal(signal.SIGTERM)
        write(self, event, **fields)

    monkeypatch.setattr(EventWriter, "tell", interrupt)
    path = tmp_path / "progress"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.set_inheritable(descriptor, True)  # as what a caller gives
    options = ("-d", "simulated", "--out", tmp_path / "kept", "--progress", f"jsonl:{descriptor}")
    call("compile", small_set, *options)
    os.close(descriptor)
    texts = [str(each["text"]) for each in events(path) if each["event"] == "message"]
    assert [each.partition(":")[0] for each in texts] == ["stopping"]


def test_what_is_not_open_for_writing_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    reading = os.open(tmp_path / "file", os.O_RDONLY)
    os.set_inheritable(reading, True)
    done = call("compile", "sample", "-d", "simulated", "--progress", f"jsonl:{reading}")
    os.close(reading)
    assert done.code == ExitCode.BAD_INPUT
    assert "is not open for writing" in done.err
    assert "3>FILE" in done.err


def test_a_descriptor_of_the_program_itself_is_none_for_events_or_commands(call: Call) -> None:
    """Such as the memory that its processes share, which it made before it read its options."""
    own = os.memfd_create("own")
    done = call("compile", "sample", "-d", "simulated", "--progress", f"jsonl:{own}")
    assert (done.code, os.fstat(own).st_size) == (ExitCode.BAD_INPUT, 0)
    assert f"descriptor {own} is not open for writing" in done.err
    given = os.memfd_create("given", 0)
    ends = ("--progress", f"jsonl:{given}", "--control", str(own))
    assert "not open for reading" in call("compile", "sample", "-d", "simulated", *ends).err
    os.close(given)
    os.close(own)


def test_a_slow_reader_loses_progress_and_nothing_else() -> None:
    reader, writer = os.pipe()
    lines = EventWriter(writer)
    for _ in range(2000):  # more than the pipe holds, which nobody reads yet
        lines.tell("progress", droppable=True, target="radv", **FIELDS)
    came: list[bytes] = []

    def read() -> None:
        while data := os.read(reader, 1 << 16):
            came.append(data)

    thread = threading.Thread(target=read)
    thread.start()
    lines.tell("end", exit_code=0)
    os.close(writer)
    thread.join()
    os.close(reader)
    found = [json.loads(each) for each in b"".join(came).splitlines()]
    assert found[-1]["event"] == "end"
    assert 10 < len(found) < 2000
    assert {each["event"] for each in found[:-1]} == {"progress"}


def test_a_reader_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    reads = False

    def writable(_: int, timeout_s: float) -> bool:
        waits.append(timeout_s)
        return reads

    monkeypatch.setattr(control, "_writable", writable)
    reader, writer = os.pipe()
    lines = EventWriter(writer)
    lines.tell("progress", droppable=True, target="radv", **FIELDS)
    assert waits == [0.0]
    for _ in range(3):
        lines.tell("stage", target="radv", name="compiling")
    assert waits == [0.0, 5.0, 0.0, 0.0]
    reads = True
    lines.tell("stage", target="radv", name="read")
    reads = False
    lines.tell("end", exit_code=0)
    assert waits[4:] == [0.0, 5.0]
    os.close(writer)
    with os.fdopen(reader) as came:
        assert [json.loads(each)["name"] for each in came] == ["read"]


def test_a_reader_that_is_gone_ends_nothing() -> None:
    reader, writer = os.pipe()
    lines = EventWriter(writer)
    lines.tell("stage", target="radv", name="compiling")
    os.close(reader)
    lines.tell("stage", target="radv", name="compiling")
    lines.tell("progress", droppable=True, target="radv", **FIELDS)
    lines.tell("end", exit_code=0)
    assert os.fstat(writer), "it is its owner's to close"
    os.close(writer)
