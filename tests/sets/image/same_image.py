"""Compares images whose layout is the same too; `meaning` compares those of other layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import astuple, fields

from orchestrator.devices.image import CreateInfoImage


def assert_same_image(one: CreateInfoImage, other: CreateInfoImage) -> None:
    """Check that two images are equal in all but what loads their modules."""
    for each in fields(CreateInfoImage):
        first, second = (_comparable(getattr(image, each.name), each.name) for image in (one, other))
        if isinstance(first, np.ndarray):
            assert first.dtype == second.dtype, each.name
            assert np.array_equal(first, second), each.name
        else:
            assert first == second, each.name


def _comparable(value: Any, name: str) -> Any:
    if name == "objects":
        return [astuple(each) for each in value]
    if name == "modules":
        return [(each.key, each.code_size, each.flags) for each in value]
    return value
