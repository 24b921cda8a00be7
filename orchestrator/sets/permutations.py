# Purpose: the cross product of the dimensions of an entry, each permutation with a readable name.
# Guarantees: the order is that of the manifest, the last dimension fastest; the size is checked before anything
# is enumerated, so a product that was not meant costs an error and not the memory.
"""Permutations of a manifest's entries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from attrs import frozen

from orchestrator.errors import ManifestError
from orchestrator.sets.manifest_schema import PermutationsTable

#: Most permutations of one entry, and most pipelines of one manifest.
MAX_PERMUTATIONS = 4096
MAX_PIPELINES = 65536


@frozen
class Permutation:
    """One point of the product.

    Attributes:
        label: Such as ``[LOCAL_SIZE=64,cull_mode=back]``; "" where there are no dimensions.
        specialization: Values by constant.
        state: Values by state name.
        fields: Values by the name of the entry's field, such as ``vertex_input``.
    """

    label: str
    specialization: dict[str, bool | int | float]
    state: dict[str, Any]
    fields: dict[str, Any]


def permutations_of(table: PermutationsTable, where: str, *, kind: str) -> Iterator[Permutation]:
    """Every permutation of an entry; one without a label where nothing is permuted.

    Args:
        table: The dimensions.
        where: The entry, for errors.
        kind: "compute", "graphics" or "ray_tracing": only graphics pipelines have state to permute.

    Raises:
        ManifestError: A dimension is empty or of another kind, or the product exceeds `MAX_PERMUTATIONS`.
    """
    dimensions: list[tuple[str, str, list[Any]]] = []
    dimensions += [("specialization", name, values) for name, values in table.specialization.items()]
    others = [("state", name, values) for name, values in table.state.items()]
    for name in ("vertex_input", "render_pass", "color_formats", "depth_format"):
        values: list[Any] = getattr(table, name)
        if values:
            others.append(("fields", name, values))
    if others and kind != "graphics":
        raise ManifestError(f"{where}: permutations.{others[0][1]}: only graphics pipelines have that")
    dimensions += others
    size = 1
    for group, name, values in dimensions:
        if not values:
            raise ManifestError(
                f"{where}: permutations.{group}.{name} lists no values, so nothing would be packed"
            )
        size *= len(values)
    if size > MAX_PERMUTATIONS:
        sizes = " x ".join(str(len(values)) for _, _, values in dimensions)
        raise ManifestError(
            f"{where}: {sizes} = {size} permutations; the limit is {MAX_PERMUTATIONS} an entry"
        )
    for choice in itertools.product(*(values for _, _, values in dimensions)):
        chosen: dict[str, dict[str, Any]] = {"specialization": {}, "state": {}, "fields": {}}
        label = []
        for (group, name, _), value in zip(dimensions, choice, strict=True):
            chosen[group][name] = value
            label.append(f"{name}={_readable(value)}")
        yield Permutation(f"[{','.join(label)}]" if label else "", **chosen)


def _readable(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "+".join(_readable(each) for each in value)
    if isinstance(value, dict):
        return "{" + " ".join(f"{name}={_readable(each)}" for name, each in value.items()) + "}"
    return str(value)
