"""The verb `coverage`: what a player would still compile of a set, for each target of a pack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attrs import evolve
from cyclopts import Parameter

from orchestrator.cli.application import Flag, JsonFlag, SetNames, TrustedKey
from orchestrator.cli.console import page_of
from orchestrator.cli.documents import CoverageDocument, CoveredTarget, filled
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, key_text, path_text, seconds_text, styled, table
from orchestrator.cli.progress import ProgressView, progress_view
from orchestrator.cli.stopping import run_until_signal
from orchestrator.cli.values import archive_paths, trusted_key
from orchestrator.errors import DeviceError, NoDeviceError
from orchestrator.packs.coverage import Coverage, PackCoverage, installed, require_misses
from orchestrator.packs.driver_cache import offering_nothing
from orchestrator.run.records import Hash
from orchestrator.sets.opening import open_paths
from orchestrator.sets.subset import WHOLE
from orchestrator.stores.files.atomic_file import write_document
from orchestrator.stores.pack import Pack, PackError
from orchestrator.supervise.targets import IN_TURN

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def coverage_verb(
    sets_and_pack: SetNames,
    /,
    *,
    run: Flag = False,
    trust: TrustedKey = None,
    page: Annotated[Path | None, Parameter(alias="-o", show_default=lambda _: "none")] = None,
    json: JsonFlag = False,
) -> int:
    """Show what a player would still compile of a set, with the caches of a pack.

    Without --run no driver is asked: the pack notes which pipelines its caches hold, and how long pipelines
    took to compile. With it, each target that this machine has is installed into an empty directory, and
    every pipeline is looked up while compiling is forbidden.

    The exit code is 1 if pipelines are missing, or nothing is known of a target.

    **EXAMPLES**

        orchestrator coverage game.foz build/pack
        orchestrator coverage game.foz dlc.foz build/pack --run
        orchestrator coverage game.foz build/pack --page coverage.html

    Args:
        sets_and_pack: The set, as `compile` takes it; and last the directory of the pack.
        run: Prove it by looking everything up. For drivers that can forbid compiling.
        page: Write an HTML page with the same, and with every missing pipeline.
    """
    if len(sets_and_pack) < 2:
        raise UsageError("a set and a pack are expected", "name both: orchestrator coverage game.foz pack")
    output, pack_path = Output(json=json), Path(sets_and_pack[-1])
    pack = Pack.open(pack_path, trusted_key(trust))
    paths = archive_paths(sets_and_pack[:-1])
    with open_paths(paths) as source:
        groups = [(each.request, each.pipelines.keys) for each in WHOLE.groups_of(source)]
        whole = PackCoverage.of(pack, groups)
    found = [whole.noted(each) for each in pack.manifest.targets]
    if run:
        with progress_view(output) as view:
            found = [_looked_up(whole, each, paths, view) for each in found]
    _show(output, pack_path, found)
    if page is not None:
        title = f"{', '.join(Path(each).name for each in paths)} in {pack_path.name}"
        write_document(page, page_of(title, _page(found)).encode())
    is_covered = all(each.held + each.left_out == each.pipelines for each in found)
    return ExitCode.OK if is_covered else ExitCode.PIPELINES_FAILED


def _looked_up(whole: PackCoverage, noted: Coverage, paths: list[str], view: ProgressView) -> Coverage:
    """What a run proved; where it could not, what the notes say, with the reason."""
    if not noted.target.has_data:
        return noted
    view.stage(f"installing for {noted.target.selector}")
    try:
        with installed(whole.pack, noted.target) as (directory, options):
            told = {"cache_directory": directory, "on_stage": view.stage, "on_progress": view.progress}
            if options.environment:
                empty = evolve(options, environment=offering_nothing(options.environment))
                require_misses(run_until_signal(partial(IN_TURN.compile, paths, empty, **told)))
            report = run_until_signal(partial(IN_TURN.compile, paths, options, **told))
        return whole.run(noted.target, report)
    except NoDeviceError as error:
        return evolve(noted, problem=str(error))
    except (PackError, DeviceError) as error:
        return Coverage(noted.target, noted.pipelines, problem=f"not proven: {error}")


def _show(output: Output, pack: Path, found: Sequence[Coverage]) -> None:
    output.document(lambda: CoverageDocument(pack=path_text(pack), targets=tuple(map(_document, found))))
    output.show(_matrix(found))
    for each in found:
        if each.missing:
            output.problem(styled("missing: ", "bad"), f"{each.target.selector}: {output.keys(each.missing)}")
        if each.problem:
            output.problem(styled("note: ", "warn"), f"{each.target.selector}: {each.problem}")


def _page(found: Sequence[Coverage]) -> Iterator[Table | Text | str]:
    yield _matrix(found)
    for each in found:
        if each.missing:
            yield from ("", styled(f"missing on {each.target.selector}", "head"))
            yield styled("  ".join(map(key_text, each.missing)))
        if each.problem:
            yield from ("", styled(f"{each.target.selector}: {each.problem}", "warn"))


def _matrix(found: Sequence[Coverage]) -> Table:
    made = table("target", "pipelines", "held", "left out", "missing", "to compile", "", numbers=range(1, 6))
    for each in found:
        missing = len(each.missing)
        about = "" if each.timed == missing else "about "
        is_known = each.held + each.left_out + missing == each.pipelines
        made.add_row(
            styled(each.target.selector or each.target.device_name, "head"),
            f"{each.pipelines:,}",
            f"{each.held:,}",
            styled(f"{each.left_out:,}", "warn" if each.left_out else "dim"),
            styled(f"{missing:,}", "bad" if missing else "good"),
            about + seconds_text(each.missing_s) if missing else "nothing" if is_known else "?",
            styled("looked up", "good") if each.proven else styled("by its notes", "dim"),
        )
    return made


def _document(coverage: Coverage) -> CoveredTarget:
    target = coverage.target
    return filled(
        CoveredTarget,
        coverage,
        selector=target.selector,
        device_name=target.device_name,
        driver=target.driver,
        missing=tuple(map(Hash, coverage.missing)),
        problem=coverage.problem or None,
    )
