"""The engine and the header in docs/examples: hits of what `compile` made, and damage of every kind."""

from __future__ import annotations

import random
import re
import signal
import struct
import subprocess
from pathlib import Path

import pytest
import xxhash
from attrs import evolve, frozen

from orchestrator.sets.authoring.manifest import pack_manifest
from orchestrator.stores.cache_file import (
    CacheHeaderError,
    LoadStatus,
    PipelineCachePrefixHeader,
    prove_content,
)
from orchestrator.stores.files.atomic_file import content_hash128
from tests.drivers import REPOSITORY, driver_environment, require_header, require_tool
from tests.hosts.run_host import COMPILER_FLAGS, SHADERS, cache_file, compile_sets, quiet_environment

EXAMPLES = REPOSITORY / "docs" / "examples"
NAVI21 = "radv:navi21"
PIPELINES = 42
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ALL_HIT, SOME_COMPILED, USAGE = 0, 1, 2


def built(source: Path, program: Path, *options: str) -> Path:
    """A program of C, under ASan and UBSan where the compiler has them."""
    compiler = require_tool("gcc")
    command = [compiler, *COMPILER_FLAGS, "-I", str(EXAMPLES), "-o", str(program), str(source), *options]
    for more in (SANITIZERS, ()):
        done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return program
    pytest.fail(done.stderr)


@frozen
class Ran:
    code: int
    status: int
    given: int
    hits: int


class Engine:
    """The engine, built."""

    def __init__(self, program: Path, environment: dict[str, str]) -> None:
        self.program = program
        # What a driver leaves at its end is not the header's affair.
        self.environment = environment | {"ASAN_OPTIONS": "detect_leaks=0"}

    def run(self, file: Path) -> Ran:
        command = [str(self.program), str(file), str(SHADERS), "NAVI21"]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=120
        )
        found = re.match(
            r"cache file: (\d+), .+; (\d+) bytes for the driver\n(\d+) of (\d+) pipelines from the cache\n$",
            done.stdout,
        )
        assert found is not None, (done.returncode, done.stdout, done.stderr)
        assert int(found[4]) == PIPELINES
        return Ran(done.returncode, int(found[1]), int(found[2]), int(found[3]))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    require_header("vulkan/vulkan.h", "libvulkan-dev")
    program = tmp_path_factory.mktemp("engine") / "engine"
    environment = quiet_environment(driver_environment(NAVI21))
    return Engine(built(EXAMPLES / "engine.c", program, "-lvulkan"), environment)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The cache file of engine.toml."""
    folder = tmp_path_factory.mktemp("set")
    manifest = folder / "engine.toml"
    text = (EXAMPLES / "engine.toml").read_text("utf-8")
    manifest.write_text(text.replace('"shaders/', f'"{SHADERS}/'), "utf-8")
    pack_manifest(manifest, folder / "engine.foz")
    environment = quiet_environment(driver_environment(NAVI21))
    document = compile_sets([str(folder / "engine.foz")], NAVI21, folder / "cache", environment)
    assert document["set"]["pipelines"] == {"graphics": 6, "compute": 36, "ray_tracing": 0}
    return cache_file(document).read_bytes()


def test_the_engine_finds_everything_that_was_compiled_for_it(
    engine: Engine, compiled: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "cache"
    file.write_bytes(compiled)
    assert engine.run(file) == Ran(ALL_HIT, 0, len(compiled) - 128, PIPELINES)


def resealed(content: bytes, **changes: int | bytes) -> bytes:
    """A file whose header says something else, and is proven by its own hash."""
    return evolve(PipelineCachePrefixHeader.unpack(content), **changes).pack() + content[128:]  # type: ignore[arg-type]


def with_data(content: bytes, data: bytes) -> bytes:
    return resealed(content, data_size=len(data), data_hash=content_hash128(data))[:128] + data


def test_a_file_that_is_damaged_or_another_s_is_an_error_code_and_an_empty_cache(
    engine: Engine, compiled: bytes, reader: Path, tmp_path: Path
) -> None:
    data = compiled[128:]
    files = {
        1: b"",
        2: b"\x89OPCX" + compiled[5:],
        3: compiled[:8] + struct.pack("<I", 2) + compiled[12:],
        4: compiled[:-1],
        5: compiled + b"\0",
        6: compiled[:50] + b"\xff" + compiled[51:],
        7: resealed(compiled, device_id=1),
        8: resealed(compiled, driver_abi=32),
        9: resealed(compiled, driver_version=1),
        10: compiled[:-1] + bytes([compiled[-1] ^ 0x80]),
        11: with_data(compiled, b"\xff" * 8 + data[8:]),
    }
    of_device = (7, 8, 9)  # what the reader below does not look at, for it has no device
    codes_read = [code for code in files if code not in of_device]
    assert [status for status, _, _ in answers(reader, [files[each] for each in codes_read])] == codes_read
    alone = None
    for code in (10, *of_device):
        file = tmp_path / f"{code}"
        file.write_bytes(files[code])
        ran = engine.run(file)
        assert (ran.code, ran.status, ran.given) == (SOME_COMPILED, code, 0)
        # Some are the same work as one before; that, and no more, is found in a cache that starts empty.
        alone = ran.hits if alone is None else alone
        assert ran.hits == alone < PIPELINES / 2
    page = (REPOSITORY / "docs" / "cache-file.md").read_text("utf-8")
    header = (EXAMPLES / "pipeline_cache_file.h").read_text("utf-8")
    codes = {int(code): name for name, code in re.findall(r"PIPELINE_CACHE_FILE_(\w+) = (\d+)", header)}
    assert set(codes) == {0, *files}
    assert all(f"`{name}`" in page for name in codes.values())


_READ = """
#include <stdio.h>
#include <stdlib.h>
#include "pipeline_cache_file.h"
/* stdin: a 4-byte size and so many bytes, again and again.
   stdout: status, size of the data, hash of all bytes. */
