from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.output import (
    byte_text,
    key_text,
    path_text,
    plural,
    printable,
    seconds_text,
    version_text,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_500_000, "1.4 MiB"),
        (1 << 30, "1.0 GiB"),
        (1 << 40, "1.0 TiB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert byte_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"),
        (0.000_004_2, "4 µs"),
        (0.0123, "12.3 ms"),
        (0.9999, "1.00 s"),
        (59.994, "59.99 s"),
        (99.96, "1 min 40 s"),
        (125.0, "2 min 05 s"),
        (3600.0, "1 h 00 min"),
        (7325.0, "2 h 02 min"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_keys_have_sixteen_digits() -> None:
    assert key_text(0xAB) == "00000000000000ab"


def test_versions() -> None:
    assert version_text((1 << 22) | (4 << 12) | 335) == "1.4.335"


def test_plural() -> None:
    assert plural(1, "pipeline") == "1 pipeline"
    assert plural(2000, "pipeline") == "2,000 pipelines"
    assert plural(2, "entry", "entries") == "2 entries"


@given(st.text())
def test_printable_text_cannot_control_a_terminal(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    if text.isprintable():
        assert shown == text


def test_escapes_are_shown_as_such() -> None:
    assert printable("a\x1b[2Jb\nc\u202e") == r"a\x1b[2Jb\nc\u202e"


@given(st.binary(max_size=40).filter(lambda name: b"\0" not in name))
def test_every_path_can_be_written_as_utf8(name: bytes) -> None:
    shown = path_text(os.fsdecode(name)).encode()
    assert shown == name or b"\\x" in shown
