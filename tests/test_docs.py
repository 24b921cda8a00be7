"""Every verb and every option of the command line is documented, and nothing else is.

What the command line offers and what its page describes are the same, found by asking the command line
itself, so that a verb or an option cannot be added, renamed or removed on one side only. The page on
precompiling is run from its first command to its last.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cyclopts import App

from orchestrator.cli.application import app
from orchestrator.cli.errors import KINDS
from orchestrator.devices.families import expand
from orchestrator.devices.selectors import gpus_of, shim_at_hand
from tests.drivers import REPOSITORY, driver_manifest, missing
from tests.run.small_sets import write_small_set

CLI_PAGE = (REPOSITORY / "docs" / "cli.md").read_text("utf-8")
PAGES = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")])


def verbs() -> dict[str, App]:
    """The commands of the application, without its help and version flags."""
    return {name: app[name] for name in app if not name.startswith("-")}


def options(verb: App) -> list[tuple[str, ...]]:
    """The options of a verb that its help shows, each with all its names: ``--quiet`` and ``--no-quiet``."""
    return [
        argument.names
        for argument in verb.assemble_argument_collection()
        if argument.show and any(name.startswith("--") for name in argument.names)
    ]


def sections() -> dict[str, str]:
    """The sections of the page by the verb that their heading names: ``## `verb ...` ``."""
    parts = re.split(r"^## `(?:orchestrator )?([a-z-]+)[^`]*`.*$", CLI_PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_verb_has_a_section_and_every_section_a_verb() -> None:
    assert verbs()
    assert sorted(sections()) == sorted(verbs())


@pytest.mark.parametrize("verb", verbs())
def test_every_option_is_described_and_every_described_option_exists(verb: str) -> None:
    described = set(re.findall(r"`(--[a-z][a-z-]*)", sections()[verb]))
    names = options(verbs()[verb])
    assert [each for each in names if described.isdisjoint(each)] == []
    assert described - {"--help", "--version"} <= {name for each in names for name in each}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_pages_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    used = {
        one or two for one, two in re.findall(r"`make ([a-z]+)`|^(?:\$ )?make ([a-z]+)$", text, re.MULTILINE)
    }
    assert used <= targets
    called = set(re.findall(r"^(?:\$ )?(?:\.venv/bin/)?orchestrator ([a-z-]+)", text, flags=re.MULTILINE))
    assert called <= set(verbs())


@pytest.mark.parametrize("source", ["null hardware", "drm-shim"])
def test_every_family_in_pages_exists(source: str) -> None:
    """On null hardware with the deviceID of a card, and in the drm-shim, which replaces it in Mesa 26.1."""
    driver_manifest("radv:navi21")
    if source == "null hardware":
        families = {each.name for each in expand("radv:*") if each.device_id}
    else:
        families = set(gpus_of(shim_at_hand({}) or missing("Mesa's drm-shim")))
    texts = "".join(each.read_text("utf-8") for each in PAGES)
    named = set(re.findall(r"radv:([a-z0-9_?*\[\]]+)", texts))
    assert {"navi21", "*"} <= named
    assert [each for each in sorted(named) if not fnmatch.filter(families, each)] == []


def test_every_kind_of_error_is_described() -> None:
    kinds = {*KINDS.values(), "system", "interrupted", "bug"}
    (listed,) = re.findall(r"^`kind` is one of (.*?)\.$", CLI_PAGE, flags=re.MULTILINE | re.DOTALL)
    assert kinds == set(re.findall(r"`([a-z_]+)`", listed))


def test_the_commands_of_the_page_on_precompiling_do_what_it_says(tmp_path: Path) -> None:
    """All of them, in their order, in one directory; with a smaller set and pattern, and a shorter night."""
    driver_manifest("radv:navi21")
    page = (REPOSITORY / "docs" / "precompiling.md").read_text("utf-8")
    commands = re.findall(r"^    (orchestrator .*)$", page, flags=re.MULTILINE)
    assert len(commands) >= 10
    write_small_set(tmp_path / "game.foz", 0, 12)
    ran = []
    for command in commands:
        line = command.replace("'radv:*'", "'radv:navi3[13]'")
        line = re.sub(r"^orchestrator", f"{shlex.quote(sys.executable)} -m orchestrator", line)
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        ran.append(done.stdout)
    by_command = dict(zip(commands, ran, strict=True))
    (filled,) = [
        out
        for command, out in by_command.items()
        if re.fullmatch(r"orchestrator compile .* --cache-dir player", command)
    ]
    assert re.search(r"^compute +(\d+) +0 +\1 +0 +0$", filled, flags=re.MULTILINE), filled
