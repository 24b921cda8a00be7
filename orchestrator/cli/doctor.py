"""The verb `doctor`.

`orchestrator doctor`: what works here, what does not, and what to do about each; with --keys what a
driver's keys depend on (doctor_keys.py).

Guarantees: without --keys changes nothing: a cache directory that is not there is not made. Every finding
that is not good has a next step. One device that cannot be opened hides no other.

What `doctor --keys` is doing, and what it found: what matters, by kind of pipeline, then what does not and
what is not known.

Guarantees: nothing is said of a kind of pipeline whose baseline could not tell; that is said instead.
"""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from attrs import frozen
from cyclopts import Parameter

from orchestrator.cli.errors import ExitCode
from orchestrator.cli.options import DEVICE_HELP, JsonFlag
from orchestrator.cli.output import (
    BAD,
    DIM,
    GOOD,
    HEAD,
    WARN,
    Output,
    path_text,
    plural,
    printable,
    seconds_text,
    styled,
    table,
    version_text,
)
from orchestrator.cli.progress import MeasurementBar
from orchestrator.key_dependence.bisection import KeyProgress, find_key_dependence
from orchestrator.stores.profile_file import KeyProfile, NotTried, Tried, save_key_profile

if TYPE_CHECKING:
    from orchestrator.devices.device import Device, DeviceIdentity


_FEATURES = (
    (
        "externally_synchronized_caches",
        "pipelineCreationCacheControl",
        "mode per-worker uses caches with the driver's own locks; a newer driver may offer it",
    ),
    (
        "creation_feedback",
        "VK_EXT_pipeline_creation_feedback",
        "cache hits are not known and count as compiled; a newer driver may offer it",
    ),
    ("compile_required", "FAIL_ON_PIPELINE_COMPILE_REQUIRED", "mode two-level works as per-worker does"),
    (
        "pipeline_binaries",
        "VK_KHR_pipeline_binary",
        "pipelines that are equal under two keys are not counted; nothing else needs it",
    ),
    (
        "internally_synchronized_merge",
        "VK_KHR_maintenance8",
        "a merge on the way keeps workers from looking things up; nothing else needs it",
    ),
)
_FREE_BYTES = 256 << 20


class _State(enum.StrEnum):
    GOOD = "good"
    HINT = "hint"
    BAD = "bad"


@frozen
class _Finding:
    """One thing that was looked at.

    Attributes:
        subject: What.
        state: GOOD; HINT, where it works with less; BAD, where something does not work.
        detail: What was found.
        next_step: What to do about it; "" where it is good.
    """

    subject: str
    state: _State
    detail: str
    next_step: str = ""


