"""`compile` for several devices: a cache file each, a pack of all, and what an application finds in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.errors import ExitCode
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.pack import MANIFEST, Pack, PackManifest, PackWriter
from tests.cli.conftest import Call, inspected
from tests.drivers import (
    driver_environment,
    driver_manifest,
    require_header,
    require_tool,
)
from tests.hosts.run_host import (
    Host,
    device_name,
    quiet_environment,
    recorded_application,
    strip_prefix_header,
)
from tests.processors import one_processor
from tests.run.small_sets import write_small_set
from tests.stores.faults.sets import path_in
from tests.stores.packs import key_file, trust_file

PATTERN = "radv:navi[23]1"
"""Two families."""


def test_neither_cache_of_two_targets_loads_on_the_other(call: Call, small_set: Path, tmp_path: Path) -> None:
    driver_manifest("radv:navi21")
    targets = ("radv:navi21", "radv:navi31")
    arguments = [each for target in targets for each in ("-d", target)]
    done = call("compile", small_set, *arguments, "--cache-dir", tmp_path / "both", "--json")
    assert done.code == ExitCode.OK
    assert done.document["pack"] is None
    reports = [each["report"] for each in done.document["targets"]]
    assert [each["selector"] for each in done.document["targets"]] == list(targets)
    files = [Path(each["cache_file"]["path"]) for each in reports]
    assert files[0] != files[1]
    names = [each["device"]["device_name"] for each in reports]
    assert [name.rpartition("(")[2] for name in names] == ["RADV NAVI21)", "RADV NAVI31)"]
    for target, other in zip(targets, reversed(files), strict=True):
        refused = call("inspect", other, "--device", target, "--json")
        assert refused.code == ExitCode.BAD_INPUT
        offered = inspected(refused)["offered"]
        assert offered["status"] == "OTHER_DEVICE"
        assert offered["field"] in offered["detail"]


def test_an_application_finds_all_that_a_pack_of_families_installs(call: Call, tmp_path: Path) -> None:
    """The application is a C program that shares nothing with us and is forbidden to compile."""
    driver_manifest("radv:navi21")
    require_header("vulkan/vulkan.h", "libvulkan-dev")
    host = Host.build(tmp_path, require_tool("gcc"))
    application = host.application(recorded_application("sample"))
    pack = tmp_path / "pack"
    made = call("compile", "sample", "--device", PATTERN, "--out", pack, "--json")
    assert made.code == ExitCode.OK, made.err
    targets = made.document["targets"]
    assert len(targets) == 2
    assert len({each["report"]["cache_file"]["path"] for each in targets}) == len(targets)
    payloads = {}
    for target in ("radv:navi21", "radv:navi31"):
        player = tmp_path / target.replace(":", "")
        done = call("install", pack, "--unsigned", "--device", target, "--cache-dir", player, "--json")
        assert done.code == ExitCode.OK, done.err
        assert done.document["target"] == target
        (file,) = player.glob("*.pipeline-cache")
        payload = tmp_path / f"{player.name}.bin"
        payload.write_bytes(strip_prefix_header(file.read_bytes()))
        environment = quiet_environment(driver_environment(target))
        ran = host.run(application, environment, device=device_name(target), load=payload, forbid=True)
        assert ran.exit_code == 0
        assert ran.tried
        assert ran.hits == ran.tried
        payloads[target] = payload
    # And nothing in that of another family.
    other = host.run(
        application,
        quiet_environment(driver_environment("radv:navi31")),
        device=device_name("radv:navi31"),
        load=payloads["radv:navi21"],
        forbid=True,
    )
    assert other.hits == frozenset()


def test_a_device_that_is_not_there_costs_no_other(call: Call, cut_set: Path, tmp_path: Path) -> None:
    """Nor does damage in a set. Every target says what went wrong."""
    out = tmp_path / "pack"
    arguments = ("compile", cut_set, "-d", "no such device", "-d", "simulated", "--out", out)
    done = call(*arguments, "--json")
    assert done.code == ExitCode.PIPELINES_FAILED
    gone, there = done.document["targets"]
    assert "no device answers to 'no such device'" in gone["problem"]
    assert gone["report"] is None
    assert there["report"]["outcomes"]["failed"] == 0
    pack = Pack.open(out)
    assert [each.problem[:9] for each in pack.manifest.targets] == ["no device", ""]
    assert list(pack.problems()) == []
    # The same command goes on from what is in the pack.
    again = call(*arguments)
    assert again.code == ExitCode.PIPELINES_FAILED
    assert "2 targets with 1 cache" in again.out
    assert again.err.splitlines()[:3] == ["looking for devices", "reading the set", "compiling for 2 targets"]
    assert "simulated: damaged: 1 place of the set could not be read" in again.out
    assert "no such device: no device answers" in again.out


def test_a_second_run_finds_everything_in_the_pack(call: Call, small_set: Path, tmp_path: Path) -> None:
    out, key = tmp_path / "pack", key_file(tmp_path)
    arguments = ("compile", small_set, "-d", "simulated", "--out", out, "--sign", key, "--json")
    first = call(*arguments)
    (target,) = first.document["targets"]
    count = target["report"]["set"]["unique"]
    assert target["report"]["outcomes"]["compiled"] == count
    (again,) = call(*arguments).document["targets"]
    assert again["report"]["outcomes"]["cache_hits"] == count
    (found,) = Pack.open(out).manifest.targets
    assert found.count("created") == count
    assert found.parts[0].set_name == small_set.name
    assert call("verify", out, "--trust", trust_file(tmp_path)).code == ExitCode.OK


def test_a_killed_run_leaves_a_pack_of_what_was_finished(call: Call, small_set: Path, tmp_path: Path) -> None:
    driver_manifest("radv:navi21")
    out = tmp_path / "pack"
    targets = ("simulated", "radv:navi21")
    arguments = ["compile", small_set, *(each for one in targets for each in ("-d", one)), "--out", out]
    heard, tells = os.pipe()
    with one_processor():  # so that one target runs after the other
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *map(str, arguments), "--progress", f"jsonl:{tells}"],
            pass_fds=[tells],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    os.close(tells)
    with process, os.fdopen(heard) as lines:
        for line in lines:
            event = json.loads(line)
            if (event["event"], event.get("target")) == ("done", targets[0]):
                process.kill()
    assert call("verify", out).code == ExitCode.OK
    assert [(each.cache is not None, each.problem[:12]) for each in Pack.open(out).manifest.targets] == [
        (True, ""),
        (False, "not finished"),
    ]
    first, second = call(*arguments, "--json").document["targets"]
    assert first["report"]["outcomes"]["compiled"] == 0
    assert second["report"]["outcomes"]["failed"] == 0
    assert [each.problem for each in Pack.open(out).manifest.targets] == ["", ""]


def test_a_pack_grows_by_sets_and_targets(call: Call, small_pack: Path, tmp_path: Path) -> None:
    driver_manifest("radv:navi21")
    other, cache = tmp_path / "other.foz", tmp_path / "cache"
    write_small_set(other, 16, 20)
    simulated = ("compile", other, "-d", "simulated")
    # By a cache of another directory too, which joins what the pack has.
    assert call(*simulated, "--in-process", "--cache-dir", cache).code == ExitCode.OK
    assert call(*simulated, "--out", small_pack, "--cache-dir", cache).code == ExitCode.OK
    assert call("compile", other, "-d", "radv:vega10", "-d", "nothing", "--out", small_pack).code == 1
    pack = Pack.open(small_pack)
    assert [each.selector for each in pack.manifest.targets] == ["simulated", "radv:vega10", "nothing"]
    assert [each.set_name for each in pack.manifest.targets[0].parts] == ["other.foz", "small.foz"]
    assert list(pack.problems()) == []
    # What is there cannot be signed unless it was.
    refused = call(*simulated, "--out", small_pack, "--sign", key_file(tmp_path))
    assert refused.code == ExitCode.BAD_INPUT
    assert "the pack is not signed" in refused.err
    # A cache file that is not taken any more takes its parts along.
    path_in(small_pack).write_bytes(b"")
    call(*simulated, "--out", small_pack)
    assert [each.set_name for each in Pack.open(small_pack).manifest.targets[-1].parts] == ["other.foz"]


def test_what_a_pack_cannot_take_is_its_target_s_problem(call: Call, small_set: Path, tmp_path: Path) -> None:
    driver_manifest("radv:navi21")
    out = tmp_path / "pack"
    notes = path_in(out).with_suffix(".notes")
    notes.mkdir(parents=True)
    out.chmod(0o700)
    arguments = ("compile", small_set, "-d", "simulated", "-d", "radv:navi21", "--out", out)
    done = call(*arguments, "--json")
    assert done.code == ExitCode.BAD_INPUT
    lost, kept = done.document["targets"]
    assert "Is a directory" in lost["problem"]
    assert lost["report"]["outcomes"]["failed"] == kept["report"]["outcomes"]["failed"] == 0
    assert [(each.cache is None, each.problem[-18:]) for each in Pack.open(out).manifest.targets] == [
        (True, "efore is unchanged"),
        (False, ""),
    ]
    notes.rmdir()
    assert call(*arguments[:4], "--out", out).code == ExitCode.OK
    assert [each.problem for each in Pack.open(out).manifest.targets] == ["", ""]
    path_in(out).write_bytes(path_in(out).read_bytes() + b"x")
    other = call("compile", small_set, "-d", "radv:navi21", "--out", out)
    assert "not finished: simulated: " in other.out


def test_the_report_of_a_pack_that_cannot_be_written_is_shown(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, calls = PackWriter.finish, []

    def once(writer: PackWriter, manifest: PackManifest) -> None:
        calls.append(manifest)
        if len(calls) > 1:
            raise SaveError(writer.directory / MANIFEST, "write", "No space left on device")
        finish(writer, manifest)

    monkeypatch.setattr(PackWriter, "finish", once)
    done = call("compile", small_set, "-d", "simulated", "--out", tmp_path / "pack", "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert done.document["targets"][0]["report"]["outcomes"]["failed"] == 0
    assert "No space left" in done.err


def test_a_mistake_takes_nothing_out_of_a_pack(
    call: Call, small_set: Path, small_pack: Path, tmp_path: Path
) -> None:
    out, shared = small_pack, tmp_path / "shared"
    before = (out / MANIFEST).read_bytes()
    shared.mkdir()
    shared.chmod(0o777)
    mistakes: tuple[tuple[str | Path, ...], ...] = (
        (tmp_path / "nothere.foz",),
        (small_set, "--only", "0" * 16),
        (small_set, "--cache-dir", shared),
    )
    for mistake in mistakes:
        for place in (out, tmp_path / "new"):
            done = call("compile", *mistake, "-d", "simulated", "--out", place)
            assert done.code == ExitCode.BAD_INPUT, mistake
        assert (out / MANIFEST).read_bytes() == before
        assert not (tmp_path / "new").exists()


def test_a_selector_that_is_not_utf8_is_no_device(call: Call, small_set: Path, tmp_path: Path) -> None:
    for more in ((), ("--out", tmp_path / "pack"), ("--in-process",)):
        done = call("compile", small_set, "-d", "sim\udcff", "--cache-dir", tmp_path / "cache", *more)
        assert done.code == ExitCode.NO_DEVICE
        assert "it is not UTF-8" in done.err
    assert not (tmp_path / "pack").exists()


def test_nice_lets_other_programs_go_first(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr(os, "nice", given.append)
    here = ("-d", "simulated", "--in-process", "--cache-dir", tmp_path / "cache")
    assert call("compile", small_set, *here, "--nice", "3").code == ExitCode.OK
    assert given == [3]
