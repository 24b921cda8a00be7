"""Releases: what a player transfers, and what becomes of bad connections, servers and indexes."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attrs import evolve
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import NameOID

from orchestrator.packs import delivery
from orchestrator.packs.delivery import INDEX, Delivered, ReleaseIndex, deliver, publish
from orchestrator.packs.driver import Installed, PackDeviceOpened
from orchestrator.packs.fetching import DeliveryError, FetchLimits, directory_source
from orchestrator.packs.http_source import http_source
from orchestrator.stores.cache_file import PREFIX_HEADER_SIZE
from orchestrator.stores.pack import MANIFEST, Pack, PackError, PackWriter, manifest_of
from orchestrator.stores.profile_file import ProfileIdentity
from orchestrator.stores.signing import PublicKey, SigningKey
from tests.campaigns import tries
from tests.packs.openers import OTHER_DRIVER
from tests.packs.web import Web, served
from tests.stores.faults.sets import IDENTITY, OLD, OURS, Keys, file_of, keys_in
from tests.stores.packs import KEY, TRUST, make_pack, target

PATIENCE = FetchLimits(wait_s=5, grace_s=30, pause_s=0)
ELSEWHERE = evolve(IDENTITY, device_id=IDENTITY.device_id + 1)


class Driver:
    """In place of the process of a driver: what was installed, by the pipelines of each cache."""

    def __init__(self) -> None:
        self.identity = ProfileIdentity.of(IDENTITY)
        self.installed: list[Keys] = []

    @property
    def device(self) -> PackDeviceOpened:
        return PackDeviceOpened(self.identity, "a device", "a driver")

    @contextmanager
    def opened(self, *_: object) -> Iterator[Driver]:
        yield self

    def install(self, pack: Pack, _: Path) -> Installed:
        of = pack.manifest.target_of(self.identity)
        assert of is not None
        self.installed.append(keys_in(pack.read_cache(of)[PREFIX_HEADER_SIZE:]))
        return Installed(pack.manifest.targets.index(of))


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(delivery, "pack_driver", made.opened)
    return made


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The first release of one component for one device."""
    publish([make_pack(tmp_path / "base", key=KEY)], tmp_path / "site", KEY, "game")
    return tmp_path / "site"


@pytest.fixture
def web(site: Path) -> Iterator[Web]:
    with served(site) as server:
        yield server


def take(web: Web, player: Path, limits: FetchLimits = PATIENCE, **more: Any) -> Delivered:
    trust = more.pop("trust", TRUST)
    return deliver(http_source(web.address, limits), player, trust, **more)


def cache_of(site: Path) -> str:
    """The hash of the only cache of a release, which is the name of its file."""
    (component,) = msgspec.json.decode((site / INDEX).read_bytes())["components"]
    (cache,) = {each.name for each in (site / "files").iterdir()} - {component["sha256"]}
    return cache


def left(player: Path) -> list[str]:
    """The files that a player has, but for locks."""
    there = (each for each in player.rglob("*") if each.is_file() and each.suffix != ".lock")
    return sorted(str(each.relative_to(player)) for each in there)


def component(directory: Path, first: int) -> Pack:
    """A pack of three devices, each with a cache of its own."""
    writer = PackWriter(directory, KEY)
    writer.prepare()
    targets = []
    for place, identity in enumerate((IDENTITY, OTHER_DRIVER, ELSEWHERE)):
        keys = frozenset(range(first + 250 * place, first + 250 * (place + 1)))
        targets.append(target(writer, keys, identity, selector=f"target {place}"))
    writer.finish(manifest_of(targets))
    return Pack.open(directory, TRUST)


