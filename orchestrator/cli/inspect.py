"""The verb `inspect`: identifies a file, and says whether it is whole and whether a device would accept it.

Guarantees: reads only, and only up to a limit. Every content of a file gives an answer, never an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attrs import frozen
from cyclopts import Parameter
from rich.text import Text

from orchestrator.cli.application import DEVICE, DEVICE_HELP, JsonFlag
from orchestrator.cli.devices import identity_of
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import (
    Output,
    byte_text,
    display,
    path_text,
    plural,
    styled,
    tag_name,
)
from orchestrator.errors import shell_text, shown

if TYPE_CHECKING:
    from orchestrator.cli.documents import InspectDocument, InspectedFile, Offer
    from orchestrator.devices.device import DeviceIdentity
    from orchestrator.stores.inspection import BesideInspection, CacheFileInspection

_SIGNATURES = (
    (b"\x7fELF", "an ELF file: a program or a library"),
    (b"\x03\x02\x23\x07", "a SPIR-V module; `orchestrator pack` makes a set of such"),
    (b"\x07\x23\x02\x03", "a SPIR-V module in big-endian order"),
    (b"\x1f\x8b", "gzip data; unpack it first"),
    (b"PK\x03\x04", "a ZIP archive; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstd data; unpack it first"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"{", "JSON, by its first character"),
)

_SHADER_SOURCES = (
    ".glsl .hlsl .comp .vert .frag .geom .tesc .tese .task .mesh .rgen .rmiss .rchit .rahit .rint .rcall"
)


def inspect_verb(
    files: list[Path],
    /,
    *,
    device: Annotated[
        str | None, DEVICE, Parameter(help="Also say whether this device would accept it. " + DEVICE_HELP)
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Show what files are and whether they can be trusted.

    The exit code is 0 if all files are whole and, with --device, all cache files would be accepted; else 2.

    **EXAMPLES**

        orchestrator inspect ~/.cache/orchestrator/*.pipeline-cache
        orchestrator inspect radv.pipeline-cache --device radv:navi31
        orchestrator inspect capture.foz --json

    Args:
        files: Cache files and the files beside them, raw cache data of a driver, or `.foz` archives.
    """
    output = Output(json=json)
    identity = None if device is None else identity_of(device)
    inspected: list[InspectedFile] = []
    for number, file in enumerate(files):
        if number:
            output.line("")
        found = _inspect(file, identity)
        inspected.append(found.document)
        output.line(styled(found.document.path, "head"), "  ", found.title)
        output.facts(found.rows)
        for each in found.lines:
            output.line(each)
    bad = sum(not each.good for each in inspected)

    def document() -> InspectDocument:
        from orchestrator.cli.documents import InspectDocument

        return InspectDocument(files=tuple(inspected), good=len(inspected) - bad, bad=bad)

    output.document(document)
    if display.quiet:  # then what was said of each file is not shown
        for bad_one in (each for each in inspected if not each.good):
            output.problem(styled(f"{bad_one.path}: {_problem(bad_one)}", "bad"))
    if len(inspected) > 1:
        output.line("")
        output.line(f"{plural(len(inspected), 'file')}: {len(inspected) - bad} good, {bad} bad")
    return ExitCode.BAD_INPUT if bad else ExitCode.OK


def _problem(found: InspectedFile) -> str:
    if found.offered and not found.offered.accepted:
        return f"refused, {found.offered.status}: {found.offered.detail}"
    return found.reason or f"damage in the headers: {plural(len(found.damage or ()), 'place')}"


@frozen
class _Found:
    """What was found out of a file: for the document, and for people."""

    document: InspectedFile
    title: str | Text
    rows: Sequence[tuple[str, str | Text]] = ()
    lines: Sequence[str | Text] = ()


def _inspect(file: Path, identity: DeviceIdentity | None) -> _Found:
    from orchestrator.sets.archive.reader import MAGIC
    from orchestrator.stores.binary_export import EXPORT_MAGIC
    from orchestrator.stores.inspection import CacheFileKind, inspect_beside, inspect_cache_file
    from orchestrator.stores.state import STATE_NAME

    head = _head(file)
    if head.startswith(MAGIC):
        return _archive(file, head)
    if head.startswith(EXPORT_MAGIC):
        return _binaries(file, identity)
    if file.is_file():
        # Other files lie beside the file that a link names; a store that is a link is refused.
        named = file if file.name == STATE_NAME else file.resolve()
        if (beside := inspect_beside(named)) is not None:
            return _beside(file, beside)
    found = inspect_cache_file(file)
    if found.kind in (CacheFileKind.NOT_A_CACHE_FILE, CacheFileKind.UNREADABLE):
        return _stranger(found, head)
    return _cache_file(found, identity)


