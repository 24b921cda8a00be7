"""Cache files may be named by text as well as by paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from orchestrator import (
    Identification,
    LoadStatus,
    cache_path,
    load_into_cache,
    read_cache_file,
    save_cache_file,
    save_merged,
)
from orchestrator.testing import SimulatedDevice, simulated_image


def test_a_cache_file_is_named_by_text(tmp_path: Path) -> None:
    device = SimulatedDevice()
    cache = device.create_pipeline_cache()
    device.create_pipelines(device.prepare(simulated_image(range(5))), np.arange(5, dtype=np.int32), cache)
    path = cache_path(str(tmp_path), device.identity)
    assert path.parent == tmp_path
    assert save_cache_file(str(path), device.identity, device.pipeline_cache_data(cache).data).saved_bytes
    assert read_cache_file(str(path), device.identity).status is LoadStatus.LOADED
    loaded, result = load_into_cache(device, str(path))
    assert result.status is LoadStatus.LOADED
    assert save_merged(device, str(path), loaded).path == path
    assert Identification(None, str(tmp_path)).directory == tmp_path
