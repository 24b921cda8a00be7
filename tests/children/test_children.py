"""Children: what they say arrives, how they end is known, and none is left, whatever they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.children import starting
from orchestrator.children.parent import Child, ChildGroup, ChildrenEndedError, Ended
from orchestrator.children.protocol import FRAME_BYTES, FrameError
from tests.children.misbehaving import SERVICE, Do, Said
from tests.drivers import REPOSITORY

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def misbehaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are those of misbehaving.py."""
    monkeypatch.setattr(starting, "ENTRY", "tests.children.misbehaving")


@contextmanager
def started(limits: Sequence[int] = (), environment: dict[str, str] | None = None) -> Iterator[Child[Said]]:
    with Child[Said](SERVICE, Said, limits=limits, environment=environment) as child:
        yield child
    assert is_gone(child.process_id)


def is_gone(process: int) -> bool:
    """Whether a process is no more, or a zombie that waits for its own parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended(answer: Said | Ended) -> Ended:
    assert isinstance(answer, Ended)
    return answer


def said(answer: Said | Ended) -> Said:
    assert isinstance(answer, Said), answer
    return answer


def test_large_frames_go_both_ways() -> None:
    data = os.urandom(9 << 20)
    with started() as child:
        assert said(child.ask(Do("echo", data=data), PATIENCE_S)).data == data


def test_many_answers_stream_while_requests_go_in() -> None:
    with started() as child:
        child.send(Do("streams", 3000, bytes(1000)))
        for number in range(500):
            child.send(Do("echo", number, bytes(1000)))
        answers = [said(child.receive(PATIENCE_S)) for _ in range(3500)]
    assert [each.number for each in answers] == [*range(3000), *range(500)]
    assert all(each.data == bytes([each.number % 251]) * 1000 for each in answers[:3000])


def test_answers_of_several_threads_do_not_mix() -> None:
    with started() as child:
        child.send(Do("threads", 4, bytes(100_000)))
        answers = [said(child.receive(PATIENCE_S)) for _ in range(80)]
    assert all(each.data == bytes([each.number]) * 100_000 for each in answers)
    assert sorted(each.number for each in answers) == sorted([*range(4)] * 20)


def test_what_a_driver_prints_is_read_and_does_not_mix_with_answers() -> None:
    with started() as child:
        assert said(child.ask(Do("prints"), PATIENCE_S)).text == "''", "stdin is empty"
        output = ended(child.ask(Do("exits", 3), PATIENCE_S)).output
    for whose in ("Python", "a driver", "C"):
        assert f"a greeting of {whose}\n" in output


def test_only_the_last_output_is_kept_however_many_there_are() -> None:
    with started() as child:
        assert said(child.ask(Do("floods", 2000), PATIENCE_S)).text == "flooded"
        output = ended(child.ask(Do("exits", 1), PATIENCE_S)).output
    assert len(output) <= 4096
    assert output.endswith("the last words\nwhy it ended")


def test_how_a_child_ended_is_a_value() -> None:
    for request, how, signal_name in (
        (Do("exits", 0), "exit code 0", ""),
        (Do("exits", 7), "exit code 7", ""),
        (Do("dies", signal.SIGSEGV), "signal 11", "SIGSEGV"),
    ):
        with started() as child:
            end = ended(child.ask(request, PATIENCE_S))
            assert (end.how, end.signal, end.fault, end.killed) == (how, signal_name, "", False)
            assert end.output == ("" if signal_name else "why it ended")
            assert child.receive() is child.ask(Do("echo")) is end


def test_an_exception_is_its_last_words() -> None:
    with started() as child:
        end = ended(child.ask(Do("no such deed"), PATIENCE_S))
    assert end.status == 1
    assert "KeyError: 'no such deed'" in end.output


def test_a_request_that_is_none_is_told() -> None:
    with started() as child:
        end = ended(child.ask(Said("what a child says"), PATIENCE_S))
    assert end.how == "exit code 1"
    assert "a request: frame: a body of" in end.output
    assert "'said'" in end.output


@pytest.mark.parametrize("number", [0, signal.SIGKILL])
def test_a_child_that_ends_amid_a_frame(number: int) -> None:
    with started() as child:
        child.send(Do("truncated", number))
        assert said(child.receive(PATIENCE_S)).text == "complete"
        end = ended(child.receive(PATIENCE_S))
    assert "cut off after" in end.fault
    assert "said" in end.fault


@pytest.mark.parametrize(
    ("what", "words"),
    [("garbage", "WARNING: radv is not"), ("other", "'do'"), ("oversized", "only this")],
)
def test_what_is_no_answer_ends_a_child_and_is_shown(what: str, words: str) -> None:
    with started() as child:
        end = ended(child.ask(Do(what, FRAME_BYTES + 1), PATIENCE_S))
        assert words in end.fault
        assert end.killed


def test_a_child_does_not_say_more_than_the_bound() -> None:
    with started() as child:
        with pytest.raises(FrameError, match=f"over the bound of {FRAME_BYTES}"):
            child.send(Do("echo", data=bytes(FRAME_BYTES + 1)))
        end = ended(child.ask(Do("too_much", FRAME_BYTES + 1), PATIENCE_S))
    assert "FrameError: frame: a Said of" in end.output


def test_a_child_that_hangs_up_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Child.end, "__defaults__", (0.0,))
    with started() as child:
        end = ended(child.ask(Do("hangs_up"), PATIENCE_S))
    assert (end.signal, end.killed, end.fault) == ("SIGKILL", True, "")


def test_a_child_that_does_not_answer_can_be_waited_for_again() -> None:
    with started() as child:
        child.send(Do("hangs"))
        for _ in range(2):
            with pytest.raises(TimeoutError):
                child.receive(0.01)
        os.kill(child.process_id, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            child.ask(Do("echo", data=bytes(1 << 20)), 0.1)
        assert child.end(0.0).signal == "SIGKILL"


def test_cpu_time_is_limited() -> None:
    with started((1, 0)) as child:
        end = ended(child.ask(Do("burns"), PATIENCE_S))
    assert end.signal in ("SIGKILL", "SIGXCPU")
    assert not end.killed


def test_memory_is_limited() -> None:
    with started((0, 1 << 30)) as child:
        assert said(child.ask(Do("swells", 1 << 20), PATIENCE_S)).number == 1 << 20
        end = ended(child.ask(Do("swells", 1 << 31), PATIENCE_S))
    assert "MemoryError" in end.output


def test_the_environment_is_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_PARENT", "1")
    with started(environment={"ONLY": "this"}) as child:
        lines = said(child.ask(Do("environment"), PATIENCE_S)).text.splitlines()
    names = {each.partition("=")[0] for each in lines} - {"LC_CTYPE", "OPENBLAS_NUM_THREADS"}
    assert names == {"ONLY", "PYTHONPATH"}
    with started() as child:
        assert "OF_THE_PARENT=1" in said(child.ask(Do("environment"), PATIENCE_S)).text


def test_a_child_imports_what_its_parent_does_and_nothing_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("path", "here"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"planted_{folder}.py").write_text("")
    (tmp_path / "here" / "msgspec.py").write_text("raise SystemExit('hijacked')")
    monkeypatch.syspath_prepend(tmp_path / "path")
    monkeypatch.chdir(tmp_path / "here")
    with started() as child:
        found = said(child.ask(Do("imports", data=b"planted_path"), PATIENCE_S)).text
        assert found == str((tmp_path / "path" / "planted_path.py").resolve())
        assert said(child.ask(Do("imports", data=b"orchestrator"), PATIENCE_S)).text.startswith(
            str(REPOSITORY)
        )
        assert (
            "No module named 'planted_here'"
            in ended(child.ask(Do("imports", data=b"planted_here"), PATIENCE_S)).output
        )


def test_nothing_else_of_the_parent_is_open_in_a_child() -> None:
    read_end, write_end = os.pipe()
    try:
        os.set_inheritable(read_end, True)
        with started() as first, started() as second:
            for child in (first, second):
                # The three of every process, requests and answers, and the listing itself.
                count = len(said(child.ask(Do("descriptors"), PATIENCE_S)).text.split(","))
                assert count == 6
    finally:
        os.close(read_end)
        os.close(write_end)


def test_what_a_child_started_ends_with_it() -> None:
    with started() as child:
        grandchild = said(child.ask(Do("begets"), PATIENCE_S)).number
        assert not is_gone(grandchild)
    until(lambda: is_gone(grandchild))
    with started() as child:
        grandchild = said(child.ask(Do("begets"), PATIENCE_S)).number
        child.ask(Do("exits"), PATIENCE_S)
        until(lambda: is_gone(grandchild))


PARENT = """
import sys
from orchestrator.children import parent, starting
from tests.children.misbehaving import SERVICE, Do, Said
starting.ENTRY = "tests.children.misbehaving"
with parent.Child(SERVICE, Said) as child:
    print(child.process_id, child.ask(Do("begets")).number, flush=True)
    child.send(Do("hangs"))
    sys.stdin.read()
"""


def test_a_child_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
    ) as process:
        assert process.stdout is not None
        child, grandchild = map(int, process.stdout.readline().split())
        assert not is_gone(child)
        process.kill()
        until(lambda: is_gone(child) and is_gone(grandchild))


def test_a_group_ends_the_children_of_all_threads() -> None:
    group = ChildGroup()
    ends: list[Said | Ended] = []

    def use(hung: threading.Event) -> None:
        with started() as child:
            group.add(child)
            child.send(Do("hangs"))
            hung.set()
            ends.append(child.receive(PATIENCE_S))

    hung = [threading.Event() for _ in range(3)]
    threads = [threading.Thread(target=use, args=(each,)) for each in hung]
    for thread in threads:
        thread.start()
    for each in hung:
        assert each.wait(PATIENCE_S)
    group.end()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [ended(each).signal for each in ends] == ["SIGKILL"] * 3
    with started() as late, pytest.raises(ChildrenEndedError):
        group.add(late)
