"""Every command of README.md and docs/ runs, as it stands there, in a shell and a directory of its own.

Those of precompiling.md run in test_docs.py, those of cluster.md in tests/cluster. The files that the pages
speak of are there: `game.foz` and `unknown.foz` are a few pipelines of the sample set, `results/` a small
benchmark. What would take minutes is run with less (`SMALLER`), what a machine without a
GPU cannot run on another device.
`make` is what runs these tests; its targets are looked up by test_docs.py.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.devices.vulkan.manifests import driver_library
from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_manifest_path, sample_path
from tests.drivers import REPOSITORY, driver_manifest

PAGES = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")])
_COMMAND = re.compile(
    r"^(?:    (?:\$ )?|\$ )((?:\w+=\S+ )*(?:(?:\.venv/bin/)?orchestrator|python benchmarks/\S+) .*)$",
    re.MULTILINE,
)
SMALLER = (
    ("-j 1,4,16 --samples 11 --time-limit 2h", "-j 1 --samples 1 --modes shared,none --start cold"),
    ("--workers 1,4,16 --out", "--workers 1 --samples 1 --devices simulated --time-limit 2s --out"),
    ("doctor --keys --device radv:navi21", "doctor --keys --device radv:navi21 --only apiVersion"),
    ("-d nvidia", "-d simulated"),
    ("-- ./game", "-- true"),
    ("compile sample ", "compile sample --shard 1/8 "),
    ("regress sascha.foz", "regress game.foz"),
    ("regress set.foz", "regress game.foz"),
    ("regress games/*.foz", "regress game.foz"),
    ("good=/opt/mesa-good --after this=build/", "good=mesa-main/build --after this=mesa/build"),
)
"""What is run in place of what the page says, because that takes minutes, or a GPU."""
CODES = {
    "nope.foz": {2},
    "navi99": {3},
    "pipeline-cache --device radv:navi31": {2},
    "quarantine clear": {2},
    "compare": {0, 1},
    "doctor --keys": {0, 1},
}
"""Exit codes of commands that show what is not good, by a part of the command; all others end with 0."""


def commands(page: Path) -> list[str]:
    """The commands of a page, but for placeholders; one that a backslash folds is one."""
    text = page.read_text("utf-8").replace("\\\n", "")
    return [each for each in _COMMAND.findall(text) if "VERB" not in each]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the pages speak of."""
    path = tmp_path_factory.mktemp("commands")
    (path / ".venv").symlink_to(Path(sys.executable).parent.parent)
    (path / "benchmarks").symlink_to(REPOSITORY / "benchmarks")
    command = {"command": "promote", "pipelines": ["43210c2d62f9536c"]}
    (path / "commands.jsonl").write_text(json.dumps(command) + "\n")
    with Archive.open(sample_path()) as sample, ArchiveWriter(path / "game.foz") as writer:
        for tag in RecordTag:
            if tag not in (RecordTag.GRAPHICS_PIPELINE, RecordTag.RAY_TRACING_PIPELINE):
                keys = sample.keys(tag)
                for key in keys[:12] if tag is RecordTag.COMPUTE_PIPELINE else keys:
                    writer.add(tag, key, sample.payload(tag, key))
    (path / "captures").mkdir()
    for name in (
        "unknown.foz",
        "dlc.foz",
        "captures/game.0123456789abcdef.1.foz",
        "captures/game.0123456789abcdef.2.foz",
    ):
        shutil.copy(path / "game.foz", path / name)
    shutil.copy(sample_manifest_path(), path / "sample.toml")
    shutil.copytree(sample_manifest_path().parent / "shaders", path / "shaders")
    shutil.copy(REPOSITORY / "docs" / "examples" / "engine.toml", path / "engine.toml")
    options = "-j 1 --samples 1 --modes shared,none --start cold"
    run(path, f"orchestrator bench game.foz -d simulated {options} -o results/navi21")
    shutil.copytree(path / "results" / "navi21", path / "results" / "navi31")
    run(path, "orchestrator compile game.foz -d radv:navi21 --cache-dir night")
    run(path, "orchestrator compile game.foz -d radv:navi31 --out pack")
    for name in ("before", "after"):
        run(path, f"orchestrator compile game.foz -d radv:navi21 --pipeline-stats {name}.csv")
    manifest = driver_manifest("radv:navi21")
    library = driver_library({"VK_DRIVER_FILES": str(manifest)})
    assert library is not None
    for build in (path / "mesa-main" / "build", path / "mesa" / "build"):  # copies of the installed one
        build.mkdir(parents=True)
        shutil.copy(manifest, build / "radeon_icd.json")
        shutil.copy(library, build)
    for name in ("night1", "night2"):
        (cache,) = (path / "night").glob("*.pipeline-cache")
        shutil.copy(cache, path / f"{name}.pipeline-cache")
    return path