def test_players_transfer_what_each_lacks(
    tmp_path: Path, driver: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    packs = [component(tmp_path / name, 1 + 800 * at) for at, name in enumerate(("base", "level", "dlc"))]
    site, lines = tmp_path / "site", []
    publish(packs, site, KEY, "game")

    def transferred(web: Web, player: str, lacks: list[tuple[int, int]], **more: Any) -> Delivered:
        """`lacks`: components and targets whose caches the player has not."""
        before = web.sent
        done = take(web, tmp_path / player, **more)
        sent, size = web.sent - before, 0
        for pack, place in lacks:
            size += sum(each.size for each in packs[pack].manifest.targets[place].files)
        assert done.fetched_bytes == sent
        lines.append(f"{player}: {sent:,} bytes transferred, {size:,} lacked ({sent / max(size, 1):.4f})")
        if lacks:
            assert size <= sent <= 1.02 * size, lines[-1]
        return done

    one, two = driver.identity, ProfileIdentity.of(OTHER_DRIVER)
    with served(site) as server:
        done = transferred(server, "one", [(0, 0), (1, 0), (2, 0)])
        assert [each.name for each in done.components] == ["base", "level", "dlc"]
        assert driver.installed == [frozenset(range(at, at + 250)) for at in (1, 801, 1601)]
        driver.identity = two
        transferred(server, "two", [(0, 1)], names=["base"])
        transferred(server, "two", [(1, 1), (2, 1)])
        before = server.sent
        transferred(server, "two", [])
        assert server.sent - before == (site / INDEX).stat().st_size
        driver.identity = one
        packs[1] = component(tmp_path / "again" / "level", 4001)
        made = publish(packs, site, KEY, "game")
        assert (made.index.release, made.files) == (2, 4)
        transferred(server, "one", [(1, 0)])
        assert driver.installed[-2] == frozenset(range(4001, 4251))
    with capsys.disabled():
        print("\n" + "\n".join(lines))


@pytest.mark.parametrize("fault", ["cut", "503", "no range"])
def test_a_broken_transfer_goes_on_where_it_ended(
    web: Web, driver: Driver, tmp_path: Path, fault: str
) -> None:
    cache = cache_of(web.root)
    size = (web.root / "files" / cache).stat().st_size
    web.faults = {cache: ["cut", fault, "cut"], INDEX: ["cut"]}
    done = take(web, tmp_path / "player")
    assert driver.installed == [OLD]
    asked = [each for each in web.asked if cache in each]
    assert f"files/{cache} bytes={size // 2}-" in asked
    more = size // 2 if fault == "no range" else 0  # which begins anew
    assert done.components[0].fetched_bytes == size + more + (tmp_path / "base" / MANIFEST).stat().st_size


def test_what_arrived_of_a_file_is_kept_for_the_next_call(web: Web, driver: Driver, tmp_path: Path) -> None:
    cache = cache_of(web.root)
    web.faults = {cache: ["cut", "503", "503", "503", "503"]}
    with pytest.raises(DeliveryError, match="the server answers 503") as broken:
        take(web, tmp_path / "player")
    assert "goes on where this ended" in broken.value.next_step
    assert driver.installed == []
    before = web.sent
    take(web, tmp_path / "player")
    assert driver.installed == [OLD]
    size, index = (web.root / "files" / cache).stat().st_size, (web.root / INDEX).stat().st_size
    assert web.sent - before == size - size // 2 + index


@pytest.mark.parametrize("page", ["404", "no range, page"])
def test_what_arrived_outlives_a_page_in_place_of_the_file(
    web: Web, driver: Driver, tmp_path: Path, page: str
) -> None:
    cache = cache_of(web.root)
    web.faults = {cache: ["cut", page]}
    with pytest.raises(DeliveryError):
        take(web, tmp_path / "player")
    take(web, tmp_path / "player")
    assert web.asked[-1] == f"files/{cache} bytes={(web.root / 'files' / cache).stat().st_size // 2}-"
    assert driver.installed == [OLD]


def test_what_arrived_is_fetched_anew_if_it_was_something_else(
    web: Web, driver: Driver, tmp_path: Path
) -> None:
    cache = cache_of(web.root)
    web.faults = {cache: ["cut", "503", "503", "503", "503"]}
    with pytest.raises(DeliveryError):
        take(web, tmp_path / "player")
    (part,) = tmp_path.rglob(f".{cache}.part")
    part.write_bytes(bytes(part.stat().st_size))  # a disk that lost it
    take(web, tmp_path / "player")
    assert driver.installed == [OLD]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("short", "bytes, and the release says"),
        ("long", "bytes, and the release says"),
        ("replaced", "it is not what was published"),
        ("endless", "it is not what was published"),
        ("encoded", "the server encodes it"),
        ("404", "it is not there: the server answers 404"),
        ("slow", "slower than"),
        ("silent", "timed out"),
    ],
)
def test_a_file_that_is_not_what_was_published_is_refused_by_name(
    web: Web, driver: Driver, tmp_path: Path, fault: str, said: str
) -> None:
    cache, player = cache_of(web.root), tmp_path / "player"
    web.faults = {cache: [fault, "always"]}
    limits = {
        "slow": evolve(PATIENCE, grace_s=0.1, bytes_per_s=1e9),
        "silent": evolve(PATIENCE, wait_s=0.2, attempts=1),
    }.get(fault, PATIENCE)
    with pytest.raises(DeliveryError, match=f"{cache}: .*{said}"):
        take(web, player, limits)
    (manifest,) = {each.name for each in (web.root / "files").iterdir()} - {cache}
    parts = {manifest, cache} if fault == "slow" else {manifest}
    assert {*left(player)} == {f"delivered/game/{INDEX}", *(f"delivered/game/base/.{n}.part" for n in parts)}
    assert driver.installed == []
    web.faults = {}
    take(web, player)
    assert driver.installed == [OLD]


