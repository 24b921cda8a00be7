from __future__ import annotations

from pathlib import Path

from orchestrator.cli.errors import ExitCode
from orchestrator.sets.sample import sample_manifest_path, sample_path
from tests.cli.conftest import Call


def test_packing_the_sample_gives_its_archive(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "sample.foz"
    done = call("pack", sample_manifest_path(), "-o", out, "--json")
    assert (done.code, done.err) == (ExitCode.OK, "")
    document = done.document
    assert out.stat().st_size == document["bytes"]
    assert document["described"] == len(document["names"])
    assert document["unique"] == sum(document["pipelines"].values())
    listed = [call("list", each, "--json").document["set"] for each in (out, sample_path())]
    assert listed[0]["content_hash"] == listed[1]["content_hash"]


def test_a_wrong_manifest_names_the_entry_and_writes_nothing(call: Call, tmp_path: Path) -> None:
    manifest = tmp_path / "wrong.toml"
    manifest.write_text('manifest = 1\n[compute.blur]\nshader = "blur.spv"\n')
    out = tmp_path / "out.foz"
    done = call("pack", manifest, "-o", out, "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert done.document["error"]["kind"] == "manifest"
    assert "compute.blur" in done.err
    assert not out.exists()


def test_a_place_that_takes_no_file(call: Call, tmp_path: Path) -> None:
    done = call("pack", sample_manifest_path(), "-o", tmp_path / "missing" / "out.foz")
    assert done.code == ExitCode.BAD_INPUT
    assert "missing" in done.err
    done = call("pack", sample_manifest_path(), "-o", tmp_path)
    assert done.code == ExitCode.BAD_INPUT
    assert "name a file" in done.err
    assert list(tmp_path.iterdir()) == []


def test_source_text_is_told_which_command_makes_spirv_of_it(call: Call, tmp_path: Path) -> None:
    (tmp_path / "blur.comp").write_text("#version 450\nlayout(local_size_x = 64) in;\nvoid main() {}\n")
    manifest = tmp_path / "game.toml"
    manifest.write_text('manifest = 1\n[compute.blur]\nshader = "blur.comp"\n')
    done = call("pack", manifest, "-o", tmp_path / "game.foz", "--json")
    assert done.code == ExitCode.BAD_INPUT
    assert "glslangValidator -V" in done.document["error"]["message"]
    assert "glslangValidator -V" in call("inspect", tmp_path / "blur.comp").out


def test_no_shader_of_the_manifest_is_overwritten(call: Call, tmp_path: Path) -> None:
    shader, manifest, out = tmp_path / "blur.spv", tmp_path / "game.toml", tmp_path / "game.foz"
    code = next(sample_manifest_path().parent.rglob("*.comp.spv")).read_bytes()
    shader.write_bytes(code)
    manifest.write_text('manifest = 1\n[compute.blur]\nshader = "blur.spv"\n')
    (tmp_path / "link").symlink_to(shader)
    for target in (shader, tmp_path / "link"):
        assert "it would overwrite the input" in call("pack", manifest, "-o", target).err
        assert shader.read_bytes() == code
    done = call("pack", manifest, "-o", out)
    assert done.code == ExitCode.OK
    assert f"next: orchestrator compile {out}" in done.out
