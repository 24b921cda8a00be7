from __future__ import annotations

import csv
import json
import re
import signal
from pathlib import Path
from typing import Any, NoReturn

import pytest
from attrs import evolve

from orchestrator.cli import compiling
from orchestrator.cli import progress as progress_module
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import write_document
from orchestrator.devices.simulated import simulated_identity
from orchestrator.process import ending_signals, interrupted_by_signals
from orchestrator.run import keeping
from orchestrator.run.records import CompileReport
from orchestrator.stores.binary_store import BinaryStore
from orchestrator.stores.cache_file import cache_path, read_cache_file, save_cache_file
from orchestrator.stores.files import atomic_file
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.files.writer_lock import writer_lock
from tests.cli.conftest import Call
from tests.run.report_page import fields_of
from tests.run.small_sets import BLUR, write_small_set

HERE = "-d", "simulated", "--in-process"
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
MODES = ("shared", "per-worker", "per-worker-internal", "two-level", "none")


def compile_json(call: Call, *arguments: str | Path, code: int = ExitCode.OK) -> dict[str, Any]:
    done = call("compile", *arguments, *HERE, "--json")
    assert done.code == code, done.err
    assert done.err == ""
    document = done.document
    check_outcomes(document)
    assert handed_over(document) > 0
    return document


def handed_over(document: dict[str, Any]) -> int:
    """Pipelines that the device has all it takes for."""
    return int(document["set"]["unique"] - document["outcomes"]["skipped"])


def check_outcomes(document: dict[str, Any]) -> None:
    """Disjoint, and summing to the unique pipelines; the lists are as long as the counts."""
    assert set(document) == {name for _, name, _ in fields_of(CompileReport)}
    outcomes = document["outcomes"]
    expected = {"compiled", "cache_hits", "skipped", "failed"} | (
        {"not_run"} if document["stopped"] else set()
    )
    assert set(outcomes) == expected
    assert sum(outcomes.values()) == document["set"]["unique"] == sum(document["set"]["pipelines"].values())
    for name in ("skipped", "failed"):
        assert len(document[name]) == outcomes[name]
        assert all(
            {"key", "kind", "status", "reason"} <= set(each)
            and (each["status"], len(each["key"])) == (name, 16)
            and each["reason"]
            for each in document[name]
        )
    for name, count in outcomes.items():
        assert sum(kind[name] for kind in document["outcomes_by_kind"].values()) == count


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_and_its_second_run(call: Call, small_set: Path, tmp_path: Path, mode: str) -> None:
    arguments = (small_set, "--mode", mode, "--workers", "3", "--cache-dir", tmp_path / "cache")
    document = compile_json(call, *arguments)
    assert document["mode"] == mode
    assert document["workers"] == 3
    assert document["outcomes"]["compiled"] == handed_over(document)
    timing = document["timing"]
    assert {"wall_s", "driver_s", "cpu_s", "blocked_s", "merge_s"} <= set(timing)
    assert all(isinstance(each, float) for name, each in timing.items() if name.endswith("_s"))
    assert set(document["versions"]) == {"python", "orchestrator", "registry"}
    assert document["versions"]["registry"].startswith("1.4.")
    file = document["cache_file"]
    if mode == "none":
        assert document["merge"] is None
        assert file["path"] is None
        return
    assert file["load_status"] == "MISSING"
    assert file["saved_bytes"] == Path(file["path"]).stat().st_size
    sources = document["runs"][0]["merge"]["source_bytes"]
    assert len(sources) == (0 if mode == "shared" else 3)
    assert document["merge"]["source_bytes"] == sum(sources)
    again = compile_json(call, *arguments)
    assert again["outcomes"]["cache_hits"] == handed_over(again)
    assert again["cache_file"]["load_status"] == "LOADED"
    assert again["cache_file"]["loaded_bytes"] > 0


