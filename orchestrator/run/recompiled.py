"""What a warm run compiled although a cache was loaded: which pipelines, what they have in common, and why.

Times of earlier compiles are kept beside the cache file. A pipeline with such a time was compiled here
before, so the cache should hold it; one without is new. What the driver compiles again, run after run,
it does not keep. Traits are facts of the create infos; one is named where all of the compiled have it
and nothing that was found.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from orchestrator.devices.image import CreateInfoImage, PipelineKind

_Mask = npt.NDArray[np.bool_]
_KEYS_NAMED = 3


def describe(image: CreateInfoImage, compiled: _Mask, found: _Mask) -> str:
    """Which pipelines were compiled, by kind, and what sets them apart from those that were found."""
    parts = []
    for number, kind in enumerate(PipelineKind):
        of_kind = image.kinds == number
        again, others = compiled & of_kind, found & of_kind
        if again.any():
            words = f"{again.sum():,} of {of_kind.sum():,} {kind.value.replace('_', ' ')}"
            traits = [name for name, mask in _traits(image) if mask[again].all() and not mask[others].any()]
            if traits and others.any():
                words += f" (those, and no other, that {' and '.join(traits)})"
            parts.append(words)
    keys = ", ".join(f"{key:016x}" for key in image.keys[compiled][:_KEYS_NAMED])
    more = f", ... {compiled.sum() - _KEYS_NAMED:,} more" if compiled.sum() > _KEYS_NAMED else ""
    return f"{', '.join(parts)}: {keys}{more}"


def _traits(image: CreateInfoImage) -> list[tuple[str, _Mask]]:
    modules = np.diff(image.module_slot_start)
    return [
        ("are pipeline libraries", image.is_library),
        ("are no pipeline libraries", ~image.is_library),
        ("link pipeline libraries", image.links),
        ("link no pipeline library", ~image.links),
        ("have no shader module of their own", modules == 0),
        ("have one shader module", modules == 1),
        ("have more than one shader module", modules > 1),
    ]


def recompiled_note(
    image: CreateInfoImage,
    compiled: _Mask,
    found: _Mask,
    known_ns: npt.NDArray[np.int64],
    *,
    place: str = "cache",
) -> str:
    """What a report says of pipelines that a run compiled although a cache was loaded."""
    before, new = compiled & (known_ns > 0), compiled & (known_ns <= 0)
    told = []
    if before.any():
        told.append(
            f"{before.sum():,} compiled on this device before, but not found in the {place}: "
            f"{describe(image, before, found)}. If a run adds nothing to the {place} and the next one "
            "compiles them again, this driver does not keep them"
        )
    if new.any():
        told.append(f"{new.sum():,} new to this device: {describe(image, new, found)}")
    return (
        f"{compiled.sum():,} of {len(image):,} pipelines were compiled although the {place} was loaded; "
        + "; ".join(told)
    )
