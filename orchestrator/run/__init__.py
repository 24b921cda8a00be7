"""Workers, barrier and merge: owns caches while they are in use. The only room that knows trio, the cli apart."""

from orchestrator.run.caches import RollingMerge as RollingMerge
from orchestrator.run.execution import available_workers as available_workers
from orchestrator.run.execution import run_pipelines as run_pipelines
from orchestrator.run.options import BARRIER as BARRIER
from orchestrator.run.options import ROLLING as ROLLING
from orchestrator.run.options import CompileOptions as CompileOptions
from orchestrator.run.options import MergePolicy as MergePolicy
from orchestrator.run.options import RunOptions as RunOptions
from orchestrator.run.records import Barrier as Barrier
from orchestrator.run.records import Calls as Calls
from orchestrator.run.records import CreationCall as CreationCall
from orchestrator.run.records import Duplicates as Duplicates
from orchestrator.run.records import MergeReport as MergeReport
from orchestrator.run.records import OutcomeStatus as OutcomeStatus
from orchestrator.run.records import OutcomeTable as OutcomeTable
from orchestrator.run.records import PipelineOutcome as PipelineOutcome
from orchestrator.run.records import Progress as Progress
from orchestrator.run.records import ProgressCallback as ProgressCallback
from orchestrator.run.records import RollingReport as RollingReport
from orchestrator.run.records import RunReport as RunReport
from orchestrator.run.records import Timing as Timing
from orchestrator.run.session import PipelineSession as PipelineSession
from orchestrator.run.session import PipelineTicket as PipelineTicket
from orchestrator.run.session import Remainder as Remainder
from orchestrator.run.session import open_session as open_session
