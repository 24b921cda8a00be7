"""The verb `doctor`: what works here, what does not, and what to do about each.

With --keys it finds out what a driver's keys depend on (doctor_keys.py).

Guarantees: without --keys it leaves everything as it was: a cache directory that is not there is not made.
Every finding that is not good has a next step. One device that cannot be opened hides no other.
"""

from __future__ import annotations

import enum
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attrs import asdict, frozen
from cyclopts import Parameter

from orchestrator.cli.application import DEVICE, DEVICE_HELP, CacheDirectory, Flag, JsonFlag
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import (
    Output,
    Style,
    byte_text,
    driver_text,
    path_text,
    plural,
    styled,
    version_text,
)
from orchestrator.cli.values import (
    cache_directory,
    opened_device,
    time_limit_seconds,
    unfit_directory,
    usable_directory,
)
from orchestrator.errors import DeviceError, DriverError

if TYPE_CHECKING:
    from orchestrator.cli.documents import DoctorDocument
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
    HINT = "hint"  # it works with less
    BAD = "bad"


_STYLES: dict[_State, Style] = {_State.GOOD: "good", _State.HINT: "warn", _State.BAD: "bad"}


@frozen
class _Finding:
    """One thing that was looked at, as the document has it.

    Attributes:
        subject: What.
        state: How it is.
        detail: What was found.
        next_step: What to do about it; None where it is good.
    """

    subject: str
    state: _State
    detail: str
    next_step: str | None = None


def _good(subject: str, detail: str) -> _Finding:
    return _Finding(subject, _State.GOOD, detail)


def _hint(subject: str, detail: str, next_step: str) -> _Finding:
    return _Finding(subject, _State.HINT, detail, next_step)


def _bad(subject: str, detail: str, next_step: str) -> _Finding:
    return _Finding(subject, _State.BAD, detail, next_step)


def doctor_verb(
    *,
    device: Annotated[str | None, DEVICE, Parameter(help="Look at this device only. " + DEVICE_HELP)] = None,
    cache_dir: CacheDirectory = None,
    keys: Flag = False,
    only: Annotated[list[str] | None, Parameter(negative="", show_default=lambda _: "everything")] = None,
    time_limit: str = "30m",
    json: JsonFlag = False,
) -> int:
    """Look at drivers, versions, extensions, and the cache directory; say what to do about what is amiss.

    The exit code is 0 where nothing is bad, 3 where no device can be used, else 2. With --keys it is 0 where
    something can be said of every kind of pipeline, else 1.

    **EXAMPLES**

        orchestrator doctor
        orchestrator doctor --device radv:navi21 --cache-dir build/cache
        orchestrator doctor --json
        orchestrator doctor --keys --device nvidia
        orchestrator doctor --keys --device radv:navi21 --only shaderObject

    Args:
        keys: Find out what the driver's pipeline-cache keys depend on beside the pipeline, and keep it for
            `compile`. Takes a minute or several.
        only: With --keys: try only what has this word in its name, such as `shaderObject` or `environment`;
            again for several. Then nothing is kept.
        time_limit: With --keys: try nothing more after this time, such as `90s` or `20m` (a number alone is
            seconds), and keep nothing
            where something is left.
    """
    output = Output(json=json)
    if keys:
        from orchestrator.cli.doctor_keys import show_keys

        limit = time_limit_seconds(time_limit)
        return show_keys(output, device or "", usable_directory(cache_dir), tuple(only or ()), limit)
    if only:
        raise UsageError("--only chooses what --keys tries", "give --keys too")
    directory = cache_directory(cache_dir)
    devices: list[DeviceIdentity] = []
    findings = [*_program(), *_devices(device, directory, devices), *_directory(directory)]
    states = Counter(each.state for each in findings)
    bad, hints = states[_State.BAD], states[_State.HINT]

    def document() -> DoctorDocument:
        from orchestrator.cli.documents import DoctorDocument, DoctorFinding
        from orchestrator.run.records import IdentityRecord

        return DoctorDocument(
            devices=tuple(map(IdentityRecord.of, devices)),
            cache_directory=directory,
            findings=tuple(DoctorFinding(**asdict(each)) for each in findings),
            bad=bad,
        )

    output.document(document)
    for each in findings:
        output.line(
            styled(f"{each.state:5}", _STYLES[each.state]), styled(each.subject, "head"), f": {each.detail}"
        )
        if each.next_step:
            output.line(styled(f"     next: {each.next_step}", "dim"))
    verdict = f": {bad} bad, {plural(hints, 'hint')}" if bad or hints else ", all good"
    output.line(plural(len(findings), "finding") + verdict)
    if not devices:
        return ExitCode.NO_DEVICE
    return ExitCode.BAD_INPUT if bad else ExitCode.OK


