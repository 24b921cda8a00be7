"""The code of both sides of the shaders that a report names, and what differs in it. Pure, but for `save`."""

from __future__ import annotations

import re
from difflib import unified_diff
from pathlib import Path

import numpy as np
from attrs import frozen

from orchestrator.regress.comparison import Rows, SideComparison
from orchestrator.stores.files.atomic_file import write_document

_EACH = 5
"""So many of each list of a report."""

Representations = tuple[tuple[str, str], ...]
"""Name and text of each internal representation, in the driver's order: the last is the machine's code."""


@frozen
class ShaderCode:
    """A shader in both sides' code."""

    title: str  # application, key of the pipeline, number and name of the executable
    before: Representations
    after: Representations

    @property
    def last(self) -> tuple[str, str]:
        """The texts nearest to the machine; "" where a driver gives none."""
        before, after = ((side or (("", ""),))[-1][1] for side in (self.before, self.after))
        return before, after

    def save(self, folder: Path) -> None:
        """Write each side's representations into a file, and what differs in the last of them.

        Raises:
            SaveError: A file cannot be written.
        """
        stem = re.sub(r"[^\w.]+", "-", self.title)
        before, after = (each.splitlines(keepends=True) for each in self.last)
        texts = {word: _text(side) for word, side in (("before", self.before), ("after", self.after))}
        texts["diff"] = "".join(unified_diff(before, after, f"{stem}.before", f"{stem}.after"))
        for suffix, text in texts.items():
            path = folder.absolute() / f"{stem}.{suffix}"
            write_document(path, text.encode("utf-8", "backslashreplace"))


def _text(side: Representations) -> str:
    return "\n".join(f"===== {name} =====\n{text}" for name, text in side)


def named(found: SideComparison) -> Rows:
    """What a report names first: new spills, lost occupancy, changed wave sizes, and the worst of sizes."""
    lists = [found.new_of("spill"), found.new_of("occupancy"), found.waves]
    sizes = [each for each in found.deltas if each.role == "size"]
    lists += [found.worst(each, order, _EACH) for each in sizes for order in ("smallest", "relative")]
    return np.unique(np.concatenate([each[:_EACH] for each in lists]))
