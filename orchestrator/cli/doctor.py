"""The verb `doctor`: checks drivers and directories, and says what to do about each problem.

With --keys it finds what a driver's keys depend on (doctor_keys.py). Without --keys it changes nothing; for
example, it does not create the cache directory.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import DEVICE, DEVICE_HELP, CacheDirectory, Flag, JsonFlag
from orchestrator.cli.doctor_checks import check_devices, check_directory, check_program
from orchestrator.cli.doctor_keys import show_keys
from orchestrator.cli.documents import DoctorDocument
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.output import Output, Style, plural, styled
from orchestrator.cli.values import cache_files_directory, time_limit_seconds, usable_directory
from orchestrator.devices.device import DeviceIdentity
from orchestrator.run.records import IdentityRecord

_TIME_LIMIT = "30m"
_STYLES: dict[str, Style] = {"good": "good", "hint": "warn", "bad": "bad"}


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
    findings = [*check_program(), *check_devices(device, directory, devices), *check_directory(directory)]
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
