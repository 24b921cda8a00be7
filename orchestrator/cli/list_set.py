"""The verb `list`: shows the contents of a set and its damage, without a device. It reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

from cyclopts import Parameter
from msgspec import UNSET, UnsetType

from orchestrator.cli.application import Flag, JsonFlag, SetNames
from orchestrator.cli.documents import (
    ApplicationRecord,
    ListDocument,
    ListedGroup,
    ListedProblem,
    ListedSet,
    RecordCount,
    SetFile,
    filled,
)
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import (
    Output,
    byte_text,
    damage_text,
    key_text,
    not_checked_text,
    path_text,
    plural,
    styled,
    table,
    tag_name,
)
from orchestrator.cli.progress import SlowWork
from orchestrator.cli.values import open_set
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.request import BASE_FEATURES, feature_text
from orchestrator.errors import RecordError, shown
from orchestrator.registry import structs_by_type
from orchestrator.run.records import ApiVersion, DamageRecord, Hash, RequestRecord
from orchestrator.sets.archive.reader import archives_of
from orchestrator.sets.archive.record_proof import Verified
from orchestrator.sets.groups import Application
from orchestrator.sets.image.built import Problem
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import problems_anywhere
from orchestrator.sets.records import RecordSource, RecordTag

_MOST_SHOWN = 20


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
    output, found = Output(json=json), None
    with open_set(sets) as opened:
        if verify:
            with SlowWork(output, "reading the records") as progress:
                found = opened.verify(progress)
        problems = problems_anywhere(opened) if verify else ()
        document = _document(opened, found, problems, pipelines=pipelines)
        output.document(lambda: document)
        if not json:
            _show(output, document)
            _show_problems(output, document.problems)
            _show_damage(output, document, found)
            for each in opened.pipelines if pipelines else ():
                output.line(f"{key_text(each.key)}  {each.kind.value}")
    return ExitCode.OK


def _document(
    opened: PipelineSet, found: Verified | None, problems: Sequence[Problem], *, pipelines: bool
) -> ListDocument:
    archives = archives_of(opened.records)
    stored: Counter[RecordTag] = Counter()
    sizes: Counter[RecordTag] = Counter()
    for record in (each for archive in archives for each in archive.records()):
        stored[record.tag] += record.stored_size
        sizes[record.tag] += record.size
    counts = {
        tag: RecordCount(count=count, stored_bytes=stored[tag], bytes=sizes[tag])
        if tag in sizes
        else RecordCount(count=count)
        for tag, count in opened.tag_counts.items()
    }
    groups = [
        ListedGroup(
            opened_as=RequestRecord.of(each.request),
            applications=tuple(map(Hash, each.applications)),
            pipelines=len(each.pipelines),
        )
        for each in opened.groups  # reading them may find more damage
    ]
    keys: dict[PipelineKind, tuple[Hash, ...]] | UnsetType = UNSET
    if pipelines:
        keys = {
            kind: tuple(Hash(each.key) for each in opened.pipelines if each.kind is kind)
            for kind in PipelineKind
        }
    return ListDocument(
        set=ListedSet(
            path=path_text(opened.name),
            files=tuple(
                SetFile(path=path_text(each.name), bytes=each.size, records=len(each)) for each in archives
            ),
            content_hash=Hash(opened.content_hash()),
            pipelines=dict.fromkeys(PipelineKind, 0) | dict(opened.counts),
            unique=len(opened),
            duplicates=opened.duplicates,
        ),
        records={tag_name(tag): each for tag, each in counts.items()},
        applications=tuple(map(_application, opened.applications)),
        groups=tuple(groups),
        verified=found is not None,
        unusable_records=None if found is None else found.unusable,
        unchecked_records=None if found is None else len(found.not_checked),
        damage=tuple(map(DamageRecord.of, opened.damage)),
        problems=_by_reason(problems),
        buckets=_buckets(opened.records),
        pipelines=keys,
    )


def _buckets(records: RecordSource) -> tuple[str, ...]:
    found = []
    for key in records.keys(RecordTag.BUCKET_INFO):
        with suppress(RecordError):  # it is in the damage
            found.append(records.payload(RecordTag.BUCKET_INFO, key).decode("utf-8", "backslashreplace"))
    return tuple(found)


def _by_reason(problems: Sequence[Problem]) -> tuple[ListedProblem, ...]:
    several: dict[tuple[bool, str], list[Hash]] = {}
    for each in problems:
        several.setdefault((each.unsupported, each.reason), []).append(Hash(each.job.key))
    ranked = sorted(several.items(), key=lambda each: -len(each[1]))
    return tuple(
        ListedProblem(reason=reason, outcome="skipped" if skipped else "failed", pipelines=tuple(keys))
        for (skipped, reason), keys in ranked
    )


def _application(application: Application) -> ApplicationRecord:
    structs = structs_by_type()
    return filled(
        ApplicationRecord,
        application,
        key=Hash(application.key),
        api_version=ApiVersion(application.api_version),
        features={
            structs[s_type].name if s_type in structs else f"sType {s_type}": dict(members)
            for s_type, members in application.features
        },
    )


def _show(output: Output, document: ListDocument) -> None:
    listed = document.set
    for file in listed.files:
        size = f"  {byte_text(file.bytes)}, {plural(file.records, 'record')}"
        output.line(styled(file.path, "head"), size)
    if not listed.files:
        output.line(styled(listed.path, "head"))
    if listed.duplicates:
        output.line(f"{plural(listed.duplicates, 'duplicate')} left out")
    kinds = ", ".join(f"{count:,} {kind.value.replace('_', ' ')}" for kind, count in listed.pipelines.items())
    output.line("")
    output.line(f"{plural(listed.unique, 'pipeline')}: {kinds}")
    output.line("")
    records = table("records", "count", "stored", "decoded", numbers=(1, 2, 3))
    for tag, each in document.records.items():
        if each.count:
            sizes = ("-" if size is UNSET else byte_text(size) for size in (each.stored_bytes, each.bytes))
            records.add_row(tag.replace("_", " "), f"{each.count:,}", *sizes)
    output.show(records)
    output.line("")
    for application in document.applications:
        _show_application(output, application)
    for bucket in document.buckets:
        output.line(styled("bucket", "head"), f" {shown(' '.join(bucket.split()))}")
    if not document.applications:
        output.line(
            "no application is recorded: pipelines are compiled on a device that has only what they need"
        )
    if len(document.groups) > 1 and document.applications:
        each_has = ", ".join(plural(group.pipelines, "pipeline") for group in document.groups)
        output.line(f"{len(document.groups)} groups, each compiled on its own device, of {each_has}")


def _show_application(output: Output, application: ApplicationRecord) -> None:
    enabled = [feature_text(BASE_FEATURES, "robustBufferAccess")] if application.robust_buffer_access else []
    for struct, members in application.features.items():
        enabled += [feature_text(struct, member) for member, value in members.items() if value]
    engine = f", engine {shown(application.engine)}" if application.engine else ""
    name = shown(application.name or "an application without a name")
    output.line("recorded from ", styled(name, "head"), f"{engine}, Vulkan {application.api_version}")
    output.line("  features that change code: ", ", ".join(enabled) or "none")


def _show_problems(output: Output, problems: Sequence[ListedProblem]) -> None:
    if problems:
        count = plural(sum(len(each.pipelines) for each in problems), "pipeline")
        output.line("")
        output.line(styled(f"given to no device: {count}", "warn"))
        output.some(
            problems,
            _MOST_SHOWN,
            lambda each: output.line(f"  {each.outcome}  {_keys_text(each)}: {each.reason}"),
        )


def _keys_text(problem: ListedProblem) -> str:
    more = len(problem.pipelines) - 1
    return key_text(problem.pipelines[0]) + (f" and {more:,} more" if more else "")


def _show_damage(output: Output, document: ListDocument, found: Verified | None) -> None:
    damage = document.damage
    output.line("")
    if not damage:
        if found is None:
            output.line(styled("no damage in the headers; payloads were not read (--no-verify)", "warn"))
        else:
            checked = not_checked_text(found) if found.not_checked else "every key recomputed"
            output.line(styled(f"no damage: every record was read, {checked}", "good"))
        return
    output.line(styled(f"damage: {plural(len(damage), 'place')}", "bad"))
    output.some(damage, _MOST_SHOWN, lambda each: output.line(f"  {damage_text(each)}"))
    output.line(
        "the other records can be used; `compile` counts pipelines that need an unreadable one as failed"
    )