def _head(file: Path) -> bytes:
    try:
        if not file.is_file():
            return b""
        with file.open("rb") as stream:
            return stream.read(64)
    except OSError:
        return b""  # the inspection says why


def _beside(file: Path, found: BesideInspection) -> _Found:
    from orchestrator.cli.documents import InspectedFile

    size, problem = file.stat().st_size, found.problem
    rows: list[tuple[str, str | Text]] = [
        ("size", byte_text(size)),
        ("state", styled(problem, "bad") if problem else styled("can be used", "good")),
        ("holds", found.holds),
    ]
    if found.cache_file is not None:
        rows.append(("beside", path_text(found.cache_file.name)))
    document = InspectedFile(
        path=path_text(file), kind=found.name, good=not problem, bytes=size, reason=problem
    )
    return _Found(document, found.name, rows)


def _archive(file: Path, head: bytes) -> _Found:
    from orchestrator.cli.documents import InspectedFile
    from orchestrator.errors import ArchiveError
    from orchestrator.run.records import DamageRecord
    from orchestrator.sets.archive.reader import FILE_HEADER_SIZE, Archive
    from orchestrator.sets.records import RecordTag

    path, title = path_text(file), "a Fossilize archive"
    try:
        archive = Archive.open(file)
    except ArchiveError as error:
        document = InspectedFile(path=path, kind="archive", good=False, reason=error.reason)
        return _Found(document, title, lines=[styled(error.reason, "bad")])
    with archive:
        counts = {tag: len(archive.keys(tag)) for tag in RecordTag}
        document = InspectedFile(
            path=path,
            kind="archive",
            good=not archive.damage,
            bytes=archive.size,
            format_version=head[FILE_HEADER_SIZE - 1],
            records={tag_name(tag): count for tag, count in counts.items()},
            duplicates=archive.duplicates,
            damage=tuple(map(DamageRecord.of, archive.damage)),
        )
        damaged = plural(len(archive.damage), "place") if archive.damage else ""
        rows = [("format version", str(document.format_version)), ("size", byte_text(archive.size))]
        rows += [(tag_name(tag).replace("_", " "), f"{count:,}") for tag, count in counts.items() if count]
        if archive.duplicates:
            rows.append(("duplicates", f"{archive.duplicates:,}, left out"))
    lines = [styled(f"damage in the headers: {damaged}", "bad")] if damaged else []
    return _Found(document, title, rows, [*lines, f"next: orchestrator list {shell_text(file)}"])


def _binaries(file: Path, identity: DeviceIdentity | None) -> _Found:
    from orchestrator.cli.documents import InspectedFile
    from orchestrator.errors import OrchestratorError
    from orchestrator.stores.binary_export import prove_export
    from orchestrator.stores.profile_file import ProfileIdentity

    path, size, kind = path_text(file), file.stat().st_size, "export of binaries"
    rows: list[tuple[str, str | Text]] = []
    reason = ""
    try:
        found = prove_export(file)
    except OrchestratorError as error:
        reason = str(error)
    else:
        holds = f"{plural(found.binaries, 'binary', 'binaries')} of {plural(found.pipelines, 'pipeline')}"
        rows = [("size", byte_text(size)), ("state", styled("whole", "good")), ("holds", holds)]
        rows += [
            ("for", f"{each.device_name}, {each.driver_name} {each.driver_info}")
            for each in found.generations
        ]
        mine = None if identity is None else ProfileIdentity.of(identity)
        if identity is not None and all(each.identity != mine for each in found.generations):
            reason = f"it has nothing for {identity.device_name}"
    document = InspectedFile(path=path, kind=kind, good=not reason, bytes=size, reason=reason)
    return _Found(document, f"a {kind}", rows, [styled(reason, "bad")] if reason else [])


def _stranger(found: CacheFileInspection, head: bytes) -> _Found:
    from orchestrator.cli.documents import InspectedFile

    kind, seems = found.kind.value, _seems(found.path, head)
    document = InspectedFile(
        path=path_text(found.path),
        kind=kind,
        good=False,
        status=found.status,
        reason=found.reason,
        seems=seems,
    )
    lines = [f"it seems to be {seems}"] if seems else []
    title = styled(f"{kind}, nor an archive" if head else kind, "bad")
    return _Found(document, title, lines=[*lines, found.reason])


