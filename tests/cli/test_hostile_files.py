"""Files that are not what a verb expects: pipes, devices, directories, links, numbers without end.

No verb waits for a pipe or reads a device, and none takes a mistake of its user for a bug of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.errors import ExitCode
from orchestrator.supervise import supervisor
from tests.cli.conftest import Call

_INPUTS: dict[str, Callable[[Path], tuple[str | Path, ...]]] = {
    "list": lambda path: ("list", path),
    "compile": lambda path: ("compile", path, "-d", "simulated"),
    "pack": lambda path: ("pack", path.with_suffix(".toml"), "-o", path.with_name("out.foz")),
    "compare": lambda path: ("compare", path, path),
    "inspect": lambda path: ("inspect", path),
    "verify": lambda path: ("verify", path),
    "merge": lambda path: ("merge", path, "-d", "simulated", "-o", path.with_name("out")),
}


@pytest.mark.parametrize("verb", _INPUTS)
def test_no_verb_waits_for_a_pipe_or_reads_a_device(call: Call, tmp_path: Path, verb: str) -> None:
    for name in ("pipe", "pipe.toml"):
        os.mkfifo(tmp_path / name)
    for name in ("device", "device.toml"):
        (tmp_path / name).symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        done = call(*_INPUTS[verb](tmp_path / name), "--json")
        assert done.code == ExitCode.BAD_INPUT
        assert "regular file" in done.out + done.err
        assert "Traceback" not in done.err
        assert done.document


@pytest.mark.parametrize("verb", ["list", "compile", "compile several"])
def test_a_pipe_of_the_shell_is_refused_with_what_to_do(call: Call, small_set: Path, verb: str) -> None:
    """As `<(cat SET)`: children have no such descriptor, so this process says what it is."""
    devices = {"list": (), "compile": ("-d", "simulated"), "compile several": ("-d", "0", "-d", "1")}[verb]
    reading, writing = os.pipe()
    os.write(writing, small_set.read_bytes()[:1000])
    os.close(writing)
    done = call(verb.split()[0], f"/dev/fd/{reading}", *devices, "--json")
    os.close(reading)
    assert done.code == ExitCode.BAD_INPUT
    assert "no regular file: it is a pipe" in done.err
    assert "write its data to a file" in done.document["error"]["next_step"]


def test_a_file_on_a_descriptor_is_a_set_like_any_other(call: Call, small_set: Path, tmp_path: Path) -> None:
    with small_set.open("rb") as opened:
        done = call("compile", f"/dev/fd/{opened.fileno()}", "-d", "simulated", "--cache-dir", tmp_path)
    assert done.code == ExitCode.OK


def test_a_directory_is_named_as_what_it_is(call: Call, tmp_path: Path) -> None:
    done = call("compile", tmp_path, "-d", "simulated", "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert "it is a directory" in done.err
    assert f"name the files in it, such as {tmp_path}/*.foz" in done.document["error"]["next_step"]


@pytest.mark.parametrize("verb", ["pack", "merge", "bench", "export", "binaries export"])
def test_no_verb_replaces_what_is_no_file(call: Call, tmp_path: Path, verb: str) -> None:
    pipe, manifest = tmp_path / "pipe", tmp_path / "set.toml"
    os.mkfifo(pipe)
    manifest.write_text("manifest = 1\n")
    arguments = {
        "pack": ("pack", manifest, "-o", pipe),
        "merge": ("merge", manifest, "-d", "simulated", "-o", pipe),
        "bench": ("bench", "sample", "-d", "simulated", "-o", pipe),
        "export": ("export", manifest, "-o", pipe),
        "binaries export": ("binaries", "export", pipe, "--cache-dir", tmp_path),
    }
    done = call(*arguments[verb])
    assert done.code == ExitCode.BAD_INPUT
    assert str(pipe) in done.err
    assert "Traceback" not in done.err
    assert pipe.is_fifo()


def test_a_manifest_of_nonsense_is_bad_input(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "set.toml"
    for text in (
        "manifest = " + "1" * 10_001,
        "manifest = 1\n[shaders.x]\npath = 'x.spv'\nflags = " + "9" * 10_001,
        "x = [" * 5000,
        "\xff",
    ):
        path.write_bytes(text.encode("latin-1"))
        done = call("list", path, "--json")
        assert done.code == ExitCode.BAD_INPUT
        assert done.document["error"]["kind"] == "manifest"


def test_a_driver_log_on_a_full_disk_costs_nothing_but_itself(
    call: Call, tmp_path: Path, small_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"

    async def full(*given: Any, **named: Any) -> Any:
        named["log"].write(b"what a driver prints")  # and the disk takes none of it
        os.dup2(os.open("/dev/full", os.O_WRONLY), named["log"].fileno())
        return await compiled(*given, **named)

    compiled: Any = supervisor.compile_supervised
    monkeypatch.setattr(supervisor, "compile_supervised", full)
    words = ("-d", "simulated", "--cache-dir", tmp_path / "cache", "--driver-log", log, "--json")
    done = call("compile", small_set, *words)
    assert done.code == ExitCode.BAD_INPUT
    assert f"--driver-log {log}: cannot be written: No space left on device" in done.err
    assert done.document["cache_file"]["saved_bytes"]


def test_verify_finds_what_compile_refuses(call: Call, tmp_path: Path, cache_file: Path) -> None:
    """A link to a good file, and a directory in a file's place."""
    path, folder = cache_file, cache_file.parent
    assert call("verify", path).code == ExitCode.OK
    path.rename(tmp_path / "elsewhere")
    for said in ("symbolic link", "directory has the name of a file"):
        if said == "symbolic link":
            path.symlink_to(tmp_path / "elsewhere")
        else:
            path.unlink()
            path.mkdir()
        for named in (path, folder):
            done = call("verify", named)
            assert done.code == ExitCode.BAD_INPUT
            assert said in done.out
