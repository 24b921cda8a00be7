"""The verb `binaries`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import evolve

from orchestrator.cli.errors import ExitCode
from orchestrator.devices import listing
from orchestrator.devices.listing import DeviceEntry, Listing
from orchestrator.devices.simulated import simulated_identity
from orchestrator.stores.binary_store import LEAST_BOUND, STORE_NAME, BinaryStore, Generation, StoreError
from tests.cli.conftest import Call
from tests.stores.test_binary_store import pipeline

IDENTITY = simulated_identity()
HERE = Generation.of(IDENTITY, b"global key")
OLD = Generation.of(evolve(IDENTITY, driver_version=7), b"old key")
ELSEWHERE = Generation.of(evolve(IDENTITY, device_id=9), b"key elsewhere")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a store of three generations; the driver of one is here."""
    monkeypatch.setattr(listing, "list_all", lambda **_: Listing((DeviceEntry("0", IDENTITY),)))
    path = tmp_path / "cache"
    with BinaryStore.open(path) as store:
        for number, generation in enumerate((HERE, OLD, ELSEWHERE)):
            store.put(
                generation, [pipeline(state, b"%d" % number * 3000, driver_key=b"k") for state in range(4)]
            )
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "team.key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return path


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
    path = folder / STORE_NAME
    content = path.read_bytes()
    assert content.count(b"0" * 3000) == 1
    path.write_bytes(content.replace(b"0" * 3000, b"0" * 2999 + b"1"))
    bad = call("binaries", "verify", "--cache-dir", folder, "--json")
    assert bad.code == ExitCode.BAD_INPUT
    assert len(bad.document["problems"]) == 1
    assert "not what was stored" in call("binaries", "verify", "--cache-dir", folder).out
    assert "orchestrator binaries prune" in call("binaries", "verify", "--cache-dir", folder).out
    call("binaries", "prune", "--cache-dir", folder)
    assert "nothing is wrong" in call("binaries", "verify", "--cache-dir", folder).out
    # A structure that lies is not opened, and stays where it is.
    path.write_bytes(content[: len(content) // 2])
    cut = call("binaries", "verify", "--cache-dir", folder)
    assert cut.code == ExitCode.BAD_INPUT
    assert "quarantine" in cut.err
    assert path.stat().st_size == len(content) // 2


def test_its_files_are_inspected(call: Call, folder: Path) -> None:
    files = sorted(folder.iterdir())
    done = call("inspect", *files, "--json")
    assert done.code == ExitCode.OK
    kinds = {Path(each["path"]).name: each["kind"] for each in done.document["files"]}
    assert kinds.pop(STORE_NAME) == "store of binaries"
    assert set(kinds.values()) == {"file of a store of binaries"}
    assert len(kinds) == 4
    before = {each: each.read_bytes() for each in files}
    assert call("verify", *files).code == ExitCode.OK
    path = folder / STORE_NAME
    for bad, reason in ((before[path][:-4096], "no such page"), (bytes(9000), "another program made it")):
        path.write_bytes(bad)
        done = call("inspect", path, "--json")
        assert done.code == ExitCode.BAD_INPUT
        assert reason in done.document["files"][0]["reason"]
        assert path.read_bytes() == bad
    path.unlink()
    path.symlink_to(folder / "nowhere")
    assert call("inspect", path).code == ExitCode.BAD_INPUT


def test_a_store_that_is_a_link_is_inspected_as_it_is_opened(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = tmp_path / "linked"
    linked.mkdir(mode=0o700)
    (linked / STORE_NAME).symlink_to(folder / STORE_NAME)
    monkeypatch.chdir(linked)
    for path in (linked / STORE_NAME, Path(STORE_NAME)):
        done = call("inspect", path, "--json")
        assert done.code == ExitCode.BAD_INPUT
        assert "symbolic link" in done.document["files"][0]["reason"]
    with pytest.raises(StoreError, match="symbolic link"):
        BinaryStore.open(linked, create=False)


def test_generations_that_cannot_be_read_are_not_called_nothing(call: Call, folder: Path) -> None:
    path = folder / STORE_NAME
    content = path.read_bytes()
    path.write_bytes(content.replace(IDENTITY.device_name.encode(), b"?" * len(IDENTITY.device_name)))
    shown = call("binaries", "stat", "--cache-dir", folder).out
    assert "nothing of it can be used" in shown
    bad = call("binaries", "verify", "--cache-dir", folder)
    assert bad.code == ExitCode.BAD_INPUT
    assert "none of its pipelines is found" in bad.out


def test_export_and_import(call: Call, folder: Path, key: Path, tmp_path: Path) -> None:
    pack, there = tmp_path / "game.binaries", tmp_path / "there"
    done = call("binaries", "export", pack, "--cache-dir", folder, "--key", key, "--json")
    assert done.code == ExitCode.OK
    assert (done.document["packed_pipelines"], done.document["signed"]) == (12, True)
    refused = call("binaries", "import", pack, "--cache-dir", there)
    assert refused.code == ExitCode.BAD_INPUT
    assert "no key was given" in refused.err
    assert "--key" in refused.err.partition("next:")[2]
    seen = call("inspect", pack)
    assert (seen.code, "binaries of 12 pipelines" in seen.out) == (ExitCode.OK, True)
    assert call("inspect", pack, "--device", "simulated").code == ExitCode.OK
    assert "signed, not checked (--key)" in call("verify", pack).out
    plain = tmp_path / "plain.binaries"
    call("binaries", "export", plain, "--cache-dir", folder)
    assert ", not signed" in call("verify", plain).out
    assert "signed with this key" in call("verify", pack, "--key", key).out
    damaged = tmp_path / "damaged.binaries"
    damaged.write_bytes(pack.read_bytes()[:-9])
    for verb in ("inspect", "verify"):
        bad = call(verb, damaged)
        assert bad.code == ExitCode.BAD_INPUT
        assert "at byte" in bad.out
    taken = call("binaries", "import", pack, "--cache-dir", there, "--key", key, "--json")
    assert taken.document["stored"] == 12
    assert taken.document["payload_bytes"] == 9000
    assert "12 pipelines" in call("binaries", "import", pack, "--cache-dir", there, "--unsigned").out


def test_an_import_says_what_the_store_has_no_room_for(call: Call, folder: Path, tmp_path: Path) -> None:
    with BinaryStore.open(folder) as store:
        large = pipeline(99, os.urandom(LEAST_BOUND // 2))
        store.put(HERE, [*(pipeline(state, os.urandom(9000)) for state in range(600)), large])
    pack, there = tmp_path / "large.binaries", tmp_path / "there"
    call("binaries", "export", pack, "--cache-dir", folder)
    with BinaryStore.open(there, bound_bytes=LEAST_BOUND):
        pass
    done = call("binaries", "import", pack, "--unsigned", "--cache-dir", there, "--json")
    assert done.document["too_large"] == 1
    assert done.document["evicted"] > 100
    left = sum(each["pipelines"] for each in done.document["generations"])
    assert left == done.document["stored"] - done.document["evicted"]
    said = call("binaries", "import", pack, "--unsigned", "--cache-dir", there).out
    assert "1 too large for the store" in said
    assert "to make room" in said
    assert "--binaries-disk" in said
    full = call("binaries", "import", pack, "--unsigned", "--cache-dir", folder).out
    assert "--binaries-disk" not in full


def test_export_overwrites_nothing_that_it_needs(call: Call, folder: Path, key: Path, tmp_path: Path) -> None:
    with BinaryStore.open(folder):
        pass  # which makes all that lies beside it
    link = tmp_path / "link"
    link.symlink_to(folder / STORE_NAME)
    for target in (*folder.iterdir(), link, key):
        before = target.read_bytes()
        done = call("binaries", "export", target, "--cache-dir", folder, "--key", key)
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
    assert " KiB of the least valuable pipelines would be removed" in call(*dry, "150K").out
    assert "\n0 B of the least valuable" in call(*dry, "1G").out
    done = call("binaries", "prune", "--cache-dir", folder, "--max-size", "150K", "--json").document
    assert 0 < done["evicted"] < 25  # no more than is needed
    assert done["used_bytes"] <= 150 * 1024
    assert call("binaries", "verify", "--cache-dir", folder).code == ExitCode.OK


def test_the_verb_prune_knows_the_store(call: Call, folder: Path) -> None:
    dry = call("prune", "--cache-dir", folder, "--dry-run", "--json").document
    assert [(each["reason"], Path(each["path"]).name) for each in dry["removed"]] == [
        ("other driver", STORE_NAME)
    ]
    assert OLD.global_key.hex()[:12] in dry["removed"][0]["detail"]
    assert [Path(each["path"]).name for each in dry["kept"]] == [STORE_NAME]
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
    assert (folder / STORE_NAME).stat().st_size <= 220 * 1024
    with BinaryStore.open(folder) as store:
        assert sum(each.pipelines for each in store.statistics().generations) > 5
        assert store.verify().problems == ()
    assert call("prune", "--cache-dir", folder, "--max-size", "200K", "--json").document["removed"] == []


@pytest.mark.parametrize("verb", [("prune",), ("binaries", "prune")])
def test_binaries_that_another_generation_uses_too_are_not_counted_as_removed(
    call: Call, folder: Path, verb: tuple[str, ...]
) -> None:
    same = [pipeline(state, os.urandom(12_000)) for state in range(10, 60)]
    with BinaryStore.open(folder) as store:
        store.put(HERE, same)
        store.put(OLD, same)
    options = ("--cache-dir", folder, "--max-size", "200K")
    said = call(*verb, *options, "--dry-run").out
    assert "KiB  over the size" in said or " KiB of the least valuable pipelines would" in said
    call(*verb, *options)
    with BinaryStore.open(folder) as store:
        assert store.statistics().used_bytes <= 200 * 1024
        assert len(store.statistics().generations) == 2


def test_the_verb_prune_gives_unused_pages_back(call: Call, folder: Path) -> None:
    with BinaryStore.open(folder) as store:
        store.put(HERE, [pipeline(state, os.urandom(90_000)) for state in range(10, 60)])
        store.shrink(500 << 10)
        before = store.path.stat().st_size
    dry = call("prune", "--cache-dir", folder, "--dry-run", "--json").document
    unused = [each["bytes"] for each in dry["removed"] if each["reason"] == "unused pages"]
    assert unused > [before // 2]
    with BinaryStore.open(folder):
        done = call("prune", "--cache-dir", folder, "--json")
        assert done.code == ExitCode.BAD_INPUT
        assert [each["cause"] for each in done.document["failed"]] == ["a process has it open"]
    call("prune", "--cache-dir", folder, "--max-size", "1M")
    assert (folder / STORE_NAME).stat().st_size <= 1 << 20
    assert call("prune", "--cache-dir", folder, "--json").document["removed"] == []


def test_the_verb_prune_copies_a_store_once(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[Path] = []
    compact = BinaryStore.compact

    def counted(directory: Path) -> int | None:
        copies.append(directory)
        return compact(directory)

    monkeypatch.setattr(BinaryStore, "compact", counted)
    with BinaryStore.open(folder) as store:
        store.put(HERE, [pipeline(state, os.urandom(90_000)) for state in range(10, 60)])
        store.shrink(500 << 10)
        store.put(OLD, [pipeline(70, os.urandom(9_000))])
    removed = call("prune", "--cache-dir", folder, "--json").document["removed"]
    assert [each["reason"] for each in removed] == ["other driver", "unused pages"]
    assert copies == [folder]


def test_the_verb_prune_tells_that_a_store_stays_as_large(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(directory: Path) -> None:
        raise StoreError(directory / STORE_NAME, "no room for a copy")

    with BinaryStore.open(folder) as store:
        store.put(HERE, [pipeline(state, os.urandom(9000)) for state in range(10, 60)])
        before = store.path.stat().st_size
        notes = [call("prune", "--cache-dir", folder, "--max-size", "400K", "--json").document["note"]]
        assert store.path.stat().st_size == before
    monkeypatch.setattr(BinaryStore, "compact", no_room)
    notes.append(call("prune", "--cache-dir", folder, "--max-size", "200K", "--json").document["note"])
    said = f"{folder / STORE_NAME} has as many bytes on the disk as before, some of them unused: "
    assert notes == [said + "a process has it open", said + "no room for a copy"]


def test_the_verb_prune_leaves_a_store_that_it_cannot_read(call: Call, folder: Path) -> None:
    os.truncate(folder / STORE_NAME, 5000)
    done = call("prune", "--cache-dir", folder, "--json")
    assert done.code == ExitCode.OK
    assert STORE_NAME in done.document["note"]
    assert (folder / STORE_NAME).stat().st_size == 5000


def test_the_verb_inspect_names_the_store_and_packs(call: Call, folder: Path, tmp_path: Path) -> None:
    assert "orchestrator binaries stat" in call("inspect", folder / STORE_NAME).out
    call("binaries", "export", tmp_path / "x", "--cache-dir", folder)
    assert "a pack of binaries" in call("inspect", tmp_path / "x").out


def test_the_verb_verify_knows_the_store(call: Call, folder: Path) -> None:
    done = call("verify", folder)
    assert done.code == ExitCode.OK
    assert "a store of 3 binaries of 12 pipelines" in done.out
    assert "0 archives, a store of binaries, 0 quarantined files" in done.out
    path = folder / STORE_NAME
    content = path.read_bytes()
    path.write_bytes(content.replace(b"0" * 3000, b"0" * 2999 + b"1"))
    bad = call("verify", path, "--json")
    assert bad.code == ExitCode.BAD_INPUT
    assert "not what was stored" in bad.document["checked"][0]["problems"][0]
    os.truncate(path, 5000)
    cut = call("verify", folder, "--json")
    assert [bool(each["problems"]) for each in cut.document["checked"]] == [False, True]
    assert path.stat().st_size == 5000


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("export",), "pack is missing"),
        (("stat", "x.binaries"), "takes no pack"),
        (("stat", "--key", "team.key"), "signatures"),
        (("export", "x", "--unsigned"), "signatures"),
        (("verify", "--dry-run"), "removes nothing"),
        (("prune", "--max-size", "much"), "a size is expected"),
    ],
)
def test_usage(call: Call, folder: Path, arguments: tuple[str, ...], why: str) -> None:
    done = call("binaries", *arguments, "--cache-dir", folder)
    assert done.code == ExitCode.BAD_INPUT
    assert why in done.err


def test_no_store(call: Call, tmp_path: Path) -> None:
    done = call("binaries", "stat", "--cache-dir", tmp_path, "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert done.document["error"]["kind"] == "store"
    assert "--mode binaries" in done.document["error"]["next_step"]


def test_a_key_that_can_be_guessed_is_refused(call: Call, folder: Path, key: Path) -> None:
    key.write_bytes(b"short")
    done = call("binaries", "export", folder / "x", "--cache-dir", folder, "--key", key)
    assert done.code == ExitCode.BAD_INPUT
    assert "guessed" in done.err
