"""Contract: pipelines are grouped by the features that their applications enabled."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from orchestrator.errors import RecordError
from orchestrator.sets.applications import (
    RecordedFeatures,
    decode_application,
    decode_link,
    read_applications,
    robustness_groups,
)
from orchestrator.sets.memory import MemoryRecords
from orchestrator.sets.records import Damage, RecordTag
from tests.sets.small_archives import application, link

GRAPHICS, COMPUTE, RAY_TRACING = (
    RecordTag.GRAPHICS_PIPELINE,
    RecordTag.COMPUTE_PIPELINE,
    RecordTag.RAY_TRACING_PIPELINE,
)
ROBUSTNESS_2 = '{"sType":1000286000,"robustBufferAccess2":%d,"robustImageAccess2":%d,"nullDescriptor":0}'
IMAGE_ROBUSTNESS = '{"sType":1000335000,"robustImageAccess":%d}'


class Counting(MemoryRecords):
    """Counts what is read of each tag."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[RecordTag] = []

    def payload(self, tag: RecordTag, key: int) -> bytes:
        self.reads.append(tag)
        return super().payload(tag, key)


def records(
    applications: dict[int, bytes],
    links: Iterable[tuple[int, int, int]] = (),
    pipelines: Iterable[tuple[RecordTag, int]] = (
        (GRAPHICS, 1),
        (COMPUTE, 2),
        (GRAPHICS, 3),
        (RAY_TRACING, 4),
    ),
) -> Counting:
    source = Counting()
    for key, payload in applications.items():
        source.add(RecordTag.APPLICATION_INFO, key, payload)
    for tag, key in pipelines:
        source.add(tag, key, b"{}")
    for each in links:
        source.add(RecordTag.APPLICATION_BLOB_LINK, *link(*each))
    return source


ALL = ((GRAPHICS, 1), (GRAPHICS, 3), (COMPUTE, 2), (RAY_TRACING, 4))


def test_an_application_info() -> None:
    decoded = decode_application(9, application("game", 1, ROBUSTNESS_2 % (1, 0)))
    assert (decoded.key, decoded.name, decoded.engine) == (9, "game", None)
    assert (decoded.application_version, decoded.engine_version, decoded.api_version) == (1, 2, 4206592)
    assert decoded.robust_buffer_access is True
    assert decoded.features == (
        (1000286000, {"robustBufferAccess2": 1, "robustImageAccess2": 0, "nullDescriptor": 0}),
    )


def test_an_application_that_said_nothing() -> None:
    payload = b'{"version":6,"applicationInfo":{},"physicalDeviceFeatures":{}}'
    decoded = decode_application(9, payload)
    assert decoded.robust_buffer_access is False
    assert decoded.features == ()


def test_a_name_in_another_encoding_does_not_cost_the_features() -> None:
    payload = application("game", 1).replace(b"game", "ゲーム".encode("shift-jis"))
    decoded = decode_application(9, payload)
    assert decoded.robust_buffer_access is True
    assert decoded.name == "ゲーム".encode("shift-jis").decode("latin-1")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b'{"version":9,"applicationInfo":{},"physicalDeviceFeatures":{}}',
        b'{"version":6,"applicationInfo":{"apiVersion":-1},"physicalDeviceFeatures":{}}',
        b'{"version":6,"applicationInfo":{},"physicalDeviceFeatures":{"pNext":[{"robustImageAccess":1}]}}',
        b'{"version":6,"applicationInfo":{},"physicalDeviceFeatures":{"pNext":[{"sType":"x"}]}}',
        b'{"version":6,"applicationInfo":{},"physicalDeviceFeatures":{},"x":' + b"[" * 100_000,
    ],
)
def test_a_damaged_application_info(payload: bytes) -> None:
    with pytest.raises(RecordError, match="application") as error:
        decode_application(9, payload, 16)
    assert (error.value.tag, error.value.offset) == (0, 16)


def test_a_link() -> None:
    key, payload = link(0xA, 6, 0xB)
    decoded = decode_link(key, payload)
    assert (decoded.application, decoded.tag, decoded.key) == (0xA, 6, 0xB)


