"""What a C compiler says about the layout of structures, for the tests of the tables and the bindings."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import frozen

from tests.drivers import require_tool


@frozen
class CompiledLayout:
    """Size and alignment of a structure, and offset and size of its members, bytes."""

    size: int
    alignment: int
    members: dict[str, tuple[int, int]]


def compiled_layouts(
    folder: Path, declarations: str, structs: Mapping[str, Sequence[str]]
) -> dict[str, CompiledLayout]:
    """Compile and run one program that prints sizeof, alignof and offsetof."""
    numbers = []
    for name, members in structs.items():
        numbers += [f"sizeof({name})", f"_Alignof({name})"]
        for member in members:
            numbers += [f"offsetof({name}, {member})", f"sizeof((({name} *)0)->{member})"]
    source = "\n".join(
        (
            "#include <stddef.h>",
            "#include <stdint.h>",
            "#include <stdio.h>",
            declarations,
            "static const size_t numbers[] = {",
            ",\n".join(numbers),
            "};",
            "int main(void) {",
            '  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) printf("%zu\\n", numbers[i]);',
            "  return 0;",
            "}",
            "",
        )
    )
    program = folder / "layouts"
    command = [require_tool("gcc"), "-std=c11", "-O0", "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=source, text=True, check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    values = iter(int(each) for each in done.stdout.split())
    result = {
        name: CompiledLayout(
            next(values), next(values), {member: (next(values), next(values)) for member in members}
        )
        for name, members in structs.items()
    }
    assert next(values, None) is None
    return result