def certificate(path: Path) -> Path:
    """A certificate of 127.0.0.1 that is its own authority, with its private key."""
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "player's test")])
    address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    now, day = datetime.now(UTC), timedelta(days=1)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    made = made.add_extension(address, critical=False)
    pem, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(pem, kind, serialization.NoEncryption())
    path.write_bytes(made.sign(key, None).public_bytes(pem) + private)
    return path


@pytest.mark.parametrize(
    "where", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://[::1:x/", "/index.json"]
)
def test_a_redirect_out_of_the_web_or_without_an_end_is_refused_unread(
    web: Web, tmp_path: Path, where: str
) -> None:
    web.faults = {"x": [f"leads to {where}", "always"]}
    said = (
        "redirects more than 3 times" if where.startswith("/") else f"redirects to {where!r}, and not to http"
    )
    with pytest.raises(DeliveryError, match=re.escape(said)):
        take(web, tmp_path / "player")
    assert web.sent < 1 << 28  # each answer has 1 GiB


def test_a_redirect_is_followed_but_never_out_of_https(
    web: Web, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = certificate(tmp_path / "web.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with served(web.root, authority) as safe:
        safe.faults = {INDEX: [f"leads to {web.address}/{INDEX}"]}
        with pytest.raises(DeliveryError, match="and not to https"):
            take(safe, tmp_path / "player")
        web.faults = {INDEX: [f"leads to {safe.address}/{INDEX}"]}
        take(web, tmp_path / "player")
    assert driver.installed == [OLD]


def test_a_proxy_of_the_environment_is_used_but_not_for_what_it_excludes(
    web: Web, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", web.address)
    deliver(http_source("http://cdn.invalid/", PATIENCE), tmp_path / "player", TRUST)
    assert driver.installed == [OLD]
    for wrong in ("socks9://127.0.0.1", "http://127.0.0.1:x", "http://[bad"):
        monkeypatch.setenv("http_proxy", wrong)
        with pytest.raises(DeliveryError, match="the proxy that the environment names"):
            http_source("http://cdn.invalid/", PATIENCE)
    monkeypatch.setenv("http_proxy", web.address.replace("http://", "me:secret%21@"))
    web.faults = {INDEX: ["407"]}
    with pytest.raises(DeliveryError, match="wants another name"):
        deliver(http_source("http://cdn.invalid/", PATIENCE), tmp_path / "player", TRUST)
    assert web.authorized == ["Basic bWU6c2VjcmV0IQ=="]
    monkeypatch.setenv("no_proxy", "cdn.invalid")
    with pytest.raises(DeliveryError, match="resolve"):
        deliver(http_source("http://cdn.invalid/", evolve(PATIENCE, grace_s=0)), tmp_path / "player", TRUST)


def test_an_index_without_an_end_is_refused(web: Web, tmp_path: Path) -> None:
    web.faults = {INDEX: ["endless", "always"]}
    with pytest.raises(DeliveryError, match=r"index\.json: it has more than 16,777,216 bytes"):
        take(web, tmp_path / "player")
    assert left(tmp_path / "player") == []


def resigned(site: Path, change: Callable[[dict[str, Any]], object], key: SigningKey | None) -> None:
    """Change an index as its publisher could, or somebody with another key, or with none."""
    path = site / INDEX
    document = msgspec.json.decode(path.read_bytes())
    change(document)
    content = ReleaseIndex().encode(key)
    if key is not None:  # msgspec would refuse to make what is hostile
        document["signature"] = "0" * 128
        content = msgspec.json.encode(document)
        content = content.replace(b"0" * 128, key.sign(document["what"], content).hex().encode(), 1)
    else:
        content = msgspec.json.encode(document | {"signature": ""})
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        (lambda index: index.update(release=2), None, "it is not signed"),
        (lambda index: index.update(release=2), SigningKey(), "not signed by the trusted key"),
        (lambda index: index["components"][0].update(name="../../x"), KEY, "matching regex"),
        (lambda index: index["components"][0].update(name="CON"), KEY, "matching regex"),
        (lambda index: index["components"][0].update(name="base\n"), KEY, "matching regex"),
        (lambda index: index.update(name=".."), KEY, "matching regex"),
        (lambda index: index["components"][0].update(sha256="../" * 21 + "x"), KEY, "matching regex"),
        (lambda index: index["components"][0].update(size=1 << 60), KEY, "size"),
        (lambda index: index["components"][0].update(sha256="0" * 64), KEY, "No such file"),
        (lambda index: index["components"][0].update(size=7), KEY, "bytes, and the release says 7"),
        (lambda index: index.update(components=index["components"] * 2), KEY, "two components have one name"),
        (lambda index: index.update(components=index["components"] * 300), KEY, "length <= 256"),
        (lambda index: index.update(release=1 << 64), KEY, "<= 9007199254740992"),
        (lambda index: index.update(format=9), KEY, "format 9, and this version reads 1"),
        (lambda index: index.update(what="orchestrator pack"), KEY, "of something else"),
    ],
)
def test_a_hostile_index_is_refused_by_name_and_nothing_is_written(
    site: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], key: SigningKey | None, said: str
) -> None:
    resigned(site, change, key)
    player = tmp_path / "player"
    with pytest.raises(DeliveryError, match=said) as refused:
        deliver(directory_source(site), player, TRUST)
    assert refused.value.path.startswith(str(site))
    assert [each for each in left(player) if not each.endswith(INDEX)] == []
    assert left(tmp_path) == left(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda files: files[0].update(name="../../evil.pipeline-cache"), "is no plain name"),
        (lambda files: files[0].update(name="evil.so"), "is of no kind"),
        (lambda files: files[0].update(size=1 << 40), "<= 1073741824"),
        (lambda files: files.extend(files * 5), "length <= 5"),
        (lambda files: files[0].update(name="evil_idx.foz"), "not the two files of one driver cache"),
        (lambda files: files.extend({**files[0], "name": f"{n}.foz"} for n in "ab"), "not the two files"),
    ],
)
def test_a_hostile_manifest_of_a_release_that_nobody_signed_is_refused(
    tmp_path: Path, change: Callable[[list[dict[str, Any]]], object], said: str
) -> None:
    pack, site = make_pack(tmp_path / "base"), tmp_path / "site"
    publish([pack], site, None, "game")
    manifest = msgspec.json.decode((pack.directory / MANIFEST).read_bytes())
    change(manifest["targets"][0]["files"])
    content = msgspec.json.encode(manifest)
    name = hashlib.sha256(content).hexdigest()
    (site / "files" / name).write_bytes(content)
    resigned(site, lambda index: index["components"][0].update(size=len(content), sha256=name), None)
    with pytest.raises(DeliveryError, match=said):
        deliver(directory_source(site), tmp_path / "player", None)
    assert left(tmp_path / "player") == ["delivered/game/index.json"]


