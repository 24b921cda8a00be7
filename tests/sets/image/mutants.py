"""Mutants of good documents: one record of a good pipeline changed at random, the rest as it was.

A mutant is made of a pipeline of the sample set: one record that it refers to, or its own, gets one to three
changes (a value of another kind or range, something left out, repeated, cut or moved, a structure chained
that does not belong there), and the pipeline and what lies between get names of their own. So thousands of
mutants make one set. The same seed gives the same mutants.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from orchestrator.registry import structs_by_type
from orchestrator.sets.archive.reader import Archive, MemoryRecords
from orchestrator.sets.records import KIND_OF_TAG, PipelineJob, RecordTag
from orchestrator.sets.sample import sample_path

Key = tuple[RecordTag, int]

_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, 2, 3, 255, 256, -1, -2, -(1 << 31), 0x7FFFFFFF, 0x80000000,
    0xFFFFFFFE, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**40,
    0.5, -1.5, 1e300, 1e-300,
    "", "main", "\0", "0" * 16, "f" * 16, "A" * 16, "zz", "AAAA", "é" * 9,
    [], [[]], [None], [0], [{}], ["0" * 16], {}, {"sType": 0}, [0] * 40, [-1, -1],
)  # fmt: skip
_LENGTHS: Final = (0, 1, 2, 3, 33, 65)


class Mutants:
    """Makes mutants of the sample set's pipelines."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._chained = sorted(structs_by_type())
        self._modules: dict[int, bytes] = {}
        self._payloads: dict[Key, bytes] = {}
        with Archive.open(sample_path()) as sample:
            for tag in RecordTag:
                for key in sample.keys(tag):
                    if tag is RecordTag.SHADER_MODULE:
                        self._modules[key] = sample.payload(tag, key)
                    else:
                        self._payloads[tag, key] = sample.payload(tag, key).split(b"\0", 1)[0]
        self._pipelines = [each for each in self._payloads if each[0] in KIND_OF_TAG]
        self._names = {f"{key:016x}".encode(): (tag, key) for tag, key in self._payloads}
        self._below = {each: tuple(self._references(each)) for each in self._payloads}

    def batch(self, count: int) -> tuple[MemoryRecords, dict[PipelineJob, str]]:
        """A set of that many mutants, and what was done to each."""
        records = MemoryRecords()
        for (tag, key), payload in self._payloads.items():
            if tag not in KIND_OF_TAG or self._is_library(payload):
                records.add(tag, key, payload)
        for key, payload in self._modules.items():
            records.add(RecordTag.SHADER_MODULE, key, payload)
        done: dict[PipelineJob, str] = {}
        for number in range(count):
            pipeline = self._random.choice(self._pipelines)
            path = self._path(pipeline)
            text, change = self._mutate(self._payloads[path[-1]])
            for index in range(len(path) - 1, -1, -1):
                tag, key = path[index]
                new = 0xE000_0000_0000_0000 | number << 8 | index
                text = text.replace(b"%016x" % key, b"%016x" % new, 1) if index == len(path) - 1 else text
                records.add(tag, new, text)
                if index:
                    above = self._payloads[path[index - 1]]
                    text = above.replace(b"%016x" % key, b"%016x" % new)
                    old = b"%016x" % path[index - 1][1]
                    text = text.replace(old, b"%016x" % (new & ~0xFF | index - 1), 1)
            job = PipelineJob(0xE000_0000_0000_0000 | number << 8, KIND_OF_TAG[pipeline[0]])
            done[job] = f"{path[-1][0].name.lower()}: {change}"
        return records, done

    def _is_library(self, payload: bytes) -> bool:
        return any(int(each["flags"]) & 0x800 for each in _entries(json.loads(payload)))

    def _references(self, of: Key) -> Iterator[Key]:
        payload = self._payloads[of]
        for name, key in self._names.items():
            if key != of and name in payload:
                yield key

    def _path(self, pipeline: Key) -> list[Key]:
        """From a pipeline to itself, or to one of the records below it."""
        path = [pipeline]
        while self._below[path[-1]] and self._random.random() < 0.55:
            path.append(self._random.choice(self._below[path[-1]]))
        return path

    def _mutate(self, payload: bytes) -> tuple[bytes, str]:
        document = json.loads(payload)
        (entry,) = _entries(document)
        told = [self._change(entry) for _ in range(self._random.choice((1, 1, 1, 2, 3)))]
        return json.dumps(document, ensure_ascii=False).encode(), "; ".join(told)

    def _change(self, entry: Any) -> str:
        places = list(_places(entry))
        if not places:
            return "nothing is left"
        holder, at, name = self._random.choice(places)
        ways: tuple[Callable[[Any, Any], str], ...] = (
            *(self._replace,) * 3,
            self._remove,
            self._resize,
            self._chain,
            self._rename,
        )
        return f"{name} {self._random.choice(ways)(holder, at)}"

    def _replace(self, holder: Any, at: Any) -> str:
        old = holder[at]
        new = self._random.choice(_VALUES)
        if isinstance(old, int) and self._random.random() < 0.5:
            new = old ^ 1 << self._random.randrange(34)
        holder[at] = json.loads(json.dumps(new))
        return f"= {str(new)[:40]}"

    def _remove(self, holder: Any, at: Any) -> str:
        del holder[at]
        return "left out"

    def _resize(self, holder: Any, at: Any) -> str:
        old = holder[at]
        length = self._random.choice(_LENGTHS)
        holder[at] = (old * length)[:length] if isinstance(old, list) and old else [old] * length
        return f"with {length} elements"

    def _chain(self, holder: Any, at: Any) -> str:
        target = holder[at] if isinstance(holder[at], dict) else holder
        if not isinstance(target, dict):
            return self._remove(holder, at)
        s_type = self._random.choice(self._chained)
        chain = target.get("pNext")
        target["pNext"] = [*(chain if isinstance(chain, list) else []), {"sType": s_type}]
        return f"with {structs_by_type()[s_type].name} chained"

    def _rename(self, holder: Any, at: Any) -> str:
        if not isinstance(holder, dict):
            return self._remove(holder, at)
        name = self._random.choice(["x", "flags", "pNext", "sType", *holder])
        holder[name] = holder.pop(at)
        return f"called {name}"


def _entries(document: Any) -> list[Any]:
    """The structures that a record's document holds."""
    tables = [value for value in document.values() if isinstance(value, dict)]
    return [each for table in tables for each in table.values()]


def _places(value: Any, name: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Every place of a document, as what holds it, where, and its name."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for at, below in items:
        below_name = f"{name}.{at}"
        yield value, at, below_name
        yield from _places(below, below_name)
