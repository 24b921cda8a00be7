"""The verb `binaries`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import evolve

from orchestrator.cli.errors import ExitCode
from orchestrator.devices.listing import DeviceEntry, Listing
from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores.binary_store import BinaryStore, Generation
from orchestrator.stores.state import STATE_NAME
from tests.cli.conftest import Call
from tests.stores.binaries import pipeline
from tests.stores.packs import key_file, trust_file

IDENTITY = simulated_identity()
HERE = Generation.of(IDENTITY, b"global key")
OLD = Generation.of(evolve(IDENTITY, driver_version=7), b"old key")
ELSEWHERE = Generation.of(evolve(IDENTITY, device_id=9), b"key elsewhere")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a store of three generations; the driver of one is here."""
    monkeypatch.setattr("orchestrator.cli.prune.list_all", lambda **_: Listing((DeviceEntry("0", IDENTITY),)))
    path = tmp_path / "cache"
    with BinaryStore.open(path) as store:
        for number, generation in enumerate((HERE, OLD, ELSEWHERE)):
            store.put(
                generation, [pipeline(state, b"%d" % number * 3000, driver_key=b"k") for state in range(4)]
            )
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return key_file(tmp_path)


def test_stat(call: Call, folder: Path) -> None:
    done = call("binaries", "stat", "--cache-dir", folder, "--json")
    assert done.code == ExitCode.OK
    document = done.document
    assert [each["pipelines"] for each in document["generations"]] == [4, 4, 4]
    assert document["payloads"] == 3
    assert document["payload_bytes"] == 9000
    assert document["generations"][0]["shared_driver_keys"] == 1
    shown = call("binaries", "stat", "--cache-dir", folder)
    assert "simulated device" in shown.out
    assert "to several states" in shown.out