def test_an_older_index_is_refused_though_it_is_signed(site: Path, tmp_path: Path) -> None:
    older, player = (site / INDEX).read_bytes(), tmp_path / "player"
    publish([Pack.open(tmp_path / "base", TRUST)], site, KEY, "game")
    deliver(directory_source(site), player, TRUST)
    (site / INDEX).write_bytes(older)
    with pytest.raises(DeliveryError, match="it is release 1 of game, older than 2, which was here"):
        deliver(directory_source(site), player, TRUST)


def test_a_release_that_did_not_arrive_whole_leaves_the_one_before(driver: Driver, tmp_path: Path) -> None:
    site, player = tmp_path / "site", tmp_path / "player"
    publish([make_pack(tmp_path / "1/base", key=KEY)], site, KEY, "game")
    deliver(directory_source(site), player, TRUST)
    old = Pack.open(player / "delivered/game/base", TRUST)
    new = make_pack(tmp_path / "2/base", OURS, KEY)
    publish([new], site, KEY, "game")
    ours = new.manifest.target_of(ProfileIdentity.of(IDENTITY))
    assert ours is not None
    cache = site / "files" / ours.files[0].sha256
    away = cache.rename(tmp_path / "away")
    with pytest.raises(DeliveryError):
        deliver(directory_source(site), player, TRUST)
    again = Pack.open(old.directory, TRUST)
    assert again.manifest == old.manifest
    target = again.manifest.target_of(ProfileIdentity.of(IDENTITY))
    assert target is not None
    assert len(again.read_cache(target)) == ours.files[0].size
    away.rename(cache)
    deliver(directory_source(site), player, TRUST)
    assert Pack.open(old.directory, TRUST).manifest == new.manifest


