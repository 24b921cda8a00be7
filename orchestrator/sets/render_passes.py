# Purpose: render passes and rendering formats in the short form that people write.
# Guarantees: what is written out in full is taken as it is; the short form only fills in what is missing.
"""Render passes and attachment formats in a short form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from orchestrator.errors import ManifestError
from orchestrator.registry import registry
from orchestrator.sets.graphics_state import Attachments
from orchestrator.sets.names import enum_number
from orchestrator.sets.structures import encode_structure

UNUSED = 0xFFFFFFFF


@frozen
class Rendering:
    """Attachment formats of a pipeline for dynamic rendering (VkPipelineRenderingCreateInfo).

    Attributes:
        color_formats: Formats of the colour attachments, by name or number.
        depth_format: Format of the depth attachment, or None.
        stencil_format: Format of the stencil attachment; None takes the depth format where that has stencil.
        view_mask: Views of multiview rendering.
    """

    color_formats: Sequence[str | int] = ()
    depth_format: str | int | None = None
    stencil_format: str | int | None = None
    view_mask: int = 0

    def structure(self, where: str) -> dict[str, object]:
        """The structure for a graphics pipeline's pNext chain.

        Raises:
            ManifestError: A format is unknown.
        """
        depth, stencil = self._depth_stencil(where)
        chained: dict[str, object] = {
            "structure": "VkPipelineRenderingCreateInfo",
            "depth_attachment_format": depth,
            "stencil_attachment_format": stencil,
            "view_mask": self.view_mask,
        }
        if self.color_formats:
            chained["color_attachment_formats"] = list(self.color_formats)
        return chained

    def attachments(self, where: str) -> Attachments:
        """What a pipeline with these formats draws into."""
        depth, stencil = self._depth_stencil(where)
        return Attachments(len(self.color_formats), depth != 0, stencil != 0, dynamic=True)

    def _depth_stencil(self, where: str) -> tuple[int, int]:
        depth = (
            0
            if self.depth_format is None
            else enum_number("VkFormat", self.depth_format, f"{where}.depth_format")
        )
        if self.stencil_format is not None:
            stencil = enum_number("VkFormat", self.stencil_format, f"{where}.stencil_format")
        else:
            stencil = depth if "S" in components(depth) else 0
        return depth if "D" in components(depth) or depth == 0 else _no_depth(depth, where), stencil


def _no_depth(number: int, where: str) -> int:
    raise ManifestError(f"{where}.depth_format: format {number} has no depth component")


def components(number: int) -> str:
    """Components of a format, such as ``RGBA`` or ``DS``; "" for one that the registry does not know."""
    found = registry().formats.get(number)
    return found.components if found is not None else ""


def encode_render_pass(document: Mapping[str, object], where: str, *, version: int = 2) -> dict[str, object]:
    """A render pass as the archive writes it.

    Args:
        document: Members of VkRenderPassCreateInfo2 (or VkRenderPassCreateInfo for version 1), in snake case
            or the archive's spelling. An attachment may be a format only; an attachment reference may be a
            number only. Attachments are cleared, stored, of one sample and end in the layout that suits their
            format where nothing else is said.
        where: The entry, for errors.
        version: 2 for VkRenderPassCreateInfo2, 1 for VkRenderPassCreateInfo.

    Raises:
        ManifestError: A member is unknown, or an attachment that does not exist is referred to.
    """
    full = dict(document)
    attachments = _list(full.get("attachments", ()), f"{where}.attachments")
    full["attachments"] = [
        _attachment(each, f"{where}.attachments[{i}]") for i, each in enumerate(attachments)
    ]
    subpasses = _list(full.get("subpasses", ()), f"{where}.subpasses")
    if not subpasses:
        raise ManifestError(f"{where}: a render pass has one subpass or more")
    full["subpasses"] = [
        _subpass(each, len(attachments), f"{where}.subpasses[{i}]", version=version)
        for i, each in enumerate(subpasses)
    ]
    structure = "VkRenderPassCreateInfo2" if version == 2 else "VkRenderPassCreateInfo"
    return encode_structure(structure, full, where)


def subpass_attachments(render_pass: Mapping[str, object], subpass: int, where: str) -> Attachments:
    """What a pipeline for a subpass draws into.

    Args:
        render_pass: As `encode_render_pass` returned it.
        subpass: Index of the subpass.
        where: The entry, for errors.

    Raises:
        ManifestError: There is no such subpass.
    """
    subpasses = _list(render_pass["subpasses"], where)
    if not 0 <= subpass < len(subpasses):
        raise ManifestError(
            f"{where}: subpass {subpass} does not exist; the render pass has {len(subpasses)}"
        )
    chosen = _table(subpasses[subpass], where)
    colors = _list(chosen.get("colorAttachments", ()), where)
    reference = chosen.get("depthStencilAttachment")
    index = _table(reference, where)["attachment"] if reference is not None else UNUSED
    kinds = ""
    if isinstance(index, int) and index != UNUSED:
        number = _table(_list(render_pass["attachments"], where)[index], where)["format"]
        kinds = components(number) if isinstance(number, int) else ""
    return Attachments(len(colors), "D" in kinds, "S" in kinds)


def _attachment(value: object, where: str) -> dict[str, object]:
    given = {"format": value} if isinstance(value, str | int) else dict(_table(value, where))
    if "format" not in given:
        raise ManifestError(f"{where}: an attachment needs a format")
    kinds = components(enum_number("VkFormat", given["format"], f"{where}.format"))
    depth = "D" in kinds or "S" in kinds
    final = "depth_stencil_attachment_optimal" if depth else "color_attachment_optimal"
    defaults: dict[str, object] = {"samples": 1, "load_op": "clear", "store_op": "store"}
    defaults |= (
        {"stencil_load_op": "clear", "stencil_store_op": "store"}
        if "S" in kinds
        else {
            "stencil_load_op": "dont_care",
            "stencil_store_op": "dont_care",
        }
    )
    if "finalLayout" not in given:
        defaults["final_layout"] = final
    return {**defaults, **given}


_REFERENCES = {
    "input_attachments": ("inputAttachments", "shader_read_only_optimal"),
    "color_attachments": ("colorAttachments", "color_attachment_optimal"),
    "resolve_attachments": ("resolveAttachments", "color_attachment_optimal"),
    "depth_stencil_attachment": ("depthStencilAttachment", "depth_stencil_attachment_optimal"),
}


def _subpass(value: object, attachments: int, where: str, *, version: int) -> dict[str, object]:
    given = dict(_table(value, where))
    for snake, (written, layout) in _REFERENCES.items():
        for name in (snake, written):
            if name not in given:
                continue
            at = f"{where}.{name}"
            if name in ("depth_stencil_attachment", "depthStencilAttachment"):
                given[name] = _reference(given[name], layout, attachments, at, version=version)
            else:
                given[name] = [
                    _reference(each, layout, attachments, at, version=version)
                    for each in _list(given[name], at)
                ]
    return given


def _reference(
    value: object, layout: str, attachments: int, where: str, *, version: int
) -> dict[str, object]:
    if isinstance(value, int):
        unused = value in (-1, UNUSED)
        given: dict[str, object] = {
            "attachment": UNUSED if unused else value,
            "layout": "undefined" if unused else layout,
        }
        if version == 2 and layout == "shader_read_only_optimal":
            given["aspect_mask"] = "color"
    else:
        given = dict(_table(value, where))
    index = given.get("attachment")
    if index != UNUSED and (not isinstance(index, int) or not 0 <= index < attachments):
        raise ManifestError(
            f"{where}: attachment {index!r} does not exist; the render pass has {attachments}"
        )
    return given


def _list(value: object, where: str) -> Sequence[object]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ManifestError(f"{where}: a list is expected, not {value!r}")
    return value


def _table(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ManifestError(f"{where}: a table is expected, not {value!r}")
    return value
