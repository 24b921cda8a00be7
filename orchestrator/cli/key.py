"""The verb `key`: makes the pair of keys with which packs are signed and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from orchestrator.cli.application import JsonFlag
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, path_text
from orchestrator.cli.values import extra


def key_verb(
    action: Literal["new"],
    path: Path,
    /,
    *,
    json: JsonFlag = False,
) -> int:
    """Make a pair of keys: the private one signs packs, the public one checks them.

    Keep the private key where packs are made, and give the public one to players. Nothing is replaced.

    **EXAMPLES**

        orchestrator key new team.key
        orchestrator key new keys/release.key --json

    Args:
        action: What to do.
        path: The file of the private key; that of the public one lies beside it, as `.pub`.
    """
    from orchestrator.cli.documents import KeyDocument

    assert action == "new"  # noqa: S101 - there is no other
    with extra("sign", "key new"):
        from orchestrator.stores.signing import SigningKey
    out = Output(json=json)
    public = SigningKey().write(path)
    out.document(lambda: KeyDocument(private=path_text(path), public=path_text(public)))
    out.line(f"{path_text(path)}: the private key, which signs (--sign): keep it where packs are made")
    out.line(f"{path_text(public)}: the public key, which checks (--trust): give it to players")
    return ExitCode.OK
