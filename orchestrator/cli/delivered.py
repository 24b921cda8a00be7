"""What `install` does with a release, and what it shows of that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.documents import DeliveredDocument, DeliveredPart
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, byte_text, path_text, plural, styled, table
from orchestrator.cli.values import extra
from orchestrator.packs.delivery import INDEX, DeliveredComponent, deliver
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
            components=tuple(
                DeliveredPart(
                    name=each.name,
                    target=None if each.target is None else each.target.selector,
                    fetched_bytes=each.fetched_bytes,
                    saved_bytes=0 if each.installed is None else each.installed.saved_bytes,
                    not_saved=_problem(each) or None,
                )
                for each in done.components
            ),
        )
    )
    out.line(styled(done.device.device_name, "head"), styled(f"  {done.device.driver}", "dim"))
    made = table("component", "pipelines", "fetched", "", numbers=(1, 2))
    for each in done.components:
        state = styled("installed", "good") if _is_installed(each) else styled(_problem(each), "warn")
        count = 0 if each.target is None else each.target.count("created")
        made.add_row(styled(each.name, "head"), f"{count:,}", byte_text(each.fetched_bytes), state)
    out.show(made)
    for each in done.components:
        for note in () if each.installed is None else each.installed.notes:
            out.line(styled("note: ", "warn"), f"{each.name}: {note}")
    if trust is None:
        out.line(styled("note: ", "warn"), "the origin of this release is not proven (--unsigned)")
    out.line(
        f"{index.name}, release {index.release}: {plural(len(done.components), 'component')}, "
        f"{byte_text(done.fetched_bytes)} fetched"
    )
    return ExitCode.OK if all(map(_is_installed, done.components)) else ExitCode.PIPELINES_FAILED


def _is_installed(component: DeliveredComponent) -> bool:
    return component.installed is not None and not component.installed.is_kept_out


def _problem(component: DeliveredComponent) -> str:
    if component.installed is None:
        return "nothing for this device and driver"
    return component.installed.skipped
