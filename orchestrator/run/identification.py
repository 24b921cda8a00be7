"""Shader-module identifiers of one compile: what is known of its images' modules, and what is kept of it.

A file that cannot be read or written is a note, never an error. Where the device has no identifiers, a set
that has its code is compiled as always, and one that has not gets all of it from its provider.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from attrs import converters, define, evolve, field, validators

from orchestrator.devices.device import Device
from orchestrator.devices.identified import IdentifiedModules, SpirvProvider, SuppliedCode, of_image
from orchestrator.devices.image import CreateInfoImage
from orchestrator.run.records import IdentifiersRecord
from orchestrator.stores.files.atomic_file import SaveError
from orchestrator.stores.run_notes import ShaderModuleIdentifierStore


@define(eq=False)
class Identification:
    """Knows identifiers before a run, and keeps what was learned after it. Blocking; one thread at a time.

    Attributes:
        provider: Who gives code that the set has not; None where it has all.
        directory: A directory of cache files; None where nothing is kept.
        notes: What a reader of the report must know.
    """

    provider: SpirvProvider | None = field(
        validator=validators.optional(validators.instance_of(SpirvProvider))
    )
    directory: Path | None = field(converter=converters.optional(Path))
    notes: list[str] = field(factory=list)
    _code: SuppliedCode = field(factory=SuppliedCode)
    _store: ShaderModuleIdentifierStore | None = None

    def begin(self, device: Device, image: CreateInfoImage) -> IdentifiedModules | None:
        """What is known of the modules of an image; None where it is to be prepared with its code."""
        provider = _with_records(self.provider, image)
        identified = IdentifiedModules(image, provider, self._code)
        features = device.features
        if not (features.shader_module_identifiers and features.compile_required):
            lack = f"{device.identity.device_name} has no VK_EXT_shader_module_identifier"
            if self.provider is None:
                self._say(f"{lack}: pipelines are created with their SPIR-V, as without identifiers")
                return None
            self._say(f"{lack}: the code of every shader is asked for")
            return identified
        self._store = None
        if self.directory is not None:
            self._store = ShaderModuleIdentifierStore(
                self.directory, device.identifier_algorithm, provider.revision
            )
            known = self._store.read()
            if known.problem:
                self._say(f"identifiers were not used: {known.problem}")
            identified.begin_with(*known.rows(_keys(image)))
        return identified

    def keep(self, identified: IdentifiedModules) -> None:
        """Keep what was learned of the modules of an image."""
        if self._store is None or not identified.learned:
            return
        try:
            self._store.add(identified.learned, _keys(identified.image))
        except SaveError as error:
            self._say(f"identifiers were not kept: {error}")
        else:
            identified.learned.clear()

    def told(self, record: IdentifiersRecord) -> IdentifiersRecord:
        """The record of a run, with what the store takes on disk."""
        size = 0 if self._store is None else self._store.read().stored_bytes
        return msgspec.structs.replace(record, store_bytes=size)

    def _say(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _keys(image: CreateInfoImage) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array([each.key for each in image.modules], np.uint64)


def _with_records(provider: SpirvProvider | None, image: CreateInfoImage) -> SpirvProvider:
    records = of_image(image)
    if provider is None:
        return records
    there = frozenset(each.key for each in image.modules if each.code_size)
    if not there:
        return provider
    return evolve(
        provider,
        translate=lambda key: records.translate(key) if key in there else provider.translate(key),
        stands_for=provider,
    )
