"""The command-line application: its verbs, what a command line asks of which, and parameters that they share.

An option that several verbs have reads and behaves the same everywhere.

Guarantees: only the verb that is called is loaded, and asking for help opens no driver. `compile` imports
what it needs for its work when it works.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, CycloptsError, Group, Parameter

from orchestrator.cli.errors import UsageError
from orchestrator.cli.output import console_on
from orchestrator.version import VERSION

if TYPE_CHECKING:
    from rich.console import Console

_HELP_WIDTH: Final = 80
_LEAST_HELP_WIDTH: Final = 20  # Cyclopts never ends in one or two columns

app = App(
    name="orchestrator",
    help="""Compile Vulkan pipeline sets in parallel, and know what it costs.

Start with `orchestrator devices`, then `orchestrator compile sample`.

Exit codes:
  0    success
  1    done, but something failed: pipelines, records of a set, samples;
       compare: something is slower; regress: a rule is broken;
       install: nothing for this device; coverage: pipelines are missing
  2    bad input or usage, or a result could not be saved
  3    no device could be used
  70   a bug in this program
  75   compile, refresh: the time limit was reached; the same command
       continues
  130  stopped by Ctrl-C, SIGTERM or SIGHUP; finished work is kept
  141  the reader of the output closed it
""",
    help_epilogue="Every verb takes -v, --verbose (lists in full), -q, --quiet (errors only), --no-progress, "
    "and --color auto, always or never.",
    help_format="plaintext",
    # Words are what they say: cyclopts would read a file called `[1].foz` as a list in JSON.
    default_parameter=Parameter(negative="", json_dict=False, json_list=False),
    version=VERSION,
)
_JOBS: Final = {
    "Compile": "devices list compile refresh calibrate pack worker",
    "Measure": "bench compare regress",
    "Keep and ship": "inspect verify coverage export set extract merge key publish install run binaries "
    "prune",
    "When things go wrong": "doctor quarantine",
    "This program": "completion",
}
"""The verbs by what they are for, in the order of the help."""
VERBS: Final = " ".join(_JOBS.values()).split()
_MODULES: Final = {"list": "list_set"}
for _order, (_job, _verbs) in enumerate(_JOBS.items()):
    _group = Group(_job, sort_key=_order)
    for _verb in _verbs.split():
        # Loaded when it is called. Markdown needs a parser of its own: a verb's help has examples to set
        # apart, the list of verbs has not.
        app.command(
            f"orchestrator.cli.{_MODULES.get(_verb, _verb)}:{_verb}_verb",
            name=_verb,
            group=_group,
            sort_key=VERBS.index(_verb),
            help_format="markdown",
        )
app["--help"].group = app["--version"].group = (_group,)


def parse(tokens: Sequence[str]) -> tuple[Callable[..., Any], inspect.BoundArguments]:
    """The verb that a command line calls, and its arguments."""
    _refuse_empty(tokens)
    try:
        if not any(each in VERBS for each in tokens) and "--version" not in tokens:
            for name in VERBS:
                app[name]  # loads it: the list of verbs has a line of each
        command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise UsageError(" ".join(str(error).split()), help_step(tokens)) from error
    if command == app.help_print:
        bound.arguments["console"] = _help_console()
    return command, bound


def _help_console() -> Console:
    from orchestrator.cli.console import PIPE_WIDTH

    console = console_on(sys.stdout)
    if console.width == PIPE_WIDTH:
        console.width = _HELP_WIDTH
    console.width = max(console.width, _LEAST_HELP_WIDTH)
    return console


def help_step(tokens: Sequence[str]) -> str:
    """The next step after a usage error: the help of the verb that a command line names."""
    verb = next((f"{each} " for each in tokens if each in VERBS), "")
    return f"`orchestrator {verb}--help` shows what there is"


def _refuse_empty(tokens: Sequence[str]) -> None:
    for before, token in pairwise(["", *tokens]):
        option, equals, value = token.partition("=") if token.startswith("-") else ("", "=", token)
        if equals and not value.strip():
            option = option or (before if before.startswith("-") else "an argument")
            raise UsageError(
                f"{option}: the text is empty",
                "leave it out for the default; check whether a variable of your script is unset",
            )


Flag = Annotated[bool, Parameter(show_default=False)]
JsonFlag = Annotated[Flag, Parameter(help="Write one JSON document to stdout, and nothing else there.")]

SetNames = Annotated[
    list[str],
    Parameter(
        help="`.foz` archives (several are one set), a `.toml` manifest, or the word `sample`: the set that "
        "ships with the program."
    ),
]

UsedList = Annotated[Path | None, Parameter(show_default=lambda _: "all")]

DEVICE_HELP = (
    "Which device: `radv:navi21` (RADV on null hardware, by family), `radv`, `lavapipe`, `nvidia`, an "
    "index or a part of a name as `orchestrator devices` shows them, or `simulated`."
)


DEVICE = Parameter(alias="-d", negative="")
"""`--device` of a verb that takes one, with words of its own."""
FIRST_DEVICE = Parameter(
    alias="-d",
    negative="",
    help=DEVICE_HELP,
    show_default=lambda _: "the first Vulkan device",
)
DeviceSelector = Annotated[str, FIRST_DEVICE]

CacheDirectory = Annotated[
    Path | None,
    Parameter(help="The directory of cache files.", show_default=lambda _: "the user's cache directory"),
]

PrivateKey = Annotated[
    Path | None,
    Parameter(
        help="Sign what is written with this private key (`orchestrator key new`).",
        show_default=lambda _: "none",
    ),
]
TrustedKey = Annotated[
    Path | None,
    Parameter(help="Take only what the owner of this public key has signed.", show_default=lambda _: "none"),
]


def in_range(least: int, most: int | None = None) -> Callable[[Any, int | None], None]:
    """Checks a number of the command line, as `Parameter(validator=...)` takes it."""

    def check(_type: Any, number: int | None) -> None:
        if number is not None and (number < least or (most is not None and number > most)):
            bounds = f"{least} or more" if most is None else f"{least} to {most}"
            raise ValueError(f"A number of {bounds} is expected.")

    return check


POSITIVE = in_range(1, 1_000_000)
