"""Packs joined and installed: by the driver, in a process of its own, and of one driver only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from attrs import evolve
from msgspec.structs import replace

from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions, simulated_identity
from orchestrator.devices.simulated.options import without_bumped_uuid
from orchestrator.errors import ArchiveError, DeviceError
from orchestrator.packs.driver import Installed, install
from orchestrator.packs.growing import GrowingPack, part_of
from orchestrator.packs.joining import join_packs
from orchestrator.run.compile import compile_set
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import CacheFileRecord, CompileReport, OutcomeStatus
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.prepare import DeviceOpener
from orchestrator.sets.subset import WHOLE, Subset
from orchestrator.stores.binary_export import import_binaries
from orchestrator.stores.binary_store import BinaryStore
from orchestrator.stores.cache_file import PREFIX_HEADER_SIZE, save_cache_file, stored_data_hash
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.pack import Pack, PackError, PackManifest, PackTarget, PackWriter, manifest_of
from orchestrator.stores.profile_file import ProfileIdentity
from orchestrator.stores.run_notes import CONTENTS, add_contents
from orchestrator.stores.signing import PublicKey, SigningKey
from orchestrator.supervise.targets import TargetResult
from tests.packs import openers
from tests.packs.openers import OTHER_DRIVER, other_driver
from tests.run.small_sets import write_small_set
from tests.stores.faults.sets import IDENTITY, OLD, OURS, UNION, data_of, keys_in, loaded_keys, path_in
from tests.stores.packs import KEY, TRUST, make_pack, part
from tests.stores.stored import forget

OPENERS = openers.__name__
SET: list[Path] = []
KEYS: list[int] = []


@pytest.fixture(scope="module", autouse=True)
def small_set(tmp_path_factory: pytest.TempPathFactory) -> None:
    SET[:] = [tmp_path_factory.mktemp("set") / "small.foz"]
    KEYS[:] = sorted(write_small_set(SET[0], 0, 9))


def report_of(
    directory: Path,
    keys: Collection[int] = (),
    opener: DeviceOpener | None = None,
    archive: Path | None = None,
    **options: Any,
) -> CompileReport:
    """A set, else a small one, compiled for a simulated device, or those keys of it."""
    subset = Subset(keys=frozenset(keys)) if keys else WHOLE
    given: dict[str, Any] = {"selector": "simulated", "subset": subset, **options}
    with PipelineSet.open(archive or SET[0]) as opened:
        return trio.run(
            partial(
                compile_set,
                opened,
                CompileOptions(**dict[str, Any](mode="per-worker") | given),
                cache_directory=directory,
                opener=opener,
            )
        )


def grown(
    place: Path, results: Mapping[str, CompileReport | str | None], key: SigningKey | None = None
) -> PackManifest:
    """Grow a pack by these targets: their reports, why they did not open, or None: not begun."""
    ended = [
        TargetResult(each)
        if of is None
        else TargetResult(each, error=DeviceError(of))
        if isinstance(of, str)
        else TargetResult(each, of)
        for each, of in results.items()
    ]
    return GrowingPack.begin(place, key, [*results]).finish(ended)


def pack_one(place: Path, report: CompileReport, key: SigningKey | None = None) -> PackTarget:
    (target,) = grown(place, {"simulated": report}, key).targets
    return target


def installed(pack: Pack, place: Path, **more: Any) -> Installed:
    return install(pack, "simulated", place, **more)[1]


def held(pack: Pack) -> frozenset[int]:
    (one,) = pack.manifest.targets
    return keys_in(pack.read_cache(one)[PREFIX_HEADER_SIZE:])


def states(pack: Path, trust: PublicKey | None = None) -> dict[str, tuple[bool, str]]:
    opened = Pack.open(pack, trust)
    assert list(opened.problems()) == []
    return {each.selector: (each.cache is not None, each.problem) for each in opened.manifest.targets}


UNFINISHED = (False, "not finished: run the same `compile --out` again")


def test_a_pack_has_at_every_moment_what_was_finished(tmp_path: Path) -> None:
    place, selectors = tmp_path / "pack", ("simulated", "other", "gone")

    def result(selector: str) -> TargetResult:
        opener = other_driver if selector == "other" else lambda _: SimulatedDevice()
        return TargetResult(selector, report_of(place, opener=opener))

    def there() -> dict[str, tuple[bool, str]]:
        return states(place, TRUST)

    pack = GrowingPack.begin(place, KEY, selectors)
    assert there() == dict.fromkeys(selectors, UNFINISHED)
    first = result("simulated")
    pack.take(first)
    assert there() == {"simulated": (True, ""), "other": UNFINISHED, "gone": UNFINISHED}
    # The same command goes on; what it compiles again is not in the pack until it is finished.
    pack = GrowingPack.begin(place, KEY, selectors)
    assert there() == dict.fromkeys(selectors, UNFINISHED)
    again = result("simulated")
    assert again.report is not None
    assert again.report.outcomes.compiled == 0
    pack.take(again)
    pack.take(result("other"))
    gone = TargetResult("gone", error=DeviceError("it is not here"))
    manifest = pack.finish([again, gone])
    assert there() == {"simulated": (True, ""), "other": (True, ""), "gone": (False, "it is not here")}
    assert manifest.targets == Pack.open(place, TRUST).manifest.targets
    # One that does not open this time stays what it was, and so does one that is not asked for.
    pack = GrowingPack.begin(place, KEY, ["simulated"])
    stays = {"other": (True, ""), "gone": (False, "it is not here")}
    assert there() == {"simulated": UNFINISHED, **stays}
    pack.finish([TargetResult("simulated", error=DeviceError("it is not here"))])
    assert there() == {"simulated": (True, ""), **stays}


def test_a_driver_whose_file_has_the_name_of_the_old_one_replaces_it(tmp_path: Path) -> None:
    for version in (1, 2):
        identity = without_bumped_uuid(simulated_identity(driver_version=version))
        device = SimulatedDevice(SimulatedOptions(identity=identity))
        target = pack_one(tmp_path, report_of(tmp_path, opener=lambda _, device=device: device))  # type: ignore[misc]
        assert states(tmp_path) == {"simulated": (True, "")}
        assert target.identity == ProfileIdentity.of(identity)


def test_what_is_compiled_under_another_name_is_unfinished_too(tmp_path: Path) -> None:
    make_pack(tmp_path, OLD)
    GrowingPack.begin(tmp_path, None, ["0", "radv:navi21"])
    report = report_of(tmp_path)  # killed here, when the cache file has changed
    assert states(tmp_path)["simulated"] == UNFINISHED
    (unopened, target) = grown(tmp_path, {"0": report}).targets
    assert states(tmp_path) == {"0": (True, ""), "radv:navi21": UNFINISHED}
    assert (unopened.parts, len(target.parts)) == ((), 2)
    # A family has one name, in any case, so another one is another device.
    GrowingPack.begin(tmp_path, None, ["radv:NAVI31"])
    assert states(tmp_path)["0"] == (True, "")


def test_a_file_that_is_not_what_it_was_costs_its_target_alone(tmp_path: Path) -> None:
    one = make_pack(tmp_path / "one", OLD)
    two = make_pack(tmp_path / "two", OLD, identity=OTHER_DRIVER, selector="other")
    place = tmp_path / "all"
    join_packs([one, two], place)
    save_cache_file(path_in(place), IDENTITY, data_of(OURS))
    grown(place, {"late": None, "gone": "it is not here"})
    others = {
        "other": (True, ""),
        "late": (False, "stopped before its turn"),
        "gone": (False, "it is not here"),
    }
    assert states(place) == {"simulated": UNFINISHED, **others}
    grown(place, {"simulated": report_of(place)})
    assert states(place) == {"simulated": (True, ""), **others}


def packed_binaries(directory: Path, keys: Collection[int] = ()) -> Pack:
    place = directory.with_name(f"{directory.name}-cache")
    pack_one(directory, report_of(place, keys, mode=CacheMode.BINARIES), KEY)
    return Pack.open(directory, TRUST)


def binaries_in(pack: Pack, place: Path) -> set[bytes]:
    """State keys of the pipelines that a pack has binaries of, by way of a store."""
    (target,) = pack.manifest.targets
    with BinaryStore.open(place) as store:
        import_binaries(store, place, content=pack.read_binaries(target), unsigned=True)
        (generation,) = (each.about for each in store.statistics().generations)
        return {each.state_key for each in store.pipelines(generation)}


def test_binaries_are_packed_joined_and_installed(tmp_path: Path) -> None:
    one = packed_binaries(tmp_path / "one", KEYS[:5])
    two = packed_binaries(tmp_path / "two", KEYS[3:])
    (joined,) = join_packs([one, two], tmp_path / "all", key=KEY)
    assert (joined.merged, joined.packs) == (False, (one.directory, two.directory))
    pack = Pack.open(tmp_path / "all", TRUST)
    assert list(pack.problems()) == []
    suffixes = {each.name.rpartition(".")[2] for each in pack.manifest.targets[0].files}
    assert suffixes == {"binaries", "notes"}
    found = [binaries_in(each, tmp_path / f"store-{number}") for number, each in enumerate((one, two, pack))]
    assert found[0] - found[1]
    assert found[1] - found[0]
    assert found[2] == found[0] | found[1]
    player = tmp_path / "player"
    done = installed(pack, player)
    assert (done.target, done.binaries, done.saved_bytes) == (0, len(found[2]), 0)
    assert done.binaries_new > 0
    assert installed(pack, player).binaries_new == 0
    # What is compiled into a pack that has binaries already is added to them.
    target = pack_one(tmp_path / "all", report_of(tmp_path / "all"), KEY)
    assert target.cache is not None
    assert target.binaries == pack.manifest.targets[0].binaries
    assert list(Pack.open(tmp_path / "all", TRUST).problems()) == []


def test_damaged_and_foreign_binaries_are_refused(tmp_path: Path) -> None:
    pack = packed_binaries(tmp_path / "pack")
    (target,) = pack.manifest.targets
    assert target.binaries is not None
    path = pack.directory / target.binaries.name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert [each for each, _ in pack.problems()] == [path]
    # Whole as a file, cut as a pack of binaries; whole, and of another device.
    writer = PackWriter(tmp_path / "cut")
    writer.prepare()
    cut = replace(target, files=(writer.add(path.name, whole[:-40]),))
    writer.finish(manifest_of([cut]))
    ((_, reason),) = Pack.open(tmp_path / "cut").problems()
    assert "at byte" in reason
    other = PackWriter(tmp_path / "other")
    other.prepare()
    foreign = replace(target, identity=ProfileIdentity.of(OTHER_DRIVER), files=(other.add(path.name, whole),))
    other.finish(manifest_of([foreign]))
    ((_, reason),) = Pack.open(tmp_path / "other").problems()
    assert "of another device than its target" in reason
    with pytest.raises(PackError, match="of another device"):
        join_packs([Pack.open(tmp_path / "other")], tmp_path / "joined")
    with pytest.raises(PackError, match="of another device"):
        install(Pack.open(tmp_path / "other"), "", tmp_path / "player", opener=f"{OPENERS}:other_driver")


def test_two_names_of_one_device_are_one_target(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    assert [each.selector for each in grown(tmp_path, {"one": report, "two": report}).targets] == ["two"]


def test_what_a_stopped_run_did_not_try_stays_in_its_pack(tmp_path: Path) -> None:
    place = tmp_path / "pack"

    async def stopped() -> CompileReport:
        stop = trio.Event()
        stop.set()
        with PipelineSet.open(SET[0]) as opened:
            return await compile_set(
                opened,
                CompileOptions(mode="per-worker", selector="simulated"),
                cache_directory=place,
                stop=stop,
            )

    def packed(report: CompileReport) -> tuple[int, int]:
        target = pack_one(place, report)
        return target.count("created"), target.count("not_run")

    created, not_run = packed(report_of(place))
    assert (created > 0, not_run) == (True, 0)
    report = trio.run(stopped)
    assert report.counts()[OutcomeStatus.NOT_RUN] >= created
    assert packed(report) == (created, 0)


def test_what_was_not_saved_is_left_out(tmp_path: Path) -> None:
    path, report = path_in(tmp_path), report_of(tmp_path)
    failed = replace(report, cache_file=replace(report.cache_file, error="No space left on device"))

    def packed(held: list[int] | None, data_hash: bytes | None = None) -> tuple[int, int]:
        if held is not None:
            forget(path.parent, CONTENTS)
            add_contents(path, np.array(held, np.uint64), data_hash or stored_data_hash(path) or b"")
        target = pack_one(tmp_path, failed)
        reasons = [each.reason for each in target.parts[0].left_out]
        assert any("not saved: No space left" in each for each in reasons) == bool(target.count("not_run"))
        (tmp_path / "manifest.json").unlink()
        return target.count("created"), target.count("not_run")

    created, none = packed(None)
    assert (created > 0, none) == (True, 0)
    some = KEYS[: created // 2]
    assert packed(some) == (len(some), created - len(some))
    assert packed(some, bytes(16)) == (0, created)  # what another file held says nothing
    path.unlink()
    assert packed(None) == (0, created)


def test_a_reason_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    error = SaveError(path, "replacing", f"Permission denied: {tmp_path} has mode 555")
    words = f"{path.name}: replacing failed: Permission denied: {tmp_path.name} has mode 555; what was there"
    report = report_of(tmp_path)
    failed = replace(report, cache_file=replace(report.cache_file, error=str(error)))
    forget(path.parent, CONTENTS)
    (left_out,) = pack_one(tmp_path, failed).parts[0].left_out
    assert left_out.reason.startswith(f"not saved: {words}")
    path.unlink()
    without_files = pack_one(tmp_path, failed)
    assert without_files.problem.startswith(words)
    unread = ArchiveError(str(tmp_path / "game.foz"), 0, "it is empty")
    results = [TargetResult("gone", error=error), TargetResult("unread", error=unread)]
    made = GrowingPack.begin(tmp_path, None, ["gone", "unread"]).finish(results)
    problems = {each.selector: each.problem for each in made.targets}
    assert problems["gone"] == without_files.problem
    assert problems["unread"] == "game.foz: it is empty"


def test_what_is_compiled_alone_again_counts_once(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    places = [int(np.flatnonzero(report.pipelines.keys == key)[0]) for key in KEYS[:2]]
    report.pipelines.settle(OutcomeStatus.FAILED, dict.fromkeys(places, "the driver"))

    def packed(report: CompileReport) -> tuple[int, int]:
        target = pack_one(tmp_path, report)
        return target.count("created"), target.count("failed")

    created = report.counts()[OutcomeStatus.COMPILED] + report.counts()[OutcomeStatus.CACHE_HIT]
    assert packed(report) == (created, 2)
    assert packed(report_of(tmp_path, KEYS[5:6])) == (created, 2)
    assert packed(report_of(tmp_path, KEYS[:1])) == (created + 1, 1)


def test_a_cache_that_was_not_touched_stays_in_its_pack(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, OLD)
    report = report_of(tmp_path / "elsewhere")
    for mode in (CacheMode.PER_WORKER, CacheMode.BINARIES):
        nothing = replace(report, cache_file=CacheFileRecord(), mode=mode)
        target = pack_one(tmp_path, nothing)
        assert target.cache == pack.manifest.targets[0].cache
        assert target.count("created") == pack.manifest.targets[0].count("created")


def test_one_process_writes_a_pack(tmp_path: Path) -> None:
    with GrowingPack.writing(tmp_path, None, ["one"]):
        with pytest.raises(PackError, match="another process writes") as told:
            GrowingPack.writing(tmp_path, None, ["two"]).__enter__()
        assert "merge" in told.value.next_step
    with GrowingPack.writing(tmp_path, None, ["two"]) as pack:
        pack.finish([TargetResult("two")])


def test_nothing_of_a_target_is_installed_where_a_file_of_it_is_lost(tmp_path: Path) -> None:
    place = tmp_path / "pack"
    packed_binaries(place)
    target = pack_one(place, report_of(place), KEY)
    for lost in (target.notes, target.binaries):
        assert lost is not None
        path = place / lost.name
        path.rename(tmp_path / "lost")
        with pytest.raises(PackError) as caught:
            install(Pack.open(place), "simulated", tmp_path / "player")
        assert caught.value.path == path
        (tmp_path / "lost").rename(path)
    assert not list((tmp_path / "player").glob("*"))


def test_one_cache_is_copied_and_needs_no_device(tmp_path: Path) -> None:
    one = make_pack(tmp_path / "one", OLD)
    other = make_pack(tmp_path / "two", OLD, identity=OTHER_DRIVER, selector="elsewhere")
    no_device = f"{OPENERS}:gone"
    joined = join_packs([one, other, one], tmp_path / "all", opener=no_device)
    assert [(each.target.selector, each.merged) for each in joined] == [
        ("simulated", False),
        ("elsewhere", False),
    ]
    pack = Pack.open(tmp_path / "all")
    assert list(pack.problems()) == []
    assert pack.read_cache(pack.manifest.targets[0]) == one.read_cache(one.manifest.targets[0])
    assert pack.manifest.target_of(ProfileIdentity.of(OTHER_DRIVER)) is pack.manifest.targets[1]


def damaged(place: Path) -> Pack:
    pack = make_pack(place, OURS)
    path_in(place).write_bytes(path_in(place).read_bytes()[:-1] + b"?")
    return pack


def newer(place: Path) -> Pack:
    return make_pack(place, OURS, identity=evolve(IDENTITY, driver_version=IDENTITY.driver_version + 1))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda place: make_pack(place, OURS, identity=OTHER_DRIVER, parts=[part(shard=2, shards=2)]),
            r"another driver than in .*one: driverVersion is 0x2, not 0x1",
        ),
        # Drivers that differ in their version alone have one name for their files.
        (newer, r"has the name of another driver's in .*one"),
        (damaged, r"two/.*: it is damaged"),
    ],
    ids=["shards of another driver", "files of one name", "damaged"],
)
def test_a_pack_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, make: Callable[[Path], Pack], why: str
) -> None:
    one = make_pack(tmp_path / "one", OLD, parts=[part(shard=1, shards=2)])
    two = make(tmp_path / "two")
    with pytest.raises(PackError, match=why) as caught:
        join_packs([one, two], tmp_path / "all")
    assert caught.value.path.is_relative_to(two.directory)
    assert not (tmp_path / "all").exists()


def test_a_machine_with_another_driver_cannot_join_them(tmp_path: Path) -> None:
    one, two = make_pack(tmp_path / "one", OLD), make_pack(tmp_path / "two", OURS)
    with pytest.raises(PackError, match="foreign to them: driverVersion is 0x2, not 0x1"):
        join_packs([one, two], tmp_path / "all", opener=f"{OPENERS}:other_driver")
    assert not (tmp_path / "all" / "manifest.json").exists()


def test_a_pack_is_joined_only_into_a_place_of_its_own(tmp_path: Path) -> None:
    one, (there, link) = make_pack(tmp_path / "one", OLD), (tmp_path / "there", tmp_path / "link")
    there.mkdir()
    (there / "mine").write_text("")
    link.symlink_to(one.directory)
    for output, why in (
        (there, "there is something already"),
        (one.directory / "sub", "it lies in the pack"),
        (link / "sub", "it lies in the pack"),
    ):
        with pytest.raises(PackError, match=why) as caught:
            join_packs([one], output)
        assert caught.value.path == output
    assert [each.name for each in there.iterdir()] == ["mine"]
    assert not (link / "sub").exists()


@pytest.mark.parametrize("mode", [CacheMode.PER_WORKER, CacheMode.BINARIES])
def test_pipelines_that_two_sets_share_count_once(tmp_path: Path, mode: CacheMode) -> None:
    shared, both = tmp_path / "shared", []
    for first in (0, 2):
        archive = tmp_path / f"{first}.foz"
        write_small_set(archive, first, first + 4)
        for place in (shared, tmp_path / f"own-{first}"):
            pack_one(place, report_of(place, archive=archive, mode=mode))
        both.append(Pack.open(place))
    (own,) = Pack.open(shared).manifest.targets
    (joined,) = join_packs(both, tmp_path / "joined")
    (copied,) = join_packs([Pack.open(tmp_path / "joined")], tmp_path / "copied")
    for target in (own, joined.target, copied.target):
        assert [each.created for each in target.parts] == [4, 4]
        assert target.count("created") == 6


def test_of_two_merges_to_one_place_one_is_refused(tmp_path: Path) -> None:
    one, two = make_pack(tmp_path / "one", OLD), make_pack(tmp_path / "two", OURS)
    place, refused = tmp_path / "all", []

    def meanwhile(_: PackTarget) -> None:
        with pytest.raises(PackError, match="another process writes this pack") as caught:
            join_packs([two], place)
        refused.append(caught.value)

    join_packs([one], place, on_target=meanwhile)
    assert len(refused) == 1
    assert held(Pack.open(place)) == OLD
    with pytest.raises(PackError, match="there is something already"):
        join_packs([two], place)


def test_a_merge_that_failed_or_was_killed_can_be_run_again(tmp_path: Path) -> None:
    packs = [make_pack(tmp_path / "one", OLD, KEY), make_pack(tmp_path / "two", OURS, KEY)]
    left = tmp_path / ".all.merging"
    with pytest.raises(DeviceError):
        join_packs(packs, tmp_path / "all", opener=f"{OPENERS}:dying_driver")
    left.mkdir(mode=0o700)
    (left / "x.binaries").write_bytes(b"a part")
    join_packs(packs, tmp_path / "all", key=KEY)
    assert not left.exists()
    pack = Pack.open(tmp_path / "all", TRUST)
    assert pack.strays() == ["manifest.json.lock"]
    assert held(pack) == UNION
    with pytest.raises(PackError):
        Pack.open(tmp_path / "all", SigningKey().public)
    GrowingPack.begin(packs[0].directory, KEY, ["simulated"])  # what is not finished is not joined
    unfinished = Pack.open(packs[0].directory, TRUST)
    join_packs([unfinished, packs[1]], tmp_path / "finished", key=KEY)
    assert held(Pack.open(tmp_path / "finished")) == OURS


def test_what_was_there_stays_and_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    pack, path = make_pack(tmp_path / "pack", OLD), path_in(tmp_path / "player")
    save_cache_file(path, IDENTITY, data_of(OURS))
    done = installed(pack, path.parent)
    assert done.bytes_before == len(data_of(OURS))
    assert loaded_keys(path)[0] == UNION
    content = bytearray(path.read_bytes())
    content[8] = 99
    path.write_bytes(content)
    done = installed(pack, path.parent)
    assert done.saved_bytes
    moved, refused = done.notes
    assert "not used: UNSUPPORTED_VERSION: format version 99" in refused
    assert f"{path} was UNSUPPORTED_VERSION, and is now {path.parent / 'quarantine'}" in moved


def test_what_the_driver_drops_or_dies_of_is_not_installed(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", OLD)
    with pytest.raises(PackError, match="and kept 32, without an error"):
        install(pack, "simulated", tmp_path / "cache", opener=f"{OPENERS}:dropping_driver")
    with pytest.raises(DeviceError, match=r"installing .* for simulated device.*signal 11"):
        install(pack, "simulated", tmp_path / "cache", opener=f"{OPENERS}:dying_driver")
    assert not (tmp_path / "cache").exists()


def test_shards_of_a_real_set_add_up_to_the_whole(tmp_path: Path) -> None:
    packs = []
    for shard in (1, 2):
        directory = tmp_path / f"machine{shard}"
        report = report_of(directory, workers=2, subset=Subset(shard, 2))
        pack_one(directory, report)
        packs.append(Pack.open(directory))
        assert part_of(report).shard == shard
    (joined,) = join_packs(packs, tmp_path / "all")
    assert sum(each.pipelines for each in joined.target.parts) == len(KEYS)
    install(Pack.open(tmp_path / "all"), "simulated", tmp_path / "player")
    report = report_of(tmp_path / "player", workers=2, mode=None)
    assert report.outcomes.compiled == 0
    assert report.outcomes.cache_hits == joined.target.count("created")
    # Times of both machines came along, and which pipelines the cache file holds: they need no copies of it.
    notes = Pack.open(tmp_path / "all").read_notes(joined.target)
    assert len(notes.timed)
    assert notes.groups
    assert len(notes.held) == joined.target.count("created")
    assert report.mode is CacheMode.SHARED


def test_a_part_says_what_was_left_out_and_why(tmp_path: Path) -> None:
    report = report_of(tmp_path, workers=1)
    keys = report.pipelines.keys[:3].tolist()
    report.pipelines.settle(OutcomeStatus.FAILED, {0: "the driver", 1: "the driver", 2: "another"})
    made = part_of(report)
    assert [(each.status, each.reason) for each in made.left_out] == [
        ("failed", "another"),
        ("failed", "the driver"),
    ]
    assert made.left_out[1].keys == tuple(sorted(f"{key:016x}" for key in keys[:2]))
    assert (made.pipelines, made.created, PackTarget(selector="", parts=(made,)).count("failed")) == (
        len(keys) + made.created,
        made.created,
        3,
    )
    assert made.set_name == "small.foz"