def _program() -> Iterator[_Finding]:
    import platform

    from orchestrator.registry import registry
    from orchestrator.sets.spirv.validation import find_spirv_val
    from orchestrator.version import VERSION

    python = platform.python_version()
    yield _good("program", f"orchestrator {VERSION}, Python {python}, Vulkan registry {registry().version}")
    yield _loader()
    if program := find_spirv_val():
        yield _good("spirv-val", program)
    else:
        step = "install spirv-tools, for `compile --spirv-val`; nothing else needs it"
        yield _hint("spirv-val", "not found", step)


def _loader() -> _Finding:
    """The Vulkan loader; what Mesa's version is, each device says."""
    from orchestrator.devices import loader_version

    try:
        return _good("Vulkan loader", f"version {version_text(loader_version())}")
    except DeviceError as error:
        return _hint(
            "Vulkan loader", str(error), "install it (Debian: libvulkan1), or use `--device simulated`"
        )


def _devices(selector: str | None, directory: Path, found: list[DeviceIdentity]) -> Iterator[_Finding]:
    from orchestrator.devices import list_devices

    selectors = [] if selector is None else [selector]
    if selector is None:
        step = "install a driver (Debian: mesa-vulkan-drivers), or use `--device simulated`, which needs none"
        try:
            selectors = [str(index) for index in range(len(list_devices()))]
        except DeviceError as error:
            yield _bad("devices", str(error), step)
            return
        if not selectors:
            yield _bad("devices", "the Vulkan loader finds no device", step)
    for each in selectors:
        try:
            with opened_device(each) as device:
                found.append(device.identity)
                yield from _device(f"device {each}", device, directory)
        except DeviceError as error:
            step = "`orchestrator devices` lists what is there; `--device simulated` needs no driver"
            yield _bad(f"device {each}", str(error), step)


def _device(name: str, device: Device, directory: Path) -> Iterator[_Finding]:
    identity, features = device.identity, device.features
    yield _good(
        name,
        f"{identity.device_name}, {driver_text(identity) or 'an unnamed driver'} (driverVersion "
        f"{identity.driver_version:#x}), Vulkan {version_text(identity.api_version)}",
    )
    for field, words, without in _FEATURES:
        if not getattr(features, field):
            withheld = features.keys_withheld if field == "pipeline_binaries" else ""
            yield _hint(f"{name}, {words}", withheld or "not offered", without)
    if not features.driver_caches.startswith("disabled"):
        step = "figures of a second run may be those of the driver's cache, not of the one kept here"
        yield _hint(f"{name}, the driver's own caches", features.driver_caches, step)
    try:
        cache = device.create_pipeline_cache(name="doctor")
    except DriverError as error:
        step = "use `compile --mode none`, or another driver"
        yield _bad(f"{name}, pipeline caches", str(error), step)
        return
    device.destroy_pipeline_cache(cache)
    yield _saved(f"{name}, saved cache", identity, directory)
    yield _keys(f"{name}, what its keys depend on", identity, directory)


def _keys(subject: str, identity: DeviceIdentity, directory: Path) -> _Finding:
    from orchestrator.cli.doctor_keys import key_words
    from orchestrator.stores.profile_file import load_key_profile

    loaded = load_key_profile(directory, identity)
    if loaded.profile is not None:
        return _good(subject, key_words(loaded.profile))
    if loaded.problem:
        return _hint(subject, f"not used: {loaded.problem}", "`orchestrator doctor --keys` makes a new one")
    return _good(subject, "not known yet: `orchestrator doctor --keys` finds out")


