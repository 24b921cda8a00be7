"""`python -m orchestrator.registry.codegen [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

from vulkan_object import get_vulkan_object

from orchestrator.registry.codegen.build import build, capability_numbers
from orchestrator.registry.codegen.document import render
from orchestrator.registry.codegen.output import generator_main

TARGET = Path(__file__).parent.parent / "registry.json"


def main(arguments: list[str] | None = None) -> int:
    """Write registry.json; see `generator_main`."""
    return generator_main(
        "orchestrator.registry.codegen",
        TARGET,
        lambda: render(build(get_vulkan_object(), capability_numbers())),
        arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
