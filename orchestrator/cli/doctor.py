"""The verb `doctor`: checks drivers and directories, and says what to do about each problem.

With --keys it finds what a driver's keys depend on (doctor_keys.py). Without --keys it changes nothing; for
example, it does not create the cache directory. A device that cannot be opened does not prevent checking the
others.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from attrs import evolve
from cyclopts import Parameter

from orchestrator.cli.application import DEVICE, DEVICE_HELP, CacheDirectory, Flag, JsonFlag
from orchestrator.cli.devices import without_dead
from orchestrator.cli.doctor_keys import key_words, show_keys
from orchestrator.cli.documents import DoctorDocument, DoctorFinding
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
    cache_files_directory,
    roots_in_home,
    show_words,
    time_limit_seconds,
    unfit_directory,
    usable_directory,
)
from orchestrator.devices.device import DeviceFeatures, DeviceIdentity
from orchestrator.devices.listing import DeviceEntry, Listing, list_all, list_one
from orchestrator.devices.opening import loader_version
from orchestrator.errors import DeviceError
from orchestrator.registry import registry
from orchestrator.run.records import IdentityRecord
from orchestrator.sets.spirv.validation import find_spirv_val
from orchestrator.stores.cache_file import LoadStatus, cache_path, is_accused, read_cache_file, save_problem
from orchestrator.stores.files.atomic_file import files, likely_cause, unwritable
from orchestrator.stores.files.recovery import QUARANTINE_DIRECTORY, previous_path
from orchestrator.stores.profile_file import load_key_profile
from orchestrator.stores.state import state_path, state_problem
from orchestrator.version import VERSION

_TIME_LIMIT = "30m"
_STYLES: dict[str, Style] = {"good": "good", "hint": "warn", "bad": "bad"}
_FEATURES = (
    (
        "externally_synchronized_caches",
        "pipelineCreationCacheControl",
        "mode per-worker uses caches with the driver's own locks; a newer driver may have it",
    ),
    (
        "creation_feedback",
        "VK_EXT_pipeline_creation_feedback",
        "cache hits are unknown and count as compiled; a newer driver may have it",
    ),
    ("compile_required", "FAIL_ON_PIPELINE_COMPILE_REQUIRED", "mode two-level works like per-worker"),
    (
        "pipeline_binaries",
        "VK_KHR_pipeline_binary",
        "no mode binaries, and equal pipelines are found by their state alone; a newer driver may have it",
    ),
    (
        "internally_synchronized_merge",
        "VK_KHR_maintenance8",
        "a merge during the run blocks the look-ups of workers; nothing else needs it",
    ),
)
_FREE_BYTES = 256 << 20


def doctor_verb(
    *,
    device: Annotated[str | None, DEVICE, Parameter(help="Look at this device only. " + DEVICE_HELP)] = None,
    cache_dir: CacheDirectory = None,
    keys: Flag = False,
    only: Annotated[list[str] | None, Parameter(negative="", show_default=lambda _: "everything")] = None,
    time_limit: Annotated[str | None, Parameter(show_default=lambda _: _TIME_LIMIT)] = None,
    json: JsonFlag = False,
) -> int:
    """Check drivers, versions, extensions and the cache directory, and say what to do about problems.

    The exit code is 0 if nothing is bad, 3 if no device can be used, else 2. With --keys it is 0 if every
    kind of pipeline has a reliable result, else 1.

    **EXAMPLES**

        orchestrator doctor
        orchestrator doctor --device radv:navi21 --cache-dir build/cache
        orchestrator doctor --json
        orchestrator doctor --keys --device nvidia
        orchestrator doctor --keys --device radv:navi21 --only shaderObject

    Args:
        keys: Find what the driver's pipeline-cache keys depend on besides the pipeline, and save it for
            `compile`. Takes a minute or several.
        only: With --keys: try only names that contain this word, such as `shaderObject` or `environment`.
            May be given several times. Then nothing is saved.
        time_limit: With --keys: stop after this time, such as `90s` or `20m` (a number alone is seconds). If
            something is left then, nothing is saved.
    """
    output = Output(json=json)
    if keys:
        limit = time_limit_seconds(time_limit or _TIME_LIMIT)
        return show_keys(output, device or "", usable_directory(cache_dir), tuple(only or ()), limit)
    for option, value in (("--only", only), ("--time-limit", time_limit)):
        if value:
            raise UsageError(f"{option} needs --keys", "add --keys")
    directory = cache_files_directory(cache_dir)
    devices: list[DeviceIdentity] = []
    findings = [*_check_program(), *_check_devices(device, directory, devices), *_check_directory(directory)]
    states = Counter(each.state for each in findings)
    bad, hints = states["bad"], states["hint"]

    output.document(
        lambda: DoctorDocument(
            devices=tuple(map(IdentityRecord.of, devices)),
            cache_directory=directory,
            findings=tuple(findings),
            bad=bad,
        )
    )
    for each in findings:
        say = output.problem if each.state == "bad" else output.line
        say(styled(f"{each.state:5}", _STYLES[each.state]), styled(each.subject, "head"), f": {each.detail}")
        if each.next_step:
            say(styled(f"     next: {each.next_step}", "dim"))
    verdict = f": {bad} bad, {plural(hints, 'hint')}" if bad or hints else ", all good"
    output.line(plural(len(findings), "finding") + verdict)
    if not devices:
        return ExitCode.NO_DEVICE
    return ExitCode.BAD_INPUT if bad else ExitCode.OK


def _finding(subject: str, state: str, detail: str, next_step: str | None = None) -> DoctorFinding:
    return DoctorFinding(subject=subject, state=state, detail=detail, next_step=next_step)


def _good(subject: str, detail: str) -> DoctorFinding:
    return _finding(subject, "good", detail)


def _hint(subject: str, detail: str, next_step: str) -> DoctorFinding:
    return _finding(subject, "hint", detail, next_step)


def _bad(subject: str, detail: str, next_step: str) -> DoctorFinding:
    return _finding(subject, "bad", detail, next_step)


def _check_program() -> Iterator[DoctorFinding]:
    python = platform.python_version()
    yield _good("program", f"orchestrator {VERSION}, Python {python}, Vulkan registry {registry().version}")
    yield _loader()
    if program := find_spirv_val():
        yield _good("spirv-val", program)
    else:
        step = "install spirv-tools, for `compile --spirv-val`; nothing else needs it"
        yield _hint("spirv-val", "not found", step)


def _loader() -> DoctorFinding:
    try:
        return _good("Vulkan loader", f"version {version_text(loader_version())}")
    except DeviceError as error:
        return _hint(
            "Vulkan loader", str(error), "install it (Debian: libvulkan1), or use `--device simulated`"
        )


def _check_devices(
    selector: str | None, directory: Path, found: list[DeviceIdentity]
) -> Iterator[DoctorFinding]:
    """Check drivers, and the devices with what is saved for them; `found` receives those that work."""
    step = "`orchestrator devices` lists the devices; `--device simulated` needs no driver"
    if selector is not None:
        try:
            listing = Listing((list_one(selector, all_features=True, on_output=show_words),))
        except DeviceError as error:
            yield _bad(f"device {selector}", str(error), step)
            return
    else:
        install = (
            "install a driver (Debian: mesa-vulkan-drivers), or use `--device simulated`, which needs none"
        )
        try:
            listing = list_all(all_features=True, on_output=show_words)
        except DeviceError as error:
            yield _bad("devices", str(error), install)
            return
        if not listing.devices and not listing.dead:
            yield _bad("devices", "the Vulkan loader finds no device", install)
    for dead in listing.dead:
        yield _bad(f"driver {dead.manifest}", f"it {dead.problem}", without_dead(listing))
    for each in listing.devices:
        if each.features is None:
            yield _bad(f"device {each.selector}", each.problem, step)
        else:
            found.append(each.identity)
            yield from _device(f"device {each.selector}", each, each.features, directory)


def _device(
    name: str, entry: DeviceEntry, features: DeviceFeatures, directory: Path
) -> Iterator[DoctorFinding]:
    identity = entry.identity
    yield _good(
        name,
        f"{identity.device_name}, {driver_text(identity) or 'an unnamed driver'} (driverVersion "
        f"{identity.driver_version:#x}), Vulkan {version_text(identity.api_version)}",
    )
    for field, words, without in _FEATURES:
        if not getattr(features, field):
            withheld = features.keys_withheld if field == "pipeline_binaries" else ""
            yield _hint(f"{name}, {words}", withheld or "not available", without)
    if not features.driver_caches.startswith("disabled"):
        step = "figures of a second run may come from the driver's own cache"
        yield _hint(f"{name}, the driver's own caches", features.driver_caches, step)
    if entry.cache_problem:
        step = "use `compile --mode none`, or another driver"
        yield _bad(f"{name}, pipeline caches", entry.cache_problem, step)
        return
    yield _saved(f"{name}, saved cache", identity, directory)
    yield _keys(f"{name}, what its keys depend on", identity, directory)


def _keys(subject: str, identity: DeviceIdentity, directory: Path) -> DoctorFinding:
    loaded = load_key_profile(directory, identity)
    if loaded.profile is not None:
        return _good(subject, key_words(loaded.profile))
    if loaded.problem:
        return _hint(subject, f"not used: {loaded.problem}", "`orchestrator doctor --keys` makes a new one")
    return _good(subject, "not known yet: `orchestrator doctor --keys` finds out")


def _saved(subject: str, identity: DeviceIdentity, directory: Path) -> DoctorFinding:
    path = cache_path(directory, identity)
    found = read_cache_file(path, identity)
    if found.status is LoadStatus.LOADED and is_accused(path, found.data_hash):
        status, detail = LoadStatus.CRASHED_LAST_TIME, "processes died while the driver was given this data"
        found = evolve(found, status=status, detail=detail)
    if found.status is LoadStatus.MISSING:
        previous = read_cache_file(previous_path(path), identity)
        found = previous if previous.status is LoadStatus.UNREADABLE else found
    problem = None if unfit_directory(directory) else save_problem(path, found)
    if problem is not None and found.status is not LoadStatus.UNREADABLE:
        return _bad(subject, str(problem), "correct that, or move it away; until then nothing is compiled")
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
    what = f"{path_text(found.path)}: {what}"
    if found.status is LoadStatus.OTHER_DRIVER:
        return _hint(subject, what, "nothing: the driver changed, and the next compile replaces it")
    steps = {
        LoadStatus.UNTRUSTED_PERMISSIONS: "run the command above; until then the file is not used",
        LoadStatus.UNREADABLE: "make it readable, or move it away; until then nothing is compiled",
        LoadStatus.TOO_LARGE: "nothing: the next compile moves it to the quarantine, and saves a new one",
        LoadStatus.CRASHED_LAST_TIME: "nothing: it is not loaded, and the next compile saves a new one",
    }
    return _bad(subject, what, steps.get(found.status, "remove it, or let the next compile replace it"))


def _check_directory(directory: Path) -> Iterator[DoctorFinding]:
    subject, name = "cache directory", path_text(directory)
    try:
        status = files().stat(directory)
    except FileNotFoundError:
        there = next(each for each in (directory, *directory.absolute().parents) if os.path.lexists(each))
        reason = unwritable(there / "probe") if there.is_dir() else f"{path_text(there)} is no directory"
        reason = reason or roots_in_home(directory)
        if reason is None:
            yield _good(subject, f"{name}: does not exist yet, the first compile creates it")
        else:
            step = "correct it, or name another one with --cache-dir; until then nothing can be saved"
            yield _bad(subject, f"{name}: does not exist, and cannot be created: {reason}", step)
        return
    except OSError as error:
        reason = likely_cause(error)
        yield _bad(subject, f"{name}: {reason}", "correct that, or name another one with --cache-dir")
        return
    if not status.is_directory:
        yield _bad(subject, f"{name}: a file, not a directory", "name another one with --cache-dir")
        return
    unfit = unfit_directory(directory)
    free = shutil.disk_usage(directory).free
    if unfit is not None:
        step = "correct it, or name another one with --cache-dir; until then nothing is loaded or saved there"
        yield _bad(subject, f"{name}: {unfit}", step)
    if free < _FREE_BYTES:
        step = "`orchestrator prune` makes room; a save that does not fit leaves the old file"
        yield _hint(subject, f"{name}: {byte_text(free)} free", step)
    elif unfit is None:
        yield _good(subject, f"{name}: mode {status.permissions:04o}, {byte_text(free)} free")
    if unfit is None and (problem := state_problem(directory)):
        step = "correct that, or move it away; until then `compile` learns nothing, and keeps no binaries"
        yield _bad("database", f"{path_text(state_path(directory))}: {problem}", step)
    try:
        quarantined = len(list((directory / QUARANTINE_DIRECTORY).glob("*")))
    except OSError as error:
        if unfit is None:
            reason = likely_cause(error)
            yield _bad(subject, f"{name}: {reason}", "correct that, or name another one with --cache-dir")
        return
    if quarantined:
        step = "`orchestrator prune` removes them; keep one for a bug report to the driver's vendor"
        yield _hint("quarantine", f"{plural(quarantined, 'file')} that were refused", step)
