"""The generation before the current one, and loads that go back to it."""

from __future__ import annotations

import errno
from pathlib import Path

from orchestrator.stores.cache_file import LoadStatus, load_into_cache, read_cache_file, save_cache_file
from orchestrator.stores.files.atomic_file import FileOperations, files_through
from orchestrator.stores.files.recovery import counted_load, previous_path
from orchestrator.stores.files.writer_lock import writer_lock
from tests.stores.faults.sets import (
    IDENTITY,
    OLD,
    OLDER,
    OURS,
    Keys,
    data_of,
    loaded_keys,
    path_in,
    readable,
    strict_device,
)


def save(path: Path, keys: Keys) -> None:
    report = save_cache_file(path, IDENTITY, data_of(keys))
    assert report.saved_bytes
    assert report.leftovers == ()


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_generation_is_kept_until_the_next_one_has_loaded(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    save(path, OLDER)
    assert readable(path) == [OLDER]
    save(path, OLD)
    assert readable(path) == [OLD, OLDER]
    # Not loaded yet: the older one stays, however often is saved.
    save(path, OURS)
    assert readable(path) == [OURS, OLDER]
    assert loaded_keys(path) == (OURS, LoadStatus.LOADED)
    assert readable(path) == [OURS]
    save(path, OLD)
    assert readable(path) == [OLD, OURS]
    assert sorted(each.name for each in tmp_path.iterdir() if "state" not in each.name) == [
        path.name,
        f"{path.name}.lock",
        f"{path.name}.previous",
    ]


def test_the_previous_one_is_loaded_where_the_current_is_damaged(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    save(path, OLDER)
    save(path, OLD)
    damage(path)
    device = strict_device()
    cache, result = load_into_cache(device, path)
    assert (result.status, result.path) == (LoadStatus.LOADED, previous_path(path))
    assert result.instead_of is not None
    assert result.instead_of.status is LoadStatus.HASH_MISMATCH
    assert result.detail.startswith("the current generation: HASH_MISMATCH: dataHash: expected ")
    assert device.pipeline_cache_data(cache).data == data_of(OLDER)
    # What is damaged never becomes the previous one, so that this one is still there after a save.
    save(path, OURS)
    assert readable(path) == [OURS, OLDER]


def test_where_both_are_damaged_both_are_named(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    save(path, OLDER)
    save(path, OLD)
    damage(path)
    previous_path(path).write_bytes(b"")
    _, result = load_into_cache(strict_device(), path)
    assert result.status is LoadStatus.HASH_MISMATCH
    assert "; the previous generation: EMPTY: the file has no bytes" in result.detail
    assert result.previous is not None
    assert result.previous.status is LoadStatus.EMPTY
    assert result.instead_of is None


def test_a_reader_leaves_the_previous_one_where_a_writer_is_at_work(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    save(path, OLDER)
    save(path, OLD)
    with writer_lock(path) as held:
        assert held
        assert loaded_keys(path) == (OLD, LoadStatus.LOADED)
    assert readable(path) == [OLD, OLDER]
    assert loaded_keys(path)[0] == OLD
    assert readable(path) == [OLD]


def test_a_file_system_without_links_keeps_a_copy(tmp_path: Path) -> None:
    class NoLinks(FileOperations):
        def link(self, source: Path, destination: Path) -> None:
            raise OSError(errno.EPERM, "no links")

    path = path_in(tmp_path)
    save(path, OLDER)
    with files_through(NoLinks()):
        save(path, OLD)
    assert readable(path) == [OLD, OLDER]
    assert path.stat().st_nlink == previous_path(path).stat().st_nlink == 1
    assert previous_path(path).stat().st_mode & 0o777 == 0o600


def test_a_load_of_another_process_keeps_the_previous_one(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    save(path, OLDER)
    save(path, OLD)
    data_hash = read_cache_file(path, IDENTITY).data_hash
    with counted_load(path, data_hash, 1):
        # Its driver may yet die of the current one.
        assert loaded_keys(path) == (OLD, LoadStatus.LOADED)
        assert readable(path) == [OLD, OLDER]
    assert loaded_keys(path) == (OLD, LoadStatus.LOADED)
    assert readable(path) == [OLD]
