"""The verb `install`, and what `verify` and `merge` do with packs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from orchestrator.cli.errors import ExitCode
from orchestrator.devices.simulated import simulated_identity
from orchestrator.packs import packs
from orchestrator.packs.packs import GrowingPack
from orchestrator.sets.sample import sample_path
from orchestrator.stores.cache_file import save_cache_file
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, content_hash128
from orchestrator.stores.files.writer_lock import lock_path, writer_lock
from orchestrator.stores.kinds import DURATIONS
from orchestrator.stores.pack import MANIFEST, MANIFEST_MAC, PackWriter
from orchestrator.stores.run_notes import add_durations
from tests.cli.conftest import Call, Done, damage
from tests.stores.faults.sets import IDENTITY, OLD, OURS, UNION, data_of, loaded_keys, path_in
from tests.stores.packs import KEY, key_file, make_pack, part

OTHER_DRIVER = simulated_identity(driver_version=2)


def test_a_pack_nobody_vouches_for_is_refused_unless_asked_for(call: Call, tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack").directory
    arguments = ("-d", "simulated", "--cache-dir", tmp_path / "cache")
    refused = call("install", pack, *arguments)
    assert refused.code == ExitCode.BAD_INPUT
    assert "the origin of this pack is not proven" in refused.err
    assert "--unsigned" in refused.err
    done = call("install", pack, "--unsigned", *arguments, "--json")
    assert done.code == ExitCode.OK
    assert done.document["has_cache"] is True
    assert done.document["proven"] is False
    assert done.document["saved_bytes"] == path_in(tmp_path / "cache").stat().st_size
    assert loaded_keys(path_in(tmp_path / "cache"))[0] == OLD
    shown = call("install", pack, "--unsigned", *arguments)
    assert "12 pipelines, 1 left out" in shown.out
    assert "nothing is new" in shown.out
    both = call("install", pack, "--unsigned", "--key", tmp_path / "team.key")
    assert both.code == ExitCode.BAD_INPUT


def test_the_files_of_a_pack_are_inspected(call: Call, tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", key=KEY).directory
    with GrowingPack.writing(pack, KEY, ["another"]):
        files = sorted(each for each in pack.iterdir() if not each.name.startswith("."))
    done = call("inspect", *files, "--json")
    assert done.code == ExitCode.OK
    kinds = {Path(each["path"]).name: each["kind"] for each in done.document["files"]}
    assert [kinds[each] for each in (MANIFEST, MANIFEST_MAC, "manifest.json.lock")] == [
        "manifest of a pack",
        "MAC of a pack",
        "lock",
    ]
    assert call("verify", *files).code == ExitCode.OK
    for name in (MANIFEST, MANIFEST_MAC):
        (pack / name).write_text("{")
        done = call("inspect", pack / name, "--json")
        assert done.code == ExitCode.BAD_INPUT
        assert "it is damaged" in done.document["files"][0]["reason"]
    # Others may have such a name.
    notes = add_durations(tmp_path / "manifest.pipeline-cache", np.ones(1, np.uint64), np.ones(1, np.int64))
    assert len(notes) == 1
    assert call("inspect", tmp_path / "manifest.durations").code == ExitCode.OK
    (tmp_path / "manifest.mac").write_text("x")
    assert call("inspect", tmp_path / "manifest.mac").code == ExitCode.BAD_INPUT


def test_nothing_is_installed_into_a_pack(call: Call, tmp_path: Path) -> None:
    one, two = make_pack(tmp_path / "one", OLD), make_pack(tmp_path / "two", OURS)
    done = call("install", one.directory, "--unsigned", "-d", "simulated", "--cache-dir", two.directory)
    assert done.code == ExitCode.BAD_INPUT
    assert "it is a pack" in done.err
    assert list(two.problems()) == []


def test_what_another_process_is_saving_is_not_said_to_be_installed(call: Call, tmp_path: Path) -> None:
    pack, path = make_pack(tmp_path / "pack").directory, path_in(tmp_path / "cache")
    path.parent.mkdir(mode=0o700)
    with writer_lock(path, REAL_FILE_OPERATIONS) as held:
        assert held
        done = call("install", pack, "--unsigned", "-d", "simulated", "--cache-dir", path.parent)
    assert done.code == ExitCode.BAD_INPUT
    assert "another process is saving this file" in done.err
    assert not path.exists()


def test_with_the_key_its_maker_is_proven(call: Call, tmp_path: Path) -> None:
    pack, key = make_pack(tmp_path / "pack", key=KEY).directory, key_file(tmp_path)
    arguments = ("-d", "simulated", "--cache-dir", tmp_path / "cache", "--key", key)
    done = call("install", pack, *arguments, "--json")
    assert done.code == ExitCode.OK
    assert done.document["proven"] is True
    (pack / MANIFEST).write_bytes((pack / MANIFEST).read_bytes() + b"\n")
    changed = call("install", pack, *arguments, "--json")
    assert changed.code == ExitCode.BAD_INPUT
    assert changed.document["error"]["kind"] == "pack"
    assert "not signed with this key" in changed.document["error"]["message"]


@pytest.mark.parametrize("content", ["", "garbage\n", "00" * 31])
def test_a_damaged_mac_is_found_without_the_key(call: Call, tmp_path: Path, content: str) -> None:
    pack = make_pack(tmp_path / "pack", key=KEY).directory
    assert call("verify", pack).code == ExitCode.OK
    (pack / MANIFEST_MAC).write_text(content)
    done = call("verify", pack)
    assert done.code == ExitCode.BAD_INPUT
    assert "manifest.mac: it is damaged: there is no MAC in it" in done.out


def test_a_pack_without_this_device_says_so_and_what_is_nearest(call: Call, tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", identity=OTHER_DRIVER).directory
    arguments = ("install", pack, "--unsigned", "-d", "simulated", "--cache-dir", tmp_path / "cache")
    done = call(*arguments, "--json")
    assert done.code == ExitCode.PIPELINES_FAILED
    assert done.document["has_cache"] is False
    assert done.document["nearest"]["differs"][0] == "driverVersion is 0x2, not 0x1"
    shown = call(*arguments)
    assert "1 target, and none is this device and driver" in shown.out
    assert "driverVersion is 0x2, not 0x1" in shown.out
    assert not list((tmp_path / "cache").iterdir())


def test_a_device_that_does_not_open_ends_in_3(call: Call, tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack").directory
    done = call("install", pack, "--unsigned", "-d", "no such device", "--cache-dir", tmp_path / "cache")
    assert done.code == ExitCode.NO_DEVICE
    assert "no device answers to 'no such device'" in done.err
    assert "`--device simulated` needs no driver" in done.err


def test_paths_that_are_not_utf8_are_shown_as_elsewhere(call: Call, tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack").directory
    done = install_in(call, pack, tmp_path / "od\udcff")
    assert done.code == ExitCode.OK
    assert "od\\xff" in done.out


def test_a_pack_cannot_have_anything_read_or_written_elsewhere(call: Call, tmp_path: Path) -> None:
    """By names that lead out of it, and by links in place of its files."""
    home = tmp_path / "home"
    home.mkdir()
    arguments = ("--unsigned", "-d", "simulated", "--cache-dir", home / "cache")
    pack = make_pack(tmp_path / "pack")
    name = pack.manifest.targets[0].files[0].name
    outside = home / name
    outside.write_bytes((pack.directory / name).read_bytes())

    def tree() -> dict[Path, bytes]:
        found = [each for each in home.rglob("*") if each.is_file()]
        return {each: each.read_bytes() for each in found}

    before, manifest = tree(), pack.directory / MANIFEST
    text = manifest.read_text()
    for bad in (f"../home/{name}", str(outside), f"cache/../../home/{name}"):
        manifest.write_text(text.replace(f'"{name}"', json.dumps(bad)))
        for verb in ("install", "verify", "merge"):
            more = {"install": arguments, "verify": (), "merge": ("-o", home / "all")}[verb]
            done = call(verb, pack.directory, *more, "--json")
            assert done.code == ExitCode.BAD_INPUT
            assert "no plain name" in json.dumps(done.document)
    manifest.write_text(text)
    (pack.directory / name).unlink()
    (pack.directory / name).symlink_to(outside)
    linked = call("install", pack.directory, *arguments, "--json")
    assert linked.code == ExitCode.BAD_INPUT
    assert linked.document["error"]["path"] == str(pack.directory / name)
    assert "symbolic link" in linked.document["error"]["message"]
    assert tree() == before


def test_verify_proves_a_pack_and_each_file(call: Call, tmp_path: Path) -> None:
    pack, key = make_pack(tmp_path / "pack", key=KEY), key_file(tmp_path)
    good = call("verify", pack.directory, "--json")
    assert good.code == ExitCode.OK
    (whole,) = good.document["checked"]
    assert whole["kind"] == "pack"
    assert (whole["signed"], whole["proven"]) == (True, False)
    assert whole["targets"][0]["created"] == 12
    assert whole["files"] == 1
    assert "signed with this key" in call("verify", pack.directory, "--key", key).out
    path = pack.directory / pack.manifest.targets[0].files[0].name
    damage(path)
    bad = call("verify", pack.directory)
    assert bad.code == ExitCode.BAD_INPUT
    assert f"{path.name}: it is damaged" in bad.out
    assert call("verify", tmp_path, "--key", key).code == ExitCode.BAD_INPUT


def test_what_has_no_signature_is_not_proven_by_a_key(call: Call, tmp_path: Path) -> None:
    file, key = path_in(make_pack(tmp_path / "pack", key=KEY).directory), key_file(tmp_path)
    for path in (file, file.with_name(MANIFEST), sample_path()):  # a manifest has one, which is not looked at
        assert call("verify", path).code == ExitCode.OK
        done = call("verify", path, "--key", key, "--json")
        assert done.code == ExitCode.BAD_INPUT
        (found,) = done.document["checked"]
        assert "--key proves packs alone" in found["problems"][0]
        assert "without --key" in found["next_step"]


def test_merge_joins_packs_and_says_what_is_missing(call: Call, tmp_path: Path) -> None:
    one = make_pack(tmp_path / "one", OLD, parts=[part(shard=1, shards=3)]).directory
    two = make_pack(tmp_path / "two", OURS, parts=[part(shard=2, shards=3)]).directory
    done = call("merge", one, two, "-o", tmp_path / "all", "--json")
    assert done.code == ExitCode.OK
    (target,) = done.document["targets"]
    assert target["merged"] is True
    assert target["missing"] == ["game.foz: shard 3 of 3"]
    assert loaded_keys(path_in(tmp_path / "all"))[0] == UNION
    shown = call("merge", one, two, "-o", tmp_path / "again")
    assert "missing: simulated: game.foz: shard 3 of 3" in shown.out
    assert "1 cache merged by the driver\n" in shown.out
    assert call("verify", tmp_path / "all").code == ExitCode.OK


def test_what_is_missing_is_said_of_each_of_two_drivers(call: Call, tmp_path: Path) -> None:
    parts = [part(shard=1, shards=2)]
    one = make_pack(tmp_path / "one", OLD, parts=parts).directory
    chosen = [replace(each, set_name="other.foz", set_hash="0" * 16) for each in parts]
    two = make_pack(tmp_path / "two", OLD, identity=OTHER_DRIVER, parts=chosen).directory
    done = call("merge", one, two, "-o", tmp_path / "all")
    assert done.code == ExitCode.OK
    missing = [each for each in done.out.splitlines() if each.startswith("missing: ")]
    assert len(missing) == 2
    assert "game.foz: shard 2 of 2" in missing[0]
    assert "other.foz: shard 2 of 2" in missing[1]


def test_merge_says_which_pack_has_nothing_of_a_target(call: Call, tmp_path: Path) -> None:
    one, two = make_pack(tmp_path / "one", OLD).directory, make_pack(tmp_path / "two", OURS).directory
    packs.GrowingPack.begin(one, None, ["simulated", "other"])  # and killed
    done = call("merge", one, two, "-o", tmp_path / "all", "--json")
    assert done.code == ExitCode.OK
    assert [(each["pack"], each["target"]) for each in done.document["lacked"]] == [
        (str(one), "simulated"),
        (str(one), "other"),
    ]
    shown = call("merge", one, two, "-o", tmp_path / "again")
    assert f"missing: {one} has nothing of simulated: not finished" in shown.out


def test_merge_refuses_foreign_packs_by_name(call: Call, tmp_path: Path) -> None:
    one = make_pack(tmp_path / "one", OLD, parts=[part(shard=1, shards=2)]).directory
    two = make_pack(tmp_path / "two", OURS, identity=OTHER_DRIVER, parts=[part(shard=2, shards=2)]).directory
    done = call("merge", one, two, "-o", tmp_path / "all", "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert done.document["error"]["path"] == str(two)
    assert "another driver" in done.document["error"]["message"]
    assert not (tmp_path / "all").exists()


def test_options_of_the_two_merges_do_not_mix(call: Call, tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack").directory
    file = path_in(pack)
    for arguments in (
        (pack, "-d", "simulated"),
        (file, "-d", "simulated", "--key", key_file(tmp_path)),
        (file,),
    ):
        done = call("merge", *arguments, "-o", tmp_path / "out")
        assert done.code == ExitCode.BAD_INPUT
        assert not (tmp_path / "out").exists()


def install_in(call: Call, pack: Path, cache: Path, *more: str) -> Done:
    return call("install", pack, "--unsigned", "-d", "simulated", "--cache-dir", cache, *more)


def test_what_cannot_be_saved_is_not_the_device(call: Call, tmp_path: Path) -> None:
    pack, path = make_pack(tmp_path / "pack").directory, path_in(tmp_path / "cache")
    lock_path(path).mkdir(parents=True)
    path.parent.chmod(0o700)
    done = install_in(call, pack, path.parent, "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert done.document["error"]["kind"] == "store"
    assert "locking" in done.err
    lock_path(path).rmdir()
    path.mkdir()
    done = install_in(call, pack, path.parent)
    assert done.code == ExitCode.BAD_INPUT
    assert "next:  move what is there away" in done.err


def test_notes_that_cannot_be_saved_do_not_undo_an_installation(call: Call, tmp_path: Path) -> None:
    made, path = make_pack(tmp_path / "pack"), path_in(tmp_path / "cache")
    add_durations(path_in(made.directory), np.array([1], np.uint64), np.array([1], np.uint64))
    writer = PackWriter(made.directory)
    (target,) = made.manifest.targets
    files = writer.files_at(path_in(made.directory))
    assert len(files) == 2
    writer.finish(replace(made.manifest, targets=(replace(target, files=files),)))
    DURATIONS.path(path).mkdir(parents=True)
    path.parent.chmod(0o700)
    done = install_in(call, made.directory, path.parent, "--json")
    assert done.code == ExitCode.OK
    assert loaded_keys(path)[0] == OLD
    (note,) = done.document["notes"]
    assert "was not noted" in note


def test_a_driver_that_does_not_merge_takes_nothing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, path = make_pack(tmp_path / "pack", OLD).directory, path_in(tmp_path / "cache")
    monkeypatch.setattr(packs, "install", partial(packs.install, opener="tests.packs.test_packs:not_merging"))
    save_cache_file(path, IDENTITY, data_of(UNION))
    done = install_in(call, pack, path.parent)
    assert done.code == ExitCode.PIPELINES_FAILED
    assert "no: the driver did not merge it with what is there" in done.out
    assert "nothing is new" not in done.out
    assert loaded_keys(path)[0] == UNION
    # The same data is there already, whatever the driver does.
    save_cache_file(path, IDENTITY, data_of(OLD))
    done = install_in(call, pack, path.parent)
    assert done.code == ExitCode.OK
    assert "nothing is new" in done.out


def test_each_fault_of_a_pack_has_its_next_step(call: Call, tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack")
    manifest, file = pack.directory / MANIFEST, path_in(pack.directory)
    text, content = manifest.read_text(), file.read_bytes()

    def step(verb: str = "install") -> str:
        more = (
            () if verb == "verify" else ("--unsigned", "-d", "simulated", "--cache-dir", tmp_path / "cache")
        )
        done = call(verb, pack.directory, *more, "--json")
        assert done.code == ExitCode.BAD_INPUT
        found = done.document["checked"][0] if verb == "verify" else done.document["error"]
        assert isinstance(found["next_step"], str)
        return found["next_step"]

    for verb in ("install", "verify"):
        manifest.write_text(text.replace('"format": 1', '"format": 2'))
        assert "make the pack again with this one" in step(verb)
        manifest.write_text(text.replace("orchestrator pack", "something else"))
        assert "name a directory that" in step(verb)
        manifest.write_text(text.replace(".pipeline-cache", ".new-kind"))
        assert "use the version that made it" in step(verb)
        manifest.write_text(text[:-9])
        assert "remove this file" in step(verb)
    manifest.write_text(text)
    # Whole as a file, and not as a cache.
    bad = content[:-1] + bytes([content[-1] ^ 1])
    file.write_bytes(bad)
    found = content_hash128(bad).hex()
    manifest.write_text(text.replace(pack.manifest.targets[0].files[0].xxh3_128, found))
    assert "copy or make the pack again" in step()
    manifest.write_text(text)
    key = key_file(tmp_path)
    signed = call("compile", "sample", "-d", "simulated", "--out", pack.directory, "--key", key)
    assert signed.code == ExitCode.BAD_INPUT
    assert "leave --key out" in signed.err