def _saved(subject: str, identity: DeviceIdentity, directory: Path) -> _Finding:
    """What the device would make of the cache file that is kept for it; the driver is not given it."""
    from orchestrator.stores.cache_file import LoadStatus, cache_path, read_cache_file
    from orchestrator.stores.files.recovery import previous_path

    path = cache_path(directory, identity)
    found = read_cache_file(path, identity)
    if found.status is LoadStatus.LOADED:
        return _good(
            subject,
            f"{path_text(path)}, {byte_text(len(found.data))}: would be accepted by this driverVersion and "
            "pipelineCacheUUID, and by no other",
        )
    if found.status is LoadStatus.MISSING:
        return _good(subject, "none yet")
    what = f"{found.status.value}: {found.detail}"
    if read_cache_file(previous_path(path), identity).status is LoadStatus.LOADED:
        step = "nothing: the next compile loads that, and saves a new one"
        return _hint(subject, f"{what}; its previous generation is whole", step)
    what = f"{path_text(path)}: {what}"
    if found.status is LoadStatus.OTHER_DRIVER:
        return _hint(subject, what, "nothing: the driver changed, and the next compile replaces it")
    steps = {
        LoadStatus.UNTRUSTED_PERMISSIONS: "the command that the text names; until then it is not used",
        LoadStatus.UNREADABLE: "make it readable, or remove it; until then nothing is saved in its place",
        LoadStatus.TOO_LARGE: "nothing: the next compile moves it to the quarantine, and saves a new one",
        LoadStatus.CRASHED_LAST_TIME: "nothing: it is not loaded, and the next compile saves a new one",
    }
    return _bad(subject, what, steps.get(found.status, "remove it, or let the next compile replace it"))


def _directory(directory: Path) -> Iterator[_Finding]:
    import shutil

    from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, refused, unwritable
    from orchestrator.stores.files.recovery import QUARANTINE_DIRECTORY

    subject, name = "cache directory", path_text(directory)
    try:
        status = REAL_FILE_OPERATIONS.stat(directory)
    except FileNotFoundError:
        there = next(each for each in (directory, *directory.absolute().parents) if os.path.lexists(each))
        reason = unwritable(there / "probe") if there.is_dir() else f"{path_text(there)} is no directory"
        if reason is None:
            yield _good(subject, f"{name}: not there yet, made by the first compile")
        else:
            step = "mend it, or name another one with --cache-dir; until then nothing can be saved"
            yield _bad(subject, f"{name}: not there, and cannot be made: {reason}", step)
        return
    except OSError as error:
        reason = refused(directory, error, REAL_FILE_OPERATIONS)
        yield _bad(subject, f"{name}: {reason}", "that, or name another one with --cache-dir")
        return
    if not status.is_directory:
        yield _bad(subject, f"{name}: a file, not a directory", "name another one with --cache-dir")
        return
    unfit = unfit_directory(directory)
    free = shutil.disk_usage(directory).free
    if unfit is not None:
        step = "mend it, or name another one with --cache-dir; until then nothing in it is loaded or saved"
        yield _bad(subject, f"{name}: {unfit}", step)
    if free < _FREE_BYTES:
        step = "`orchestrator prune` makes room; a save that does not fit leaves the old file"
        yield _hint(subject, f"{name}: {byte_text(free)} free", step)
    elif unfit is None:
        yield _good(subject, f"{name}: mode {status.permissions:04o}, {byte_text(free)} free")
    try:
        quarantined = len(list((directory / QUARANTINE_DIRECTORY).glob("*")))
    except OSError as error:
        if unfit is None:
            reason = refused(directory, error, REAL_FILE_OPERATIONS)
            yield _bad(subject, f"{name}: {reason}", "that, or name another one with --cache-dir")
        return
    if quarantined:
        step = "`orchestrator prune` removes them; keep one for a report to the driver's makers"
        yield _hint("quarantine", f"{plural(quarantined, 'file')} that a driver failed on", step)
