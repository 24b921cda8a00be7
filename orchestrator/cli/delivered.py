"""What `install` does with a release, and what it shows of that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.documents import DeliveredDocument
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, byte_text, path_text, plural, styled, table
from orchestrator.cli.values import extra
from orchestrator.packs.delivery import INDEX, deliver
from orchestrator.packs.fetching import Source, directory_source

if TYPE_CHECKING:
    from orchestrator.stores.signing import PublicKey


def release_at(text: str) -> Source | None:
    """The release at an address or in a directory; None where there is none."""
    if text.startswith(("http://", "https://")):
        with extra("deliver", text):
            from orchestrator.packs.http_source import http_source
        return http_source(text)
    return directory_source(Path(text)) if (Path(text) / INDEX).is_file() else None


def install_release(
    source: Source,
    directory: Path,
    trust: PublicKey | None,
    *,
    device: str,
    components: Sequence[str],
    out: Output,
) -> int:
    """Install what a release has for a device; returns the exit code, 1 where a component has nothing."""
    say = out.message if out.live else lambda _: None
    done = deliver(source, directory, trust, selector=device, names=components, on_step=say)
    index = done.index
    out.document(
        lambda: DeliveredDocument(
            source=path_text(source.address),
            proven=trust is not None,
            name=index.name,
            release=index.release,
            device_name=done.device.device_name,
            driver=done.device.driver,
            fetched_bytes=done.fetched_bytes,
            components=done.components,
        )
    )
    out.line(styled(done.device.device_name, "head"), styled(f"  {done.device.driver}", "dim"))
    made = table("component", "pipelines", "fetched", "", numbers=(1, 2))
    for each in done.components:
        state = styled("installed", "good") if each.installed else styled(each.not_saved or "", "warn")
        made.add_row(styled(each.name, "head"), f"{each.pipelines:,}", byte_text(each.fetched_bytes), state)
    out.show(made)
    for each in done.components:
        for note in each.notes:
            out.line(styled("note: ", "warn"), f"{each.name}: {note}")
    if trust is None:
        out.line(styled("note: ", "warn"), "the origin of this release is not proven (--unsigned)")
    out.line(
        f"{index.name}, release {index.release}: {plural(len(done.components), 'component')}, "
        f"{byte_text(done.fetched_bytes)} fetched"
    )
    is_whole = all(each.installed for each in done.components)
    return ExitCode.OK if is_whole else ExitCode.PIPELINES_FAILED
