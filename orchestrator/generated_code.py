"""Keeps the byte code of what attrs generates, as the interpreter keeps that of modules.

attrs writes the methods of a class as text and compiles it when the class is made: 0.3 ms for each of the 180
classes of a compile, those of libraries included. It was a seventh of the start.

Guarantees: what is run is the byte code of the text that attrs wrote, but for the number that it mixes into
the hashes of a class, another one in each process: that is the one of the process that compiled it. A file
that is missing, damaged or of another interpreter costs the time of compiling. It lies where the interpreter
keeps byte code (PYTHONPYCACHEPREFIX), and is not written where that is not (PYTHONDONTWRITEBYTECODE).
Assumptions: the process is ours. Should attrs compile by another way, nothing is gained and nothing lost.
"""

from __future__ import annotations

import contextlib
import importlib.util
import marshal
import os
import re
import sys
import zlib
from pathlib import Path
from types import CodeType
from typing import Final

_PLACE: Final = Path(__file__).with_name("attrs_classes.py")
_HEAD: Final = importlib.util.MAGIC_NUMBER
_SUM_BYTES: Final = 4
_SALT: Final = re.compile(r"^ +-?\d+,$", re.MULTILINE)  # a line of its own


class GeneratedCode:
    """Byte code by the name that attrs gives to the text of a class, with the text."""

    def __init__(self, path: Path) -> None:
        """Use a file, which need not be there."""
        self._path = path
        self._known: dict[str, tuple[str, CodeType]] = _read(path)
        self._has_news = False

    def compile(self, text: str, name: str, mode: str) -> CodeType:
        """As the builtin function."""
        known, lasting = self._known.get(name), _lasting(text)
        if known is not None and known[0] == lasting:
            return known[1]
        code: CodeType = compile(text, name, mode)
        self._known[name] = lasting, code
        self._has_news = True
        return code

    def save(self) -> None:
        """Write what was compiled anew; where it cannot be written, nothing."""
        if not self._has_news or sys.dont_write_bytecode:
            return
        self._has_news = False
        data = marshal.dumps(self._known)
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(b"".join((_HEAD, zlib.crc32(data).to_bytes(_SUM_BYTES, "little"), data)))
            new.replace(self._path)


def _lasting(text: str) -> str:
    """What of a text is the same in each process."""
    return _SALT.sub("", text) if "__hash__" in text else text


def _read(path: Path) -> dict[str, tuple[str, CodeType]]:
    try:
        found = path.read_bytes()
    except OSError:
        return {}
    head, data = found[: len(_HEAD) + _SUM_BYTES], memoryview(found)[len(_HEAD) + _SUM_BYTES :]
    if head != _HEAD + zlib.crc32(data).to_bytes(_SUM_BYTES, "little"):
        return {}
    known: dict[str, tuple[str, CodeType]] = marshal.loads(data)  # noqa: S302 - as the interpreter does
    return known


def keep_generated_code() -> GeneratedCode:
    """Let attrs take byte code that was kept, from now on; `save` it in the end."""
    import attr._make as attrs_maker

    kept = GeneratedCode(Path(importlib.util.cache_from_source(str(_PLACE))))
    vars(attrs_maker)["compile"] = kept.compile
    return kept
