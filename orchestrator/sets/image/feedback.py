"""The creation feedback of an image's pipelines, and the structures that chain it to their create infos.

In the buffer stand the feedback of all pipelines, then the links, one for each.
"""

from __future__ import annotations

import struct as binary
from typing import Final

import numpy as np
import numpy.typing as npt

from orchestrator.devices.image import PNEXT, Offsets
from orchestrator.registry import registry

_FEEDBACK: Final = "VkPipelineCreationFeedback"
_LINK: Final = "VkPipelineCreationFeedbackCreateInfo"


class FeedbackTable:
    """Where feedback and links of `count` pipelines are, from an offset of a buffer on.

    Attributes:
        start: Where they begin.
        end: Where they end.
    """

    def __init__(self, count: int, start: int) -> None:
        link = registry().struct(_LINK)
        self._feedback_size = registry().struct(_FEEDBACK).size
        self._pointer = link.member("pPipelineCreationFeedback").offset
        self._link = binary.pack(f"<I{link.size - 4}x", link.s_type)
        self._count = count
        self._links_start = start + self._feedback_size * count
        self.start: Final = start
        self.end: Final = self._links_start + link.size * count

    @property
    def data(self) -> bytes:
        """The bytes in the buffer."""
        return bytes(self._feedback_size * self._count) + self._link * self._count

    def pointers(self, offsets: Offsets, following: npt.NDArray[np.int64]) -> tuple[Offsets, Offsets]:
        """Pointer fields with what they point to.

        Args:
            offsets: Where the create infos are, shape (n,).
            following: What is to follow each link in the chain; -1 for nothing.
        """
        numbers = np.arange(self._count, dtype=np.int64)
        links = self._links_start + len(self._link) * numbers
        feedback = self.start + self._feedback_size * numbers
        chained = following >= 0
        return (
            np.concatenate([offsets + PNEXT, links[chained] + PNEXT, links + self._pointer]),
            np.concatenate([links, following[chained], feedback]),
        )
