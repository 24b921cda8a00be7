"""What the process that compiles says of errors."""

from __future__ import annotations

from pathlib import Path

import msgspec

from orchestrator.children.protocol import WHOLE
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.supervise.messages import Raised


def test_an_error_is_told_whole_in_one_frame() -> None:
    short = SaveError(Path("cache"), "fsync", "no space", replaced=True)
    frame = msgspec.msgpack.encode(Raised.of(1, short))
    again = msgspec.msgpack.decode(frame, type=Raised).error()
    assert isinstance(again, SaveError)
    assert (str(again), vars(again)) == (str(short), vars(short))
    long = SaveError(Path("ゲ" * 1300), "語" * 3000, "\udcff" * 3000)
    assert len(msgspec.msgpack.encode(Raised.of(2**63, long))) < WHOLE - 64
