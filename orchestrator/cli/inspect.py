"""The verb `inspect`: identifies files, and says whether they are whole and a device would accept them.

Guarantees: reads only, and only up to a limit. Every content of a file gives an answer, never an error.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from attrs import field, frozen
from cyclopts import Parameter
from msgspec import UNSET
from rich.text import Text

from orchestrator.cli.application import DEVICE, DEVICE_HELP, JsonFlag
from orchestrator.cli.devices import identity_of
from orchestrator.cli.documents import (
    HeaderRecord,
    InspectDocument,
    InspectedFile,
    MadeFor,
    Offer,
    PackedTarget,
)
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, byte_text, display, path_text, plural, styled, tag_name
from orchestrator.cli.packs import held_text, nothing_of
from orchestrator.devices.device import DeviceIdentity
from orchestrator.errors import ArchiveError, OrchestratorError, shell_text, shown
from orchestrator.run.records import DamageRecord, IdentityRecord, RequestRecord
from orchestrator.sets.archive.reader import FILE_HEADER_SIZE, MAGIC, Archive
from orchestrator.sets.records import RecordTag
from orchestrator.stores.binary_export import EXPORT_MAGIC, prove_export
from orchestrator.stores.cache_file import LoadStatus, read_cache_file
from orchestrator.stores.inspection import (
    BesideInspection,
    CacheFileInspection,
    CacheFileKind,
    inspect_beside,
    inspect_cache_file,
)
from orchestrator.stores.pack import Pack, PackError, is_pack
from orchestrator.stores.profile_file import ProfileIdentity
from orchestrator.stores.run_notes import read_feature_groups
from orchestrator.stores.state import STATE_NAME

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
_Facts = list[tuple[str, str | Text]]


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
        files: Cache files and the files beside them, raw cache data of a driver, packs, or `.foz` archives.
    """
    output = Output(json=json)
    identity = None if device is None else identity_of(device)
    seen = [_inspected(each, identity) for each in files]
    found = tuple(each.document for each in seen)
    bad = sum(not each.good for each in found)
    output.document(lambda: InspectDocument(files=found, good=len(found) - bad, bad=bad))
    for number, each in enumerate(seen):
        if number:
            output.line("")
        output.line(styled(each.document.path, "head"), "  ", each.title)
        output.facts(each.facts)
        for line in each.lines:
            output.line(line)
        if display.quiet and not each.document.good:
            output.problem(styled(f"{each.document.path}: {each.problem}", "bad"))
    if len(found) > 1:
        output.line("")
        output.line(f"{plural(len(found), 'file')}: {len(found) - bad} good, {bad} bad")
    return ExitCode.BAD_INPUT if bad else ExitCode.OK


@frozen
class _Inspected:
    """What a file is: for programs, and for people a title, facts, and lines below them."""

    document: InspectedFile
    title: str | Text
    facts: _Facts = field(factory=list)
    lines: list[str | Text] = field(factory=list)

    @property
    def problem(self) -> str:
        offered = self.document.offered or None
        if offered is not None and not offered.accepted:
            return f"refused, {offered.status}: {offered.detail}"
        places = plural(len(self.document.damage or ()), "place")
        return self.document.reason or f"damage in the headers: {places}"


def _inspected(file: Path, identity: DeviceIdentity | None) -> _Inspected:
    head = _head(file)
    if head.startswith(MAGIC):
        return _archive(file, head)
    if head.startswith(EXPORT_MAGIC):
        return _binary_export(file, identity)
    if is_pack(file):
        return _pack(file, identity)
    if file.is_file():
        # Other files lie beside the file that a link names; a store that is a link is refused.
        named = file if file.name == STATE_NAME else file.resolve()
        if (beside := inspect_beside(named)) is not None:
            return _beside(file, beside)
    found = inspect_cache_file(file)
    if found.kind in (CacheFileKind.NOT_A_CACHE_FILE, CacheFileKind.UNREADABLE):
        return _stranger(found, head)
    return _cache(found, identity)


def _head(file: Path) -> bytes:
    try:
        if not file.is_file():
            return b""
        with file.open("rb") as stream:
            return stream.read(64)
    except OSError:
        return b""  # the inspection says why


