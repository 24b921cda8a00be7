"""Options of every verb: colours, progress, lists; tables in narrow terminals and in pipes; completions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli.application import VERBS
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, display, table, take_display
from orchestrator.sets.archive.reader import RECORD_SIZE, Archive
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_path
from tests.cli.conftest import Call, terminal_as


def test_they_are_taken_from_anywhere_and_the_rest_stays() -> None:
    tokens = ["--color", "never", "list", "-v", "sample", "--no-progress", "--", "-v", "--color"]
    assert take_display(tokens) == ["list", "sample", "--", "-v", "--color"]
    assert (display.color, display.progress, display.verbose) == ("never", False, True)
    assert take_display(["list", "--color=always"]) == ["list"]
    assert (display.color, display.progress, display.verbose) == ("always", True, False)
    assert take_display(["-q", "list"]) == take_display(["list", "--quiet"]) == ["list"]
    assert (display.progress, display.quiet) == (False, True)
    assert take_display(["list", "--", "-q"]) == ["list", "--", "-q"]
    assert not display.quiet


def test_colours_are_as_asked_for(call: Call) -> None:
    assert "\x1b[" not in call("list", "sample").out
    assert "\x1b[" in call("list", "sample", "--color", "always").out
    assert "\x1b[" not in call("--color=never", "list", "sample").out


def test_help_is_coloured_as_asked_for(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" in call("list", "--help", "--color", "always").out
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert "\x1b[" not in call("list", "--help", "--color", "never").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in call("list", "--help").out


def test_no_progress_is_shown_when_none_is_wanted(call: Call, small_set: Path) -> None:
    arguments = ("compile", small_set, "-d", "simulated", "--mode", "none", "--in-process")
    assert "opening the device" in call(*arguments).err
    assert "opening the device" not in call(*arguments, "--no-progress").err


def test_quiet_leaves_exit_code_document_and_errors(call: Call, small_set: Path, tmp_path: Path) -> None:
    loud, still = call("list", small_set), call("list", small_set, "-q")
    assert loud.out
    assert (still.code, still.out, still.err) == (loud.code, "", "")
    assert call("-q", "list", small_set, "--json").document == call("list", small_set, "--json").document
    wrong = call("list", tmp_path / "no such file", "--quiet")
    assert wrong.code == ExitCode.BAD_INPUT
    assert "no such file" in wrong.err


def test_quiet_says_why_a_verb_fails(call: Call, tmp_path: Path) -> None:
    bad, folder = tmp_path / "bad.pipeline-cache", tmp_path / "folder"
    bad.write_bytes(b"\x89OPCF")
    folder.mkdir(mode=0o700)
    (folder / "state.sqlite").write_bytes(b"{" * 9000)
    (folder / "state.sqlite").chmod(0o600)
    for said, *arguments in (
        ("TRUNCATED", "verify", bad),
        ("TRUNCATED", "export", bad, "-o", tmp_path / "data"),
        ("TRUNCATED", "merge", bad, "-o", tmp_path / "merged", "-d", "simulated"),
        ("it is damaged", "quarantine", "list", "--cache-dir", folder),
        ("a file, not a directory", "doctor", "-d", "simulated", "--cache-dir", bad),
    ):
        still = call(*arguments, "-q")
        assert (still.code, still.out) == (ExitCode.BAD_INPUT, ""), arguments
        assert said in still.err, arguments
        if "quarantine" in arguments:  # the verb cannot begin, which is an error and no result
            assert said in call(*arguments, "-q", "--json").document["error"]["message"]
        else:
            assert call(*arguments, "-q", "--json").err == "", arguments


def test_verbose_cuts_no_list(call: Call, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.foz"
    with Archive.open(sample_path()) as archive:
        offsets = [
            archive.offset(RecordTag.GRAPHICS_PIPELINE, key)
            for key in archive.keys(RecordTag.GRAPHICS_PIPELINE)
        ]
    content = bytearray(sample_path().read_bytes())
    for offset in offsets[:30]:
        content[offset + RECORD_SIZE + 3] ^= 0x10
    damaged.write_bytes(content)
    cut, whole = call("list", damaged).out, call("list", damaged, "-v").out
    assert cut.count("at byte") == 2 * 20  # places of damage, and pipelines that they cost
    assert "10 more, see --verbose" in cut
    assert whole.count("at byte") == 2 * 30
    assert "more, see" not in whole


def test_a_row_of_a_pipe_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    made = table("name", "number", numbers=(1,))
    made.add_row("word " * 100 + "last", "1,234,567")
    Output(json=False).show(made)
    (row,) = [each for each in capsys.readouterr().out.splitlines() if "word" in each]
    assert row.split()[-2:] == ["last", "1,234,567"]


@pytest.mark.parametrize("columns", [40, 48, 80])
def test_no_number_is_cut_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    stream = terminal_as(monkeypatch, "stdout", columns)
    made = table("a long name of something", "first", "second", "third", numbers=(1, 2, 3))
    made.add_row("words that may well be folded", "1,234,567", "12,345.6 KiB", "98,765.4 ms")
    Output(json=False).show(made)
    lines = stream.getvalue().splitlines()
    for number in ("1,234,567", "12,345.6 KiB", "98,765.4 ms"):
        assert sum(number in line for line in lines) == 1
    assert max(map(len, lines)) <= max(columns, 48)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_name_every_verb_and_parse(call: Call, shell: str, tmp_path: Path) -> None:
    done = call("completion", shell, "--json")
    assert done.code == ExitCode.OK
    text = done.document["script"]
    assert all(verb in text for verb in VERBS)
    assert "cache-dir" in text
    verbs = len(VERBS) if shell != "fish" else 1  # fish has them once for all
    assert text.count("quiet") >= verbs
    assert text.count("no-progress") >= verbs
    if program := shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(text, "utf-8")
        subprocess.run([program, "-n", script], check=True, capture_output=True)


def test_bash_completes_verbs_and_options(call: Call, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(call("completion", "bash").out, "utf-8")
    source = f". {script}\n" + "\n".join(
        f"COMP_WORDS=(orchestrator {words}) COMP_CWORD={len(words.split())}\n_orchestrator\n"
        'echo "${COMPREPLY[*]}"'
        for words in ("cal", "list --qu", "list --color never --no-p")
    )
    done = subprocess.run(["bash", "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["calibrate", "--quiet", "--no-progress"]
