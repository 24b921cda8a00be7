"""Shader modules on demand.

Modules on demand: made once, alive while used, dropped oldest first when the bound is passed.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest

from orchestrator.devices.image import ImageModule
from orchestrator.devices.vulkan.prepared import ShaderModules


class Driver:
    """Makes handles and remembers which are alive."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.live: set[int] = set()

    def create(self, module: ImageModule) -> int:
        if not module.load():
            raise ValueError(f"module {module.key} is refused")
        self.made.append(module.key)
        self.live.add(module.key)
        return module.key

    def destroy(self, handle: int) -> None:
        self.live.remove(handle)


def modules(driver: Driver, sizes: list[int], limit: int) -> ShaderModules:
    entries = [
        ImageModule(key=100 + number, code_size=size, flags=0, load=lambda size=size: bytes(size))
        for number, size in enumerate(sizes)
    ]
    return ShaderModules(entries, driver.create, driver.destroy, limit)


def test_all_are_made_at_once_when_they_fit() -> None:
    driver = Driver()
    shaders = modules(driver, [4, 8], limit=12)
    assert shaders.make_all(lambda _: nullcontext()) == {}
    assert shaders.all_made
    assert shaders.handles() == {0: 100, 1: 101}
    shaders.close()
    assert driver.live == set()


def test_a_refused_module_is_reported_and_the_others_are_made() -> None:
    driver = Driver()
    shaders = modules(driver, [4, 0, 4], limit=100)
    problems = shaders.make_all(lambda _: nullcontext())
    assert set(problems) == {1}
    assert "module 101 is refused" in problems[1]
    assert driver.live == {100, 102}


def test_nothing_is_made_ahead_when_they_do_not_fit() -> None:
    driver = Driver()
    shaders = modules(driver, [8, 8], limit=12)
    assert shaders.make_all(lambda _: nullcontext()) == {}
    assert not shaders.all_made
    assert driver.made == []


def test_the_oldest_unused_is_dropped_first_and_what_is_used_stays() -> None:
    driver = Driver()
    shaders = modules(driver, [8, 8, 8], limit=16)
    for index in (0, 1, 2):
        shaders.acquire(index)
    assert driver.live == {100, 101, 102}  # all in use: over the bound for now
    shaders.release(1)
    assert driver.live == {100, 102}
    shaders.release(0)
    shaders.release(2)
    assert driver.live == {100, 102}
    shaders.acquire(1)
    shaders.release(1)
    assert driver.live == {101, 102}
    assert driver.made == [100, 101, 102, 101]


def test_no_more_is_dropped_than_the_bound_asks_for() -> None:
    driver = Driver()
    shaders = modules(driver, [8] * 4 + [12], limit=32)
    for index in (0, 1, 2, 3):
        shaders.acquire(index)
        shaders.release(index)
    assert driver.live == {100, 101, 102, 103}
    shaders.acquire(0)  # in use: the oldest others go
    shaders.acquire(4)
    shaders.release(4)
    assert driver.live == {100, 103, 104}


@pytest.mark.parametrize("workers", [8])
def test_workers_share_one_module(workers: int) -> None:
    driver = Driver()
    shaders = modules(driver, [8], limit=1)
    barrier = threading.Barrier(workers)

    def use() -> None:
        barrier.wait()
        assert shaders.acquire(0) == 100

    threads = [threading.Thread(target=use) for _ in range(workers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert driver.made == [100]
    for _ in range(workers):
        shaders.release(0)
    assert driver.live == set()
