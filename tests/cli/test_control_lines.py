"""`--control`: commands for a compile that goes on, in this process and in a supervised one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field

from orchestrator.cli.control import CommandReader, EventWriter
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.run.steering import Steering
from orchestrator.sets.archive.writer import ArchiveWriter
from tests.cli.conftest import Call, Done
from tests.drivers import REPOSITORY, driver_manifest
from tests.hosts.test_engine import built
from tests.run.small_sets import add_sample, compute_keys

KEYS = [f"{each:016x}" for each in compute_keys()[:12]]
Event = dict[str, Any]


@contextmanager
def file_descriptor(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o600)
    os.set_inheritable(descriptor, True)  # as what a caller gives
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def steered(
    call: Call, small_set: Path, folder: Path, commands: str, *more: str | Path
) -> tuple[Done, list[Event]]:
    """A compile of the small set that gets these commands before it begins, and what it says."""
    (folder / "commands").write_text(commands)
    with (
        file_descriptor(folder / "commands", os.O_RDONLY) as control,
        file_descriptor(folder / "events", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as events,
    ):
        ends = ("--progress", f"jsonl:{events}", "--control", str(control))
        options = ("-d", "simulated", "--cache-dir", folder / "cache", "--json")
        done = call("compile", small_set, *options, *ends, *more)
    return done, [json.loads(each) for each in (folder / "events").read_text().splitlines()]


def named(events: list[Event], event: str) -> list[Event]:
    return [each for each in events if each["event"] == event]


def keys_of(events: list[Event], name: str) -> list[str]:
    return [key for each in named(events, "settled") for key in each[name]]


def command(name: str, **fields: object) -> str:
    return json.dumps({"command": name, **fields}) + "\n"


IN_PROCESS = pytest.mark.parametrize("more", [(), ("--in-process",)], ids=["supervised", "in-process"])


@IN_PROCESS
def test_what_is_cancelled_is_left_out_and_the_total_knows(
    call: Call, small_set: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    # A budget of nothing holds it; the end of the commands lifts it.
    commands = command("budget", seconds=0) + command("cancel", id=7, pipelines=[*KEYS[2:5], "0"])
    done, events = steered(call, small_set, tmp_path, commands, *more)
    assert done.code == ExitCode.OK
    count = done.document["set"]["unique"]
    assert done.document["outcomes"]["not_run"] == 3
    assert done.document["stopped"] is False
    assert "3 pipelines were cancelled" in " ".join(done.document["notes"])
    assert sorted(keys_of(events, "cancelled")) == sorted(KEYS[2:5])
    assert len(keys_of(events, "compiled")) == count - 3
    last = named(events, "progress")[-1]
    assert (last["total"], last["done"], last["eta_s"]) == (count - 3, count - 3, 0.0)
    budget, cancel = named(events, "answer")
    assert (budget["id"], budget["command"], budget["unknown"]) == (None, "budget", [])
    assert (cancel["id"], cancel["command"], cancel["unknown"]) == (7, "cancel", ["0"])
    (saved,) = named(events, "saved")
    assert Path(saved["path"]).stat().st_size == saved["size"]
    assert [each["event"] for each in events][-2:] == ["done", "end"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "malformed"),
        ("[]", "Expected `object`"),
        ('{"command":"promote"}', "pipelines"),
        ('{"command":"promote","pipelines":["xyz"]}', "matching regex"),
        ('{"command":"budget","seconds":-1}', ">= 0"),
        ('{"command":"budget","secs":1}', "secs"),
        ('{"command":"stop","version":2}', "version"),
        ('"' + "x" * 20_000, "..."),
        ("[" * 5_000, "..."),
        ("\udcff", "the line is"),
    ],
)
def test_a_line_that_is_no_command_is_an_error_and_nothing_else(line: str, words: str) -> None:
    (reader, writer), (own, control) = os.pipe(), os.pipe()
    os.write(control, line.encode("utf-8", "surrogateescape"))
    os.close(control)
    steering = Steering()

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(CommandReader(own, EventWriter(writer)).serve, steering)

    trio.run(serve)
    os.close(own)
    os.close(writer)
    with os.fdopen(reader) as lines:
        (event,) = (json.loads(each) for each in lines)
    assert event["event"] == "error"
    assert words in event["problem"]
    assert "promote, cancel, budget or stop" in event["problem"]
    assert not steering.stop.is_set()


def test_bad_lines_do_not_end_a_compile(call: Call, small_set: Path, tmp_path: Path) -> None:
    lines = f"nonsense\n\n{'x' * (17 << 20)}\n" + command("promote", id="a", pipelines=KEYS[:1]) + '{"com'
    done, events = steered(call, small_set, tmp_path, lines, "--in-process")
    assert done.code == ExitCode.OK
    assert [each["line"] for each in named(events, "error")] == [1, 3, 5]
    assert [each["id"] for each in named(events, "answer")] == ["a"]
    assert len(keys_of(events, "compiled")) == done.document["set"]["unique"]


def test_a_control_that_cannot_be_read_or_answered(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no --progress"):
        CommandReader.of_option(0, None)
    with pytest.raises(UsageError, match="not open for reading"):
        CommandReader.of_option(1_000_000, EventWriter(2))
    with (
        file_descriptor(tmp_path / "file", os.O_WRONLY | os.O_CREAT) as writing,
        pytest.raises(UsageError, match="not open for reading"),
    ):
        CommandReader.of_option(writing, EventWriter(writing))


def test_targets_are_steered_together(call: Call, small_set: Path, tmp_path: Path) -> None:
    commands = command("cancel", pipelines=KEYS[:2])
    done, events = steered(call, small_set, tmp_path, commands, "--out", tmp_path / "pack")
    assert done.code == ExitCode.OK
    assert sorted(keys_of(events, "cancelled")) == sorted(KEYS[:2])
    overall = [each for each in named(events, "progress") if each["target"] is None]
    assert overall[-1]["done"] == overall[-1]["total"] == len(keys_of(events, "compiled"))
    assert len(named(events, "answer")) == 1
    (saved,) = named(events, "saved")
    assert saved["target"] == "simulated"


@define
class Program:
    """The program, with a pipe for each direction."""

    process: subprocess.Popen[bytes]
    control: int
    events: Iterator[str]
    seen: list[Event] = field(factory=list)

    def say(self, name: str, **fields: object) -> None:
        os.write(self.control, command(name, **fields).encode())

    def until(self, wanted: Callable[[Event], bool]) -> Event:
        for line in self.events:
            self.seen.append(json.loads(line))
            if wanted(self.seen[-1]):
                return self.seen[-1]
        raise AssertionError(self.seen)


@contextmanager
def program(path: Path, folder: Path, *more: str) -> Iterator[Program]:
    (events, theirs), (own, control) = os.pipe(), os.pipe()
    ends = ("--progress", f"jsonl:{theirs}", "--control", str(own))
    arguments: tuple[str | Path, ...] = ("compile", path, "-d", "simulated", "--cache-dir", folder, *ends)
    command_line = (sys.executable, "-m", "orchestrator", *arguments, "--quiet", *more)
    # A group that a shell could continue: else Ctrl-Z does not stop it.
    process = subprocess.Popen(command_line, pass_fds=(theirs, own), cwd=REPOSITORY, process_group=0)
    os.close(theirs)
    os.close(own)
    with process, os.fdopen(events) as lines, os.fdopen(control, "wb", 0):
        yield Program(process, control, lines)


def is_answer(event: Event) -> bool:
    return bool(event["event"] == "answer")


def test_a_held_compile_does_one_thing_then_another_and_stops(small_set: Path, tmp_path: Path) -> None:
    with program(small_set, tmp_path / "cache", "-j", "1") as running:
        running.say("budget", seconds=0, id=1)
        for key in (KEYS[7], KEYS[3]):
            running.say("promote", pipelines=[key])
            # Where nothing fits into the time, one pipeline begins all the same: the most urgent.
            running.say("budget", seconds=1e-6)
            settled = running.until(lambda event: event["event"] == "settled")
            assert settled["compiled"] == [key]
        running.say("cancel", id="c", pipelines=[KEYS[5]])
        running.until(lambda event: is_answer(event) and event["id"] == "c")
        running.say("stop")
        over = running.until(lambda event: event["event"] == "done")
        assert over["outcomes"]["compiled"] == 2
        assert over["stopped"] is True
        assert running.until(lambda event: event["event"] == "end")["exit_code"] == ExitCode.INTERRUPTED
    assert running.process.returncode == ExitCode.INTERRUPTED
    cancelled = [key for each in named(running.seen, "settled") for key in each["cancelled"]]
    assert cancelled == [KEYS[5]]


def launched(program: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run docs/examples/steer.c, which finds the `orchestrator` beside it."""
    path = f"{program.parent}:{os.environ['PATH']}"
    return subprocess.run(
        [program, *words],
        env={**os.environ, "PATH": path, "ASAN_OPTIONS": "detect_leaks=0"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def launcher_with(folder: Path, script: str) -> Path:
    """The launcher, built, and a script of the shell that it takes for `orchestrator`."""
    orchestrator = folder / "orchestrator"
    orchestrator.write_text(f"#!/bin/sh\n{script}\n")
    orchestrator.chmod(0o755)
    return built(REPOSITORY / "docs" / "examples" / "steer.c", folder / "steer")


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The launcher with the program itself."""
    folder = tmp_path_factory.mktemp("launcher")
    return launcher_with(folder, f'exec "{sys.executable}" -m orchestrator "$@"')


def set_with(folder: Path, *level: str) -> Path:
    """A set of the pipelines of a level and of others that come before them."""
    with ArchiveWriter(folder / "set.foz") as writer:
        add_sample(writer, [*compute_keys()[:16], *(int(each, 16) for each in level)])
    return folder / "set.foz"


def test_the_launcher_in_c(launcher: Path, tmp_path: Path) -> None:
    """What it asks for first is there first."""
    level = ("5380a98eaf356f6c", "e9f9060e90d7afa5")
    done = launched(launcher, set_with(tmp_path, *level), "simulated", tmp_path / "cache", *level)
    assert done.returncode == ExitCode.OK, done.stderr
    assert done.stdout.splitlines() == ["the level is compiled", "the level is there", "saved", "over"]
    assert done.stderr == ""


def test_the_launcher_in_c_and_a_level_that_the_device_lacks(launcher: Path, tmp_path: Path) -> None:
    """RADV has no D24: the level is settled before anything is compiled."""
    driver_manifest("radv:navi21")
    level = "43210c2d62f9536c"
    done = launched(launcher, set_with(tmp_path, level), "radv:navi21", tmp_path / "cache", level)
    assert done.returncode == ExitCode.OK, done.stderr
    assert (done.stdout.splitlines()[0], done.stdout.splitlines()[-1]) == ("the level is there", "over")


def test_the_launcher_in_c_counts_a_key_of_two_applications_once(tmp_path: Path) -> None:
    events = [{"event": "settled", "compiled": keys} for keys in (KEYS[:1], KEYS[:2])]
    lines = [json.dumps(each, separators=(",", ":")) for each in events]
    program = launcher_with(tmp_path, "\n".join(["cat >&3 <<END", *lines, "END"]))
    done = launched(program, "set", "device", "cache", *KEYS[:2])
    assert (done.stdout, done.stderr, done.returncode) == ("the level is there\n", "", 0)


def test_one_socket_may_be_both(call: Call, small_set: Path, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.set_inheritable(True)
        ours.sendall((command("cancel", pipelines=KEYS[:1]) + command("stop", id="s")).encode())
        ours.shutdown(socket.SHUT_WR)
        ends = ("--progress", f"jsonl:{theirs.fileno()}", "--control", str(theirs.fileno()))
        here = ("-d", "simulated", "--in-process", "--cache-dir", tmp_path)
        done = call("compile", small_set, *here, "--quiet", *ends)
        theirs.close()
        with ours.makefile("r") as lines:
            events = [json.loads(each) for each in lines]
    assert done.code == ExitCode.INTERRUPTED
    assert [each["command"] for each in named(events, "answer")] == ["cancel", "stop"]
    assert events[-1]["exit_code"] == ExitCode.INTERRUPTED
