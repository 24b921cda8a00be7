"""Contract: pipelines are grouped by what their applications told the driver."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from orchestrator.devices.request import ApplicationInfo, DeviceRequest, OtherFeatures
from orchestrator.errors import RecordError
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.groups import (
    decode_application,
    feature_groups,
    read_applications,
)
from orchestrator.sets.records import KIND_OF_TAG, Damage, PipelineJob, RecordTag
from tests.sets.archive.small_archives import application, link

GRAPHICS, COMPUTE, RAY_TRACING = (
    RecordTag.GRAPHICS_PIPELINE,
    RecordTag.COMPUTE_PIPELINE,
    RecordTag.RAY_TRACING_PIPELINE,
)
ROBUSTNESS_2 = '{"sType":1000286000,"robustBufferAccess2":%d,"robustImageAccess2":%d,"nullDescriptor":0}'
SHADING_RATES = (
    "pipelineFragmentShadingRate",
    "primitiveFragmentShadingRate",
    "attachmentFragmentShadingRate",
)
NO_SHADING_RATE = b'{"sType":1000226003,"pipelineFragmentShadingRate":0}'
NO_MAINTENANCE_8 = b'{"sType":1000574000,"maintenance8":0}'
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


ROBUST = ("VkPhysicalDeviceFeatures", "robustBufferAccess")


def jobs(*each: tuple[RecordTag, int]) -> tuple[PipelineJob, ...]:
    return tuple(PipelineJob(key, KIND_OF_TAG[tag]) for tag, key in each)


ALL = jobs((GRAPHICS, 1), (GRAPHICS, 3), (COMPUTE, 2), (RAY_TRACING, 4))


def test_an_application_info() -> None:
    decoded = decode_application(9, application("game", 1, ROBUSTNESS_2 % (1, 0)))
    assert (decoded.key, decoded.name, decoded.engine) == (9, "game", None)
    assert (decoded.application_version, decoded.engine_version, decoded.api_version) == (1, 2, 4206592)
    assert decoded.robust_buffer_access is True
    assert decoded.features == (
        (1000286000, {"robustBufferAccess2": 1, "robustImageAccess2": 0, "nullDescriptor": 0}),
    )


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
        b'{"version":6,"applicationInfo":{"apiVersion":4194303},"physicalDeviceFeatures":{}}',
        b'{"version":6,"applicationInfo":{"apiVersion":541065216},"physicalDeviceFeatures":{}}',
        b'{"version":6,"applicationInfo":{},"physicalDeviceFeatures":{"pNext":[{"robustImageAccess":1}]}}',
        b'{"version":6,"applicationInfo":{},"physicalDeviceFeatures":{"pNext":[{"sType":"x"}]}}',
        b'{"version":6,"applicationInfo":{},"physicalDeviceFeatures":{},"x":' + b"[" * 100_000,
    ],
)
def test_a_damaged_application_info(payload: bytes) -> None:
    with pytest.raises(RecordError, match=r"application|recorder is newer") as error:
        decode_application(9, payload)
    assert (error.value.tag, error.value.key) == (0, 9)


def test_no_application_is_one_group_with_nothing_but_needs() -> None:
    (group,) = feature_groups(records({}))
    assert group.request == DeviceRequest(others=OtherFeatures.NONE)
    assert group.applications == ()
    assert group.pipelines == ALL


def test_the_only_application_has_all_pipelines() -> None:
    source = records({1: application("a", 1)}, [(1, GRAPHICS, 1)])
    (group,) = feature_groups(source)
    assert ROBUST in group.request.features
    assert (group.applications, tuple(group.pipelines)) == ((1,), ALL)


def test_applications_that_tell_the_driver_the_same_are_one_group_and_links_are_not_read() -> None:
    both = f"{ROBUSTNESS_2 % (1, 0)},{IMAGE_ROBUSTNESS % 1}"
    turned = f"{IMAGE_ROBUSTNESS % 1},{ROBUSTNESS_2 % (1, 0)}"
    source = records(
        {1: application("a", 0, both), 2: application("a", 0, turned)}, [(1, GRAPHICS, 1), (2, COMPUTE, 2)]
    )
    (group,) = feature_groups(source)
    assert (group.applications, tuple(group.pipelines)) == ((1, 2), ALL)
    assert source.reads == [RecordTag.APPLICATION_INFO] * 2


def test_links_divide_the_pipelines() -> None:
    source = records(
        {1: application("a", 0), 2: application("b", 1), 3: application("a", 0)},
        [
            (2, GRAPHICS, 3),  # only b
            (1, COMPUTE, 2),  # a and b: in both groups
            (2, COMPUTE, 2),
            (3, GRAPHICS, 1),  # the third, which tells the driver what the first does
            (2, RecordTag.SHADER_MODULE, 4),  # no pipeline
            (2, GRAPHICS, 99),  # not in the set
            (7, RAY_TRACING, 4),  # an application that is not in the set; nobody else used 4
        ],
    )
    plain, robust = feature_groups(source)
    assert (plain.applications, ROBUST in plain.request.features) == ((1, 3), False)
    assert plain.pipelines == jobs((GRAPHICS, 1), (COMPUTE, 2), (RAY_TRACING, 4))
    assert (robust.applications, ROBUST in robust.request.features) == ((2,), True)
    assert robust.pipelines == jobs((GRAPHICS, 3), (COMPUTE, 2))


def test_damage_is_reported_and_left_out() -> None:
    source = records({1: application("a", 0), 2: b"{", 3: application("c", 1)}, [(3, COMPUTE, 2)])
    source.add(RecordTag.APPLICATION_BLOB_LINK, 5, b"[]")
    damage: list[Damage] = []
    plain, robust = feature_groups(source, damage.append)
    assert [(each.tag, each.key) for each in damage] == [(0, 2), (8, 5)]
    assert robust.pipelines == jobs((COMPUTE, 2))
    assert plain.pipelines == jobs((GRAPHICS, 1), (GRAPHICS, 3), (RAY_TRACING, 4))
    assert [each.key for each in read_applications(source)] == [1, 3]


def test_names_and_versions_are_told_to_the_driver_and_divide() -> None:
    other = application("b", 0).replace(b'"apiVersion":4206592', b'"apiVersion":0')
    source = records({1: application("a", 0), 2: other}, [(2, COMPUTE, 2)])
    first, second = feature_groups(source)
    assert first.request.application == ApplicationInfo("a", 1, None, 2, 4206592)
    # The specification takes 0 for 1.0.
    assert second.request.application == ApplicationInfo("b", 1, None, 2, 1 << 22)
    assert second.pipelines == jobs((COMPUTE, 2))
    assert first.request.others is OtherFeatures.UNRECORDED


@pytest.mark.parametrize(
    ("engine", "version", "robust", "members"),
    [
        ("DXVK", 1, 0, {"nullDescriptor"}),
        ("DXVK", 3 << 22, 1, {"nullDescriptor", "robustBufferAccess2", "robustImageAccess2", "maintenance8"}),
        ("vkd3d", 2 << 22 | 14 << 12, 0, {"nullDescriptor", *SHADING_RATES}),
        ("vkd3d", 2 << 22 | 14 << 12 | 1, 0, {"nullDescriptor", "maintenance8", *SHADING_RATES}),
        ("something else", 9 << 22, 1, set()),
    ],
)
def test_what_translation_layers_enable_and_old_captures_lack(
    engine: str, version: int, robust: int, members: set[str]
) -> None:
    payload = application("game", robust).replace(
        b'"engineVersion":2', b'"engineName":"%s","engineVersion":%d' % (engine.encode(), version)
    )
    request = decode_application(9, payload).request
    assert {member for struct, member in request.features if struct != ROBUST[0]} == members
    recorded = payload.replace(
        b'"robustBufferAccess":%d' % robust,
        b'"robustBufferAccess":%d,"pNext":[%s,%s,%s]'
        % (robust, (ROBUSTNESS_2 % (0, 0)).encode(), NO_SHADING_RATE, NO_MAINTENANCE_8),
    )
    assert not decode_application(9, recorded).request.features - {ROBUST}
