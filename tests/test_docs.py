"""Every verb and every option of the command line is documented, and nothing else is.

What the command line offers and what its page describes are the same, found by asking the command line
itself, so that a verb or an option cannot be added, renamed or removed on one side only.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cyclopts import App

from orchestrator.cli.application import app
from tests.drivers import REPOSITORY

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
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    lost = [each for each in targets if "://" not in each and not (page.parent / each).exists()]
    assert lost == []


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
