"""The verb `install`, and what `verify` and `merge` do with packs."""

from __future__ import annotations

import hashlib
import json
import sys
from functools import partial
from pathlib import Path

import pytest
from attrs import evolve

from orchestrator.cli.errors import ExitCode
from orchestrator.devices.simulated import simulated_identity
from orchestrator.packs.driver import install
from orchestrator.packs.growing import GrowingPack
from orchestrator.stores.cache_file import save_cache_file
from orchestrator.stores.files.writer_lock import lock_path
from orchestrator.stores.pack import MANIFEST
from tests.cli.conftest import Call, Done, damage
from tests.stores.faults.sets import IDENTITY, OLD, OURS, UNION, data_of, loaded_keys, path_in
from tests.stores.packs import KEY, key_file, make_pack, part, trust_file

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
    both = call("install", pack, "--unsigned", "--trust", tmp_path / "team.pub")
    assert both.code == ExitCode.BAD_INPUT


def test_nothing_is_installed_into_a_pack(call: Call, tmp_path: Path) -> None:
    one, two = make_pack(tmp_path / "one", OLD), make_pack(tmp_path / "two", OURS)
    done = call("install", one.directory, "--unsigned", "-d", "simulated", "--cache-dir", two.directory)
    assert done.code == ExitCode.BAD_INPUT
    assert "it is a pack" in done.err
    assert list(two.problems()) == []


def test_with_the_key_its_maker_is_proven(call: Call, tmp_path: Path) -> None:
    pack, key = make_pack(tmp_path / "pack", key=KEY).directory, trust_file(tmp_path)
    arguments = ("-d", "simulated", "--cache-dir", tmp_path / "cache", "--trust", key)
    done = call("install", pack, *arguments, "--json")
    assert done.code == ExitCode.OK
    assert done.document["proven"] is True
    (pack / MANIFEST).write_bytes((pack / MANIFEST).read_bytes() + b"\n")
    changed = call("install", pack, *arguments, "--json")
    assert changed.code == ExitCode.BAD_INPUT
    assert changed.document["error"]["kind"] == "pack"
    assert "not signed by the trusted key" in changed.document["error"]["message"]