def _beside(file: Path, found: BesideInspection) -> _Inspected:
    size, problem = file.stat().st_size, found.problem
    state = styled(problem, "bad") if problem else styled("can be used", "good")
    facts: _Facts = [("size", byte_text(size)), ("state", state), ("holds", found.holds)]
    if found.cache_file is not None:
        facts.append(("beside", path_text(found.cache_file.name)))
    document = InspectedFile(
        path=path_text(file), kind=found.name, good=not problem, bytes=size, reason=problem
    )
    return _Inspected(document, found.name, facts)


def _archive(file: Path, head: bytes) -> _Inspected:
    path, title = path_text(file), "a Fossilize archive"
    try:
        archive = Archive.open(file)
    except ArchiveError as error:
        document = InspectedFile(path=path, kind="archive", good=False, reason=error.reason)
        return _Inspected(document, title, lines=[styled(error.reason, "bad")])
    with archive:
        counts = {tag_name(tag): len(archive.keys(tag)) for tag in RecordTag}
        document = InspectedFile(
            path=path,
            kind="archive",
            good=not archive.damage,
            bytes=archive.size,
            format_version=head[FILE_HEADER_SIZE - 1],
            records=counts,
            duplicates=archive.duplicates,
            damage=tuple(map(DamageRecord.of, archive.damage)),
        )
    facts: _Facts = [("format version", str(document.format_version)), ("size", byte_text(archive.size))]
    facts += [(name.replace("_", " "), f"{count:,}") for name, count in counts.items() if count]
    if document.duplicates:
        facts.append(("duplicates", f"{document.duplicates:,}, left out"))
    lines: list[str | Text] = [f"next: orchestrator list {shell_text(file)}"]
    if document.damage:
        places = plural(len(document.damage), "place")
        lines.insert(0, styled(f"damage in the headers: {places}", "bad"))
    return _Inspected(document, title, facts, lines)


def _binary_export(file: Path, identity: DeviceIdentity | None) -> _Inspected:
    path, size, kind, reason = path_text(file), file.stat().st_size, "export of binaries", ""
    facts: _Facts = []
    try:
        found = prove_export(file)
    except OrchestratorError as error:
        reason = str(error)
    else:
        holds = f"{plural(found.binaries, 'binary', 'binaries')} of {plural(found.pipelines, 'pipeline')}"
        facts = [("size", byte_text(size)), ("state", styled("whole", "good")), ("holds", holds)]
        for each in found.generations:
            facts.append(("for", f"{each.device_name}, {each.driver_name} {each.driver_info}"))
        mine = None if identity is None else ProfileIdentity.of(identity)
        if identity is not None and all(each.identity != mine for each in found.generations):
            reason = f"it has nothing for {identity.device_name}"
    document = InspectedFile(path=path, kind=kind, good=not reason, bytes=size, reason=reason)
    return _Inspected(document, f"a {kind}", facts, [styled(reason, "bad")] if reason else [])


def _pack(directory: Path, identity: DeviceIdentity | None) -> _Inspected:
    path, title = path_text(directory), "a pack"
    try:
        pack = Pack.open(directory)
    except PackError as error:
        document = InspectedFile(path=path, kind="pack", good=False, reason=str(error))
        return _Inspected(document, title, lines=[styled(str(error), "bad")])
    manifest, reason = pack.manifest, ""
    facts: _Facts = [
        ("targets", f"{len(manifest.targets):,}, with {held_text(manifest.targets)}"),
        ("signature", "there, which `orchestrator verify --trust` checks" if pack.signed else "none"),
        (
            "made",
            f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(manifest.made_at))}, by orchestrator "
            f"{shown(manifest.orchestrator)}",
        ),
    ]
    if identity is not None:
        target = manifest.target_of(ProfileIdentity.of(identity))
        if target is None or not target.files:
            reason = f"it has nothing for {identity.device_name}"
            verdict = styled(reason, "bad")
        else:
            verdict = styled(f"{identity.device_name}: has {held_text([target])} for it", "good")
        facts.append(("offered to", verdict))
    targets = tuple(map(PackedTarget.of, manifest.targets))
    document = InspectedFile(path=path, kind="pack", good=not reason, reason=reason, targets=targets)
    lines: list[str | Text] = [
        *nothing_of(manifest.targets),
        f"next: orchestrator verify {shell_text(directory)}",
    ]
    return _Inspected(document, title, facts, lines)


