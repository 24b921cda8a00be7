"""What `compile` makes hits in an application that shares nothing with us, and the other way round.

The application is tests/hosts/host.c: its own instance, device, layouts and create infos, and of a cache file
the driver's bytes only, without our header. Every process here has the driver's own caches off.
"""

from __future__ import annotations

from pathlib import Path

from tests.drivers import driver_environment, require_header, require_tool
from tests.hosts.run_host import Host, device_name, prove, quiet_environment, recorded_application

RADV = "radv:navi31"  # tests/cli/test_compile_targets.py shows what compile makes for another family, too


def test_an_application_and_compile_find_what_the_other_made(tmp_path: Path) -> None:
    """The host's bytes go behind a header that our own writer makes; that header is not what is proven here.

    Of pipelines that are equal to the driver, one is compiled from an empty cache and the others hit. So
    exactly as many fewer are compiled as the host compiled, and none of the host's is. What only links
    libraries is left out of that count: nothing is compiled for it, and it is a hit where its libraries are.
    """
    compiler = require_tool("gcc")
    require_header("vulkan/vulkan.h", "libvulkan-dev")
    host = Host.build(tmp_path, compiler)
    environment = quiet_environment(driver_environment(RADV))
    found = prove(host, RADV, environment, tmp_path, changed=False)
    # By creation feedback, and where compiling is forbidden.
    for there in (found["host_in_itself"], found["ours_in_host"]):
        assert there["feedback"] == there["forbidden"]
        assert (there["feedback"]["skipped"], there["feedback"]["missed"]) == ([], [])
        assert there["feedback"]["hits"] > 0
    back = found["host_in_ours"]
    assert back["missed"] == []
    assert back["compiled_from_empty"] - back["compiled_with_host"] == back["compiled_by_host"] > 15
    # And nothing in a cache that is empty.
    empty = tmp_path / "empty.bin"
    empty.write_bytes((tmp_path / "host.bin").read_bytes()[:32])
    application = host.application(recorded_application("sample"))
    nothing = host.run(application, environment, device=device_name(RADV), load=empty, forbid=True)
    assert nothing.hits == frozenset()