def doctor_verb(
    *,
    device: Annotated[
        str | None,
        Parameter(name=["--device", "-d"], help="Look at this device only. " + DEVICE_HELP),
    ] = None,
    cache_dir: Annotated[
        Path | None,
        Parameter(
            name="--cache-dir",
            help="The directory of cache files.",
            show_default=lambda _: "the user's cache directory",
        ),
    ] = None,
    keys: Annotated[
        bool,
        Parameter(
            name="--keys",
            negative="",
            show_default=False,
            help="Find out what the driver's pipeline-cache keys depend on beside the pipeline, and keep it for `compile`. "
            "Takes a minute or several.",
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        Parameter(
            name="--only",
            negative="",
            help="With --keys: try only what has this word in its name, such as `shaderObject` or `environment`; again "
            "for several. Then nothing is kept.",
            show_default=lambda _: "everything",
        ),
    ] = None,
    time_limit: Annotated[
        str,
        Parameter(
            name="--time-limit",
            help="With --keys: try nothing more after this time, such as `90s` or `20m`, and keep nothing where something "
            "is left.",
        ),
    ] = "30m",
    json: JsonFlag = False,
) -> int:
    """Look at drivers, versions, extensions, and the cache directory; say what to do about what is amiss.

    The exit code is 0 where nothing is bad, 3 where no device can be used, else 2. With --keys it is 0 where something can
    be said of every kind of pipeline, else 1.

    **EXAMPLES**

        orchestrator doctor
        orchestrator doctor --device radv:navi21 --cache-dir build/cache
        orchestrator doctor --json
        orchestrator doctor --keys --device nvidia
        orchestrator doctor --keys --device radv:navi21 --only shaderObject
    """
    import platformdirs

    from orchestrator.cli.errors import UsageError
    from orchestrator.cli.output import (
        BAD,
        DIM,
        GOOD,
        HEAD,
        WARN,
        Output,
        device_document,
        path_text,
        plural,
        styled,
    )

    output = Output(json=json)
    if keys:
        from orchestrator.cli.doctor import show_keys
        from orchestrator.cli.options import time_limit_seconds, usable_directory

        limit = time_limit_seconds(time_limit)
        return show_keys(output, device or "", usable_directory(cache_dir), tuple(only or ()), limit)
    if only:
        raise UsageError("--only chooses what --keys tries", "give --keys too")
    directory = platformdirs.user_cache_path("orchestrator") if cache_dir is None else cache_dir
    findings = [*_program()]
    devices: list[DeviceIdentity] = []
    findings += _devices(device, directory, devices)
    findings += _directory(directory)
    bad = [each for each in findings if each.state is _State.BAD]
    output.document(
        {
            "devices": [device_document(each) for each in devices],
            "cache_directory": path_text(directory),
            "findings": [
                {
                    "subject": each.subject,
                    "state": each.state.value,
                    "detail": each.detail,
                    "next_step": each.next_step or None,
                }
                for each in findings
            ],
            "bad": len(bad),
        }
    )
    styles = {_State.GOOD: GOOD, _State.HINT: WARN, _State.BAD: BAD}
    for each in findings:
        output.line(
            styled(f"{each.state.value:5}", styles[each.state]),
            styled(each.subject, HEAD),
            f": {each.detail}",
        )
        if each.next_step:
            output.line(styled(f"     next: {each.next_step}", DIM))
    hints = sum(each.state is _State.HINT for each in findings)
    output.line(
        f"{plural(len(findings), 'finding')}: {len(bad)} bad, {plural(hints, 'hint')}"
        if bad or hints
        else f"{plural(len(findings), 'finding')}, all good"
    )
    if not devices:
        return ExitCode.NO_DEVICE
    return ExitCode.BAD_INPUT if bad else ExitCode.OK


def _program() -> list[_Finding]:
    import platform

    from orchestrator.registry import registry
    from orchestrator.sets.spirv.validation import find_spirv_val
    from orchestrator.version import version

    program = find_spirv_val()
    return [
        _Finding(
            "program",
            _State.GOOD,
            f"orchestrator {version()}, Python {platform.python_version()}, Vulkan registry {registry().version}",
        ),
        _Finding("spirv-val", _State.GOOD, program)
        if program is not None
        else _Finding(
            "spirv-val",
            _State.HINT,
            "not found",
            "install spirv-tools, for `compile --spirv-val`; nothing else needs it",
        ),
    ]


def _devices(selector: str | None, directory: Path, found: list[DeviceIdentity]) -> list[_Finding]:
    from orchestrator.devices import list_devices, open_device
    from orchestrator.errors import DeviceError

    if selector is None:
        try:
            selectors = [str(index) for index in range(len(list_devices()))]
        except DeviceError as error:
            return [_no_device(str(error))]
        if not selectors:
            return [_no_device("the Vulkan loader finds no device")]
    else:
        selectors = [selector]
    findings: list[_Finding] = []
    for each in selectors:
        try:
            device = open_device(each)
        except DeviceError as error:
            findings.append(
                _Finding(
                    f"device {each}",
                    _State.BAD,
                    str(error),
                    "`orchestrator devices` lists what is there; `--device simulated` needs no driver",
                )
            )
            continue
        try:
            found.append(device.identity)
            findings += _device(each, device, directory)
        finally:
            device.close()
    return findings


def _no_device(detail: str) -> _Finding:
    return _Finding(
        "devices",
        _State.BAD,
        detail,
        "install a driver (Debian: mesa-vulkan-drivers), or use `--device simulated`, which needs none",
    )


def _device(selector: str, device: Device, directory: Path) -> list[_Finding]:
    from orchestrator.cli.output import version_text
    from orchestrator.errors import DriverError

    identity, features = device.identity, device.features
    name = f"device {selector}"
    driver = " ".join(each for each in (identity.driver_name, identity.driver_info) if each)
    findings = [
        _Finding(
            name,
            _State.GOOD,
            f"{identity.device_name}, {driver or 'an unnamed driver'} (driverVersion {identity.driver_version:#x}), "
            f"Vulkan {version_text(identity.api_version)}",
        )
    ]
    for field, words, without in _FEATURES:
        if not getattr(features, field):
            withheld = features.keys_withheld if field == "pipeline_binaries" else ""
            findings.append(_Finding(f"{name}, {words}", _State.HINT, withheld or "not offered", without))
    if not features.driver_caches.startswith("disabled"):
        findings.append(
            _Finding(
                f"{name}, the driver's own caches",
                _State.HINT,
                features.driver_caches,
                "figures of a second run may be those of the driver's cache, not of the one kept here",
            )
        )
    try:
        cache = device.create_pipeline_cache(name="doctor")
    except DriverError as error:
        return [
            *findings,
            _Finding(
                f"{name}, pipeline caches",
                _State.BAD,
                str(error),
                "use `compile --mode none`, or another driver",
            ),
        ]
    device.destroy_pipeline_cache(cache)
    return [*findings, _saved(name, identity, directory), _keys(name, identity, directory)]


def _keys(name: str, identity: DeviceIdentity, directory: Path) -> _Finding:
    """What is known of the driver's keys."""
    from orchestrator.cli.doctor import key_words
    from orchestrator.stores.profile_file import load_key_profile

    subject = f"{name}, what its keys depend on"
    loaded = load_key_profile(directory, identity)
    if loaded.profile is not None:
        return _Finding(subject, _State.GOOD, key_words(loaded.profile))
    if loaded.problem:
        return _Finding(
            subject,
            _State.HINT,
            f"not used: {loaded.problem}",
            "`orchestrator doctor --keys` makes a new one",
        )
    return _Finding(subject, _State.GOOD, "not known yet: `orchestrator doctor --keys` finds out")


def _saved(name: str, identity: DeviceIdentity, directory: Path) -> _Finding:
    """What the device would make of the cache file that is kept for it; the driver is not given it."""
    from orchestrator.cli.output import byte_text, path_text
    from orchestrator.stores.cache_file import cache_path, read_cache_file
    from orchestrator.stores.errors import LoadStatus
    from orchestrator.stores.files.generations import previous_path

    subject = f"{name}, saved cache"
    path = cache_path(directory, identity)
    found = read_cache_file(path, identity)
    if found.status is LoadStatus.LOADED:
        return _Finding(
            subject,
            _State.GOOD,
            f"{path_text(path)}, {byte_text(len(found.data))}: would be accepted by this driverVersion and "
            "pipelineCacheUUID, and by no other",
        )
    if found.status is LoadStatus.MISSING:
        return _Finding(subject, _State.GOOD, "none yet")
    previous = read_cache_file(previous_path(path), identity)
    if previous.status is LoadStatus.LOADED:
        return _Finding(
            subject,
            _State.HINT,
            f"{found.status.value}: {found.detail}; its previous generation is whole",
            "nothing: the next compile loads that, and saves a new one",
        )
    steps = {
        LoadStatus.OTHER_DRIVER: "nothing: the driver changed, and the next compile replaces it",
        LoadStatus.UNTRUSTED_PERMISSIONS: "the command that the text names; until then it is not used",
        LoadStatus.UNREADABLE: "make it readable, or remove it",
    }
    step = steps.get(found.status, "remove it, or let the next compile replace it")
    state = _State.HINT if found.status is LoadStatus.OTHER_DRIVER else _State.BAD
    return _Finding(subject, state, f"{path_text(path)}: {found.status.value}: {found.detail}", step)


def _directory(directory: Path) -> list[_Finding]:
    import os
    import shutil

    from orchestrator.cli.output import byte_text, path_text, plural
    from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS
    from orchestrator.stores.files.quarantine import QUARANTINE_DIRECTORY
    from orchestrator.stores.files.trust import distrust_directory

    subject, name = "cache directory", path_text(directory)
    if not directory.exists():
        return [_Finding(subject, _State.GOOD, f"{name}: not there yet, made by the first compile")]
    if not directory.is_dir():
        return [
            _Finding(
                subject, _State.BAD, f"{name}: a file, not a directory", "name another one with --cache-dir"
            )
        ]
    findings = []
    reason = distrust_directory(directory, REAL_FILE_OPERATIONS)
    if reason is not None:
        findings.append(
            _Finding(subject, _State.BAD, reason, "that command; until then nothing in it is loaded or saved")
        )
    elif not os.access(directory, os.W_OK | os.X_OK):
        findings.append(
            _Finding(
                subject,
                _State.BAD,
                f"{name}: cannot be written",
                "chmod u+rwx it, or name another one with --cache-dir",
            )
        )
    free = shutil.disk_usage(directory).free
    if free < _FREE_BYTES:
        findings.append(
            _Finding(
                subject,
                _State.HINT,
                f"{name}: {byte_text(free)} free",
                "`orchestrator prune` makes room; a save that does not fit leaves the old file",
            )
        )
    if not findings:
        status = REAL_FILE_OPERATIONS.stat(directory)
        findings.append(
            _Finding(subject, _State.GOOD, f"{name}: mode {status.permissions:04o}, {byte_text(free)} free")
        )
    quarantined = len(list((directory / QUARANTINE_DIRECTORY).glob("*")))
    if quarantined:
        findings.append(
            _Finding(
                "quarantine",
                _State.HINT,
                f"{plural(quarantined, 'file')} that a driver failed on",
                "`orchestrator prune` removes them; keep one for a report to the driver's makers",
            )
        )
    return findings


_MOST_REASONS = 12


class KeysView(MeasurementBar):
    """Shows what a bisection is doing."""

    def progress(self, progress: KeyProgress) -> None:
        """Something is tried."""
        if progress.total:
            self.step(progress.now, progress.done, progress.total)
        else:
            self.stage(progress.now)


def show_keys(
    output: Output, device: str, directory: Path, only: tuple[str, ...], time_limit_s: float
) -> ExitCode:
    """Find out what a device's keys depend on, show it, and keep it where everything was tried.

    Args:
        output: Where to show it.
        device: The selector.
        directory: The directory of cache files, which is there and can be written.
        only: Words to choose by what is tried; none for everything.
        time_limit_s: Try nothing more after this time, s.
    """
    with KeysView(output) as view:
        found = find_key_dependence(device, only=only, time_limit_s=time_limit_s, on_progress=view.progress)
    profile = found.profile
    kept = None
    if profile.whole and profile.says_anything:
        kept = save_key_profile(directory, found.identity, profile)
    output.document(key_document(profile) | {"profile": None if kept is None else path_text(kept)})
    _show(output, profile)
    if kept is not None:
        output.line(styled("kept ", GOOD), path_text(kept))
    elif profile.whole:
        output.line(styled("not kept: ", BAD), "nothing can be said")
    else:
        output.line(styled("not kept: ", WARN), "only a part was tried (--only, --time-limit)")
    if profile.is_doubtful:
        return ExitCode.PIPELINES_FAILED
    return ExitCode.OK


def key_document(profile: KeyProfile) -> dict[str, Any]:
    """The profile as JSON."""
    document: dict[str, Any] = msgspec.to_builtins(profile)
    return document


def key_words(profile: KeyProfile) -> str:
    """What a profile says, in one line: when it was made, and on what the keys depend by aspect."""
    day = time.strftime("%Y-%m-%d", time.gmtime(profile.made_at))
    if not profile.depends:
        return f"of {day}: on nothing that was tried"
    alone = [
        each.name.removeprefix("VkPhysicalDevice")
        for each in profile.depends
        if each.aspect in ("feature", "apiVersion", "extension")
    ]
    rest = Counter(
        each.aspect for each in profile.depends if each.aspect not in ("feature", "apiVersion", "extension")
    )
    named = [f"apiVersion {name}" if "::" not in name and name[0].isdigit() else name for name in alone]
    counted = [plural(count, aspect + " setting", aspect + " settings") for aspect, count in rest.items()]
    return f"of {day}: on {', '.join([*named, *counted])}"


def _show(output: Output, profile: KeyProfile) -> None:
    output.line(styled(profile.device_name, HEAD), f"  {profile.driver}")
    output.line(
        f"baseline: Vulkan {version_text(profile.api_version)}, no name, the features that the pipelines need; "
        f"hits by {profile.method or 'nothing that can tell'}; {seconds_text(profile.took_s)}"
    )
    output.line("")
    for kind in profile.kinds:
        state = styled("A/A ", BAD if kind.problem else GOOD)
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
    for line in profile.disagreements:
        output.line(styled("disagreement ", BAD), line)
    for note in profile.notes:
        output.line(styled("note ", WARN), note)


def _show_dependences(output: Output, profile: KeyProfile) -> None:
    kinds = [each.kind for each in profile.kinds if not each.problem]
    made = table("the keys depend on", *kinds, "identity")
    rows: dict[tuple[str, tuple[str, ...], bool], list[str]] = {}
    for each in sorted(profile.depends, key=lambda one: one.aspect != "feature"):
        # Features stand alone; names and variables that do the same share a row.
        group = each.text if each.aspect == "feature" else each.aspect
        rows.setdefault((group, each.kinds, each.identity), []).append(each.name)
    for (group, of_kinds, identity), names in rows.items():
        is_feature = group.startswith("feature ")
        text = group.removeprefix("feature ") if is_feature else f"{group}: {', '.join(names)}"
        made.add_row(
            printable(text.replace("VkPhysicalDevice", "")),
            *("yes" if kind in of_kinds else "-" for kind in kinds),
            "changes too" if identity else "",
        )
    output.show(made)
    output.line(
        styled(
            "identity: with it the device has another pipelineCacheUUID, so even the cache file is another one",
            DIM,
        )
    )
    output.line("")


def _show_counts(output: Output, what: str, found: Iterable[Tried]) -> None:
    counts = Counter(
        f"{each.aspect} beside one that matters" if each.given else each.aspect for each in found
    )
    if counts:
        output.line(f"{what}: ", ", ".join(f"{count} × {aspect}" for aspect, count in counts.items()))


def _show_not_tried(output: Output, not_tried: tuple[NotTried, ...]) -> None:
    output.line(f"could not be tried: {len(not_tried)}")
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in not_tried:
        reasons.setdefault((each.aspect, each.reason), []).append(each.name)
    for (aspect, reason), names in list(reasons.items())[:_MOST_REASONS]:
        shown = ", ".join(names[:3]) + (f", ... {len(names) - 3} more" if len(names) > 3 else "")
        output.line(styled(f"  {len(names):4} {aspect}: {reason}: {shown}", DIM))
    if len(reasons) > _MOST_REASONS:
        output.line(styled(f"       and {len(reasons) - _MOST_REASONS} more reasons: --json has them", DIM))
