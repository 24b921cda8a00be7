"""The verb `doctor`: what works here, what does not, and what to do about each.

With --keys it finds out what a driver's keys depend on (doctor_keys.py).

Guarantees: without --keys it changes nothing: a cache directory that is not there is not made. Every finding
that is not good has a next step. One device that cannot be opened hides no other.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attrs import frozen
from cyclopts import Parameter

from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.options import (
    DEVICE_HELP,
    CacheDirectory,
    Flag,
    JsonFlag,
    cache_directory,
    opened_device,
    time_limit_seconds,
    usable_directory,
)
from orchestrator.cli.output import (
    BAD,
    DIM,
    GOOD,
    HEAD,
    WARN,
    Output,
    byte_text,
    device_document,
    driver_text,
    path_text,
    plural,
    styled,
    version_text,
)
from orchestrator.errors import DeviceError, DriverError

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
        str | None, Parameter(alias="-d", help="Look at this device only. " + DEVICE_HELP)
    ] = None,
    cache_dir: CacheDirectory = None,
    keys: Flag = False,
    only: Annotated[list[str] | None, Parameter(show_default=lambda _: "everything")] = None,
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
        time_limit: With --keys: try nothing more after this time, such as `90s` or `20m`, and keep nothing
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
            f"orchestrator {version()}, Python {platform.python_version()}, Vulkan registry "
            f"{registry().version}",
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
    from orchestrator.devices import list_devices

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
            with opened_device(each) as device:
                found.append(device.identity)
                findings += _device(each, device, directory)
        except DeviceError as error:
            step = "`orchestrator devices` lists what is there; `--device simulated` needs no driver"
            findings.append(_Finding(f"device {each}", _State.BAD, str(error), step))
    return findings


def _no_device(detail: str) -> _Finding:
    return _Finding(
        "devices",
        _State.BAD,
        detail,
        "install a driver (Debian: mesa-vulkan-drivers), or use `--device simulated`, which needs none",
    )


def _device(selector: str, device: Device, directory: Path) -> list[_Finding]:
    identity, features = device.identity, device.features
    name = f"device {selector}"
    driver = driver_text(identity)
    findings = [
        _Finding(
            name,
            _State.GOOD,
            f"{identity.device_name}, {driver or 'an unnamed driver'} (driverVersion "
            f"{identity.driver_version:#x}), Vulkan {version_text(identity.api_version)}",
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
    from orchestrator.cli.doctor_keys import key_words
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
    from orchestrator.stores.cache_file import LoadStatus, cache_path, read_cache_file
    from orchestrator.stores.files.recovery import previous_path

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

    from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, distrust_directory
    from orchestrator.stores.files.recovery import QUARANTINE_DIRECTORY

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