def _seems(path: Path, head: bytes) -> str:
    from orchestrator.stores.pack import is_pack

    if path.is_dir():
        return (
            "a pack; see `orchestrator verify` and `orchestrator install`"
            if is_pack(path)
            else "a directory; name a file in it, or see `orchestrator verify`"
        )
    for signature, words in _SIGNATURES:
        if head.startswith(signature):
            return words
    if path.suffix.lower() == ".toml":
        return "a manifest; see `orchestrator pack` and `orchestrator list`"
    if head and not head.strip(b"\0"):
        return "zeros: a file that was never written to its end, as after a power loss"
    if path.suffix.lower() in _SHADER_SOURCES.split():
        return "the source text of a shader; `glslangValidator -V` makes SPIR-V of GLSL, `dxc -spirv` of HLSL"
    if head:
        return (
            "text"
            if all(each in b"\t\n\r" or 32 <= each < 127 for each in head)
            else "binary data of an unknown kind"
        )
    return ""


def _verdict(found: CacheFileInspection, identity: DeviceIdentity) -> Offer:
    from orchestrator.cli.documents import Offer
    from orchestrator.stores.cache_file import LoadStatus, read_cache_file
    from orchestrator.stores.inspection import CacheFileKind

    status, field, detail = LoadStatus.LOADED, None, "by the header in its data alone"
    if found.kind is not CacheFileKind.DRIVER_DATA or found.vulkan_header is None:
        loaded = read_cache_file(found.path.resolve(), identity)
        status, field, detail = loaded.status, loaded.field, loaded.detail
    elif (difference := found.vulkan_header.difference(identity)) is not None:
        status, field, detail = difference.status, difference.field, difference.reason
    return Offer(accepted=status is LoadStatus.LOADED, status=status, field=field, detail=detail)


def _cache_file(found: CacheFileInspection, identity: DeviceIdentity | None) -> _Found:
    from msgspec import UNSET

    from orchestrator.cli.documents import HeaderRecord, InspectedFile, MadeFor
    from orchestrator.run.records import IdentityRecord, RequestRecord
    from orchestrator.stores.cache_file import LoadStatus
    from orchestrator.stores.inspection import CacheFileKind
    from orchestrator.stores.run_notes import read_feature_groups

    bare = found.kind is CacheFileKind.DRIVER_DATA
    whole = bare or found.status is LoadStatus.LOADED
    verdict = None if identity is None else _verdict(found, identity)
    groups, problem = read_feature_groups(found.path)
    prefix, header = found.prefix_header, found.vulkan_header
    state = (
        styled("not known: bare data carries no hash", "warn")
        if bare
        else styled("whole: every hash agrees", "good")
        if whole
        else styled(f"{found.status.value}: {found.reason}", "bad")
    )
    rows: list[tuple[str, str | Text]] = [("size", byte_text(found.size)), ("state", state)]
    if prefix is not None:
        rows.append(("driver's data", byte_text(prefix.data_size)))
    if (numbers := prefix or header) is not None:
        rows.append(("vendor, device", f"{numbers.vendor_id:#06x}, {numbers.device_id:#06x}"))
    if prefix is not None:
        version = f"driverID {prefix.driver_id}, driverVersion {prefix.driver_version:#x}"
        rows.append(("driver", f"{version}, {prefix.driver_abi} bits"))
    if numbers is not None:
        rows.append(("pipeline cache UUID", numbers.pipeline_cache_uuid.hex()))
    if verdict is not None and identity is not None:
        taken = verdict.accepted
        words = "would be taken" if taken else f"refused, {verdict.status}: {verdict.detail}"
        rows.append(("offered to", styled(f"{identity.device_name}: {words}", "good" if taken else "bad")))
    lines: list[str | Text] = []
    for each in groups:
        name = shown(each.request.application.application_name or "an application without a name")
        lines.append(f"made for {name}: {plural(each.pipelines, 'pipeline')}, {each.request.text}")
    if not groups and prefix is not None:
        lines.append(styled(problem or "for which application it was made is not noted beside it", "warn"))
    document = InspectedFile(
        path=path_text(found.path),
        kind=found.kind.value,
        good=whole and (verdict is None or verdict.accepted),
        bytes=found.size,
        status=found.status,
        reason=found.reason,
        data_hash_matches=found.data_hash_matches,
        header=HeaderRecord.of(prefix),
        vulkan_header=HeaderRecord.of(header),
        device=UNSET if identity is None else IdentityRecord.of(identity),
        offered=UNSET if verdict is None else verdict,
        made_for=tuple(
            MadeFor(opened_as=RequestRecord.of(each.request), pipelines=each.pipelines) for each in groups
        ),
    )
    return _Found(document, found.kind.value, rows, lines)
