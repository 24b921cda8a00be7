"""The four commands to a running compile: lines of `--control`, frames between processes, and the API.

Assumptions: imported without numpy and trio, because a program that reads commands may start before both.
docs/control.md is generated from these types.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Annotated, Final, Literal, Self

import msgspec

Urgency = Literal["now", "soon"]
Key = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{1,16}$")]


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command"):
    """Base of all commands; the field `command` has the name.

    Attributes:
        id: A number or text that the answer repeats.
        version: Version of the commands.
    """

    id: int | str | None = None
    version: Literal[1] = 1


class PipelineCommand(Command, frozen=True, kw_only=True):
    """Base of the commands that name pipelines.

    Attributes:
        pipelines: Their keys, each 16 hex digits.
    """

    pipelines: tuple[Key, ...]

    @property
    def keys(self) -> tuple[int, ...]:
        """The keys as numbers."""
        return tuple(int(each, 16) for each in self.pipelines)

    def without(self, keys: Container[int]) -> Self:
        """The command for all other pipelines."""
        left = tuple(each for each in self.pipelines if int(each, 16) not in keys)
        return msgspec.structs.replace(self, pipelines=left)


class Promote(PipelineCommand, frozen=True, kw_only=True, tag="promote"):
    """Make pipelines and the libraries that they link more urgent. No pipeline becomes less urgent.

    Attributes:
        priority: `now` precedes `soon`, which precedes all other pipelines.
    """

    priority: Urgency = "now"


class Cancel(PipelineCommand, frozen=True, kw_only=True, tag="cancel"):
    """Cancel pipelines that have not begun, for the whole compile.

    Libraries of other pipelines are created.
    """


class Budget(Command, frozen=True, kw_only=True, tag="budget"):
    """Let work begin for some time from now, then wait for the next budget. Driver calls continue.

    Attributes:
        seconds: The time; 0 to pause, null for no limit.
    """

    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None


class Stop(Command, frozen=True, kw_only=True, tag="stop"):
    """Stop early, as by Ctrl-C: merge and save what is done."""


COMMANDS: Final = (Promote, Cancel, Budget, Stop)
AnyCommand = Promote | Cancel | Budget | Stop


def key_texts(keys: Iterable[int]) -> tuple[str, ...]:
    """Keys as commands hold them."""
    return tuple(f"{each:016x}" for each in keys)
