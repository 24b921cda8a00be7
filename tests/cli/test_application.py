from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from orchestrator.cli.application import VERBS, app, parse
from orchestrator.cli.errors import ExitCode
from orchestrator.errors import ExternalSynchronizationError
from orchestrator.version import VERSION
from tests.cli.conftest import Call, run_program
from tests.drivers import REPOSITORY, run_on_device

_QUANTITY = re.compile(r"such as (?:\d+(?:ms|s|m|h|d|M|G)\b|.{0,12}\b\d+[MG]\b)")


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_examples_that_parse_and_says_what_a_number_alone_means(
    call: Call, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    done = call(verb, "--help")
    assert done.code == ExitCode.OK
    assert "EXAMPLES" in done.out
    examples = [
        line.strip() for line in done.out.splitlines() if line.strip().startswith(f"orchestrator {verb}")
    ]
    assert len(examples) >= 2
    for example in examples:
        words = example.partition(" >")[0].split()[1:]
        command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        assert command.__name__ == f"{verb}_verb"
        assert "--json" not in words or bound.arguments["json"] is True
    options = [each for each in done.out.splitlines() if each.startswith("│") and "--" in each]
    quantities = [each for each in options if _QUANTITY.search(each)]
    for each in quantities:
        assert re.search("number alone is (seconds|bytes|days)", each), each
    expected = {
        "compile": 5,
        "regress": 1,
        "prune": 2,
        "binaries": 2,
        "bench": 1,
        "calibrate": 1,
        "doctor": 1,
    }
    expected |= {"set": 1, "refresh": 1}
    assert len(quantities) == expected.get(verb, 0)
    names = {name for each in app[verb].assemble_argument_collection() for name in each.names}
    assert not names & {"-v", "--verbose", "--color", "--no-progress", "-q", "--quiet"}  # of all verbs
    assert [each for each in names if each.startswith("--empty")] == []


def test_help_names_the_verbs_and_the_exit_codes(call: Call) -> None:
    assert "Usage: orchestrator COMMAND" in call().out
    assert call("--version").out.strip() == VERSION
    done = call("--help")
    assert done.code == ExitCode.OK
    assert all(verb in done.out for verb in VERBS)
    assert all(re.search(rf"^ +{int(code)} +\S", done.out, re.MULTILINE) for code in ExitCode)


def test_wrong_usage_with_json_is_a_document(call: Call) -> None:
    done = call("compile", "sample", "--mode", "fast", "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert done.document["error"]["kind"] == "usage"
    assert "fast" in done.document["error"]["message"]


def test_json_behind_the_end_of_options_is_a_file(call: Call) -> None:
    done = call("list", "--", "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert "--json" in done.err
    assert done.out == ""


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), ExternalSynchronizationError("in use")])
def test_a_bug_shows_its_traceback(monkeypatch: pytest.MonkeyPatch, call: Call, error: Exception) -> None:
    def broken(**_: object) -> int:
        raise error

    monkeypatch.setattr("orchestrator.cli.devices.list_all", broken)
    done = call("devices", "--json")
    assert done.code == ExitCode.BUG
    assert "Traceback" in done.err
    assert "please report it" in done.err
    assert done.document["error"]["kind"] == "bug"


# As Python imports this at its start, a signal comes when the program loads a module, and only then.
_SIGNAL_AT_IMPORT = """
import os, signal, sys
process = os.getpid()  # its fork that parses dies of a signal
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in modules and os.getpid() == process:
            modules.remove(name)
            signal.raise_signal(signal.SIGTERM)
modules = {modules}
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "modules",
    [
        ["orchestrator.cli.devices"],
        ["orchestrator.cli.application", "rich.console", "rich.table"],
    ],
    ids=" ".join,
)
def test_a_signal_while_it_is_loaded_ends_it_with_a_document(modules: list[str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_SIGNAL_AT_IMPORT.format(modules=modules))
    done = run_program(
        "devices", "-d", "simulated", "--json", environment={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    )
    assert done.code == ExitCode.INTERRUPTED, done.err
    assert done.document["error"]["kind"] == "interrupted"


def test_help_loads_nothing_that_only_work_needs() -> None:
    source = """
import sys
from pathlib import Path
def main():
    from orchestrator.cli.application import VERBS, app, parse
    app.parse_args(["compile", "sample"])
    return sorted(sys.modules)
"""
    loaded = set(run_on_device(None, source))
    assert sorted(loaded & {"numpy", "trio", "plotly", "cffi", "_cffi_backend"}) == []


@pytest.mark.parametrize(
    ("before", "parameter"),
    [
        (["compare", "other"], "after"),
        (["inspect"], "files"),
        (["list"], "sets"),
        (["merge", "-o", "merged"], "files"),
        (["verify"], "paths"),
    ],
)
def test_a_file_with_a_name_like_json_is_that_file(before: list[str], parameter: str) -> None:
    for name in ("[1].foz", '["a"]', "[]", '{"a": 1}'):
        _, bound = parse([*before, name])
        assert [os.fspath(each) for each in bound.arguments[parameter]] == [name]
