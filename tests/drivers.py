"""What tests share to reach real drivers and captured sets: where they are, and what happens without them.

Guarantees: absence is one thing, decided in one place. missing() skips with the reason on a developer's
machine and fails where the environment sets CI, so that a green run there means that everything ran.
Corpora are test data that need not travel with a checkout: their absence always skips.

Assumptions: a driver reads VK_DRIVER_FILES and RADV_FORCE_FAMILY when an instance is created, so one
process is one target. Tests of a real device run in the process of their target, without knowing
(tests/isolation.py); a test that needs a fresh process for a part of its body uses run_on_device().
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
from attrs import frozen

from orchestrator.devices.selectors import needed_shim, variables_of

REPOSITORY = Path(__file__).resolve().parent.parent
MANIFEST_FOLDERS = (Path("/etc/vulkan/icd.d"), Path("/usr/share/vulkan/icd.d"))
DRIVERS = ("radv:navi21", "radv:navi31", "lavapipe")
"""Selectors of the real devices that the tests run on; none needs a GPU."""

CORPORA_ABSENT = "corpora are absent"
UNSUPPORTED = "unsupported"


def in_ci() -> bool:
    """Whether absence is a failure: the environment sets CI to something that is not a no."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


def missing(what: str) -> NoReturn:
    """End the test because the machine lacks something: a failure in CI, elsewhere a skip."""
    if in_ci():
        pytest.fail(f"missing in CI: {what}", pytrace=False)
    pytest.skip(f"missing: {what}")


def unsupported(what: str) -> NoReturn:
    """Skip a case that a device cannot show, such as pipeline keys on a driver without them; in CI too."""
    pytest.skip(f"{UNSUPPORTED}: {what}")


def require_tool(name: str) -> str:
    """Path of a program that a test needs, such as "gcc" or "spirv-val"."""
    found = shutil.which(name)
    if found is None:
        missing(f"the program {name}; `make setup` as root installs it")
    return found