def _stranger(found: CacheFileInspection, head: bytes) -> _Inspected:
    seems = _seems(found.path, head)
    document = InspectedFile(
        path=path_text(found.path),
        kind=found.kind.value,
        good=False,
        status=found.status,
        reason=found.reason,
        seems=seems,
    )
    title = styled(f"{found.kind.value}, nor an archive" if head else found.kind.value, "bad")
    lines = [f"it seems to be {seems}", found.reason] if seems else [found.reason]
    return _Inspected(document, title, lines=list(lines))


def _seems(path: Path, head: bytes) -> str:
    if path.is_dir():
        return "a directory; name a file in it, or see `orchestrator verify`"
    for signature, words in _SIGNATURES:
        if head.startswith(signature):
            return words
    if path.suffix.lower() == ".toml":
        return "a manifest; see `orchestrator pack` and `orchestrator list`"
    if head and not head.strip(b"\0"):
        return "zeros: a file that was never written to its end, as after a power loss"
    if path.suffix.lower() in _SHADER_SOURCES.split():
        return "the source text of a shader; `glslangValidator -V` makes SPIR-V of GLSL, `dxc -spirv` of HLSL"
    is_text = all(each in b"\t\n\r" or 32 <= each < 127 for each in head)
    return ("text" if is_text else "binary data of an unknown kind") if head else ""


def _offer(found: CacheFileInspection, identity: DeviceIdentity) -> Offer:
    status, name, detail = LoadStatus.LOADED, None, "by the header in its data alone"
    if found.kind is not CacheFileKind.DRIVER_DATA or found.vulkan_header is None:
        loaded = read_cache_file(found.path.resolve(), identity)
        status, name, detail = loaded.status, loaded.field, loaded.detail
    elif (difference := found.vulkan_header.difference(identity)) is not None:
        status, name, detail = difference.status, difference.field, str(difference)
    return Offer(accepted=status is LoadStatus.LOADED, status=status, field=name, detail=detail)


def _cache(found: CacheFileInspection, identity: DeviceIdentity | None) -> _Inspected:
    bare = found.kind is CacheFileKind.DRIVER_DATA
    whole = bare or found.status is LoadStatus.LOADED
    offer = None if identity is None else _offer(found, identity)
    groups, problem = read_feature_groups(found.path)
    document = InspectedFile(
        path=path_text(found.path),
        kind=found.kind.value,
        good=whole and (offer is None or offer.accepted),
        bytes=found.size,
        status=found.status,
        reason=found.reason,
        data_hash_matches=found.data_hash_matches,
        header=HeaderRecord.of(found.prefix_header),
        vulkan_header=HeaderRecord.of(found.vulkan_header),
        device=UNSET if identity is None else IdentityRecord.of(identity),
        offered=UNSET if offer is None else offer,
        made_for=tuple(
            MadeFor(opened_as=RequestRecord.of(each.request), pipelines=each.pipelines) for each in groups
        ),
    )
    facts = _cache_facts(found, whole=whole, bare=bare)
    if offer is not None and identity is not None:
        words = "would be taken" if offer.accepted else f"refused, {offer.status}: {offer.detail}"
        verdict = styled(f"{identity.device_name}: {words}", "good" if offer.accepted else "bad")
        facts.append(("offered to", verdict))
    lines: list[str | Text] = []
    for each in groups:
        name = shown(each.request.application.application_name or "an application without a name")
        lines.append(f"made for {name}: {plural(each.pipelines, 'pipeline')}, {each.request.text}")
    if not groups and found.prefix_header is not None:
        lines.append(styled(problem or "for which application it was made is not noted beside it", "warn"))
    return _Inspected(document, found.kind.value, facts, lines)


def _cache_facts(found: CacheFileInspection, *, whole: bool, bare: bool) -> _Facts:
    state = styled(f"{found.status.value}: {found.reason}", "bad")
    if bare:
        state = styled("not known: bare data carries no hash", "warn")
    elif whole:
        state = styled("whole: every hash agrees", "good")
    facts: _Facts = [("size", byte_text(found.size)), ("state", state)]
    prefix = found.prefix_header
    if prefix is not None:
        facts.append(("driver's data", byte_text(prefix.data_size)))
        version = f"driverID {prefix.driver_id}, driverVersion {prefix.driver_version:#x}"
        facts.append(("driver", f"{version}, {prefix.driver_abi} bits"))
    if (header := prefix or found.vulkan_header) is not None:
        facts.append(("vendor, device", f"{header.vendor_id:#06x}, {header.device_id:#06x}"))
        facts.append(("pipeline cache UUID", header.pipeline_cache_uuid.hex()))
    return facts
