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


def test_a_terminal_gets_colours_but_where_it_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _shown(io.StringIO()) == "bad\n"
    assert "\x1b[31m" in _shown(Terminal())
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "unknown")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
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


def test_lines_of_a_pipe_are_not_folded_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    words = "word " * 100
    Output(json=False).line(words + "[bold]game[/bold] \x1b[2J :smile:")
    assert capsys.readouterr().out == words + "[bold]game[/bold] \\x1b[2J :smile:\n"


def test_a_document_has_no_control_codes_of_strangers(
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
    Output(json=False).document(lambda: Version(1))  # which is for people
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"a": 1}
    assert captured.err == "a message\n"


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
