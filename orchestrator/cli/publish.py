"""The verb `publish`: writes packs as a release, which is static files for a web server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import JsonFlag, PrivateKey
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, byte_text, path_text, plural
from orchestrator.cli.values import signing_key


def publish_verb(
    packs: list[Path],
    /,
    *,
    out: Annotated[Path, Parameter(alias="-o")],
    name: str = "release",
    sign: PrivateKey = None,
    json: JsonFlag = False,
) -> int:
    """Write packs as the next release: static files, of which a player takes only what it needs and lacks.

    Each pack is a component, called as its directory, and the first one is installed first. Serve the
    directory as it is, or copy it to an object store: `files/` first, `index.json` last.

    **EXAMPLES**

        orchestrator publish base level-2 dlc --out site --sign team.key
        orchestrator publish base --out site --name game --json

    Args:
        packs: The packs, the most urgent first. With --sign they must be signed with the same key.
        out: The directory of the releases. What it has already stays.
        name: The name of the program, the same for all its releases.
    """
    from orchestrator.cli.documents import PublishDocument, filled
    from orchestrator.packs.delivery import publish
    from orchestrator.stores.pack import Pack

    output, key = Output(json=json), signing_key(sign)
    trust = None if key is None else key.public
    done = publish([Pack.open(each, trust) for each in packs], out, key, name)
    index = done.index
    output.document(
        lambda: filled(
            PublishDocument,
            done,
            output=path_text(out),
            name=index.name,
            release=index.release,
            signed=key is not None,
            components=tuple(each.name for each in index.components),
        )
    )
    names = ", ".join(each.name for each in index.components)
    output.line(f"{index.name}, release {index.release}: {names}{'; not signed' if key is None else ''}")
    output.line(f"{path_text(out)}: {plural(done.files, 'new file')}, {byte_text(done.bytes)}")
    return ExitCode.OK
