"""Workers, barrier and merge: owns caches while they are in use. The only room that knows trio, the cli apart."""

from orchestrator.run.accounting import CreationCall as CreationCall
from orchestrator.run.merge import Duplicates as Duplicates
from orchestrator.run.merge import MergeReport as MergeReport
from orchestrator.run.merge import RollingReport as RollingReport
from orchestrator.run.open_session import open_session as open_session
from orchestrator.run.orchestrator import available_workers as available_workers
from orchestrator.run.orchestrator import run_pipelines as run_pipelines
from orchestrator.run.outcomes import Barrier as Barrier
from orchestrator.run.outcomes import OutcomeStatus as OutcomeStatus
from orchestrator.run.outcomes import PipelineProblem as PipelineProblem
from orchestrator.run.outcomes import RunReport as RunReport
from orchestrator.run.outcomes import RunTiming as RunTiming
from orchestrator.run.progress import Progress as Progress
from orchestrator.run.progress import ProgressCallback as ProgressCallback
from orchestrator.run.rolling import BARRIER as BARRIER
from orchestrator.run.rolling import ROLLING as ROLLING
from orchestrator.run.rolling import Fold as Fold
from orchestrator.run.rolling import MergePolicy as MergePolicy
from orchestrator.run.session import PipelineSession as PipelineSession
from orchestrator.run.tickets import PipelineOutcome as PipelineOutcome
from orchestrator.run.tickets import PipelineTicket as PipelineTicket
from orchestrator.run.tickets import Remainder as Remainder
