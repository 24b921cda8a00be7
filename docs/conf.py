"""What Sphinx builds of docs/*.md and the docstrings: a site that opens from disk and asks for no network.

`make docs` builds it into build/docs. A broken link, a page without an entry in the navigation and a
docstring that cannot be read are errors.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from orchestrator.version import VERSION  # noqa: E402

project = html_title = "orchestrator"
release = VERSION
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = html_show_sourcelink = False
highlight_language = "console"
myst_heading_anchors = 4
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"[\w.]+")]  # what other libraries and inner modules define has no page
default_role = "code"  # docstrings write names in single backquotes
autodoc_member_order = "bysource"
napoleon_use_ivar = True
toc_object_entries_show_parents = "hide"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
exclude_patterns = ["examples"]

_LINK = re.compile(r"\[([^][]*)\]\((?!\w+:)([^)#\s]+)((?:#[^)\s]*)?)\)")
_INCLUDED = {
    "README": "index",
    "CONTRIBUTING": "contributing",
    "CHANGELOG": "changelog",
    "benchmarks/README": "measured",
}
_PAGES = {ROOT / f"{file}.md": f"{page}.md" for file, page in _INCLUDED.items()}
"""Pages of the checkout, and the pages here that include them."""


def _linked(text: str, folder: Path) -> str:
    """A page of a folder with the links of a page in docs/, and none to folders of the source."""

    def replace(match: re.Match[str]) -> str:
        words, target, anchor = match.groups()
        file = (folder / target).resolve()
        if file.is_dir():
            return words
        return f"[{words}]({_PAGES.get(file) or os.path.relpath(file, DOCS)}{anchor})"

    return _LINK.sub(replace, text)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = _linked(source[0], DOCS)


def _include(app: Sphinx, path: Path, name: str, source: list[str]) -> None:
    source[0] = _linked(source[0], (DOCS / path).resolve().parent)


def setup(app: Sphinx) -> None:
    """Have the links of pages changed as they are read."""
    app.connect("source-read", _read)
    app.connect("include-read", _include)
