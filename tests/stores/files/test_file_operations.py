"""The real persistence calls."""

from __future__ import annotations

import errno
import inspect
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from orchestrator.stores.files.atomic_file import FileOperations
from orchestrator.stores.files.fault_injection import FaultyFileOperations
from tests.stores.faults.model_disk import ModelDisk


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_only_a_file_system_without_directory_sync_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError) if number == errno.EIO else nullcontext():
        FileOperations().sync_directory(tmp_path)
    with pytest.raises(OSError) as caught:
        FileOperations().fsync(0)
    assert caught.value.errno == number


@pytest.mark.parametrize("kind", [FaultyFileOperations, ModelDisk])
def test_no_call_gets_past_what_stands_for_the_file_system(kind: type[FileOperations]) -> None:
    calls = {name for name, value in vars(FileOperations).items() if inspect.isfunction(value)}
    assert len(calls) > 20
    assert calls - vars(kind).keys() == set()
