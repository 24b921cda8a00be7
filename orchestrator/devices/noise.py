"""What drivers print that says nothing about what they were asked for."""

from __future__ import annotations

from typing import Final

_NOISE: Final = (b"invalid pci bus info",)
"""Messages about the machine, which do not depend on the pipelines: RADV on null hardware."""


def is_noise(line: bytes) -> bool:
    """Whether a line that a driver printed is such a message."""
    return any(each in line for each in _NOISE)
