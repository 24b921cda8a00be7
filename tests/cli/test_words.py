"""Words of a command line that no verb can use: empty, too long, too large, not UTF-8, the input itself.

Each is refused with what, where and the next step, or taken as what it is; none ends in a traceback.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import platformdirs
import pytest

from orchestrator.cli.errors import ExitCode
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.sample import sample_manifest_path
from tests.cli.conftest import Call, Done

LONG = "a" * 300
TOO_LONG = "File name too long"


def refused(done: Done) -> str:
    """The error of a call that ended as bad input does, with a next step."""
    assert done.code == ExitCode.BAD_INPUT, done
    assert "Traceback" not in done.err
    error, step, *_ = [line for line in done.err.splitlines() if line.startswith(("error: ", "next:  "))]
    assert error.startswith("error: ")
    assert step.startswith("next:  ")
    assert len(step) > len("next:  ")
    return error


REFUSED = {
    # An unset variable of a script: not the directory that it runs in, and not the first device.
    "prune --cache-dir ''": "--cache-dir: the text is empty",
    "compile '' -d simulated": "an argument: the text is empty",
    "compile sample -d ' '": "-d: the text is empty",
    "compile sample --time-limit ''": "--time-limit: the text is empty",
    "verify -- ''": "--: the text is empty",
    # Paths that lead nowhere.
    **{
        words.replace("@", path): TOO_LONG if path == LONG else ""
        for path in (LONG, "loop")
        for words in (
            "list @",
            "compile @ -d simulated",
            "compare @ @",
            "install @ --unsigned",
            "pack @ -o out",
            "binaries import @ --unsigned",
            "verify . --trust @",
            "bench sample -d simulated -o @",
            "calibrate --set @ -d simulated",
        )
    },
    f"compile sample -d simulated --trace {LONG}": TOO_LONG,
    f"export sample -o {LONG}": TOO_LONG,
    f"merge {LONG} {LONG} -o out -d simulated": TOO_LONG,
    f"quarantine list --cache-dir {LONG}": TOO_LONG,
    f"prune --cache-dir {LONG}": TOO_LONG,
    # What install says first, before it asks who vouches for it.
    "install pipe -d simulated": "it is not a directory",
    "install device -d simulated": "it is not a directory",
    "install folder -d simulated": "it has no manifest.json",
    "install nothing -d simulated": "No such file or directory",
    # Numbers that cannot be used.
    "compile small.foz --only 0": "no pipeline has the key 0000000000000000",
    "compile small.foz --only zz": "16 hex digits are expected",
    "compile small.foz --shard 1/0": "shards count from 1/N to N/N",
    "compile small.foz --shard 3/2": "--shard '3/2'",
    "compile small.foz --shard one/two": "--shard 'one/two'",
    "compile small.foz --timeout 0": "a time above 0 is expected",
    f"compile small.foz --workers {'9' * 30}": "a number from 1 to 4096",
    "compile small.foz --json --progress jsonl:1": "both would be on stdout",
    **{
        f"bench sample -d simulated -o out {option} {'9' * 30}": "1 to 1000"
        for option in ("--batch", "--warm-batch", "--warm-passes", "--samples")
    },
    **{f"compare . . --fail-on {each}": "is no rule" for each in ("slower", "time=1", "'time>nan'")},
    "bench empty.foz -d simulated -o out": "holds no pipelines",
    "calibrate --set empty.foz -d simulated --cache-dir cache": "holds no pipelines",
    # Options that cannot be meant.
    "compile small.foz --sign team.key": "--sign signs packs",
    "compile small.foz --sign team.key -d 0": "--sign signs packs",
    "compile small.foz --out out --mode none": "keeps nothing that a pack could hold",
    "compile small.foz --out out --trace trace.json": "--trace is for one device",
    "compile small.foz -d 0 --driver-log log": "--driver-log is for one device",
    "compile small.foz --out out --in-process": "--in-process is for one device",
    "compile small.foz --in-process --driver-log log": "--driver-log is for a child process",
    "compile small.foz --in-process --timeout 5s": "--timeout is for a child process",
    "compile small.foz --in-process --memory 2G": "--memory is for a child process",
    "compile small.foz --nice 20": "0 to 19",
    "compile small.foz --mode shared --merge rolling": "no worker caches",
    "compile small.foz --mode binaries --merge rolling": "no worker caches",
    "compile small.foz --mode none --identifiers": "they would find nothing",
    "binaries export": "pack is missing",
    "binaries stat x.binaries": "takes no pack",
    "binaries stat --sign team.key": "`export` signs",
    "binaries export x --unsigned": "`import` checks",
    "binaries verify --dry-run": "removes nothing",
    "binaries prune --max-size much": "a size is expected",
    **dict.fromkeys(("bogus", "compile", "list sample --nope", "pack a.toml", "inspect"), ""),
    "compile sample --mode fast": "fast",
    "compile sample --workers many": "many",
    **{
        f"bench sample -d simulated -o out {options}": said
        for options, said in (
            ("--modes fast", "--modes 'fast'"),
            ("--workers 0", "--workers '0'"),
            ("--workers 1,many", "--workers"),
            ("--start tepid", "cold, warm"),
            ("--duplicates 1.5", "shares from 0 to 1"),
            ("--samples 0", "for --samples. A number of 1 to 1000 is expected"),
            ("--samples 1001 --time-limit 1ms", "for --samples. A number of 1 to 1000 is expected"),
            ("--time-limit soon", "--time-limit"),
            ("--warm-passes 0", "--warm-passes"),
            ("--modes none --start warm", "a run without a cache is never warm"),
            ("--trace not-there/trace.json", "not-there/trace.json: cannot be written"),
            ("--trace /dev/full", "/dev/full: cannot be written: it is no regular file"),
        )
    },
    **{
        f"calibrate -d simulated --cache-dir cache {options}": options.split()[1]
        for options in (
            *("--samples 0", "--workers 0", "--time-limit soon", "--time-limit 0s"),
            "--set nope.foz",
        )
    },
    "doctor --only 1": "--only needs --keys",
    "doctor --time-limit 1": "--time-limit needs --keys",
    "regress small.foz small.foz --fail-on CodeSize=1": "is no rule",
    "regress . . --timeout 5s": "--timeout",
    "list sample --color pink": "auto, always, never",
    "list sample --color": "auto, always, never",
    "list set.toml sample": "a manifest cannot be combined",
    "list folder": "it is a directory",
    "list pages.html": "not an archive",
    "compile small.foz --control -1": "--control",
    "compile small.foz --progress jsonl:1000000": "descriptor 1000000 is not open",
    "compile small.foz --progress jsonl:99999999999999999999": "is not open",
    **{
        f"compile small.foz --progress {each}": "jsonl or jsonl:FD is expected"
        for each in ("json", "jsonl:", "jsonl:x", "jsonl:-1", "csv:3", "jsonl:3:4")
    },
    **{
        f"{verb} --cache-dir {each}": "no such directory"
        for verb in ("prune", "quarantine")
        for each in ("nothing", "link")
    },
    "compile small.foz --pipeline-stats s.csv --mode shared": "nothing is kept",
    **{
        f"compile small.foz --mode none {option} {place}": "cannot be written"
        for option in ("--trace", "--pipeline-stats")
        for place in ("pipe", ".", "not-there/file", "/proc/file")
    },
    # Outputs that are the input, or one another.
    "compile small.foz --trace small.foz": "would overwrite the input",
    "compile small.foz --driver-log link": "would overwrite the input",
    "compile small.foz --pipeline-stats link": "would overwrite the input",
    "compile small.foz --trace out --driver-log out": "two options name it",
}


def test_what_cannot_be_meant_is_refused(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to(small_set)
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with ArchiveWriter(tmp_path / "empty.foz"):
        pass
    (tmp_path / "pages.html").write_text("not an archive")
    before = small_set.read_bytes()
    for line, said in REFUSED.items():
        words = shlex.split(line)
        if words[:2] == ["compile", "small.foz"]:
            words += ["-d", "simulated"]
            keeps_nothing = {"--pipeline-stats", "none"} & {*words}
            words += [] if keeps_nothing else ["--cache-dir", "cache"]
        assert said in refused(call(*words)), line
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "pipe").is_fifo()
    assert small_set.read_bytes() == before


def test_a_path_that_leads_nowhere_is_no_file(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for words, said in (
        (("export", "loop", "-o", "out"), "nothing was written"),
        (("merge", "loop", "-d", "simulated", "-o", "out"), "nothing was written"),
        *(((verb, LONG), TOO_LONG) for verb in ("inspect", "verify")),
        *(((verb, "loop"), "Too many levels") for verb in ("inspect", "verify")),
    ):
        done = call(*words)
        assert (done.code, "Traceback" in done.err) == (ExitCode.BAD_INPUT, False), words
        assert said in done.out + done.err, words


def test_a_user_without_a_home_is_told_to_name_a_directory(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless(*_given: object) -> Path:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(platformdirs, "user_cache_path", homeless)
    for words in (("compile", small_set), ("doctor",), ("bench", small_set, "--out", tmp_path / "out")):
        done = call(*words, "-d", "simulated")
        assert done.code == ExitCode.BAD_INPUT
        assert "no directory for cache files" in done.err
        assert "--cache-dir" in done.err.partition("next:")[2]


def test_a_bound_beyond_all_memory_is_none(call: Call, small_set: Path, tmp_path: Path) -> None:
    memory = ("--memory", "9" * 17 + "G")
    done = call("compile", small_set, "-d", "simulated", "--cache-dir", tmp_path / "cache", *memory)
    assert done.code == ExitCode.OK, done.err


def test_wrong_usage_of_a_verb_leads_to_its_own_help(call: Call) -> None:
    for words in (
        ("bench", "sample", "-o", "out", "--modes", "fast"),
        ("compare", "a", "b", "--device", "one="),
        ("-v", "bench", "sample", "-o", "out", "--workers", "0"),
    ):
        done = call(*words)
        refused(done)
        verb = next(each for each in words if not each.startswith("-"))
        assert f"next:  `orchestrator {verb} --help` shows what there is" in done.err


def test_no_output_is_written_over_what_is_kept(call: Call, small_set: Path, cache_file: Path) -> None:
    copy = cache_file.parents[1] / "copy"
    copy.write_bytes(cache_file.read_bytes())
    for path in (cache_file, cache_file.with_name("state.sqlite")):
        before = path.read_bytes()
        words = ("compile", small_set, "-d", "simulated", "--cache-dir", path.parent, "--trace", path)
        assert "would be lost" in refused(call(*words))
        assert "would be lost" in refused(call("export", copy, "-o", path))
        assert path.read_bytes() == before


def test_commands_are_shown_as_a_shell_takes_them(call: Call, small_set: Path, tmp_path: Path) -> None:
    game, folder = tmp_path / "my game.foz", tmp_path / "my folder"
    game.write_bytes(small_set.read_bytes())
    assert f"orchestrator list '{game}'" in call("inspect", game).out
    assert f"orchestrator inspect '{game}'" in call("export", game, "-o", tmp_path / "raw").out
    assert f"orchestrator compile '{game}'" in call("pack", sample_manifest_path(), "-o", game).out
    assert f"mkdir -p '{folder}'" in call("export", game, "-o", folder / "raw").err
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
    here = (*device, "--in-process", "--cache-dir", cache)
    done = call("compile", archive, *here, "--trace", odd / "trace", "--json")
    assert done.code == ExitCode.OK, done.err
    assert done.document["cache_file"]["saved_bytes"]
    assert (odd / "trace").stat().st_size
    binaries = ("--mode", "binaries", "--in-process", "--cache-dir", store)
    for words in (
        ("compile", archive, *device, "--out", pack),
        ("install", pack, *device, "--unsigned", "--cache-dir", odd / "player"),
        ("compile", archive, *device, *binaries),
        ("binaries", "prune", "--max-size", "4M", "--cache-dir", store),
        ("verify", cache, pack, store, odd / "player", archive),
    ):
        assert call(*words).code == ExitCode.OK, words
    assert list(pack.glob("*.pipeline-cache"))