int main(void) {
    uint8_t head[4];
    while (fread(head, 1, 4, stdin) == 4) {
        size_t size = pipeline_cache_file_u32(head), data_size;
        /* Exactly so large, so that ASan sees a byte too many. */
        uint8_t *content = malloc(size), hash[16] = {0};
        const void *data;
        if (fread(content, 1, size, stdin) != size) return 1;
        int status = pipeline_cache_file_read(content, size, NULL, &data, &data_size);
        if (size >= 17) pipeline_cache_file_hash(content, size, hash);
        printf("%d %zu ", status, data_size);
        for (int i = 0; i < 16; i++) printf("%02x", hash[i]);
        puts("");
        free(content);
    }
    return 0;
}
"""


def answers(program: Path, contents: list[bytes]) -> list[tuple[int, int, str]]:
    given = b"".join(struct.pack("<I", len(each)) + each for each in contents)
    done = subprocess.run([program], input=given, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    rows = [line.split() for line in done.stdout.decode().splitlines()]
    return [(int(status), int(size), digest) for status, size, digest in rows]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    (folder / "read.c").write_text(_READ, "utf-8")
    return built(folder / "read.c", folder / "read")


def test_the_header_s_hash_is_xxh3_of_every_length(reader: Path) -> None:
    contents = [random.Random(size).randbytes(size) for size in [*range(17, 1200), 2047, 2048, 2049, 70_001]]
    found = [digest for _, _, digest in answers(reader, contents)]
    assert found == [xxhash.xxh3_128(each).hexdigest() for each in contents]


SAME_AS = dict(
    enumerate(
        (
            LoadStatus.LOADED,
            LoadStatus.EMPTY,
            LoadStatus.BAD_MAGIC,
            LoadStatus.UNSUPPORTED_VERSION,
            LoadStatus.TRUNCATED,
            LoadStatus.EXTENDED,
            LoadStatus.HEADER_DAMAGED,
            LoadStatus.OTHER_DEVICE,
            LoadStatus.OTHER_ABI,
            LoadStatus.OTHER_DRIVER,
            LoadStatus.HASH_MISMATCH,
            LoadStatus.VULKAN_HEADER_MISMATCH,
        )
    )
)
"""What a load of this program says where the header says a code."""


def judged(content: bytes) -> LoadStatus:
    try:
        prove_content(content[:128], content[128:])
    except CacheHeaderError as error:
        return error.status
    return LoadStatus.LOADED


def test_the_header_reads_nothing_outside_of_what_it_is_given(reader: Path) -> None:
    """A thousand files, each damaged in its own way, in memory that is exactly so large."""
    chance = random.Random(15)
    data = struct.pack("<IIII16s", 32, 1, 0x1002, 0x73A0, b"u" * 16) + chance.randbytes(500)
    header = PipelineCachePrefixHeader(len(data), content_hash128(data), 0x1002, 0x73A0, 7, 64, 3, b"u" * 16)
    whole = header.pack() + data
    assert answers(reader, [whole])[0][:2] == (0, len(data))
    contents = [with_data(whole, data[:size]) for size in (0, 1, 16, 17, 31, 32, 33, 241)]
    for _ in range(1000):
        content = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            match chance.randrange(4):
                case 0:
                    del content[chance.randrange(len(content) + 1) :]
                case 1:
                    content += chance.randbytes(chance.randrange(1, 300))
                case 2 if content:
                    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
                case _:
                    at = chance.choice([8, 12, 16, 40])
                    content[at : at + 8] = chance.randbytes(8)
        if chance.randrange(2) and len(content) >= 128:  # as one who can make hashes would
            content[112:128] = content_hash128(bytes(content[:112]))
        contents.append(bytes(content))
    seen = set()
    for given, (status, size, _) in zip(contents, answers(reader, contents), strict=True):
        assert SAME_AS[status] == judged(given)
        assert size == (len(given) - 128 if status == 0 else 0)
        seen.add(status)
    assert seen >= {0, 1, 3, 4, 5, 6, 10, 11}


_START = """
#include <stdlib.h>
#include "pipeline_cache_file.h"
/* A start of an engine: with data the driver ends it. */
int main(int count, char **arguments) {
    if (count < 2) return 2;
    if (pipeline_cache_file_may_load(arguments[1], 2)) abort();
    pipeline_cache_file_has_loaded(arguments[1]);
    return 0;
}
"""


def test_an_engine_that_its_cache_ends_starts_without_it(tmp_path: Path) -> None:
    (tmp_path / "start.c").write_text(_START, "utf-8")
    program, marker = tmp_path / "start", tmp_path / "cache.loading"
    command = [require_tool("gcc"), "-std=c99", "-I", str(EXAMPLES), str(tmp_path / "start.c"), "-o"]
    subprocess.run([*command, str(program)], check=True, timeout=120)

    def starts(count: int) -> list[int]:
        return [subprocess.run([program, marker], check=False, timeout=60).returncode for _ in range(count)]

    assert starts(3) == [-signal.SIGABRT, -signal.SIGABRT, 0]
    assert not marker.exists(), "what that start saved may be loaded"
    assert starts(1) == [-signal.SIGABRT]
    marker.write_bytes(b"")  # cut off
    assert starts(2) == [-signal.SIGABRT, 0]


def test_the_header_is_c99_and_c_plus_plus(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text('#include "pipeline_cache_file.h"\nint main(void) { return 0; }\n', "utf-8")
    (tmp_path / "a.cc").write_text('#include "pipeline_cache_file.h"\nint main() { return 0; }\n', "utf-8")
    for language, name in (("c99", "a.c"), ("c++11", "a.cc")):
        command = [require_tool("gcc"), f"-std={language}", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        command += ["-fsyntax-only", "-I", str(EXAMPLES), str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "cc1plus" in done.stderr and language == "c++11":
            pytest.skip("unsupported: this gcc has no C++")
        assert done.returncode == 0, done.stderr
