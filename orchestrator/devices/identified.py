"""What is known of shader modules whose code is not there at first, and who gives it.

`SpirvProvider` is the application's side, `IdentifiedModules` the modules of one image: which identifiers are
known, and which pipelines still lack code (VK_EXT_shader_module_identifier).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import evolve, field, frozen, validators

from orchestrator.devices.image import CreateInfoImage, ranges
from orchestrator.errors import OrchestratorError

MOST_IDENTIFIER_BYTES: Final = 32
"""VK_MAX_SHADER_MODULE_IDENTIFIER_SIZE_EXT."""

Translate = Callable[[int], bytes | Awaitable[bytes]]
"""Gives the SPIR-V of a shader by its key; an async function, or one that may block."""


@frozen(eq=False)
class SpirvProvider:
    """Gives SPIR-V that turns out to be needed, such as a translator of another shader language.

    Attributes:
        translate: Called with the key of a shader, once a shader, and never in a worker's thread. A function
            that is not async is called in a thread of its own, several at a time. What it raises is the
            shader's outcome.
        revision: What the keys mean: another text where the same key may give other code, such as the
            translator's version and settings. Identifiers are remembered for each text apart.
        concurrency: How many shaders are asked for at a time.
        timeout_s: How long one shader may take; after that the pipelines that need it fail.
        trusted: The code is that of the records that the image was made of. It was judged then, and can be
            read again, so that nobody has to keep it.
    """

    translate: Translate = field(validator=validators.is_callable())
    revision: str = field(default="", validator=validators.instance_of(str))
    concurrency: int = field(default=2, validator=[validators.instance_of(int), validators.ge(1)])
    timeout_s: float = field(default=60.0, validator=[validators.instance_of((int, float)), validators.gt(0)])
    trusted: bool = field(default=False, validator=validators.instance_of(bool))


class NotSuppliedError(OrchestratorError):
    """The code of a shader module was asked for before it was there: the order of a run is wrong."""

    def __init__(self, key: int) -> None:
        super().__init__(f"shader module {key:016x}: its code was not supplied")


def not_supplied(key: int) -> bytes:
    """What a module whose code only a provider has loads.

    Raises:
        NotSuppliedError: Always.
    """
    raise NotSuppliedError(key)


def _supplied(code: dict[int, bytes], key: int) -> bytes:
    return code[key] if key in code else not_supplied(key)


class IdentifiedModules:
    """What is known of the modules of one image whose code is not there, or not to be read, at first.

    Device threads read; one thread at a time learns, supplies and settles.

    Attributes:
        image: The image, whose modules load what was supplied. It is the one to prepare.
        provider: Who gives code.
        code: SPIR-V that was given, by the key of its module; of one or of several images.
        table: Identifier of each module, zeros behind it, shape (m, 32), uint8.
        sizes: Bytes of each, 0 where it is not known, shape (m,), uint32.
        lacking: Pipelines that need code which is not there, shape (n,), bool.
        known_at_start: Modules whose identifier was known before anything was created.
        learned: Identifiers that were not known, or other ones, by the key of their module.
    """

    def __init__(self, image: CreateInfoImage, provider: SpirvProvider, code: dict[int, bytes]) -> None:
        """Begin with nothing known; `learn` what is."""
        modules = image.modules
        if not provider.trusted:
            modules = tuple(
                msgspec.structs.replace(each, load=partial(_supplied, code, each.key)) for each in modules
            )
        self.image: Final = evolve(image, modules=modules)
        self.provider: Final = provider
        self.code: Final = code
        self.table: Final = np.zeros((len(modules), MOST_IDENTIFIER_BYTES), np.uint8)
        self.sizes: Final = np.zeros(len(modules), np.uint32)
        self.known_at_start = 0
        self.learned: Final[dict[int, bytes]] = {}
        self.lacking: Final = np.diff(image.module_slot_start) > 0
        for index in np.flatnonzero(image.links).tolist():  # a library comes before what links it
            self.lacking[index] |= any(self.lacking[each] for each in image.libraries_of(index))

    def learn(self, module: int, identifier: bytes) -> None:
        """Note the identifier of a module; an empty one is none."""
        self.sizes[module] = 0
        self.table[module] = 0
        self.table[module, : len(identifier)] = np.frombuffer(identifier, np.uint8)
        self.sizes[module] = len(identifier)

    def learn_by_code(self, module: int, identifier: bytes) -> bool:
        """Note the identifier that a module's code gives, to be kept; whether another one was known."""
        known = self.identifier(module)
        if identifier != known:
            self.learn(module, identifier)
            self.learned[self.image.modules[module].key] = identifier
        return known not in (b"", identifier)

    def begin_with(self, known: Sequence[bytes]) -> None:
        """Take what is known of all modules before anything is created; b"" where one is not known."""
        padded = b"".join(each.ljust(MOST_IDENTIFIER_BYTES, b"\0") for each in known)
        self.table.reshape(-1)[:], self.sizes[:] = np.frombuffer(padded, np.uint8), list(map(len, known))
        self.known_at_start = int(np.count_nonzero(self.sizes))

    def identifier(self, module: int) -> bytes:
        """The identifier of a module; empty where it is not known."""
        return self.table[module, : self.sizes[module]].tobytes()

    def known(self, indices: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Pipelines of whose own stages all identifiers are known, shape (k,)."""
        first = self.image.module_slot_start[indices]
        counts = self.image.module_slot_start[indices + 1] - first
        unknown = self.sizes[self.image.module_slot_module[ranges(first, counts)]] == 0
        known = np.ones(len(indices), np.bool_)
        known[np.repeat(np.arange(len(indices)), counts)[unknown]] = False
        return known

    def needed(self, index: int) -> list[int]:
        """The modules of a pipeline and of all libraries below it, each once."""
        every = (index, *self.image.all_libraries_of([index]))
        return list(dict.fromkeys(module for each in every for module in self.image.modules_of(each)))

    def settle(self, indices: Iterable[int]) -> None:
        """All code of some pipelines is there: they are created with it from now on."""
        for index in indices:
            self.lacking[index] = False


def of_image(image: CreateInfoImage) -> SpirvProvider:
    """The records that an image was made of, as a provider: each module is read when it is needed."""
    load = {each.key: each.load for each in image.modules}
    return SpirvProvider(lambda key: load[key](), trusted=True, concurrency=4)
