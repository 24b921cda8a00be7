"""The verb `merge`: several cache files of one device into one, by its driver.

Guarantees: a file is given to the driver only after every check that a load makes. What is written is what
the driver gave after the merge. Figures are bytes as the driver counts them; nothing says how many pipelines
they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attrs import asdict, frozen
from cyclopts import Parameter

from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.options import DEVICE, DEVICE_HELP, JsonFlag, opened_device
from orchestrator.cli.output import Output, byte_text, path_text, styled, table
from orchestrator.errors import DriverError

if TYPE_CHECKING:
    from orchestrator.cli.documents import MergeDocument
    from orchestrator.devices.device import Device, PipelineCache


_MERGED_FRACTION = 0.9


@frozen
class _Merged:
    path: Path
    status: str
    detail: str
    data_bytes: int
    added_bytes: int


def merge_verb(
    files: list[Path],
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    device: Annotated[str, DEVICE, Parameter(help="The device that made them. " + DEVICE_HELP)],
    json: JsonFlag = False,
) -> int:
    """Merge cache files of one device and driver into one.

    A file that the device would not load is left out, with the field that differs; the exit code is then 2.
    Nothing is written where none is left.

    **EXAMPLES**

        orchestrator merge one/*-cache two/*-cache -o all.pipeline-cache -d radv
        orchestrator merge */*-cache -o all.pipeline-cache -d radv:navi21 --json

    Args:
        files: Cache files of the device.
        output: The cache file to write; one that is there is replaced.
    """
    from orchestrator.stores.cache_file import save_cache_file
    from orchestrator.stores.run_notes import add_feature_groups, read_feature_groups

    out = Output(json=json)
    if output.exists() and not output.is_file():
        raise UsageError(f"{path_text(output)}: cannot be written: it is no regular file", "name a file")
    with opened_device(device) as opened:
        merged, data = _merge(opened, files, out)
        identity = opened.identity
        taken = [each for each in merged if each.status == "LOADED"]
        saved = save_cache_file(output.absolute(), identity, data) if taken else None
    if saved is not None and saved.saved_bytes:
        groups = [group for each in taken for group in read_feature_groups(each.path)[0]]
        add_feature_groups(output.absolute(), groups, anew=True)
    skipped = "no file was merged" if saved is None else saved.skipped
    saved_bytes = 0 if saved is None else saved.saved_bytes

    def document() -> MergeDocument:
        from orchestrator.cli.documents import IdentityRecord, MergedFile, MergeDocument

        return MergeDocument(
            device=IdentityRecord.of(identity),
            output=path_text(output),
            files=tuple(MergedFile(**asdict(each)) for each in merged),
            merged=len(taken),
            refused=len(merged) - len(taken),
            data_bytes=len(data),
            saved_bytes=saved_bytes,
            not_saved=skipped,
        )

    out.document(document)
    _show(out, merged, output, saved_bytes, skipped)
    return ExitCode.OK if len(taken) == len(merged) and skipped is None else ExitCode.BAD_INPUT


def _merge(device: Device, files: list[Path], out: Output) -> tuple[list[_Merged], bytes]:
    """Merge file by file; what became of each, and the driver's data at the end."""
    destination = device.create_pipeline_cache(name="merged")
    try:
        merged = [_add(device, destination, path, out) for path in files]
        return merged, device.pipeline_cache_data(destination).data
    finally:
        device.destroy_pipeline_cache(destination)


def _add(device: Device, destination: PipelineCache, path: Path, out: Output) -> _Merged:
    from orchestrator.stores.cache_file import KEPT_FRACTION, LoadStatus, read_cache_file

    found = read_cache_file(path.resolve(), device.identity)
    if found.status is not LoadStatus.LOADED:
        return _Merged(path, found.status.value, found.detail, 0, 0)
    if out.live:
        # Should the driver die of it, this is the last line.
        out.message(f"merging {path_text(path)}")
    before = device.pipeline_cache_size(destination)
    source: PipelineCache | None = None
    try:
        source = device.create_pipeline_cache(found.data, name=path.name)
        held = device.pipeline_cache_size(source)
        if held < KEPT_FRACTION * len(found.data):
            detail = f"the driver was given {len(found.data)} bytes and kept {held}, without an error"
            return _Merged(path, LoadStatus.DROPPED_BY_DRIVER.value, detail, len(found.data), 0)
        device.merge_pipeline_caches(destination, [source])
    except DriverError as error:
        return _Merged(path, LoadStatus.REJECTED_BY_DRIVER.value, str(error), len(found.data), 0)
    finally:
        if source is not None:
            device.destroy_pipeline_cache(source)
    after = device.pipeline_cache_size(destination)
    # RADV pads what it gives, so that equal content differs by some bytes from one cache to the next.
    if after < _MERGED_FRACTION * held:
        detail = f"the merge did nothing: the file holds {held} bytes, the merged cache {after}"
        return _Merged(path, "NOT_MERGED", detail, len(found.data), 0)
    return _Merged(path, found.status.value, found.detail, len(found.data), max(0, after - before))


def _show(out: Output, merged: list[_Merged], output: Path, saved_bytes: int, skipped: str | None) -> None:
    made = table("file", "holds", "added", "", numbers=(1, 2))
    for each in merged:
        good = each.status == "LOADED"
        state = styled("merged", "good") if good else styled(f"{each.status}: {each.detail}", "bad")
        sizes = (byte_text(each.data_bytes), byte_text(each.added_bytes)) if good else ("", "")
        made.add_row(styled(path_text(each.path)), *sizes, state)
    out.show(made)
    out.line(
        f"{path_text(output)}: {byte_text(saved_bytes)}"
        if skipped is None
        else styled(f"nothing was written: {skipped}", "bad")
    )
