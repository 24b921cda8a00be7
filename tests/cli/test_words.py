"""Words of a command line that no verb can use: empty, too long, too large, not UTF-8, the input itself.

Each is refused with what, where and the next step, or taken as what it is; none ends in a traceback.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import pytest

from orchestrator.cli.errors import ExitCode
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.sample import sample_manifest_path
from tests.cli.conftest import Call, Done

LONG = "a" * 300


def refused(done: Done) -> str:
    """The error of a call that ended as bad input does, with a next step."""
    assert done.code == ExitCode.BAD_INPUT, done
    assert "Traceback" not in done.err
    error, step, *_ = [line for line in done.err.splitlines() if line.startswith(("error: ", "next:  "))]
    assert error.startswith("error: ")
    assert step.startswith("next:  ")
    assert len(step) > len("next:  ")
    return error


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("prune", "--cache-dir", ""), "--cache-dir"),
        (("compile", "", "-d", "simulated"), "an argument"),
        (("compile", "sample", "-d", " "), "-d"),
        (("compile", "sample", "--time-limit", ""), "--time-limit"),
        (("verify", "--", ""), "--"),
    ],
)
def test_an_empty_word_names_nothing(call: Call, words: tuple[str, ...], named: str) -> None:
    """An unset variable of a script: not the directory that it runs in, and not the first device."""
    assert f"{named}: the text is empty" in refused(call(*words))


@pytest.mark.parametrize(
    "words",
    [
        ("list", "@"),
        ("compile", "@", "-d", "simulated"),
        ("compare", "@", "@"),
        ("install", "@", "--unsigned"),
        ("pack", "@", "-o", "out"),
        ("binaries", "import", "@", "--unsigned"),
        ("verify", ".", "--key", "@"),
        ("bench", "sample", "-d", "simulated", "-o", "@"),
        ("calibrate", "--set", "@", "-d", "simulated"),
    ],
    ids=" ".join,
)
def test_a_path_that_leads_nowhere_is_bad_input(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for path in (LONG, "loop"):
        refused(call(*(path if word == "@" else word for word in words)))


@pytest.mark.parametrize(
    "words",
    [
        ("compile", "sample", "-d", "simulated", "--trace", "@"),
        ("export", "sample", "-o", "@"),
        ("merge", "@", "@", "-o", "out", "-d", "simulated"),
        ("quarantine", "list", "--cache-dir", "@"),
        ("prune", "--cache-dir", "@"),
    ],
    ids=" ".join,
)
def test_a_name_that_is_too_long_is_bad_input(call: Call, words: tuple[str, ...]) -> None:
    assert "File name too long" in refused(call(*(LONG if word == "@" else word for word in words)))


@pytest.mark.parametrize("words", [("export", "loop"), ("merge", "loop", "-d", "simulated")], ids=" ".join)
def test_a_link_to_itself_is_no_cache_file(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    done = call(*words, "-o", "out")
    assert done.code == ExitCode.BAD_INPUT
    assert "nothing was written" in done.out


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_what_looks_at_files_says_so(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for name, said in ((LONG, "File name too long"), ("loop", "Too many levels")):
        done = call(verb, name)
        assert done.code == ExitCode.BAD_INPUT
        assert "Traceback" not in done.err
        assert said in done.out + done.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--only", "0"), "no pipeline has the key 0000000000000000"),
        (("--only", "zz"), "16 hex digits are expected"),
        (("--shard", "1/0"), "shards count from 1/N to N/N"),
        (("--shard", "3/2"), "--shard '3/2'"),
        (("--shard", "one/two"), "--shard 'one/two'"),
        (("--timeout", "0"), "a time above 0 is expected"),
        (("--workers", "9" * 30), "a number from 1 to 4096"),
        (("--json", "--progress", "jsonl:1"), "both would be on stdout"),
    ],
)
def test_numbers_that_a_compile_cannot_use(
    call: Call, small_set: Path, tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    done = call("compile", small_set, "-d", "simulated", "--cache-dir", tmp_path / "cache", *words)
    assert reason in refused(done)


@pytest.mark.parametrize("verb", ["compile", "doctor", "bench"])
def test_a_user_without_a_home_is_told_to_name_a_directory(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def homeless(*_given: object) -> Path:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(platformdirs, "user_cache_path", homeless)
    set_path, out = str(small_set), str(tmp_path / "out")
    more: dict[str, list[str]] = {"compile": [set_path], "doctor": [], "bench": [set_path, "--out", out]}
    done = call(verb, *more[verb], "-d", "simulated")
    assert done.code == ExitCode.BAD_INPUT
    assert "no directory for cache files" in done.err
    assert "--cache-dir" in done.err.partition("next:")[2]


def test_a_bound_beyond_all_memory_is_none(call: Call, small_set: Path, tmp_path: Path) -> None:
    done = call(
        "compile", small_set, "-d", "simulated", "--cache-dir", tmp_path / "cache", "--memory", "9" * 17 + "G"
    )
    assert done.code == ExitCode.OK, done.err


def test_bench_takes_no_number_that_nothing_can_count_to(call: Call, tmp_path: Path) -> None:
    for option in ("--batch", "--warm-batch", "--warm-passes", "--samples"):
        done = call("bench", "sample", "-d", "simulated", "-o", tmp_path / "out", option, "9" * 30)
        assert "1 to 1000" in refused(done)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("bench", "sample", "-o", "out", "--modes", "fast"),
        ("compare", "a", "b", "--device", "one="),
        ("-v", "bench", "sample", "-o", "out", "--workers", "0"),
    ],
)
def test_wrong_usage_of_a_verb_leads_to_its_own_help(call: Call, words: tuple[str, ...]) -> None:
    done = call(*words)
    refused(done)
    verb = next(each for each in words if not each.startswith("-"))
    assert f"next:  `orchestrator {verb} --help` shows what there is" in done.err


def test_a_threshold_is_a_share(call: Call, tmp_path: Path) -> None:
    for threshold in ("-1", "nan", "inf"):
        done = call("compare", tmp_path, tmp_path, "--threshold", threshold)
        assert "a share of 0 or more" in refused(done)


@pytest.mark.parametrize(
    "words",
    [
        ("bench", "@", "-d", "simulated", "-o", "out"),
        ("calibrate", "--set", "@", "-d", "simulated", "--cache-dir", "cache"),
    ],
    ids=lambda words: words[0],
)
def test_nothing_is_measured_of_an_empty_set(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    with ArchiveWriter(tmp_path / "empty.foz"):
        pass
    assert "holds no pipelines" in refused(call(*("empty.foz" if word == "@" else word for word in words)))


def test_no_output_is_written_over_the_set(call: Call, small_set: Path, tmp_path: Path) -> None:
    before, link = small_set.read_bytes(), tmp_path / "link"
    link.symlink_to(small_set)
    words = ("compile", small_set, "-d", "simulated", "--cache-dir", tmp_path / "cache")
    for option, path in (("--trace", small_set), ("--driver-log", link), ("--pipeline-stats", link)):
        assert "would overwrite the input" in refused(call(*words, option, path))
    assert small_set.read_bytes() == before


def test_no_output_is_written_over_what_is_kept(call: Call, small_set: Path, cache_file: Path) -> None:
    copy = cache_file.parents[1] / "copy"
    copy.write_bytes(cache_file.read_bytes())
    for path in (cache_file, cache_file.with_name("state.sqlite")):
        before = path.read_bytes()
        words = ("compile", small_set, "-d", "simulated", "--cache-dir", path.parent, "--trace", path)
        assert "would be lost" in refused(call(*words))
        assert "would be lost" in refused(call("export", copy, "-o", path))
        assert path.read_bytes() == before


def test_a_shown_command_has_its_path_as_one_word(call: Call, small_set: Path, tmp_path: Path) -> None:
    game, folder = tmp_path / "my game.foz", tmp_path / "my folder"
    game.write_bytes(small_set.read_bytes())
    assert f"orchestrator list '{game}'" in call("inspect", game).out
    assert f"orchestrator inspect '{game}'" in call("export", game, "-o", tmp_path / "raw").out
    assert f"orchestrator compile '{game}'" in call("pack", sample_manifest_path(), "-o", game).out
    assert f"mkdir -p '{folder}'" in call("export", game, "-o", folder / "raw").err


def test_two_outputs_are_two_files(call: Call, small_set: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("-d", "simulated", "--cache-dir", tmp_path / "cache", "--trace", out, "--driver-log", out)
    assert "two options name it" in refused(call("compile", small_set, *words))


def test_commands_are_shown_as_a_shell_takes_them(call: Call, small_set: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9 it's")
    words = rf"$'{tmp_path}/caf\xe9 it\'s"
    done = call("compile", small_set, "-d", "simulated", "--in-process", "--cache-dir", odd / "cache")
    assert f"--cache-dir {words}/cache'" in done.out + done.err
    archive = small_set.rename(odd / "a.foz")
    assert f"next: orchestrator list {words}/a.foz'" in call("inspect", archive).out
    done = call("compile", archive, "-d", "simulated", "--trace", odd / "none" / "trace")
    assert f"mkdir -p {words}/none'" in done.err


def test_names_need_not_be_utf8(call: Call, small_set: Path, tmp_path: Path) -> None:
    """Of sets, of directories and of what is written; where a process tells another of them, too."""
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    archive = small_set.rename(odd / os.fsdecode(b"n\xff\xfe.foz"))
    cache, pack, store = odd / "cache", odd / "pack", odd / "store"
    device = ("-d", "simulated")
    done = call("compile", archive, *device, "--cache-dir", cache, "--trace", odd / "trace", "--json")
    assert done.code == ExitCode.OK, done.err
    assert done.document["cache_file"]["saved_bytes"]
    assert (odd / "trace").stat().st_size
    assert call("compile", archive, *device, "--out", pack).code == ExitCode.OK
    assert list(pack.glob("*.pipeline-cache"))
    assert call("install", pack, *device, "--unsigned", "--cache-dir", odd / "player").code == ExitCode.OK
    binaries = ("--mode", "binaries", "--in-process", "--cache-dir", store)
    assert call("compile", archive, *device, *binaries).code == ExitCode.OK
    assert call("binaries", "prune", "--max-size", "4M", "--cache-dir", store).code == ExitCode.OK
    good = call("verify", cache, pack, store, odd / "player", archive)
    assert good.code == ExitCode.OK, good.out


def test_install_says_first_what_is_no_pack(call: Call, tmp_path: Path) -> None:
    """Before it asks who vouches for it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "empty").mkdir()
    for name, said in (
        ("pipe", "it is not a directory"),
        ("device", "it is not a directory"),
        ("empty", "it has no manifest.json"),
        ("nothing", "No such file or directory"),
    ):
        done = call("install", tmp_path / name, "-d", "simulated", "--cache-dir", tmp_path / "cache")
        assert said in refused(done)
