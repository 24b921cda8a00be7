"""The documentation builds as a site, without network, and every link in it leads somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import orchestrator
from tests.drivers import REPOSITORY


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    specification = importlib.util.spec_from_file_location("docs_build", REPOSITORY / "docs" / "build.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_every_page_is_in_the_site_and_every_link_leads_somewhere(
    builder: ModuleType, tmp_path: Path
) -> None:
    assert builder.build(tmp_path / "site") == []
    made = {path.name for path in (tmp_path / "site").glob("*.html")}
    assert {f"{path.stem.lower()}.html" for path in (REPOSITORY / "docs").glob("*.md")} <= made
    reference = (tmp_path / "site" / "api" / "orchestrator.html").read_text("utf-8")
    assert [name for name in orchestrator.__all__ if f'id="{name}"' not in reference] == []
    for page in (tmp_path / "site").rglob("*.html"):
        loads = re.findall(
            r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:[^"]*)"', page.read_text("utf-8")
        )
        assert loads == [], page


def test_broken_links_are_found(builder: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a><a href="b.html#gone">2</a><a href="c.html">3</a>'
    )
    (tmp_path / "b.html").write_text(
        '<p id="there"><a href="https://example.com">4</a><a href="#there">5</a></p>'
    )
    assert builder.broken_links(tmp_path) == ["a.html: b.html#gone", "a.html: c.html"]
