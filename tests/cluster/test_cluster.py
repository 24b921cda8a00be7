"""`compile --cluster`: many machines make the pack that one machine makes, whatever becomes of them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import distributed
import pytest

from orchestrator.cli.errors import ExitCode
from orchestrator.cluster.connection import require_safe
from orchestrator.cluster.messages import ClusterError
from orchestrator.sets.sample import sample_path
from orchestrator.stores.pack import Pack
from tests.cli.conftest import Call, Done, run_program
from tests.cluster.clusters import Cluster, cluster, processes_of, until
from tests.cluster.place import Place
from tests.drivers import DRIVERS, REPOSITORY, driver_environment, require_tool
from tests.run.small_sets import write_small_set

COUNT = 238  # pipelines of the sample
FEW = 64  # of two shards


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("set") / "game.foz"
    shutil.copyfile(sample_path(), path)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "game.foz"
    write_small_set(path, 0, FEW)
    return path


@pytest.fixture
def two(place: Place) -> Cluster:
    return place.cluster


def held(pack: Path) -> frozenset[int]:
    opened = Pack.open(pack)
    assert not list(opened.problems())
    (target,) = opened.manifest.targets
    return frozenset(opened.read_notes(target).held.tolist())


def report_of(done: Done, code: int = ExitCode.OK) -> dict[str, Any]:
    assert done.code == code, done.err
    (target,) = done.document["targets"]
    report: dict[str, Any] = target["report"]
    return report


def test_the_pack_is_that_of_one_machine(two: Cluster, small: Path, tmp_path: Path, call: Call) -> None:
    given = ("compile", small, "-d", "simulated", "-j", "2", "--json", "--out")
    many = (*given, tmp_path / "many", "--cluster", two.address)
    report = report_of(call(*many))
    alone = report_of(call(*given, tmp_path / "one"))
    assert held(tmp_path / "many") == held(tmp_path / "one")
    assert report["outcomes"] == alone["outcomes"] == {**alone["outcomes"], "compiled": FEW}
    assert {name: report["set"][name] for name in ("unique", "pipelines", "content_hash", "subset")} == {
        name: alone["set"].get(name) for name in ("unique", "pipelines", "content_hash", "subset")
    }
    assert not list(tmp_path.glob(".many.cluster/back/*")), "what came back is in the pack"
    again = report_of(call(*many))
    assert again["outcomes"]["cache_hits"] == FEW, "shards begin with what the pack has"


@pytest.mark.driver("radv:navi21")
def test_what_many_machines_compile_hits_on_a_real_driver(small: Path, tmp_path: Path) -> None:
    pack, cache = tmp_path / "pack", tmp_path / "cache"
    of = (small, "-d", "radv:navi21", "--json")
    created = report_of(run_program("compile", *of, "--out", pack, "--cluster", "local:2"))["outcomes"]
    assert created["failed"] == 0
    assert created["compiled"] > 0
    assert not run_program("install", pack, "--unsigned", "-d", "radv:navi21", "--cache-dir", cache).code
    again = run_program("compile", *of, "--cache-dir", cache)
    assert again.document["outcomes"]["compiled"] == 0, "a new process finds all of it"


def test_a_signal_stops_the_machines_and_what_they_have_is_kept(
    two: Cluster, archive: Path, tmp_path: Path
) -> None:
    running = two.begin(archive, tmp_path / "pack", "-d", "simulated")
    back = tmp_path / ".pack.cluster" / "back"
    until(lambda: running.poll() is not None or bool(list(back.glob("*/*/report"))))
    running.send_signal(signal.SIGINT)
    assert running.wait() in (ExitCode.INTERRUPTED, ExitCode.OK), two.log("compile")
    assert held(tmp_path / "pack"), "what came back is in the pack"
    report = report_of(two.compile(archive, tmp_path / "pack", "-d", "simulated"))
    assert report["outcomes"]["compiled"] + report["outcomes"]["cache_hits"] == COUNT


def test_who_has_what_is_shown_and_who_lacks_it_is_named(
    two: Cluster, small: Path, tmp_path: Path, call: Call
) -> None:
    done = call("devices", "--cluster", two.address, "-d", "simulated", "--json")
    machines = done.document["machines"]
    assert [each["devices"][0]["selector"] for each in machines] == ["simulated"] * len(machines)
    selector = "radv:nosuchfamily"
    done = call(
        "compile", small, "--out", tmp_path / "pack", "-d", selector, "--json", "--cluster", two.address
    )
    assert done.code == ExitCode.NO_DEVICE
    (target,) = done.document["targets"]
    assert "no machine of" in target["problem"]
    assert "nosuchfamily" in target["problem"]


@pytest.mark.driver("radv:navi21")
@pytest.mark.driver("lavapipe")
def test_each_machine_compiles_for_the_devices_that_it_has(small: Path, tmp_path: Path) -> None:
    manifests = [driver_environment(each)["VK_DRIVER_FILES"] for each in DRIVERS]
    with cluster(tmp_path) as made:
        for name, each in (("one", manifests[0]), ("other", manifests[1]), ("both", ":".join(manifests))):
            made.add(name, environment={"VK_DRIVER_FILES": each, "VK_ICD_FILENAMES": each})
        made.wait_for(3)
        done = made.compile(small, tmp_path / "pack", "-d", "radv:navi21", "-d", "lavapipe")
    assert done.code == ExitCode.OK, done.err
    outcomes = [each["report"]["outcomes"] for each in done.document["targets"]]
    assert [each["failed"] for each in outcomes] == [0, 0]
    assert all(each["compiled"] for each in outcomes)
    targets = Pack.open(tmp_path / "pack").manifest.targets
    assert len({each.identity for each in targets}) == 2


def test_the_commands_of_the_page_run(two: Cluster, small: Path, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "cluster.md").read_text("utf-8")
    commands = re.findall(r"^    ((?:orchestrator|dask|openssl|chmod) .*)$", page, flags=re.MULTILINE)
    assert len(commands) >= 10
    # Schedulers and workers run already, begun by the same commands.
    serving = [each for each in commands if each.startswith(("dask scheduler", "orchestrator worker"))]
    shutil.copyfile(small, tmp_path / "game.foz")
    for command in [each for each in commands if each not in serving]:
        line = re.sub(r"\S+://\S+", two.address, command).replace("'radv:*'", "simulated")
        line = line.replace("radv:navi21", "simulated").replace("radv:navi31", "simulated")
        line = re.sub(r"^orchestrator", f"{sys.executable} -m orchestrator", line)
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        shell = ["sh", "-c", line]
        done = subprocess.run(
            shell, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_a_cluster_off_this_machine_is_encrypted_or_refused() -> None:
    for address in ("tls://build1:8786", "tcp://127.0.0.1:8786", "tcp://[::1]:8786", "tcp://localhost:1"):
        require_safe(address)
    for address in ("tcp://build1:8786", "tcp://10.0.0.1:8786", "10.0.0.1:8786", "ws://build1:80"):
        with pytest.raises(ClusterError, match="without TLS"):
            require_safe(address)


def test_a_far_machine_gets_the_set_encrypted_and_no_stranger_an_answer(small: Path, tmp_path: Path) -> None:
    require_tool("openssl")
    require_tool("unshare")
    # The worker's machine has another folder in place of the set's, and of what came back.
    hidden = f'mount -t tmpfs none {small.parent} && mount -t tmpfs none {tmp_path}/out && exec "$@"'
    (tmp_path / "out").mkdir()
    (tmp_path / "cluster").mkdir()
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=cluster",
    ]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    tls = "DASK_DISTRIBUTED__COMM__TLS__"
    environment = {f"{tls}CA_FILE": str(certificate)}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        environment |= {f"{tls}{role}__KEY": str(key), f"{tls}{role}__CERT": str(certificate)}
    options: tuple[str, ...] = ("--host", "tls://127.0.0.1", "--tls-ca-file", str(certificate))
    options += ("--tls-cert", str(certificate), "--tls-key", str(key))
    security = distributed.Security(
        tls_ca_file=str(certificate), tls_client_cert=str(certificate), tls_client_key=str(key)
    )
    with cluster(
        tmp_path / "cluster",
        "far",
        environment=environment,
        scheduler_options=options,
        security=security,
        prefix=("unshare", "-m", "sh", "-c", hidden, "sh"),
    ) as made:
        assert made.address.startswith("tls://")
        report = report_of(made.compile(small, tmp_path / "out" / "pack", "-d", "simulated"))
        assert report["outcomes"]["compiled"] == FEW
        stranger = run_program("devices", "--cluster", made.address)
    (kept,) = (tmp_path / "cluster" / "far" / "worker" / "files").glob("*/game.foz")
    assert kept.read_bytes() == small.read_bytes()
    assert stranger.code == ExitCode.BAD_INPUT
    assert "no scheduler answers" in stranger.err


def test_without_workers_it_says_what_to_start(small: Path, tmp_path: Path, call: Call) -> None:
    with distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0") as made:
        address = ("--cluster", made.scheduler_address)
        done = call("compile", small, "--out", tmp_path / "pack", "-d", "simulated", "--json", *address)
    assert done.code == ExitCode.BAD_INPUT
    (target,) = done.document["targets"]
    assert "orchestrator worker" in target["problem"]


def test_nothing_is_left_of_a_local_cluster(archive: Path, tmp_path: Path) -> None:
    made = Cluster(tmp_path, address="local:2")
    running = made.begin(archive, tmp_path / "pack", "-d", "simulated")
    until(
        lambda: running.poll() is not None or bool(list((tmp_path / ".pack.cluster").glob("back/*/*/report")))
    )
    running.send_signal(signal.SIGTERM)
    assert running.wait() in (ExitCode.INTERRUPTED, ExitCode.OK), made.log("compile")
    until(lambda: not processes_of(running.pid))
    assert held(tmp_path / "pack")