def test_mode_binaries_keeps_a_store(call: Call, small_set: Path, tmp_path: Path) -> None:
    arguments = (small_set, "--mode", "binaries", "--cache-dir", tmp_path / "cache")
    first = compile_json(call, *arguments)
    count = handed_over(first)
    assert first["outcomes"]["compiled"] == count
    assert first["binaries"]["stored"] == count
    assert Path(first["cache_file"]["path"]).name == "state.sqlite"
    second = compile_json(call, *arguments)
    assert second["outcomes"]["cache_hits"] == count
    assert second["binaries"]["created"] == second["binaries"]["pulled_in"] == count
    shown = call("compile", *arguments, *HERE, "-v")
    assert f"looked up {count}, pulled in {count}, " in shown.out
    assert f"created {count}, " in shown.out
    with BinaryStore.open(tmp_path / "cache") as store:
        assert store.bound_bytes == 512 << 20
    bounded = compile_json(call, *arguments, "--binaries-disk", "8M", "--binaries-memory", "0")
    assert bounded["binaries"]["pulled_late"] == bounded["binaries"]["created"] == count
    with BinaryStore.open(tmp_path / "cache") as store:
        assert store.bound_bytes == 8 << 20
    small = call("compile", *arguments, *HERE, "--binaries-disk", "1M")
    assert small.code == ExitCode.BAD_INPUT
    assert "--binaries-disk" in small.err


