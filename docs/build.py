"""Builds the documentation as a site that opens from disk: the pages as HTML, and a reference of the library.

    python docs/build.py [OUT]      default: build/docs

The pages are README.md and docs/*.md; the reference is made by pdoc from the docstrings of what
`orchestrator` exports. Needs no network, and the site asks for none. Every link within the site is checked,
its anchors too: a broken one ends the build with exit code 1. Links to files of the source lead to the
reference of their module where it is part of the library, else to a copy of the file.
"""

from __future__ import annotations

import html
import html.parser
import os
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote

import markdown2
import pdoc
import pdoc.render

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("orchestrator", "orchestrator.testing")
"""What the reference describes: that which users import."""

_STYLE = """
:root { color-scheme: light dark; --text: #222; --back: #fff; --line: #ddd; --code: #f4f4f4; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e6e6; --back: #16191d; --line: #3a4048; --code: #22272e; }
}
body { font: 16px/1.55 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem;
  color: var(--text); background: var(--back); }
a { color: #2a7ab8; }
code, pre { background: var(--code); border-radius: .2rem; }
pre { padding: .6rem; overflow-x: auto; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid var(--line); padding: .2rem .5rem; text-align: left; vertical-align: top; }
nav { border-bottom: 1px solid var(--line); padding-bottom: .5rem; font-size: .9rem; }
"""


class Page(html.parser.HTMLParser):
    """The links of a page and the places in it that a link may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag links to and is named."""
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.places.add(value)


def pages() -> dict[Path, str]:
    """The files of the pages, and what each is called in the site."""
    found = {ROOT / "README.md": "index.html"}
    extra = [each for each in (ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md") if each.is_file()]
    for each in [*extra, *sorted((ROOT / "docs").glob("*.md"))]:
        found[each] = f"{each.stem.lower()}.html"
    return found


def build(out: Path) -> list[str]:
    """Build the site; returns the links in it that lead nowhere."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    pdoc.render.configure(docformat="google", show_source=False, search=True)
    pdoc.pdoc(*MODULES, output_directory=out / "api")
    (out / "api" / "index.html").unlink()
    for path in (out / "api").glob("*.html"):
        path.write_text(_without_inherited(path.read_text("utf-8")), "utf-8")
    names = pages()
    titles = {name: _title(path) for path, name in names.items()}
    links = " · ".join(f'<a href="{name}">{html.escape(title)}</a>' for name, title in titles.items())
    for path, name in names.items():
        text = _linked(path, names, out)
        body = markdown2.markdown(
            text, extras=["tables", "fenced-code-blocks", "header-ids", "code-friendly"]
        )
        page = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(titles[name])}</title><style>{_STYLE}</style></head><body>"
            f'<nav>{links} · <a href="api/orchestrator.html">API reference</a></nav>{body}</body></html>'
        )
        (out / name).write_text(page, "utf-8")
    return broken_links(out)


def _without_inherited(text: str) -> str:
    """A page of pdoc's without its links to inherited members, which have no place of their own."""
    places = Page(text).places
    return re.sub(
        r'<a href="#([^"]+)">(.*?)</a>',
        lambda match: match[0] if unquote(match[1]) in places else match[2],
        text,
    )


def _title(path: Path) -> str:
    first = path.read_text("utf-8").splitlines()[0]
    return first.lstrip("# ").replace("`", "")


def _linked(path: Path, names: dict[Path, str], out: Path) -> str:
    """A page's Markdown whose links are those of the site."""

    def target(match: re.Match[str]) -> str:
        link, anchor = match[1], match[2] or ""
        file = (path.parent / link).resolve()
        if "://" in link or not link:
            return match[0]
        if file in names:
            return f"]({names[file]}{anchor})"
        if file.is_dir():
            return "](index.html)" if file == ROOT else f"]({_copied(file / '__init__.py', out)})"
        return f"]({_copied(file, out)})"

    return re.sub(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", target, path.read_text("utf-8"))


def _copied(file: Path, out: Path) -> str:
    """A file of the source as a file of the site; where there is none the link stays broken, and is told."""
    place = Path("source", os.path.relpath(file, ROOT))
    if file.is_file():
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, out / place)
    return place.as_posix()


def broken_links(out: Path) -> list[str]:
    """Links of the site that lead to no file of it, or to no place in its page."""
    found = {path: Page(path.read_text("utf-8")) for path in out.rglob("*.html")}
    broken = []
    for path, page in found.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue  # another site's, or data
            name, _, anchor = link.partition("#")
            file = (path.parent / unquote(name)).resolve() if name else path
            known = found.get(file)
            if not file.is_file() or (anchor and known is not None and unquote(anchor) not in known.places):
                broken.append(f"{path.relative_to(out)}: {link}")
    return sorted(set(broken))


def main() -> int:
    """Build the site and say what is wrong with it."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    broken = build(out.absolute())
    for each in broken:
        print(f"broken link in {each}")
    print(f"{out / 'index.html'}: {sum(1 for _ in out.rglob('*.html'))} pages, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
