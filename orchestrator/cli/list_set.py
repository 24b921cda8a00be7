"""The verb `list`: shows the contents of a set and its damage, without a device.

Guarantees: reads only; a damaged set is shown as far as it can be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from orchestrator.cli.application import Flag, JsonFlag, SetNames
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import (
    Output,
    byte_text,
    counts_by_kind,
    damage_text,
    key_text,
    not_checked_text,
    path_text,
    plural,
    styled,
    table,
    tag_name,
    version_text,
)
from orchestrator.cli.progress import SlowWork
from orchestrator.cli.values import open_set
from orchestrator.errors import shown

if TYPE_CHECKING:
    from orchestrator.cli.documents import ListDocument
    from orchestrator.sets.archive.reader import Archive
    from orchestrator.sets.archive.record_proof import Verified
    from orchestrator.sets.groups import Application
    from orchestrator.sets.pipeline_set import PipelineSet
    from orchestrator.sets.records import FeatureGroup, RecordSource, RecordTag

_DAMAGE_SHOWN = 20


def list_verb(
    sets: SetNames,
    /,
    *,
    pipelines: Flag = False,
    verify: Annotated[bool, Parameter(negative="--no-verify")] = True,
    json: JsonFlag = False,
) -> int:
    """Show the contents of a set and its damage, without a device.

    A damaged set is shown as far as it can be read. The exit code is 0 despite damage, and 2 if there is no
    set.

    **EXAMPLES**

        orchestrator list sample
        orchestrator list capture.foz capture.1.foz --pipelines
        orchestrator list capture.foz --json

    Args:
        pipelines: Also list the key of every pipeline.
        verify: Read every record and recompute its key; with `--no-verify` read only headers.
    """
    output = Output(json=json)
    with open_set(sets) as opened:
        found = None
        if verify:
            with SlowWork(output, "reading the records") as progress:
                found = opened.verify(progress)
        groups = opened.groups  # read before the damage is shown, because reading may find more
        output.document(lambda: _document(opened, found, pipelines=pipelines))
        if not json:
            _show(output, opened, groups, found, pipelines=pipelines)
    return ExitCode.OK


def _archives(source: RecordSource) -> list[Archive]:
    from orchestrator.sets.archive.reader import Archive, parts_of

    return [each for each in parts_of(source) if isinstance(each, Archive)]


def _sizes(source: RecordSource) -> dict[RecordTag, tuple[int, int]]:
    sizes: dict[RecordTag, tuple[int, int]] = {}
    for archive in _archives(source):
        for record in archive.records():
            stored, size = sizes.get(record.tag, (0, 0))
            sizes[record.tag] = (stored + record.stored_size, size + record.size)
    return sizes


def _features(application: Application) -> dict[str, dict[str, int]]:
    from orchestrator.registry import structs_by_type

    known = structs_by_type()
    return {
        known[s_type].name if s_type in known else f"sType {s_type}": dict(members)
        for s_type, members in application.features
    }


def _document(opened: PipelineSet, found: Verified | None, *, pipelines: bool) -> ListDocument:
    from msgspec import UNSET

    from orchestrator.cli.documents import (
        ApplicationRecord,
        ListDocument,
        ListedGroup,
        ListedSet,
        RecordCount,
        SetFile,
    )
    from orchestrator.devices.image import PipelineKind
    from orchestrator.run.records import ApiVersion, DamageRecord, Hash, RequestRecord

    sizes = _sizes(opened.records)
    return ListDocument(
        set=ListedSet(
            path=path_text(opened.name),
            files=tuple(
                SetFile(path=path_text(each.name), bytes=each.size, records=len(each))
                for each in _archives(opened.records)
            ),
            content_hash=Hash(opened.content_hash()),
            pipelines=counts_by_kind(opened.counts),
            unique=len(opened),
            duplicates=opened.duplicates,
        ),
        records={
            tag_name(tag): RecordCount(
                count=count, **dict(zip(("stored_bytes", "bytes"), sizes.get(tag, ()), strict=False))
            )
            for tag, count in opened.tag_counts.items()
        },
        applications=tuple(
            ApplicationRecord(
                key=Hash(each.key),
                name=each.name,
                engine=each.engine,
                application_version=each.application_version,
                engine_version=each.engine_version,
                api_version=ApiVersion(each.api_version),
                robust_buffer_access=each.robust_buffer_access,
                features=_features(each),
            )
            for each in opened.applications
        ),
        groups=tuple(
            ListedGroup(
                opened_as=RequestRecord.of(group.request),
                applications=tuple(map(Hash, group.applications)),
                pipelines=len(group.pipelines),
            )
            for group in opened.groups
        ),
        verified=found is not None,
        unusable_records=None if found is None else found.unusable,
        unchecked_records=None if found is None else len(found.not_checked),
        damage=tuple(map(DamageRecord.of, opened.damage)),
        pipelines={
            kind: tuple(Hash(each.key) for each in opened.pipelines if each.kind is kind)
            for kind in PipelineKind
        }
        if pipelines
        else UNSET,
    )


def _show(
    output: Output,
    opened: PipelineSet,
    groups: tuple[FeatureGroup, ...],
    found: Verified | None,
    *,
    pipelines: bool,
) -> None:
    archives = _archives(opened.records)
    for archive in archives:
        output.line(
            styled(path_text(archive.name), "head"),
            f"  {byte_text(archive.size)}, {plural(len(archive), 'record')}"
            + (f", {archive.duplicates:,} duplicates left out" if archive.duplicates else ""),
        )
    if not archives:
        output.line(styled(path_text(opened.name), "head"))
    output.line("")

    kinds = [(kind.value.replace("_", " "), count) for kind, count in opened.counts.items()]
    output.line(
        f"{plural(len(opened), 'pipeline')}: " + ", ".join(f"{count:,} {kind}" for kind, count in kinds)
    )
    output.line("")

    sizes = _sizes(opened.records)
    records = table("records", "count", "stored", "decoded", numbers=(1, 2, 3))
    for tag, count in opened.tag_counts.items():
        if count:
            stored, size = (byte_text(each) for each in sizes[tag]) if tag in sizes else ("-", "-")
            records.add_row(tag_name(tag).replace("_", " "), f"{count:,}", stored, size)
    output.show(records)

    _show_applications(output, opened, groups)
    _show_damage(output, opened, found)
    if pipelines:
        output.line("")
        for each in opened.pipelines:
            output.line(f"{key_text(each.key)}  {each.kind.value}")


def _show_applications(output: Output, opened: PipelineSet, groups: tuple[FeatureGroup, ...]) -> None:
    from orchestrator.devices.request import BASE_FEATURES, feature_text

    output.line("")
    if not opened.applications:
        output.line(
            "no application is recorded: pipelines are compiled on a device that has only what they need"
        )
        return
    for each in opened.applications:
        engine = f", engine {shown(each.engine)}" if each.engine else ""
        output.line(
            "recorded from ",
            styled(shown(each.name or "an application without a name"), "head"),
            f"{engine}, Vulkan {version_text(each.api_version)}",
        )
        enabled = [feature_text(BASE_FEATURES, "robustBufferAccess")] if each.robust_buffer_access else []
        enabled += [
            feature_text(struct, member)
            for struct, members in _features(each).items()
            for member, value in members.items()
            if value
        ]
        output.line("  features that change code: ", ", ".join(enabled) or "none")
    if len(groups) > 1:
        output.line(
            f"{len(groups)} groups, each compiled on its own device, of "
            + ", ".join(plural(len(group.pipelines), "pipeline") for group in groups)
        )


def _show_damage(output: Output, opened: PipelineSet, found: Verified | None) -> None:
    from orchestrator.run.records import DamageRecord

    output.line("")
    damage = opened.damage
    if not damage:
        if found is None:
            output.line(styled("no damage in the headers; payloads were not read (--no-verify)", "warn"))
        elif found.not_checked:
            output.line(styled(f"no damage: every record was read, {not_checked_text(found)}", "good"))
        else:
            output.line(styled("no damage: every record was read, every key recomputed", "good"))
        return
    output.line(styled(f"damage: {plural(len(damage), 'place')}", "bad"))
    for each in damage[: output.most(_DAMAGE_SHOWN)]:
        output.line(f"  {damage_text(DamageRecord.of(each))}")
    if len(damage) > _DAMAGE_SHOWN and output.most(1):
        output.line(f"  ... and {len(damage) - _DAMAGE_SHOWN:,} more, see --verbose")
    output.line(
        "the other records can be used; `compile` counts pipelines that need an unreadable one as failed"
    )
