"""`python -m orchestrator.registry.codegen [--check]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vulkan_object import get_vulkan_object

from orchestrator.registry.codegen.build import build, capability_numbers
from orchestrator.registry.codegen.document import render
from orchestrator.registry.codegen.output import write_or_check

TARGET = Path(__file__).parent.parent / "registry.json"


def main(arguments: list[str] | None = None) -> int:
    """Write registry.json, or with --check compare it with what would be written.

    Returns:
        0, or 1 where the check finds a difference, which is printed.
    """
    parser = argparse.ArgumentParser(prog="python -m orchestrator.registry.codegen", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 with a diff instead of writing")
    options = parser.parse_args(arguments)
    text = render(build(get_vulkan_object(), capability_numbers()))
    return write_or_check(TARGET, text, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
