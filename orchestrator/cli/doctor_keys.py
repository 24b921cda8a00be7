"""The option `doctor --keys`: shows what a driver's keys depend on, and what they do not depend on.

Guarantees: everything that could not be tried is listed with the reason.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from orchestrator.cli.documents import KeysDocument, filled
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import (
    Output,
    path_text,
    plural,
    printable,
    seconds_text,
    styled,
    table,
    version_text,
)
from orchestrator.cli.progress_bar import MeasurementBar
from orchestrator.devices.families import require_family
from orchestrator.key_dependence.bisection import find_key_dependence
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.profile_file import KeyProfile, NotTried, Tried, save_key_profile

_MOST_REASONS = 12


def show_keys(
    output: Output, device: str, directory: Path, only: tuple[str, ...], time_limit_s: float
) -> ExitCode:
    """Find what a device's keys depend on, show it, and save it if it is all of the driver's own.

    The directory of cache files must exist and be writable. Without words in `only`, everything is tried.
    """
    require_family(device)
    with MeasurementBar(output) as bar:
        identity, profile = find_key_dependence(
            device, only=only, time_limit_s=time_limit_s, on_progress=bar.step
        )
    kept, why, failed = None, _unfit(profile), None
    if not why:
        try:
            kept = save_key_profile(directory, identity, profile)
        except SaveError as error:  # what took minutes to measure is shown all the same
            failed, why = error, str(error)
    place = None if kept is None else path_text(kept)
    output.document(lambda: filled(KeysDocument, profile, version=2, profile=place, not_saved=why))
    _show(output, profile)
    if kept is not None:
        output.line(styled("saved ", "good"), path_text(kept))
    else:
        output.line(styled("not saved: ", "warn"), why)
    if failed is not None:
        raise failed
    return ExitCode.PIPELINES_FAILED if profile.is_doubtful else ExitCode.OK


def _unfit(profile: KeyProfile) -> str:
    if not profile.whole:
        return "only a part was tried (--only, --time-limit)"
    if profile.environment:
        names = " and ".join(profile.environment)
        return f"it is the driver's with {names} set, not the driver's own: unset {names}, and run again"
    return "" if profile.says_anything else "there is no result"


def key_words(profile: KeyProfile) -> str:
    """A profile in one line: its date, and what the keys depend on by aspect."""
    day = time.strftime("%Y-%m-%d", time.gmtime(profile.made_at))
    if not profile.depends:
        return f"of {day}: on nothing that was tried"
    of_device = ("feature", "apiVersion", "extension")
    alone = [
        each.name.removeprefix("VkPhysicalDevice") for each in profile.depends if each.aspect in of_device
    ]
    rest = Counter(each.aspect for each in profile.depends if each.aspect not in of_device)
    named = [f"apiVersion {name}" if "::" not in name and name[0].isdigit() else name for name in alone]
    counted = [plural(count, aspect + " setting", aspect + " settings") for aspect, count in rest.items()]
    return f"of {day}: on {', '.join([*named, *counted])}"


def _show(output: Output, profile: KeyProfile) -> None:
    output.line(styled(profile.device_name, "head"), f"  {profile.driver}")
    output.line(
        f"baseline: Vulkan {version_text(profile.api_version)}, no name, the features that the pipelines "
        f"need; hits by {profile.method or 'nothing that can tell'}; {seconds_text(profile.took_s)}"
    )
    output.line("")
    for kind in profile.kinds:
        state = styled("A/A ", "bad" if kind.problem else "good")
        words = kind.problem or f"{kind.usable} of {plural(kind.pipelines, 'pipeline')} can tell"
        output.line(state, f"{kind.kind}: {words}")
    output.line("")
    if profile.depends:
        _show_dependences(output, profile)
    elif profile.says_anything:
        output.line("the keys depend on nothing that was tried")
    _show_counts(output, "does not matter", profile.independent)
    if profile.not_tried:
        _show_not_tried(output, profile.not_tried)
    for name, value in profile.environment.items():
        output.line(styled("set here ", "warn"), f"{name}={value}: the baseline has it, too")
    for note in profile.notes:
        output.line(styled("note ", "warn"), note)


def _show_dependences(output: Output, profile: KeyProfile) -> None:
    kinds = [each.kind for each in profile.kinds if not each.problem]
    made = table("the keys depend on", *kinds, "identity")
    rows: dict[tuple[str, tuple[str, ...], tuple[str, ...], bool], list[str]] = {}
    for each in sorted(profile.depends, key=lambda one: one.aspect != "feature"):
        # Features have a row each; names and variables with the same effect share one.
        group = each.text if each.aspect == "feature" else each.aspect
        rows.setdefault((group, each.kinds, each.untried, each.identity), []).append(each.name)
    for (group, of_kinds, untried, identity), names in rows.items():
        is_feature = group.startswith("feature ")
        text = group.removeprefix("feature ") if is_feature else f"{group}: {', '.join(names)}"
        made.add_row(
            printable(text.replace("VkPhysicalDevice", "")),
            *("yes" if kind in of_kinds else "?" if kind in untried else "-" for kind in kinds),
            "changes too" if identity else "",
        )
    output.show(made)
    output.line(
        styled(
            "?: not tried; identity: the device gets another pipelineCacheUUID, and so another cache file",
            "dim",
        )
    )
    output.line("")


def _show_counts(output: Output, what: str, found: Iterable[Tried]) -> None:
    counts = Counter(
        each.aspect
        + (" beside one that matters" if each.given else "")
        + (" (not tried with every kind)" if each.untried else "")
        for each in found
    )
    if counts:
        output.line(f"{what}: ", ", ".join(f"{count} × {aspect}" for aspect, count in counts.items()))


def _show_not_tried(output: Output, not_tried: tuple[NotTried, ...]) -> None:
    output.line(f"could not be tried, or not with all pipelines: {len(not_tried)}")
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in not_tried:
        reasons.setdefault((each.aspect, each.reason), []).append(each.name)

    def show(item: tuple[tuple[str, str], list[str]]) -> None:
        (aspect, reason), names = item
        shown = ", ".join(names[:3]) + (f", ... {len(names) - 3} more" if len(names) > 3 else "")
        output.line(styled(f"  {len(names):4} {aspect}: {reason}: {shown}", "dim"))

    output.some([*reasons.items()], _MOST_REASONS, show, "reason")
