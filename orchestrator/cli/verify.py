"""The verb `verify`: proves files whole, byte for byte, without a device. It reads only."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.application import Flag, JsonFlag, TrustedKey
from orchestrator.cli.checks import check
from orchestrator.cli.documents import CheckedFile, VerifyDocument
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, path_text, plural, styled
from orchestrator.cli.values import trusted_key

_LINES_SHOWN = 5


def verify_verb(
    paths: list[Path],
    /,
    *,
    trust: TrustedKey = None,
    complete: Flag = False,
    json: JsonFlag = False,
) -> int:
    """Check whether cache files, archives and packs are whole.

    - cache file: headers, exact length, hash, permissions, and its previous generation
    - plan: hash, permissions, and whether all its parts agree
    - identifiers of shader modules: exact length, hash, permissions
    - other file beside a cache file: whether a run would use it
    - store of binaries: structure, hashes, references
    - archive: every record, with its key recomputed
    - pack: its manifest, each file in it, and with --trust its signature; with --trust, what no
      compile leaves there is wrong; with --complete, what a compile has still to do is wrong
    - other directory: its permissions and all such files in it

    The exit code is 0 if nothing is wrong, else 2.

    **EXAMPLES**

        orchestrator verify ~/.cache/orchestrator
        orchestrator verify game.foz game.1.foz
        orchestrator verify build/cache/*.pipeline-cache --json
        orchestrator verify build/pack --trust team.pub --complete

    Args:
        paths: Cache files, `.foz` archives, packs, or directories of cache files and archives.
        complete: Refuse a pack with a target that has nothing or is not finished, missing shards, or
            pipelines that were not run.
    """
    output, key = Output(json=json), trusted_key(trust)
    checked = [each for path in paths for each in check(path, key, output, complete=complete)]
    bad = sum(bool(each.problems) for each in checked)
    output.document(
        lambda: VerifyDocument(
            checked=tuple(
                CheckedFile(
                    path=path_text(each.path),
                    kind=each.kind,
                    problems=each.problems,
                    next_step=each.next_step if each.problems else "",
                    **each.facts,
                )
                for each in checked
            ),
            good=len(checked) - bad,
            bad=bad,
        )
    )
    for each in checked:
        state = styled("bad  ", "bad") if each.problems else styled("good ", "good")
        say = output.problem if each.problems else output.line
        say(state, styled(path_text(each.path), "head"), styled(f"  {each.summary or each.kind}", "dim"))
        for lines in (each.details, each.problems):
            for line in lines[: output.most(_LINES_SHOWN)]:
                say(f"       {line}")
            if len(lines) > _LINES_SHOWN and output.most(1):
                say(styled(f"       ... and {len(lines) - _LINES_SHOWN} more, see --verbose", "dim"))
        if each.problems and each.next_step:
            say(f"       next: {each.next_step}")
    output.line(f"{plural(len(checked), 'check')}: {len(checked) - bad} good, {bad} bad")
    return ExitCode.BAD_INPUT if bad else ExitCode.OK
