"""The real persistence calls."""

from __future__ import annotations

import errno
import inspect
import os
from pathlib import Path

import pytest

from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.files.fault_injection import FaultyFileOperations
from tests.stores.faults.model_disk import ModelDisk


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_directory_sync_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    REAL_FILE_OPERATIONS.sync_directory(tmp_path)
    with pytest.raises(OSError) as caught:
        REAL_FILE_OPERATIONS.fsync(0)
    assert caught.value.errno == number


def test_a_failing_directory_sync_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError) as caught:
        REAL_FILE_OPERATIONS.sync_directory(tmp_path)
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("kind", [FaultyFileOperations, ModelDisk])
def test_no_call_gets_past_what_stands_for_the_file_system(kind: type[FileOperations]) -> None:
    calls = {name for name, value in vars(FileOperations).items() if inspect.isfunction(value)}
    assert len(calls) > 20
    assert calls - vars(kind).keys() == set()
