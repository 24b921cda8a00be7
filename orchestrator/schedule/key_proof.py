"""Whether a driver's pipeline keys tell pipelines apart: what they are worth beside what we know ourselves.

A key (vkGetPipelineKeyKHR) counts only together with kind, modules and libraries. Where two
pipelines of different code have one key, the driver's keys of that kind are worth nothing: NVIDIA
580.159 gives one key to all ray-tracing pipelines. That keys of a kind tell pipelines apart is
proven where those of different code differ.

Pure and thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.schedule.costs import code_numbers

Keys = Sequence[bytes | None]


def distrusted_kinds(image: CreateInfoImage, keys: Keys) -> tuple[PipelineKind, ...]:
    """The kinds of pipelines of which two of different code have one key.

    Args:
        image: The pipelines.
        keys: What `Device.pipeline_keys` gave for each, None where it was not asked.
    """
    code, seen = code_numbers(image), dict[tuple[int, bytes], int]()
    found = {
        int(image.kinds[index])
        for index, key in enumerate(keys)
        if key is not None
        and seen.setdefault((int(image.kinds[index]), key), int(code[index])) != code[index]
    }
    return tuple(kind for number, kind in enumerate(PipelineKind) if number in found)


def trusted_keys(image: CreateInfoImage, keys: Keys) -> list[bytes | None]:
    """The keys without those of the kinds that are not to be trusted."""
    distrusted = {tuple(PipelineKind).index(kind) for kind in distrusted_kinds(image, keys)}
    return [None if kind in distrusted else key for key, kind in zip(keys, image.kinds.tolist(), strict=True)]


def proven_keys(image: CreateInfoImage, keys: Keys) -> npt.NDArray[np.bool_]:
    """Which pipelines have a key of a kind whose keys were seen to differ with the code, shape (n,)."""
    code, trusted = code_numbers(image), trusted_keys(image, keys)
    codes: dict[int, set[int]] = {}
    for index, key in enumerate(trusted):
        if key is not None:
            codes.setdefault(int(image.kinds[index]), set()).add(int(code[index]))
    proven = np.array([number for number, several in codes.items() if len(several) > 1], np.int64)
    known = np.array([key is not None for key in trusted], np.bool_)
    return np.asarray(known & np.isin(image.kinds, proven))