@pytest.mark.parametrize(
    "name", ["a", "0" * 17, "0x00000000000000", "+000000000000001", "000000000000000\\n"]
)
def test_a_link_to_no_hash(name: str) -> None:
    payload = f'{{"version":6,"link":{{"application":"{name}","tag":6,"hash":"{1:016x}"}}}}'.encode()
    with pytest.raises(RecordError):
        decode_link(1, payload)


def test_no_application_is_one_group_without_robustness() -> None:
    (group,) = robustness_groups(records({}))
    assert group.features == RecordedFeatures(robust_buffer_access=False, chain=())
    assert group.applications == ()
    assert group.pipelines == ALL


def test_an_empty_set_has_a_group() -> None:
    (group,) = robustness_groups(MemoryRecords())
    assert group.pipelines == ()
    (group,) = robustness_groups(records({1: application("a", 0), 2: application("b", 1)}, pipelines=()))
    assert (group.applications, group.pipelines) == ((1,), ())


def test_the_only_application_has_all_pipelines() -> None:
    source = records({1: application("a", 1)}, [(1, GRAPHICS, 1)])
    (group,) = robustness_groups(source)
    assert group.features.robust_buffer_access
    assert (group.applications, group.pipelines) == ((1,), ALL)


def test_applications_that_enable_the_same_are_one_group_and_links_are_not_read() -> None:
    both = f"{ROBUSTNESS_2 % (1, 0)},{IMAGE_ROBUSTNESS % 1}"
    turned = f"{IMAGE_ROBUSTNESS % 1},{ROBUSTNESS_2 % (1, 0)}"
    source = records(
        {1: application("a", 0, both), 2: application("b", 0, turned)}, [(1, GRAPHICS, 1), (2, COMPUTE, 2)]
    )
    (group,) = robustness_groups(source)
    assert (group.applications, group.pipelines) == ((1, 2), ALL)
    assert source.reads == [RecordTag.APPLICATION_INFO] * 2


def test_what_is_recorded_as_zero_enables_nothing() -> None:
    source = records({1: application("a", 0, ROBUSTNESS_2 % (0, 0)), 2: application("b", 0)})
    (group,) = robustness_groups(source)
    assert group.applications == (1, 2)


def test_links_divide_the_pipelines() -> None:
    source = records(
        {1: application("a", 0), 2: application("b", 1), 3: application("c", 0)},
        [
            (2, GRAPHICS, 3),  # only b
            (1, COMPUTE, 2),  # a and b: in both groups
            (2, COMPUTE, 2),
            (3, GRAPHICS, 1),  # c, which enables what a does
            (2, RecordTag.SHADER_MODULE, 4),  # no pipeline
            (2, GRAPHICS, 99),  # not in the set
            (7, RAY_TRACING, 4),  # an application that is not in the set; nobody else used 4
        ],
    )
    plain, robust = robustness_groups(source)
    assert (plain.applications, plain.features.robust_buffer_access) == ((1, 3), False)
    assert plain.pipelines == ((GRAPHICS, 1), (COMPUTE, 2), (RAY_TRACING, 4))
    assert (robust.applications, robust.features.robust_buffer_access) == ((2,), True)
    assert robust.pipelines == ((GRAPHICS, 3), (COMPUTE, 2))


def test_a_group_without_pipelines_is_left_out() -> None:
    source = records({1: application("a", 1), 2: application("b", 0)}, [(2, tag, key) for tag, key in ALL])
    (group,) = robustness_groups(source)
    assert (group.applications, group.pipelines) == ((2,), ALL)


def test_damage_is_reported_and_left_out() -> None:
    source = records({1: application("a", 0), 2: b"{", 3: application("c", 1)}, [(3, COMPUTE, 2)])
    source.add(RecordTag.APPLICATION_BLOB_LINK, 5, b"[]")
    damage: list[Damage] = []
    plain, robust = robustness_groups(source, damage.append)
    assert [(each.tag, each.key) for each in damage] == [(0, 2), (8, 5)]
    assert robust.pipelines == ((COMPUTE, 2),)
    assert plain.pipelines == ((GRAPHICS, 1), (GRAPHICS, 3), (RAY_TRACING, 4))
    assert [each.key for each in read_applications(source)] == [1, 3]
