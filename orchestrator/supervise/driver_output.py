"""What drivers print while they compile, and the pipelines that may have caused it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import BinaryIO, Final

from attrs import define, field

from orchestrator.devices.noise import is_noise
from orchestrator.run.records import DriverMessages, Hash
from orchestrator.stores.files.atomic_file import likely_cause

_FIRST_BYTES: Final = 200
_MOST_KEYS: Final = 8
_MOST_CASES: Final = 512


@define
class _Case:
    lines: int = 0
    size: int = 0
    first: str = ""


@define(eq=False)
class DriverOutput:
    """Counts the messages of drivers, and attributes them to pipelines.

    All threads of a driver print to the process's stderr. Pipelines that are in the driver while it prints
    may have caused a message, and one that is there every time most likely did. `take` belongs to the thread
    that reads; the rest to one other thread.
    """

    log: BinaryIO | None = None  # receives all messages, too
    in_driver: Callable[[], Iterable[int]] | None = None  # gives keys; None: nothing is counted
    unlogged: str = ""  # why the log takes no more
    last: str = ""  # the last line that was printed
    _cases: dict[frozenset[int], _Case] = field(factory=dict)
    _rest: bytes = b""
    _lock: threading.Lock = field(factory=threading.Lock)

    def take(self, data: bytes) -> None:
        """Take printed bytes."""
        if self.log is not None:
            try:
                self.log.write(data)
                self.log.flush()
            except (OSError, ValueError) as error:
                # Whoever reads goes on, else the driver would wait for its reader.
                self.log = None
                self.unlogged = likely_cause(error) if isinstance(error, OSError) else str(error)
        if (in_driver := self.in_driver) is None:
            return
        keys = frozenset(in_driver())
        with self._lock:
            *lines, self._rest = (self._rest + data).split(b"\n")
            said = [each for each in lines if each.strip() and not is_noise(each)]
            if not said:
                return
            self.last = said[-1].decode("utf-8", "replace")
            if len(self._cases) >= _MOST_CASES and keys not in self._cases:
                keys = frozenset()
            case = self._cases.setdefault(keys, _Case())
            case.lines += len(said)
            case.size += sum(map(len, said)) + len(said)
            # A line that ends with a colon is a heading, and the next line has the message.
            first = b" ".join(said[:2]) if said[0].rstrip().endswith(b":") else said[0]
            case.first = case.first or " ".join(first[:_FIRST_BYTES].decode("utf-8", "replace").split())

    def messages(self) -> tuple[DriverMessages, ...]:
        """All messages so far, with the pipelines that caused them as far as known; the most lines first."""
        with self._lock:
            cases = dict(self._cases)
        lines: Counter[int] = Counter()  # of the remaining cases
        for keys, case in cases.items():
            lines.update(dict.fromkeys(keys, case.lines))
        found: list[DriverMessages] = []
        while cases:
            # The pipeline that was there for most remaining lines, and others that were there as often.
            most = max(lines.values(), default=0)
            likely = sorted(key for key, count in lines.items() if count == most and most)
            mine = [keys for keys in cases if not likely or likely[0] in keys]
            for keys in mine:
                lines.subtract(dict.fromkeys(keys, cases[keys].lines))
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
