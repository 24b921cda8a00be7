"""Packs of simulated pipelines, as tests need them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.cache_file import cache_path, save_cache_file
from orchestrator.stores.pack import LeftOut, Pack, PackManifest, PackTarget, PackWriter, Part
from orchestrator.stores.profile_file import ProfileIdentity
from orchestrator.stores.signing import SigningKey
from tests.stores.faults.sets import IDENTITY, OLD, Keys, data_of

KEY = SigningKey()
TRUST = KEY.public
SET_HASH = "00112233445566ff"


def key_file(directory: Path) -> Path:
    """The file of KEY; that of TRUST is `team.pub` beside it."""
    path = directory / "team.key"
    if not path.exists():
        KEY.write(path)
    return path


def trust_file(directory: Path) -> Path:
    return key_file(directory).with_suffix(".pub")


def part(*, shard: int = 1, shards: int = 1, created: int = 12, chosen: str = "") -> Part:
    left_out = LeftOut(status="failed", reason="VK_ERROR_UNKNOWN", keys=("00000000000000ff",))
    return Part(
        set_name="game.foz",
        set_hash=SET_HASH,
        shard=shard,
        shards=shards,
        chosen=chosen,
        pipelines=created + 1,
        created=created,
        left_out=(left_out,),
    )


def data_for(identity: DeviceIdentity, keys: Keys) -> bytes:
    """Cache data of a device: Vulkan's header says whose it is."""
    data = data_of(keys)
    ids = struct.pack("<II", identity.vendor_id, identity.device_id)
    return data[:8] + ids + identity.pipeline_cache_uuid + data[32:]


def target(
    writer: PackWriter,
    keys: Keys = OLD,
    identity: DeviceIdentity = IDENTITY,
    *,
    selector: str = "simulated",
    parts: Sequence[Part] = (),
) -> PackTarget:
    """A target whose cache is written into the pack."""
    path = cache_path(writer.directory, identity)
    assert save_cache_file(path, identity, data_for(identity, keys)).saved_bytes
    return PackTarget(
        selector=selector,
        identity=ProfileIdentity.of(identity),
        device_name=identity.device_name,
        driver=identity.driver_name,
        files=writer.files_at(path),
        parts=tuple(parts) or (part(created=len(keys)),),
    )


def make_pack(directory: Path, keys: Keys = OLD, key: SigningKey | None = None, **of: object) -> Pack:
    """A pack of the simulated device with these pipelines."""
    writer = PackWriter(directory, key)
    writer.prepare()
    writer.finish(PackManifest(made_at=1.0, orchestrator="test", targets=(target(writer, keys, **of),)))  # type: ignore[arg-type]
    return Pack.open(directory, None if key is None else key.public)
