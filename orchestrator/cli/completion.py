"""The verb `completion`: what a shell needs to complete verbs and options."""

from __future__ import annotations

from typing import Literal

from orchestrator.cli.options import JsonFlag
from orchestrator.cli.output import Output


def completion_verb(shell: Literal["bash", "zsh", "fish"], /, *, json: JsonFlag = False) -> int:
    """Write a script that completes verbs and options in a shell.

    **EXAMPLES**

        orchestrator completion bash > ~/.bash_completion.d/orchestrator
        orchestrator completion zsh > ~/.zfunc/_orchestrator
        orchestrator completion fish > ~/.config/fish/completions/orchestrator.fish

    Args:
        shell: Which shell it is for.
    """
    from orchestrator.cli.application import app
    from orchestrator.cli.documents import CompletionDocument
    from orchestrator.cli.errors import ExitCode

    output = Output(json=json)
    script = app.generate_completion(shell=shell)
    output.document(lambda: CompletionDocument(shell=shell, script=script))
    for line in script.splitlines():
        output.verbatim(line)
    return ExitCode.OK