def test_a_pack_without_this_device_says_so_and_what_is_nearest(call: Call, tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", identity=OTHER_DRIVER).directory
    arguments = ("install", pack, "--unsigned", "-d", "simulated", "--cache-dir", tmp_path / "cache")
    done = call(*arguments, "--json")
    assert done.code == ExitCode.PIPELINES_FAILED
    assert done.document["has_cache"] is False
    assert done.document["nearest"]["differs"][0] == "driverVersion is 0x2, not 0x1"
    assert not list((tmp_path / "cache").iterdir())
    # Another driver's device is near to nothing.
    identity = evolve(IDENTITY, driver_id=IDENTITY.driver_id + 1, device_id=IDENTITY.device_id + 1)
    far = make_pack(tmp_path / "far", identity=identity).directory
    shown = call("install", far, *arguments[2:])
    assert "1 target, and none is of this driver\n" in shown.out
    assert "nearest" not in shown.out


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
    for bad in (f"../home/{name}", str(outside)):
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
    pack, key = make_pack(tmp_path / "pack", key=KEY), trust_file(tmp_path)
    good = call("verify", pack.directory, "--json")
    assert good.code == ExitCode.OK
    (whole,) = good.document["checked"]
    assert whole["kind"] == "pack"
    assert (whole["signed"], whole["proven"]) == (True, False)
    assert whole["targets"][0]["created"] == 12
    assert whole["files"] == 1
    assert "signed by this key" in call("verify", pack.directory, "--trust", key).out
    path = pack.directory / pack.manifest.targets[0].files[0].name
    damage(path)
    bad = call("verify", pack.directory)
    assert bad.code == ExitCode.BAD_INPUT
    assert f"{path.name}: it is damaged" in bad.out
    bad = call("inspect", pack.directory, "-d", "simulated")
    assert (bad.code, "offered to  simulated device: has 1 cache for it" in bad.out) == (ExitCode.OK, True)
    assert call("verify", tmp_path, "--trust", key).code == ExitCode.BAD_INPUT


def test_what_lies_in_a_pack_beside_it_is_named_and_with_a_key_wrong(call: Call, tmp_path: Path) -> None:
    pack, key = make_pack(tmp_path / "pack", key=KEY).directory, trust_file(tmp_path)
    for name in ("state.sqlite", "manifest.json.lock"):  # which a compile leaves there
        (pack / name).touch()
    clean = call("verify", pack, "--trust", key)
    assert (clean.code, "not of the pack" in clean.out) == (ExitCode.OK, False)
    (pack / "notes.txt").touch()
    (pack / "link.lock").symlink_to(tmp_path)
    strangers = "link.lock (a symbolic link)", "notes.txt"
    loose = call("verify", pack)
    assert (loose.code, f"not of the pack: {', '.join(strangers)}" in loose.out) == (ExitCode.OK, True)
    strict = call("verify", pack, "--trust", key)
    assert strict.code == ExitCode.BAD_INPUT
    assert all(f"       {each}: not of the pack" in strict.out for each in strangers)


def test_what_many_targets_of_a_pack_lack_is_said_once(call: Call, tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack").directory
    GrowingPack.begin(pack, None, [f"other{each}" for each in range(40)])  # and killed
    for verb in ("verify", "inspect"):
        done = call(verb, pack)
        assert done.code == ExitCode.OK
        (line,) = [each for each in done.out.splitlines() if "not finished" in each]
        names = "simulated, other0, other1, other2 and 37 more"
        assert line.strip() == f"nothing of {names}: not finished: run the same `compile --out` again"
    assert call("verify", pack, "--complete").code == ExitCode.BAD_INPUT


def test_merge_joins_packs_and_says_what_is_missing(call: Call, tmp_path: Path) -> None:
    one = make_pack(tmp_path / "one", OLD, parts=[part(shard=1, shards=3)]).directory
    two = make_pack(tmp_path / "two", OURS, parts=[part(shard=2, shards=3)]).directory
    done = call("merge", one, two, "-o", tmp_path / "all", "--json")
    assert done.code == ExitCode.PIPELINES_FAILED
    (target,) = done.document["targets"]
    assert target["merged"] is True
    assert target["missing"] == ["game.foz: shard 3 of 3"]
    assert loaded_keys(path_in(tmp_path / "all"))[0] == UNION
    assert call("verify", tmp_path / "all").code == ExitCode.OK
    done = call("verify", tmp_path / "all", "--complete", "--json")
    assert done.code == ExitCode.BAD_INPUT
    (checked,) = done.document["checked"]
    assert checked["problems"] == ["simulated: missing game.foz: shard 3 of 3"]
    three = make_pack(tmp_path / "three", OLD, parts=[part(shard=3, shards=3)]).directory
    shown = call("merge", tmp_path / "all", three, "-o", tmp_path / "whole")
    assert (shown.code, "1 cache merged by the driver\n" in shown.out) == (ExitCode.OK, True)
    assert call("verify", tmp_path / "whole", "--complete").code == ExitCode.OK


def test_merge_says_which_pack_has_nothing_of_a_target(call: Call, tmp_path: Path) -> None:
    one, two = make_pack(tmp_path / "one", OLD).directory, make_pack(tmp_path / "two", OURS).directory
    GrowingPack.begin(one, None, ["simulated", "other"])  # and killed
    done = call("merge", one, two, "-o", tmp_path / "all", "--json")
    assert done.code == ExitCode.OK
    assert [(each["pack"], each["target"]) for each in done.document["lacked"]] == [
        (str(one), "simulated"),
        (str(one), "other"),
    ]
    shown = call("merge", one, two, "-o", tmp_path / "again")
    assert f"missing: {one}: nothing of simulated, other: not finished" in shown.out


def test_options_of_the_two_merges_do_not_mix(call: Call, tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack").directory
    file = path_in(pack)
    for arguments in (
        (pack, "-d", "simulated"),
        (file, "-d", "simulated", "--sign", key_file(tmp_path)),
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


def test_a_driver_that_does_not_merge_takes_nothing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, path = make_pack(tmp_path / "pack", OLD).directory, path_in(tmp_path / "cache")
    opener = "tests.packs.openers:not_merging"
    monkeypatch.setattr("orchestrator.cli.install.install", partial(install, opener=opener))
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
        manifest.write_text(text.replace('"format": 3', '"format": 1'))
        assert "make it again with this version" in step(verb)
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
    found = hashlib.sha256(bad).hexdigest()
    manifest.write_text(text.replace(pack.manifest.targets[0].files[0].sha256, found))
    assert "copy or make the pack again" in step()
    manifest.write_text(text)
    key = key_file(tmp_path)
    signed = call("compile", "sample", "-d", "simulated", "--out", pack.directory, "--sign", key)
    assert signed.code == ExitCode.BAD_INPUT
    assert "leave --sign out" in signed.err


def test_a_new_pair_of_keys_is_never_written_over_another(call: Call, tmp_path: Path) -> None:
    done = call("key", "new", tmp_path / "team.key", "--json")
    assert (done.code, done.document["public"]) == (ExitCode.OK, str(tmp_path / "team.pub"))
    again = call("key", "new", tmp_path / "team.key")
    assert (again.code, "no key is replaced" in again.err) == (ExitCode.BAD_INPUT, True)


def test_without_the_library_a_signature_says_what_to_install(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "orchestrator.stores.signing")
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    done = call("verify", make_pack(tmp_path / "pack").directory, "--trust", trust_file(tmp_path))
    assert done.code == ExitCode.BAD_INPUT
    assert "--trust: cryptography is not installed" in done.err
    assert "pip install 'vulkan-pipeline-orchestrator[sign]'" in done.err


def test_a_release_is_published_and_installed_from_its_directory(call: Call, tmp_path: Path) -> None:
    base = make_pack(tmp_path / "base", OLD, KEY).directory
    dlc = make_pack(tmp_path / "dlc", OURS, KEY).directory
    site, player, key = tmp_path / "site", tmp_path / "player", key_file(tmp_path)
    made = call("publish", base, dlc, "-o", site, "--sign", key, "--name", "game", "--json")
    assert (made.code, made.document["release"], made.document["components"]) == (0, 1, ["base", "dlc"])
    assert made.document["signed"] is True
    install = ("install", site, "-d", "simulated", "--cache-dir", player)
    refused = call(*install)
    assert "the origin of this release is not proven" in refused.err
    one = call(*install, "--trust", trust_file(tmp_path), "--component", "base", "--json")
    assert (one.code, [each["name"] for each in one.document["components"]]) == (0, ["base"])
    assert loaded_keys(path_in(player))[0] == OLD
    both = call(*install, "--trust", trust_file(tmp_path))
    assert (both.code, "game, release 1: 2 components" in both.out) == (0, True)
    assert loaded_keys(path_in(player))[0] == UNION
    unknown = call(*install, "--trust", trust_file(tmp_path), "--component", "level")
    assert (unknown.code, "it has no component level; there is: base, dlc" in unknown.err) == (2, True)
    foreign = make_pack(tmp_path / "foreign", identity=OTHER_DRIVER).directory
    call("publish", foreign, "-o", tmp_path / "other")
    nothing = call("install", tmp_path / "other", "--unsigned", "-d", "simulated", "--cache-dir", player)
    assert (nothing.code, "nothing for this device and driver" in nothing.out) == (1, True)


def test_without_its_library_an_address_says_what_to_install(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "orchestrator.packs.http_source", raising=False)
    monkeypatch.setitem(sys.modules, "urllib3", None)
    done = call("install", "http://127.0.0.1/game", "--unsigned", "--cache-dir", tmp_path)
    assert (done.code, "urllib3 is not installed" in done.err) == (ExitCode.BAD_INPUT, True)
    assert "pip install 'vulkan-pipeline-orchestrator[deliver]'" in done.err
