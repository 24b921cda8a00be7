"""Draws picture.svg, what a compile does, as README shows it: `python docs/picture.py`."""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).with_name("picture.svg")
COSTS = (92, 71, 64, 52, 44, 40, 33, 30, 26, 22, 19, 17, 15, 13, 12, 10, 9, 8, 7, 6, 5)
CRASHES = 4
"""The pipeline that ends the driver, by its place in COSTS."""
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #222; } .dim { fill: #666; } .page { fill: #fff; }
rect, path { stroke: #8a94a0; fill: none; } .box { fill: #f4f6f8; } .work { fill: #4c8dca; stroke: #fff; }
.bad { fill: #cf4a3c; stroke: #fff; } .kept { fill: #dcefe0; stroke: #4d9a63; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e6e6; } .dim { fill: #9aa4ae; } .page { fill: #131416; } .box { fill: #22272e; }
  .work { fill: #3f7fbd; stroke: #131416; } .bad { stroke: #131416; } .kept { fill: #1f3a28; }
}
"""


def box(x: int, y: int, width: int, height: int, *lines: str, kind: str = "box") -> str:
    """A box with lines of text in its middle."""
    top = y + height / 2 - 8 * (len(lines) - 1) + 4.5
    words = (
        f'<text x="{x + width / 2:g}" y="{top + 16 * at:g}" text-anchor="middle">{line}</text>'
        for at, line in enumerate(lines)
    )
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>' + "".join(words)


def text(x: int, y: int, words: str, kind: str = "dim") -> str:
    """Words that begin at a place."""
    return f'<text class="{kind}" x="{x}" y="{y}">{words}</text>'


def arrow(x: int, y: int, to_x: int, to_y: int) -> str:
    """A line that bends, with a head."""
    middle = (x + to_x) // 2
    return f'<path d="M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}m-6 -4l6 4l-6 4"/>'


def schedule(x: int, tops: tuple[int, ...]) -> str:
    """Each pipeline as a bar at the worker that is free first, the longest pipelines first."""
    free, bars = [x] * len(tops), ""
    for at, cost in enumerate(COSTS):
        lane = free.index(min(free))
        kind = "bad" if at == CRASHES else "work"
        bars += f'<rect class="{kind}" x="{free[lane]}" y="{tops[lane]}" width="{cost}" height="22" rx="3"/>'
        free[lane] += cost
    return bars


def picture() -> str:
    """The file's text."""
    lanes = (56, 104, 152)
    parts = [
        '<rect class="page" x="0" y="0" width="780" height="236" rx="8" stroke="none"/>',
        text(16, 28, "a set"),
        *(
            box(16, y - 5, 128, 32, name)
            for y, name in zip(lanes, ("archives (.foz)", "manifests", "Python code"), strict=True)
        ),
        *(arrow(144, y + 11, 176, 115) for y in lanes),
        text(182, 28, "workers: the longest first"),
        schedule(182, lanes),
        text(418, 28, "a cache each"),
        *(box(430, y, 54, 22, "cache", kind="kept") for y in lanes),
        *(arrow(484, y + 11, 530, 115) for y in lanes),
        text(544, 28, "merged, proven"),
        box(530, 93, 96, 44, "cache file", "per device", kind="kept"),
        *(arrow(626, 115, 660, y + 11) for y in lanes),
        *(
            box(660, y - 5, 108, 32, name)
            for y, name in zip(lanes, ("your game", "the next run", "a pack to ship"), strict=True)
        ),
        '<rect class="bad" x="182" y="200" width="14" height="14" rx="3"/>',
        text(204, 212, "a pipeline that crashes the driver is named and left out; all others are compiled"),
    ]
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 236" width="780" role="img">'
    return f"{head}<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    FILE.write_text(picture(), "utf-8")
