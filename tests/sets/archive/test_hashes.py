"""Contract: hashes are the format's; recorded names are recomputed."""

from __future__ import annotations

from pathlib import Path

from orchestrator.sets.archive.hashes import (
    application_hash,
    hash_string,
    hash_u64,
    hash_values,
    hash_words,
    link_hash,
    module_hash,
)
from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.groups import decode_link, read_applications
from orchestrator.sets.records import RecordTag


def test_one_step_by_hand() -> None:
    expected = 0xCBF29CE484222325 * 0x100000001B3 % 2**64 ^ 0x12345678
    assert hash_values((0x12345678,)) == expected
    assert hash_words(b"\x78\x56\x34\x12") == expected


def test_a_string_is_marked_and_an_absent_one_is_zero() -> None:
    assert hash_string("ab") == hash_values((0xFF, 0x61, 0x62))
    assert hash_string("é") == hash_values((0xFF, 0xC3, 0xA9))
    assert hash_string("") == hash_values((0xFF,))
    assert hash_string(None) == hash_values((0,))


def test_flags_come_after_the_code() -> None:
    assert module_hash(b"\1\0\0\0\2\0\0\0", 3) == hash_values((1, 2, 3))


def test_two_structures_are_hashed_in_declaration_order() -> None:
    def of(members: dict[str, int]) -> int:
        return application_hash((0, 0, 0), (None, None), 0, [(1000382000, members)])

    values = {
        "primitivesGeneratedQuery": 1,
        "primitivesGeneratedQueryWithRasterizerDiscard": 1,
        "primitivesGeneratedQueryWithNonZeroStreams": 0,
    }
    assert of(values) == of(dict(reversed(values.items())))
    info = hash_values((0, 0, 0, 0, 0))
    assert of(values) == hash_u64(hash_values((0, 1000382000, 1, 0, 1)), hash_u64(info))


def test_recorded_applications_and_links_have_their_names(corpora: Path) -> None:
    applications = links = 0
    for path in sorted(corpora.glob("*.foz")):
        with Archive.open(path) as archive:
            for application in read_applications(archive):
                assert application.hash == application.key
                applications += 1
            tag = RecordTag.APPLICATION_BLOB_LINK
            for key in archive.keys(tag)[:50]:
                link = decode_link(key, archive.payload(tag, key))
                assert link_hash(link.application, link.tag, link.key) == key
                links += 1
    assert applications >= 12
    assert links > 300
