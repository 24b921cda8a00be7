"""What drivers print while they compile: counted, and traced to pipelines, instead of shown line by line.

A driver prints to the process's stderr, for all its threads. Whose it is follows from when: what is in the
driver while something comes may have caused it, and what is there whenever something comes, most likely did.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import BinaryIO, Final

from attrs import define, field

from orchestrator.run.records import DriverMessages, Hash

_NOISE: Final = (b"invalid pci bus info",)
"""What drivers print of the machine, whatever they compile: RADV of null hardware."""

_FIRST_BYTES: Final = 200
_MOST_KEYS: Final = 8
_MOST_CASES: Final = 4096


@define
class _Case:
    lines: int = 0
    size: int = 0
    first: str = ""


@define(eq=False)
class DriverWords:
    """Takes what a child prints, in the thread that reads it; the rest belongs to one other thread.

    Attributes:
        log: Where everything is written too, or None.
        in_driver: Tells the keys of the pipelines that are in the driver now; None: nothing is counted.
    """

    log: BinaryIO | None = None
    in_driver: Callable[[], Iterable[int]] | None = None
    _cases: dict[frozenset[int], _Case] = field(factory=dict)
    _rest: bytes = b""
    _lock: threading.Lock = field(factory=threading.Lock)

    def take(self, data: bytes) -> None:
        """Take what was printed."""
        if self.log is not None:
            self.log.write(data)
            self.log.flush()
        if (in_driver := self.in_driver) is None:
            return
        keys = frozenset(in_driver())
        with self._lock:
            *lines, self._rest = (self._rest + data).split(b"\n")
            said = [each for each in lines if each.strip() and not any(noise in each for noise in _NOISE)]
            if not said:
                return
            if len(self._cases) >= _MOST_CASES and keys not in self._cases:
                keys = frozenset()
            case = self._cases.setdefault(keys, _Case())
            case.lines += len(said)
            case.size += sum(map(len, said)) + len(said)
            # A line that ends so is a heading: what is wrong stands in the next one.
            first = b" ".join(said[:2]) if said[0].rstrip().endswith(b":") else said[0]
            case.first = case.first or " ".join(first[:_FIRST_BYTES].decode("utf-8", "replace").split())

    def messages(self) -> tuple[DriverMessages, ...]:
        """What was printed so far, by whom as far as that can be told; the most first."""
        with self._lock:
            cases = dict(self._cases)
        found: list[DriverMessages] = []
        while cases:
            lines: Counter[int] = Counter()
            for keys, case in cases.items():
                for key in keys:
                    lines[key] += case.lines
            # The one that was there for most of what is left; others as well where they always were, too.
            most = max(lines.values(), default=0)
            likely = sorted(key for key, count in lines.items() if count == most and most)
            mine = [keys for keys in cases if not likely or likely[0] in keys]
            taken = [cases.pop(keys) for keys in mine]
            found.append(
                DriverMessages(
                    lines=sum(each.lines for each in taken),
                    size=sum(each.size for each in taken),
                    first=taken[0].first,
                    keys=tuple(map(Hash, likely[:_MOST_KEYS])),
                )
            )
        return tuple(sorted(found, key=lambda each: -each.lines))
