"""The verb `completion`: what a shell needs to complete verbs and options."""

from __future__ import annotations

import re
from typing import Literal

from orchestrator.cli.application import JsonFlag, app
from orchestrator.cli.output import COLORS, OPTIONS, Output


def completion_verb(shell: Literal["bash", "zsh", "fish"], /, *, json: JsonFlag = False) -> int:
    """Write a script that completes verbs and options in a shell.

    To have it in every new shell, source the file for bash in ~/.bashrc, write that for zsh into a directory
    of fpath, and that for fish into ~/.config/fish/completions.

    **EXAMPLES**

        orchestrator completion bash > orchestrator.bash && source orchestrator.bash
        orchestrator completion zsh > _orchestrator
        orchestrator completion fish > orchestrator.fish && source orchestrator.fish

    Args:
        shell: Which shell it is for.
    """
    from orchestrator.cli.documents import CompletionDocument
    from orchestrator.cli.errors import ExitCode

    output = Output(json=json)
    script = _with_display(app.generate_completion(shell=shell), shell)
    output.document(lambda: CompletionDocument(shell=shell, script=script))
    output.out.print(script, soft_wrap=True)
    return ExitCode.OK


def _with_display(script: str, shell: str) -> str:
    colors = " ".join(COLORS)
    if shell == "bash":
        names = " ".join(f'"{each}"' for each in ("--json", *OPTIONS, "-v", "-q"))
        return script.replace('"--json"', names).replace(
            "options_with_values='", "options_with_values='--color "
        )
    if shell == "fish":
        lines = [f"complete -c orchestrator -l {name[2:]} -d '{words}'" for name, words in OPTIONS.items()]
        lines[0] += f" -x -a '{colors}'"
        return "\n".join([script.rstrip("\n"), *lines])
    more = [f"'{name}[{words}]'" for name, words in OPTIONS.items()]
    more[0] = more[0][:-1] + f":color:({colors})'"
    return re.sub(
        r"^( +)('--json\[.*\n)",
        lambda found: "".join(f"{found[1]}{each} \\\n" for each in more) + found[0],
        script,
        flags=re.M,
    )