def test_binaries_that_could_not_be_stored_are_no_success(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise SaveError(tmp_path / "cache" / "state.sqlite", "writing", "the disk is full")

    monkeypatch.setattr(BinaryStore, "put", full)
    arguments = (small_set, *HERE, "--mode", "binaries", "--cache-dir", tmp_path / "cache")
    done = call("compile", *arguments)
    assert done.code == ExitCode.BAD_INPUT
    assert "not saved, and lost: the binaries of" in done.out
    assert "the disk is full" in done.out
    document = call("compile", *arguments, "--json").document
    assert document["binaries"]["lost"] == document["binaries"]["captured"] > 0


@pytest.mark.parametrize("mode", ["per-worker", "binaries"])
def test_identifiers_and_then_no_spirv(call: Call, small_set: Path, tmp_path: Path, mode: str) -> None:
    arguments = (small_set, "--identifiers", "--cache-dir", tmp_path / "cache", "--mode", mode)
    first = compile_json(call, *arguments)
    created = first["outcomes"]["compiled"] + first["outcomes"]["cache_hits"]
    assert first["identifiers"]["asked"] == first["identifiers"]["modules"] > 0
    second = compile_json(call, *arguments)
    assert second["outcomes"]["cache_hits"] == created
    told = second["identifiers"]
    assert told["known"] == told["modules"] == first["identifiers"]["modules"]
    assert (told["created"], "missed" in told, "asked" in told) == (created, False, False)
    done = call("compile", *arguments, *HERE, "-v")
    assert f"modules {told['modules']}, known {told['modules']}, created {created}" in done.out


def test_what_a_time_limit_leaves_the_next_run_does(call: Call, small_set: Path, tmp_path: Path) -> None:
    arguments = ("compile", small_set, *HERE, "--cache-dir", tmp_path / "cache")
    limited = (*arguments, "--time-budget", "0.001ms")
    first = call(*limited, "--json")
    assert first.code == ExitCode.OUT_OF_TIME
    document = first.document
    check_outcomes(document)
    assert document["stopped"]
    assert document["out_of_time"]
    assert any("run again" in note for note in document["notes"])
    left = "were not begun, whether the cache holds them or not; run it again"
    shown, still = call(*limited), call(*limited, "-q")
    assert left in shown.out
    assert (still.code, still.out) == (ExitCode.OUT_OF_TIME, "")
    assert left in still.err
    second = call(*arguments, "--time-limit", "1h", "--json")
    assert second.code == ExitCode.OK
    assert not second.document["out_of_time"]
    assert second.document["outcomes"]["compiled"] > 0
    assert second.document["outcomes"]["compiled"] <= document["outcomes"]["not_run"]


def test_shards_make_up_the_set(call: Call, small_set: Path, tmp_path: Path) -> None:
    whole = compile_json(call, small_set, "--cache-dir", tmp_path / "whole")
    assert whole["set"]["subset"] is None
    together = dict.fromkeys(whole["outcomes"], 0)
    for number in (1, 2):
        part = compile_json(call, small_set, "--shard", f"{number}/2", "--cache-dir", tmp_path / "parts")
        subset = {"shard": number, "shards": 2, "keys": None, "of": whole["set"]["unique"]}
        assert part["set"]["subset"] == subset
        assert 0 < part["set"]["unique"] < whole["set"]["unique"]
        for name, count in part["outcomes"].items():
            together[name] += count
    assert together == whole["outcomes"]
    again = compile_json(call, small_set, "--cache-dir", tmp_path / "parts")
    assert again["outcomes"]["cache_hits"] == handed_over(again)
    shown = call("compile", small_set, *HERE, "--shard", "1/2", "--mode", "none")
    assert f"of {whole['set']['unique']} pipelines" in shown.out
    assert "shard 1/2" in shown.out


def test_an_archive_and_its_manifest_are_the_same_set(call: Call, tmp_path: Path) -> None:
    manifest, archive = tmp_path / "game.toml", tmp_path / "game.foz"
    (tmp_path / "blur.spv").write_bytes(BLUR.read_bytes())
    manifest.write_text('manifest = 1\n[compute.blur]\nshader = "blur.spv"\n')
    assert call("pack", manifest, "-o", archive).code == ExitCode.OK
    compile_json(call, archive, "--cache-dir", tmp_path / "cache")
    document = compile_json(call, manifest, "--cache-dir", tmp_path / "cache")
    assert document["outcomes"]["cache_hits"] == handed_over(document)


def test_for_people(call: Call, small_set: Path, tmp_path: Path) -> None:
    arguments = ("compile", small_set, "-d", "simulated", "-j", "2", "--cache-dir", tmp_path)
    first, second = call(*arguments, "--in-process"), call(*arguments)
    assert first.code == second.code == ExitCode.OK
    for word in ("compiled", "cache hits", "cache file", "MISSING: a first run", "time"):
        assert word in first.out
    assert "LOADED" in second.out
    assert len((first.out + first.err).splitlines()) <= 25
    full = call(*arguments, "-v", "--in-process").out
    assert all(word in full for word in ("opened as", "\nmerge ", "\ntimes ", "\nprocess "))
    assert "\x1b" not in first.out + first.err
    assert "\r" not in first.out + first.err
    assert first.err.splitlines()[0] == "reading the set"


def test_a_damaged_pipeline_fails_alone(call: Call, damaged_set: tuple[Path, int], tmp_path: Path) -> None:
    path, key = damaged_set
    document = compile_json(call, path, "--cache-dir", tmp_path, code=ExitCode.PIPELINES_FAILED)
    (failed,) = document["failed"]
    assert failed["key"] == f"{key:016x}"
    assert failed["kind"] == "compute"
    assert document["outcomes"]["compiled"] == handed_over(document) - 1
    assert document["set"]["damage"][0]["key"] == f"{key:016x}"
    shown = call("compile", path, *HERE, "--cache-dir", tmp_path)
    assert shown.code == ExitCode.PIPELINES_FAILED
    assert f"{key:016x}" in shown.out
    assert "damage in the set: 1 place" in shown.out
    assert "so some pipelines were not compiled" in shown.out.splitlines()[-1]
    still = call("compile", path, *HERE, "--cache-dir", tmp_path, "-q")
    assert (still.code, still.out) == (ExitCode.PIPELINES_FAILED, "")
    assert "failed: 1 pipeline;" in still.err


def test_another_driver_version_needs_to_be_relaxed(call: Call, small_set: Path, tmp_path: Path) -> None:
    first = compile_json(call, small_set, "--cache-dir", tmp_path)
    path = Path(first["cache_file"]["path"])
    mine = simulated_identity()
    data = read_cache_file(path, mine).data
    path.unlink()
    save_cache_file(path, evolve(mine, driver_version=mine.driver_version + 1), data)
    relaxed = compile_json(call, small_set, "--cache-dir", tmp_path, "--relax-driver-version")
    assert relaxed["cache_file"]["load_status"] == "LOADED"
    assert relaxed["outcomes"]["compiled"] == 0
    refused = compile_json(call, small_set, "--cache-dir", tmp_path)
    assert refused["cache_file"]["load_status"] == "OTHER_DRIVER"
    assert refused["outcomes"]["compiled"] > 0


def test_no_such_device(call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_VULKAN_LIBRARY", str(tmp_path / "libvulkan.so.1"))
    from orchestrator.devices.vulkan.instance import library

    library.cache_clear()
    done = call("compile", small_set, "--cache-dir", tmp_path / "cache", "--json")
    assert done.code == ExitCode.NO_DEVICE
    assert done.document["error"]["kind"] == "no_device"


def test_the_default_directory(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    document = compile_json(call, small_set)
    assert Path(document["cache_file"]["path"]).is_relative_to(tmp_path / "home" / "orchestrator")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_it_in_order(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    stage = progress_module.PlainView.stage

    def interrupt(self: progress_module.PlainView, name: str) -> None:
        stage(self, name)
        if name == "reading the set":
            signal.raise_signal(number)

    monkeypatch.setattr(progress_module.PlainView, "stage", interrupt)
    # In this process: a child would go on while the signal is on its way.
    done = call("compile", small_set, *HERE, "--cache-dir", tmp_path, "--json", "-j", "32")
    assert done.code == ExitCode.INTERRUPTED
    assert done.err.startswith("stopping: ")
    document = done.document
    check_outcomes(document)
    assert document["stopped"] is True
    # The signal came before the run, so nothing begins, however many workers there are.
    assert document["outcomes"]["not_run"] == handed_over(document)
    shown = call("compile", small_set, *HERE, "--cache-dir", tmp_path)
    assert shown.code == ExitCode.INTERRUPTED
    assert "not run" in shown.out
    assert "run it again" in shown.out
    assert len(shown.out.splitlines()) <= 5


def test_what_was_compiled_before_a_signal_is_saved(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = progress_module.PlainView.progress
    sent: list[int] = []

    def interrupt(self: progress_module.PlainView, news: Any, targets: str = "") -> None:
        progress(self, news, targets)
        if news.compiled and not sent:
            sent.append(news.compiled)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(progress_module.PlainView, "progress", interrupt)
    done = call("compile", small_set, "-d", "simulated", "--cache-dir", tmp_path, "--json")
    assert sent
    assert done.document["cache_file"]["saved_bytes"] > 0


def test_a_signal_before_the_run_ends_cleanly(
    call: Call, small_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "usable_directory", lambda _: signal.raise_signal(signal.SIGTERM))
    with interrupted_by_signals():
        done = call("compile", small_set, *HERE, "--json")
    assert done.code == ExitCode.INTERRUPTED
    assert done.document["error"]["kind"] == "interrupted"
    assert "Traceback" not in done.err


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_while_the_report_is_written_lets_it_end(
    signals: int, call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = write_document

    def interrupted(encoded: bytes) -> None:
        monkeypatch.setattr(compiling, "write_document", write)
        for _ in range(signals):
            signal.raise_signal(signal.SIGINT)
        write(encoded)

    monkeypatch.setattr(compiling, "write_document", interrupted)
    with interrupted_by_signals():
        done = call("compile", small_set, *HERE, "--cache-dir", tmp_path, "--json")
    if signals == 1:
        assert done.code == ExitCode.OK
        assert done.document["outcomes"]["compiled"]
    else:
        assert done.code == ExitCode.INTERRUPTED
        assert "the compile had ended and saved before that" in done.err


def test_what_is_written_beside_a_report_does_not_need_its_reader(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(compiling, "write_document", gone)
    trace = tmp_path / "trace.json"
    done = call("compile", small_set, *HERE, "--mode", "none", "--json", "--trace", trace)
    assert done.code == ExitCode.BROKEN_PIPE
    assert json.loads(trace.read_bytes())


def test_a_signal_that_the_caller_ignores_stays_ignored(call: Call, small_set: Path, tmp_path: Path) -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in ending_signals()
        with interrupted_by_signals():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_damage_in_a_set_is_an_exit_code_and_a_last_line(call: Call, cut_set: Path, tmp_path: Path) -> None:
    arguments = ("compile", cut_set, *HERE, "--cache-dir", tmp_path)
    done = call(*arguments)
    assert done.code == ExitCode.PIPELINES_FAILED
    last = done.out.splitlines()[-1]
    assert last.startswith("damaged: 1 place of the set could not be read")
    assert "may lack pipelines" in last  # none that is left failed
    assert "--allow-damaged" in last
    still = call(*arguments, "-q")
    assert (still.code, still.out) == (ExitCode.PIPELINES_FAILED, "")
    assert last in still.err
    allowed = call(*arguments, "--allow-damaged")
    assert allowed.code == ExitCode.OK
    assert allowed.out.splitlines()[-1].startswith("damaged: 1 place")
    assert call(*arguments, "--json").document["set"]["damage"]


def test_what_could_not_be_saved_is_exit_code_2_and_the_last_line(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "LAST_LOCK_WAIT_S", 0.0)
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    with writer_lock(cache_path(folder, simulated_identity())):
        # In this process, which waits for no lock.
        arguments = (small_set, "--cache-dir", folder)
        done = call("compile", *arguments, *HERE)
        assert done.code == ExitCode.BAD_INPUT
        last = done.out.splitlines()[-1]
        assert last.startswith("not saved, and lost: ")
        words = "another process is saving this file"
        assert words in last
        document = compile_json(call, *arguments, code=ExitCode.BAD_INPUT)
        assert words in document["cache_file"]["error"]


def test_a_directory_that_others_may_write_is_refused_before_the_work_as_doctor_says(
    call: Call, small_set: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o770)
    done = call("compile", small_set, *HERE, "--cache-dir", folder)
    assert done.code == ExitCode.BAD_INPUT
    assert done.out == ""
    advice = f"may be written by its group (mode 0770); mend: chmod go-w {folder}"
    assert advice in done.err
    assert advice in call("doctor", "-d", "simulated", "--cache-dir", folder).out


def test_a_timeline_has_what_a_compile_does(call: Call, small_set: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    done = call("compile", small_set, *HERE, "-j", "2", "--cache-dir", tmp_path / "c", "--trace", trace)
    assert done.code == 0, done.err
    events = [each for each in json.loads(trace.read_bytes())["traceEvents"] if each["ph"] == "X"]
    names = {each["name"] for each in events}
    assert {"open device", "prepare", "load cache file", "save cache file", "merge"} <= names
    calls = [each for each in events if each["cat"] == "call"]
    assert (
        sum(each["args"]["pipelines"] for each in calls)
        == call("list", small_set, "--json").document["set"]["unique"]
    )
    save, merge = (
        next(each for each in events if each["name"] == name) for name in ("save cache file", "merge")
    )
    assert all(each["ts"] + each["dur"] <= merge["ts"] for each in calls)
    assert merge["ts"] + merge["dur"] <= save["ts"]


def test_statistics_of_a_driver_that_has_none_are_those_of_its_binaries(
    call: Call, small_set: Path, tmp_path: Path
) -> None:
    file = tmp_path / "s.csv"
    done = call("compile", small_set, *HERE, "--pipeline-stats", file, "--json")
    assert (done.code, done.document["mode"]) == (0, "none")
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len({each["Pipeline hash"] for each in rows}) == len(rows) == done.document["set"]["unique"]
    assert all(int(each["Binary size"]) > 0 and each["Binary hash"].startswith("0x") for each in rows)
    found = call("regress", file, file, "--fail-on", "any", "--json").document["comparisons"][0]
    assert (found["identical"], found["total"]["executables"]) == (True, len(rows))


def test_what_cannot_be_written_in_the_end_costs_no_report(
    call: Call, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object) -> int:
        raise SaveError(path, "write", "No space left on device")

    monkeypatch.setattr(atomic_file, "write_atomically", full)
    trace = tmp_path / "trace.json"
    arguments = ("compile", small_set, *HERE, "--mode", "none", "--trace", trace)
    shown = call(*arguments)
    assert shown.code == ExitCode.BAD_INPUT
    assert "pipelines" in shown.out
    words = f"--trace {trace}: cannot be written: No space left on device"
    assert words in shown.err
    assert "send the output elsewhere" in shown.err
    done = call(*arguments, "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert done.document["outcomes"]["compiled"] > 0


def test_a_cache_of_one_set_alone(call: Call, small_set: Path, tmp_path: Path) -> None:
    """What the cache file holds of other sets goes, once all was compiled; a pack never has it."""
    part, folder, pack = tmp_path / "part.foz", tmp_path / "cache", tmp_path / "pack"
    write_small_set(part, 0, 4)

    def size_after(path: Path, *options: str) -> int:
        options = ("-d", "simulated", "--in-process", "--cache-dir", str(folder), *options)
        assert call("compile", path, *options).code == ExitCode.OK
        (saved,) = folder.glob("*.pipeline-cache")
        return saved.stat().st_size

    whole = size_after(small_set)
    assert size_after(part) == whole
    alone = size_after(part, "--only-these")
    assert alone < whole / 2
    assert call("prune", "--cache-dir", folder).code == ExitCode.OK
    again = call("compile", part, "-d", "simulated", "--in-process", "--cache-dir", folder, "--only-these")
    assert re.search(r"compute +4 +0 +4 +0 +0", again.out)  # the file is known to hold no others
    for path in (small_set, part):
        assert call("compile", path, "-d", "simulated", "--out", pack).code == ExitCode.OK
    (packed,) = pack.glob("*.pipeline-cache")
    assert packed.stat().st_size == alone
    assert call("verify", pack).code == ExitCode.OK
    for wrong in (("--shard", "1/2"), ("--only", "0" * 16), ("--mode", "none")):
        assert call("compile", part, "-d", "simulated", "--only-these", *wrong).code == ExitCode.BAD_INPUT
