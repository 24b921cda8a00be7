"""The program with the device that tells of each compile, and machines that say what a test has them say.

python -m tests.cluster.telling compile|worker ...
"""

from __future__ import annotations

import os
import sys
from typing import Any

from attrs import evolve
from msgspec.structs import replace

import orchestrator.cluster.compile
import orchestrator.cluster.worker
from orchestrator.cli.program import main
from orchestrator.cluster.compile import ClusterCompiler
from orchestrator.devices.listing import DeviceEntry, list_one
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CompileReport
from tests.cluster.device import identity


def set_variables(variables: dict[str, str]) -> None:
    """Change the environment of this process and of those that it starts."""
    os.environ.update(variables)


def set_versions(versions: dict[str, str]) -> None:
    """Have this worker say that it is of other versions."""
    about = orchestrator.cluster.worker.about()
    about = replace(about, versions=about.versions | versions)
    orchestrator.cluster.worker.about = lambda: about


class TellingCompiler(ClusterCompiler):
    """It has machines open that device."""

    async def compile(self, archives: Any, options: CompileOptions, **given: Any) -> CompileReport:
        limits = evolve(options.trial_limits, opener="tests.cluster.device:open_telling")
        return await super().compile(archives, evolve(options, trial_limits=limits), **given)


def list_telling(selector: str) -> DeviceEntry:
    """What this machine says of that device."""
    return replace(list_one(selector), identity=identity())


# Also in the process that a nanny starts, whose program is its nanny's.
if __name__ in ("__main__", "__mp_main__"):
    orchestrator.cluster.compile.ClusterCompiler = TellingCompiler  # type: ignore[misc]
    vars(orchestrator.cluster.worker)["list_one"] = list_telling

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