def test_a_component_that_a_release_drops_leaves_the_disk(site: Path, driver: Driver, tmp_path: Path) -> None:
    base, player = Pack.open(tmp_path / "base", TRUST), tmp_path / "player"
    publish([base, make_pack(tmp_path / "dlc", key=KEY)], site, KEY, "game")
    deliver(directory_source(site), player, TRUST)
    both = left(player)
    publish([base], site, KEY, "game")
    deliver(directory_source(site), player, TRUST, names=["base"])
    assert left(player) == [each for each in both if "/dlc/" not in each] != both
    assert driver.installed == [OLD] * 3


def test_what_is_published_is_proven_and_of_one_key(tmp_path: Path) -> None:
    one, site = make_pack(tmp_path / "one", key=KEY), tmp_path / "site"
    made = publish([one], site, KEY, "game")
    assert (made.files, publish([one], site, KEY, "game").files) == (2, 0)
    with pytest.raises(PackError, match="the release there is signed"):
        publish([one], site, None, "game")
    with pytest.raises(PackError, match="the releases there are called game"):
        publish([one], site, KEY, "other")
    with pytest.raises(PackError, match="not signed by the trusted key"):
        publish([one], site, SigningKey(), "game")
    with pytest.raises(PackError, match="two packs are called one"):
        publish([one, one], site, KEY, "game")
    with pytest.raises(PackError, match="the name 'No name' cannot be used"):
        publish([one], site, KEY, "No name")
    (one.directory / one.manifest.targets[0].files[0].name).write_bytes(file_of(OURS))
    with pytest.raises(PackError, match="it is damaged"):
        publish([one], site, KEY, "game")
    assert ReleaseIndex.decode(site / INDEX, (site / INDEX).read_bytes(), TRUST).release == 2


@pytest.mark.parametrize("name", ["site/index.json", "base/manifest.json"])
def test_random_damage_is_never_taken_for_signed(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path, noise = tmp_path / name, random.Random(5)
    whole = path.read_bytes()

    def read(content: bytes, trust: PublicKey | None) -> object:
        if path.name == INDEX:
            return ReleaseIndex.decode(path, content, trust)
        path.write_bytes(content)
        return Pack.open(path.parent, trust)

    counts: Counter[str] = Counter()
    for _ in range(tries(250, 2000)):
        damaged = bytearray(whole)
        for _ in range(noise.randint(1, 3)):
            at = noise.randrange(len(damaged))
            match noise.randrange(3):
                case 0:
                    damaged[at] = noise.randrange(256)
                case 1:
                    del damaged[at : at + noise.randint(1, 40)]
                case 2:
                    damaged[at:at] = noise.choice([b"9" * 30, b"../", b"[" * 99, b'"', b"\0"])
        if bytes(damaged) == whole:
            continue
        trusts: dict[str, PublicKey | None] = {"with a key": TRUST, "without": None}
        for how, trust in trusts.items():
            try:
                read(bytes(damaged), trust)
                counts[f"{how}: taken"] += 1
            except PackError:
                counts[f"{how}: refused"] += 1
    with capsys.disabled():
        print(f"\n{name} damaged at random: {dict(sorted(counts.items()))}")
    assert counts["with a key: taken"] == 0
    assert counts["with a key: refused"] > tries(230, 1900)