def require_header(name: str, package: str) -> None:
    """End the test where the C compiler does not find a package's header, such as "vulkan/vulkan.h"."""
    command = [require_tool("gcc"), "-fsyntax-only", "-x", "c", "-"]
    done = subprocess.run(command, input=f"#include <{name}>\n", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing(f"the header {name}; `make setup` as root installs {package}")


def is_driver(selector: str) -> bool:
    """Whether a selector names a real driver that the tests know how to reach."""
    return selector == "lavapipe" or selector.startswith("radv:")


def find_manifest(selector: str) -> Path | None:
    """The loader manifest of a driver, from where the loader looks for it; None where there is none.

    Args:
        selector: One of `DRIVERS`, or "radv:<family>" of another family.
    """
    stem = "radeon_icd" if selector.startswith("radv:") else "lvp_icd"
    for folder in MANIFEST_FOLDERS:
        # Mesa names it radeon_icd.json or radeon_icd.x86_64.json, depending on its version.
        found = sorted(folder.glob(f"{stem}*.json"))
        if found:
            return found[0]
    return None


def driver_manifest(selector: str) -> Path:
    """As `find_manifest`, but ends the test where there is none."""
    found = find_manifest(selector)
    if found is None:
        missing(f"the driver for {selector}; `make setup` as root installs mesa-vulkan-drivers")
    return found


def driver_environment(selector: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which a process sees one driver only, its own disk cache off.

    Args:
        selector: One of `DRIVERS`, or "radv:<family>" of another family.
        base: What to start from; this process's environment where not given.
    """
    environment = dict(os.environ if base is None else base)
    manifest = str(driver_manifest(selector))
    environment["VK_DRIVER_FILES"] = environment["VK_ICD_FILENAMES"] = manifest
    environment["MESA_SHADER_CACHE_DISABLE"] = "true"
    environment.pop("RADV_FORCE_FAMILY", None)
    if selector.startswith("radv:"):
        environment |= variables_of(selector.partition(":")[2], environment)
    return environment


def has_null_hardware() -> bool:
    """Whether RADV's GPUs are null hardware here, and not those of Mesa's drm-shim."""
    return needed_shim({"VK_DRIVER_FILES": str(driver_manifest("radv:navi21"))}) is None


_CHILD = """
import importlib, json, sys
target, arguments = sys.argv[1], json.loads(sys.argv[2])
if ":" in target and "\\n" not in target:
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
else:
    scope = {"__name__": "run_on_device"}
    exec(compile(target, "<run_on_device>", "exec"), scope)
    function = scope["main"]
print("\\n" + json.dumps(function(*arguments)))
"""


def run_on_device(
    selector: str | None,
    target: str,
    *arguments: Any,
    timeout_s: float = 120.0,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Call a function in a fresh interpreter that sees one driver, and return what it returned.

    Args:
        selector: One of `DRIVERS`; None for a process whose environment is left as it is.
        target: "package.module:function", or source of several lines that defines ``main``.
        arguments: Values that JSON carries.
        timeout_s: When to give up on the process.
        environment: Variables to set beside those of the driver.

    Returns:
        The result after a round trip through JSON.
    """
    variables = dict(os.environ) if selector is None else driver_environment(selector)
    variables.update(environment or {})
    command = [sys.executable, "-c", _CHILD, target, json.dumps(arguments)]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=variables,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(
            f"{target!r} on {selector} ended with {done.returncode}:\n{done.stderr[-4000:]}", pytrace=False
        )
    return json.loads(done.stdout.rstrip().rpartition("\n")[2])


@frozen
class Corpus:
    """What is known of one captured set.

    Attributes:
        name: Its file's name without ``.foz``.
        modules: Shader modules in it.
        graphics: Graphics pipelines in it.
        compute: Compute pipelines in it.
        ray_tracing: Ray-tracing pipelines in it.
        created_radv: Pipelines that RADV on navi21 creates; None where it is not known.
        created_lavapipe: Pipelines that lavapipe creates; None where it is not known.
        crashes: Whether some of its pipelines end the process that compiles them.
        slow: Whether a replay takes longer than a test should.
    """

    name: str
    modules: int
    graphics: int
    compute: int
    ray_tracing: int
    created_radv: int | None
    created_lavapipe: int | None
    crashes: bool = False
    slow: bool = False

    @property
    def pipelines(self) -> int:
        """Number of pipelines of all kinds."""
        return self.graphics + self.compute + self.ray_tracing

    @property
    def path(self) -> Path:
        """Where the archive lies; skips the test where it does not."""
        path = corpora_folder() / f"{self.name}.foz"
        if not path.is_file():
            pytest.skip(f"{CORPORA_ABSENT}: no {path.name} beside the checkout")
        return path


CORPORA = (
    Corpus("vkcube", 2, 1, 0, 0, 1, 1),
    Corpus("supertuxkart", 12, 28, 0, 0, 28, 28),
    Corpus("placebo", 256, 168, 16, 0, 184, 184),
    Corpus("wgpu", 94, 427, 49, 0, 316, 476),
    Corpus("sascha", 781, 652, 30, 0, 677, 672),
    Corpus("sascha_rt", 82, 0, 0, 114, 100, 92),
    Corpus("sascha_mismatch", 234, 178, 0, 0, 178, 178),
    Corpus("sascha_crashers", 192, 92, 2, 6, 0, 8, crashes=True),
    Corpus("sascha_mixed_faults", 343, 201, 11, 2, None, None, crashes=True),
    Corpus("slow", 36, 0, 36, 0, 36, 36, slow=True),
)
"""Every captured set, with the counts that were taken when it was captured."""

each_corpus = pytest.mark.parametrize("corpus", CORPORA, ids=lambda corpus: corpus.name)
"""Runs a test once a set: reading only, since some sets crash drivers. The test takes ``corpus: Corpus``."""

each_good_corpus = pytest.mark.parametrize(
    "corpus",
    [corpus for corpus in CORPORA if not corpus.crashes and not corpus.slow],
    ids=lambda corpus: corpus.name,
)
"""Runs a test once a set that may be compiled in a test's own process and time."""

each_driver = pytest.mark.parametrize(
    "driver", [pytest.param(selector, marks=pytest.mark.driver) for selector in DRIVERS]
)
"""Runs a test once a real device, each in its own process. The test takes ``driver: str``."""

each_device = pytest.mark.parametrize(
    "selector", ["simulated", *(pytest.param(selector, marks=pytest.mark.driver) for selector in DRIVERS)]
)
"""As `each_driver`, and on the simulated device too. The test takes ``selector: str``."""


def corpora_folder() -> Path:
    """The folder of captured sets: ORCHESTRATOR_CORPORA, or ../shared/corpora beside the checkout."""
    folder = Path(os.environ.get("ORCHESTRATOR_CORPORA", REPOSITORY.parent / "shared" / "corpora"))
    if not folder.is_dir():
        pytest.skip(f"{CORPORA_ABSENT}: no folder ../shared/corpora beside the checkout")
    return folder
