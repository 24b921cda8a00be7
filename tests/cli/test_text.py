"""Words of the output: sizes, times, counts, and text that cannot control a terminal."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.output import byte_text, path_text, plural, printable, seconds_text, version_text


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (byte_text(0), "0 B"),
        (byte_text(1023), "1023 B"),
        (byte_text(1024), "1.0 KiB"),
        (byte_text(1_500_000), "1.4 MiB"),
        (byte_text(1 << 40), "1.0 TiB"),
        (seconds_text(0.0), "0 µs"),
        (seconds_text(0.0123), "12.3 ms"),
        (seconds_text(0.9999), "1.00 s"),
        (seconds_text(59.994), "59.99 s"),
        (seconds_text(99.96), "1 min 40 s"),
        (seconds_text(125.0), "2 min 05 s"),
        (seconds_text(7325.0), "2 h 02 min"),
        (version_text((1 << 22) | (4 << 12) | 335), "1.4.335"),
        (plural(1, "pipeline"), "1 pipeline"),
        (plural(2000, "pipeline"), "2,000 pipelines"),
        (plural(2, "entry", "entries"), "2 entries"),
        (printable("a\x1b[2Jb\nc\u202e"), r"a\x1b[2Jb\nc\u202e"),
    ],
)
def test_words_for_people(shown: str, text: str) -> None:
    assert shown == text


def test_printable_text_cannot_control_a_terminal() -> None:
    for first in range(0, 0x110000, 0x1000):
        text = "".join(map(chr, range(first, first + 0x1000)))
        assert printable(text).isprintable()
        plain = "".join(filter(str.isprintable, text))
        assert printable(plain) == plain


@given(st.binary(max_size=40).filter(lambda name: b"\0" not in name))
def test_every_path_can_be_written_as_utf8(name: bytes) -> None:
    shown = path_text(os.fsdecode(name)).encode()
    assert shown == name or b"\\x" in shown
