# Purpose: from an image of create infos to what a scheduler wants to know: costs from recorded times or from code
# size, keys, shader modules. So `run_pipelines(..., scheduler=cost_first(image))` is all that a caller writes.
# Guarantees: pure; the image is only read.
"""`cost_first`: a scheduler factory for the pipelines of an image."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from orchestrator.devices.image import CreateInfoImage
from orchestrator.schedule.cost_scheduler import CostScheduler
from orchestrator.schedule.costs import DEFAULT_MODEL, CostModel
from orchestrator.schedule.scheduler import JobGraph, ScheduleOptions, SchedulerFactory


def code_sizes(image: CreateInfoImage) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """SPIR-V bytes of all stages of each pipeline, and their number, each of shape (n,)."""
    sizes = np.fromiter((module.code_size for module in image.modules), np.int64, len(image.modules))
    start = image.module_slot_start
    ends = np.concatenate(([0], np.cumsum(sizes[image.module_slot_module])))
    return ends[start[1:]] - ends[start[:-1]], np.diff(start)


def estimated_costs(image: CreateInfoImage, model: CostModel = DEFAULT_MODEL) -> npt.NDArray[np.int64]:
    """What each pipeline is believed to cost, nanoseconds, shape (n,)."""
    return model.estimate(image.kinds, *code_sizes(image))


def believed_costs(
    image: CreateInfoImage, recorded_ns: npt.NDArray[np.int64] | None, model: CostModel = DEFAULT_MODEL
) -> npt.NDArray[np.int64]:
    """Recorded costs where there are any, and estimates for the rest, nanoseconds, shape (n,).

    Args:
        image: The image.
        recorded_ns: Recorded cost of each pipeline, shape (n,), 0 where there is none; None: there are none.
        model: How costs are estimated.

    Raises:
        ValueError: The number of costs is not that of the pipelines.
    """
    estimated = estimated_costs(image, model)
    if recorded_ns is None:
        return estimated
    if len(recorded_ns) != len(image):
        raise ValueError(f"costs_ns has {len(recorded_ns)} elements for {len(image)} pipelines")
    return np.where(recorded_ns > 0, recorded_ns, estimated)


def cost_first(
    image: CreateInfoImage,
    *,
    options: ScheduleOptions | None = None,
    costs_ns: npt.NDArray[np.int64] | None = None,
    pipeline_keys: Sequence[bytes | None] | None = None,
    priorities: npt.NDArray[np.uint8] | None = None,
    groups: npt.NDArray[np.int32] | None = None,
    model: CostModel = DEFAULT_MODEL,
) -> SchedulerFactory:
    """A factory of `CostScheduler` for a run over an image.

    Args:
        image: The image that is run; the graph that the factory is given must be of it.
        options: Settings. Where all workers use one cache, `pin_followers` should be False.
        costs_ns: Recorded cost of each pipeline, shape (n,), nanoseconds; 0 where there is none and it is
            estimated.
        pipeline_keys: What `Device.pipeline_keys` gave for all pipelines, if it was asked.
        priorities: `Priority` of each pipeline, shape (n,).
        groups: A number of the caller's for each, shape (n,).
        model: How costs are estimated.

    Returns:
        The factory, for `run_pipelines(..., scheduler=...)`. It raises ValueError where arrays do not fit.
    """
    believed = believed_costs(image, costs_ns, model)

    def make(graph: JobGraph, workers: int) -> CostScheduler:
        known = attrs.evolve(
            graph,
            costs_ns=believed,
            keys=image.keys,
            module_start=image.module_slot_start,
            module_index=image.module_slot_module,
            priorities=priorities,
            groups=groups,
        )
        scheduler = CostScheduler(known, workers, options)
        if pipeline_keys is not None:
            scheduler.identify(np.arange(len(known), dtype=np.int32), pipeline_keys)
        return scheduler

    return make
