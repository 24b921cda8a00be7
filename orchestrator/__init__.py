# Purpose: the public names of the package, re-exported. The rooms, in the order of the data's way through them:
#   sets (what to compile) -> schedule (who, when) -> run (workers, barrier, merge) -> devices (what compiles)
#                                                     -> stores (what is kept), measure (what it cost); cli on top
# An import goes down that order only: cli -> run, measure -> schedule, stores, sets -> devices' seam, registry,
# errors. tests/test_layering.py holds the table.
#
# Guarantees: importing the package loads no binding, no command line library and no registry data.
"""Compile Vulkan pipeline sets in parallel, and know what it costs."""

from orchestrator.devices.device import CacheMode as CacheMode
from orchestrator.devices.device import Device as Device
from orchestrator.devices.device import PipelineCache as PipelineCache
from orchestrator.devices.device import PreparedPipelines as PreparedPipelines
from orchestrator.devices.image import PipelineKind as PipelineKind
from orchestrator.run import Barrier as Barrier
from orchestrator.run import CreationCall as CreationCall
from orchestrator.run import MergeReport as MergeReport
from orchestrator.run import OutcomeStatus as OutcomeStatus
from orchestrator.run import PipelineProblem as PipelineProblem
from orchestrator.run import Progress as Progress
from orchestrator.run import RunReport as RunReport
from orchestrator.run import RunTiming as RunTiming
from orchestrator.run import run_pipelines as run_pipelines