def test_verify(call: Call, folder: Path) -> None:
    done = call("binaries", "verify", "--cache-dir", folder)
    assert done.code == ExitCode.OK
    assert "12 pipelines, 3 binaries" in done.out
    assert "nothing is wrong" in done.out
    # Content that is not what was stored: found by its hash.
    path = folder / STATE_NAME
    content = path.read_bytes()
    assert content.count(b"0" * 3000) == 1
    path.write_bytes(content.replace(b"0" * 3000, b"0" * 2999 + b"1"))
    bad = call("binaries", "verify", "--cache-dir", folder, "--json")
    assert bad.code == ExitCode.BAD_INPUT
    assert len(bad.document["problems"]) == 5  # the binary, and four pipelines that use it
    assert "not what was stored" in call("binaries", "verify", "--cache-dir", folder).out
    assert "orchestrator binaries prune" in call("binaries", "verify", "--cache-dir", folder).out
    call("binaries", "prune", "--cache-dir", folder)
    assert "nothing is wrong" in call("binaries", "verify", "--cache-dir", folder).out
    # A structure that lies is not used, and stays where it is.
    path.write_bytes(content[: len(content) // 2])
    cut = call("binaries", "verify", "--cache-dir", folder)
    assert cut.code == ExitCode.BAD_INPUT
    assert "damaged" in cut.err
    assert path.stat().st_size == len(content) // 2


def test_export_and_import(call: Call, folder: Path, key: Path, tmp_path: Path) -> None:
    pack, there = tmp_path / "game.binaries", tmp_path / "there"
    done = call("binaries", "export", pack, "--cache-dir", folder, "--sign", key, "--json")
    assert done.code == ExitCode.OK
    assert (done.document["packed_pipelines"], done.document["signed"]) == (12, True)
    refused = call("binaries", "import", pack, "--cache-dir", there)
    assert refused.code == ExitCode.BAD_INPUT
    assert "no public key was given" in refused.err
    assert "--trust" in refused.err.partition("next:")[2]
    seen = call("inspect", pack)
    assert (seen.code, "binaries of 12 pipelines" in seen.out) == (ExitCode.OK, True)
    assert call("inspect", pack, "--device", "simulated").code == ExitCode.OK
    assert "signed, not checked (--trust)" in call("verify", pack).out
    plain = tmp_path / "plain.binaries"
    call("binaries", "export", plain, "--cache-dir", folder)
    assert ", not signed" in call("verify", plain).out
    assert "signed by this key" in call("verify", pack, "--trust", trust_file(tmp_path)).out
    damaged = tmp_path / "damaged.binaries"
    damaged.write_bytes(pack.read_bytes()[:-9])
    for verb in ("inspect", "verify"):
        bad = call(verb, damaged)
        assert bad.code == ExitCode.BAD_INPUT
        assert "at byte" in bad.out
    taken = call("binaries", "import", pack, "--cache-dir", there, "--trust", trust_file(tmp_path), "--json")
    assert taken.document["stored"] == 12
    assert taken.document["payload_bytes"] == 9000
    assert "12 pipelines" in call("binaries", "import", pack, "--cache-dir", there, "--unsigned").out


def test_export_overwrites_nothing_that_it_needs(call: Call, folder: Path, key: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder / STATE_NAME)
    for target in (folder / STATE_NAME, link, key):
        before = target.read_bytes()
        done = call("binaries", "export", target, "--cache-dir", folder, "--sign", key)
        assert done.code == ExitCode.BAD_INPUT, target
        assert "it would overwrite the input" in done.err
        assert target.read_bytes() == before


def test_prune_removes_what_is_of_another_build_of_a_driver_here(call: Call, folder: Path) -> None:
    dry = call("binaries", "prune", "--cache-dir", folder, "--dry-run", "--json").document
    assert [each["global_key"] for each in dry["removed"]] == [OLD.global_key.hex()]
    assert len(dry["generations"]) == 3
    done = call("binaries", "prune", "--cache-dir", folder, "--json").document
    assert done["removed"] == dry["removed"]
    assert len(done["generations"]) == 2
    assert done["payload_bytes"] == 6000
    assert "no generation was removed" in call("binaries", "prune", "--cache-dir", folder).out
    assert len(
        call("binaries", "prune", "--cache-dir", folder, "--older-than", "0s", "--json").document["removed"]
    ) in (0, 2)


def test_prune_by_size(call: Call, folder: Path) -> None:
    with BinaryStore.open(folder) as store:
        store.put(HERE, [pipeline(state, os.urandom(9000)) for state in range(10, 30)])
    dry = ("binaries", "prune", "--cache-dir", folder, "--dry-run", "--max-size")
    assert " KiB of the pipelines used least recently would be removed" in call(*dry, "150K").out
    assert "\n0 B of the pipelines" in call(*dry, "1G").out
    done = call("binaries", "prune", "--cache-dir", folder, "--max-size", "150K", "--json").document
    assert 0 < done["evicted"] < 32
    assert done["used_bytes"] <= 150 * 1024
    assert call("binaries", "verify", "--cache-dir", folder).code == ExitCode.OK


def test_the_verb_prune_knows_the_store(call: Call, folder: Path) -> None:
    dry = call("prune", "--cache-dir", folder, "--dry-run", "--json").document
    assert [(each["reason"], Path(each["path"]).name) for each in dry["removed"]] == [
        ("other driver", STATE_NAME)
    ]
    assert OLD.global_key.hex()[:12] in dry["removed"][0]["detail"]
    assert [Path(each["path"]).name for each in dry["kept"]] == [STATE_NAME]
    done = call("prune", "--cache-dir", folder, "--json").document
    assert done["removed"] == dry["removed"]
    with BinaryStore.open(folder) as store:
        assert {each.about.global_key for each in store.statistics().generations} == {
            HERE.global_key,
            ELSEWHERE.global_key,
        }
        store.put(HERE, [pipeline(state, os.urandom(9000)) for state in range(10, 60)])
    small = call("prune", "--cache-dir", folder, "--max-size", "200K", "--json").document
    assert [each["reason"] for each in small["removed"]] == ["over the size"]
    assert sum(each["bytes"] for each in small["kept"]) <= 200 * 1024
    assert (folder / STATE_NAME).stat().st_size <= 260 * 1024
    with BinaryStore.open(folder) as store:
        assert sum(each.pipelines for each in store.statistics().generations) > 5
        assert store.verify() == []
    assert call("prune", "--cache-dir", folder, "--max-size", "200K", "--json").document["removed"] == []


def test_other_verbs_know_a_damaged_store(call: Call, folder: Path) -> None:
    assert "12 pipelines in binaries" in call("verify", folder).out
    path = folder / STATE_NAME
    path.write_bytes(path.read_bytes().replace(b"0" * 3000, b"0" * 2999 + b"1"))
    bad = call("verify", path, "--json")
    assert bad.code == ExitCode.BAD_INPUT
    assert any("not what was stored" in each for each in bad.document["checked"][0]["problems"])
    os.truncate(path, 5000)
    cut = call("verify", folder, "--json")
    assert [bool(each["problems"]) for each in cut.document["checked"]] == [False, True]
    kept = call("prune", "--cache-dir", folder, "--json")
    assert (kept.code, STATE_NAME in kept.document["note"]) == (ExitCode.OK, True)
    assert path.stat().st_size == 5000


def test_no_store(call: Call, tmp_path: Path) -> None:
    done = call("binaries", "stat", "--cache-dir", tmp_path, "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert done.document["error"]["kind"] == "store"
    assert "--mode binaries" in done.document["error"]["next_step"]
