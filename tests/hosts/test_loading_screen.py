"""The example with a window, on lavapipe under Xvfb, and without: the bar half-way, the scene at the end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.drivers import REPOSITORY, driver_environment, missing, require_tool
from tests.hosts.pixels import Pixels, read_png, read_xwd
from tests.run.test_validation_layers import FALSE_ALARMS
from tests.run.validation_layer import ValidationLayer, run_layered

EXAMPLE = REPOSITORY / "docs" / "examples" / "loading_screen.py"
LIMIT_S = 300.0
BACKGROUND, EMPTY, FULL = (13, 15, 26), (51, 56, 76), (255, 153, 26)


def is_color(pixels: Pixels, color: tuple[int, ...]) -> bool:
    return bool((np.abs(pixels.astype(int) - np.array(color)) <= 2).all())


def shows_half_a_bar(pixels: Pixels) -> bool:
    bar = pixels[400:424, 80:560]
    around = [pixels[:400], pixels[424:], pixels[400:424, :80], pixels[400:424, 560:]]
    return (
        is_color(bar[:, :240], FULL)
        and is_color(bar[:, 240:], EMPTY)
        and all(is_color(each, BACKGROUND) for each in around)
    )


def shows_the_scene(pixels: Pixels) -> bool:
    """Each tile has the square of its pipeline's own constant, and rings around it."""
    for tile in range(48):
        x, y = tile % 8 * 80, tile // 8 * 80
        own = (round(tile % 8 / 7 * 255), round(tile // 8 / 5 * 255), 128)
        if not is_color(pixels[y + 24 : y + 56, x + 24 : x + 56], own):
            return False
        if len(np.unique(pixels[y + 4, x : x + 80], axis=0)) < 5:
            return False
    return True


@pytest.fixture
def display(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A display without a screen: its name, and the file that its pixels are in."""
    command = [require_tool("Xvfb"), "-displayfd", "1", "-screen", "0", "640x480x24", "-nolisten", "tcp"]
    command += ["-fbdir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        number = server.stdout.readline().strip()
        try:
            assert number, "Xvfb did not start"
            yield f":{number}", tmp_path / "Xvfb_screen0"
        finally:
            server.terminate()


def shown(file: Path, expected: object) -> bool:
    """Whether a display comes to show something: what was presented arrives a moment later."""
    assert callable(expected)
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        if expected(read_xwd(file)):
            return True
        time.sleep(0.02)
    return False


def test_a_window(display: tuple[str, Path]) -> None:
    name, screen = display
    environment = driver_environment("lavapipe") | {"DISPLAY": name}
    environment.pop("WAYLAND_DISPLAY", None)
    with subprocess.Popen(
        [sys.executable, EXAMPLE, "--step"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as example:
        assert example.stdin is not None
        assert example.stdout is not None
        assert example.stderr is not None
        line = example.stdout.readline()
        if not line and "no display" in (said := example.stderr.read()):
            missing(f"the libraries of X11 for a window; `make setup` as root installs them: {said}")
        assert line.startswith("half-way: 50%")
        assert shown(screen, shows_half_a_bar)
        example.stdin.write("\n")
        example.stdin.flush()
        assert example.stdout.readline().startswith("scene: 100%")
        assert shown(screen, shows_the_scene)
        _, said = example.communicate("\n", timeout=LIMIT_S)
        assert example.returncode == 0, said


def test_without_a_window_and_under_the_validation_layer(tmp_path: Path) -> None:
    """The host destroys its device after the session, with nothing left on it."""
    layer = ValidationLayer.find()
    arguments = [str(EXAMPLE), "--headless", "--save", str(tmp_path)]
    run = run_layered(layer, "lavapipe", tmp_path / "run", arguments)
    assert run.returncode == 0, run.stderr
    assert shows_half_a_bar(read_png(tmp_path / "loading.png"))
    assert shows_the_scene(read_png(tmp_path / "scene.png"))
    known = {each.id for each in FALSE_ALARMS if layer.version in each.layers}
    assert [each for each in run.messages if each.id not in known] == []


def test_the_pictures_in_the_docs_are_those_that_it_draws() -> None:
    assert shows_half_a_bar(read_png(REPOSITORY / "docs" / "examples" / "loading.png"))
    assert shows_the_scene(read_png(REPOSITORY / "docs" / "examples" / "scene.png"))