def run(directory: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell, as a user would."""
    home = directory / "home"
    home.mkdir(exist_ok=True)
    unset = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "RADV_FORCE_FAMILY", "COLUMNS")
    variables = {name: value for name, value in os.environ.items() if name not in unset}
    variables |= {"HOME": str(home), "PATH": f"{directory}/.venv/bin{os.pathsep}{os.environ['PATH']}"}
    variables |= {"PYTHONPATH": str(REPOSITORY), "XDG_CACHE_HOME": str(home / ".cache")}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    "script", sorted((REPOSITORY / "benchmarks").glob("bench_*.py")), ids=lambda each: each.stem
)
def test_every_benchmark_starts(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr()
    assert (ended.value.code, printed.err, printed.out[:6]) == (0, "", "usage:")


def test_the_pages_have_commands() -> None:
    assert sum(len(commands(page)) for page in PAGES) >= 20
    assert "orchestrator inspect build/cache/*" in " ".join(commands(REPOSITORY / "docs" / "quickstart.md"))


@pytest.mark.driver
@pytest.mark.parametrize(
    "page",
    [each for each in PAGES if commands(each) and each.stem not in ("precompiling", "cluster")],
    ids=lambda page: page.stem,
)
def test_every_command_of_a_page_runs(page: Path, directory: Path) -> None:
    driver_manifest("radv:navi21")
    for name in ("team.key", "team.pub"):  # each page makes its own
        (directory / name).unlink(missing_ok=True)
    wrong = []
    for command in commands(page):
        smaller = command
        for said, instead in SMALLER:
            smaller = smaller.replace(said, instead)
        expected = next((codes for part, codes in CODES.items() if part in command), {0})
        done = run(directory, smaller)
        if done.returncode not in expected:
            wrong.append(f"{command}: ended with {done.returncode}: {done.stderr[-500:]}")
    assert wrong == []


EXAMPLES = dict(
    example
    for page in (REPOSITORY / "README.md", REPOSITORY / "docs" / "capturing.md")
    for example in re.findall(r"^```python example=(\w+)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
)


@pytest.mark.driver
@pytest.mark.parametrize(("name", "printed"), [("compile", "COMPILED"), ("builder", "4"), ("session", "%")])
def test_the_first_examples_run(name: str, printed: str, directory: Path) -> None:
    driver_manifest("radv:navi21")
    (directory / f"{name}.py").write_text(EXAMPLES[name], "utf-8")
    done = run(directory, f"python {name}.py")
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


@pytest.mark.driver
def test_the_demo_compiles_on_a_real_driver_where_there_is_one(directory: Path, tmp_path: Path) -> None:
    driver_manifest("radv:navi21")
    (tmp_path / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "demo.sh", tmp_path / ".ci")
    (tmp_path / ".ci" / "setup.sh").write_text("exit 0\n")  # all is set up here
    (tmp_path / ".venv").symlink_to(directory / ".venv")
    done = run(directory, f"bash {tmp_path}/.ci/demo.sh")
    assert done.returncode == 0, done.stderr
    assert "takes its place" not in done.stdout
    assert done.stdout.count("(RADV NAVI21)") == 2
    assert "LOADED" in done.stdout
