"""The layouts in the tables are those that a C compiler gives the distribution's Vulkan header."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from orchestrator.registry.tables import Struct, registry
from tests.drivers import missing, require_tool
from tests.registry.c_layouts import compiled_layouts

INCLUDE = "#include <vulkan/vulkan_core.h>\n"


def header_structs() -> dict[str, list[str]]:
    """Structures and unions that the installed header declares, with the names of their members."""
    done = subprocess.run(
        [require_tool("gcc"), "-E", "-P", "-x", "c", "-"],
        input=INCLUDE,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        missing("the header vulkan/vulkan_core.h (Debian: libvulkan-dev)")
    found = {}
    for name, body in re.findall(r"typedef (?:struct|union) (\w+) \{([^}]*)\}", done.stdout):
        # "type name", "type name[size]" and "type name : bits"; the last word of each declaration.
        members = [re.sub(r"(\[.*|:.*)$", "", each.strip()).split() for each in body.split(";")]
        found[name] = [words[-1].lstrip("*") for words in members if words]
    return found


def test_layouts_are_those_of_the_header(tmp_path: Path) -> None:
    tables = registry()
    known: dict[str, Struct] = {}
    wanted: dict[str, list[str]] = {}
    older: set[str] = set()
    for name, members in header_structs().items():
        canonical = tables.aliases.get(name, name)
        if canonical in tables.structs:
            known[name] = tables.structs[canonical]
            in_tables = [each.name for each in known[name].members]
            wanted[name] = [each for each in members if each in in_tables]
            if members != in_tables:
                older.add(name)
    assert len(wanted) > 300
    # A structure of an extension grew now and then, or a member got another name, since an older header.
    assert len(older) < 0.02 * len(wanted), sorted(older)
    for name, layout in compiled_layouts(tmp_path, INCLUDE, wanted).items():
        each = known[name]
        if name not in older:
            assert (layout.size, layout.alignment) == (each.size, each.alignment), name
        places = {member.name: (member.offset, member.size) for member in each.members}
        for member, place_in_header in layout.members.items():
            assert place_in_header == places[member], (name, member)
