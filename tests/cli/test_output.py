from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest

from orchestrator.cli.console import PIPE_WIDTH
from orchestrator.cli.output import Output, console_on, styled, table, write_json
from tests.cli.conftest import DISPLAY_VARIABLES, Terminal


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in DISPLAY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def _shown(stream: io.StringIO) -> str:
    console_on(stream).print(styled("bad", "bad"))
    return stream.getvalue()


def test_a_terminal_gets_colours() -> None:
    assert "\x1b[31m" in _shown(Terminal())


def test_a_pipe_gets_none() -> None:
    assert _shown(io.StringIO()) == "bad\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "unknown")])
def test_a_terminal_may_ask_for_none(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert _shown(Terminal()) == "bad\n"


def test_only_a_capable_terminal_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    assert Output(json=False).live
    monkeypatch.setenv("NO_COLOR", "1")
    assert Output(json=False).live
    monkeypatch.setenv("TERM", "dumb")
    assert not Output(json=False).live
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert not Output(json=False).live


def test_words_of_strangers_are_neither_markup_nor_control_codes(capsys: pytest.CaptureFixture[str]) -> None:
    Output(json=False).line("[bold]game[/bold] \x1b[2J :smile:")
    assert capsys.readouterr().out == "[bold]game[/bold] \\x1b[2J :smile:\n"


def test_words_of_strangers_are_no_control_codes_in_a_document(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = "\u00e9\u6f22 \x1b[2J \x9b2J \u202e \U000e0001"
    with (tmp_path / "out").open("w+", encoding="utf-8") as out:
        monkeypatch.setattr("sys.stdout", out)
        write_json({"name": name})
        out.seek(0)
        text = out.read()
    assert "\u00e9\u6f22" in text
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == {"name": name}


def test_long_lines_of_a_pipe_are_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    Output(json=False).line("word " * 100 + "end")
    assert capsys.readouterr().out.count("\n") == 1


class Version(msgspec.Struct):
    """A document."""

    a: int


def test_with_json_only_the_document_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Output(json=True)
    shown.line("for people")
    made = table("a")
    made.add_row("1")
    shown.show(made)
    shown.facts([("name", "value")])
    shown.document(lambda: Version(1))
    shown.message("a message")
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"a": 1}
    assert captured.err == "a message\n"


def test_without_json_there_is_no_document(capsys: pytest.CaptureFixture[str]) -> None:
    Output(json=False).document(lambda: Version(1))
    assert capsys.readouterr().out == ""


def test_documents_are_indented_utf8(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"name": "ü", "list": [1]})
    assert capsys.readouterr().out == '{\n  "name": "ü",\n  "list": [\n    1\n  ]\n}\n'


def test_a_broken_pipe_is_raised() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        console_on(Gone()).print("x")


def test_width_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert console_on(io.StringIO()).width == PIPE_WIDTH
    monkeypatch.setenv("COLUMNS", "61")
    assert console_on(io.StringIO()).width == 61
