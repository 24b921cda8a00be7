"""Who compiles what, when: pure state machines, events in, assignments out."""

from orchestrator.schedule.cost_scheduler import Accepted as Accepted
from orchestrator.schedule.cost_scheduler import CostScheduler as CostScheduler
from orchestrator.schedule.cost_scheduler import Full as Full
from orchestrator.schedule.costs import CostModel as CostModel
from orchestrator.schedule.costs import estimate_cost as estimate_cost
from orchestrator.schedule.fifo import FifoScheduler as FifoScheduler
from orchestrator.schedule.graphs import cost_first as cost_first
from orchestrator.schedule.graphs import estimated_costs as estimated_costs
from orchestrator.schedule.job_table import JobState as JobState
from orchestrator.schedule.scheduler import Assignment as Assignment
from orchestrator.schedule.scheduler import Cancellation as Cancellation
from orchestrator.schedule.scheduler import Done as Done
from orchestrator.schedule.scheduler import Followers as Followers
from orchestrator.schedule.scheduler import JobGraph as JobGraph
from orchestrator.schedule.scheduler import Paused as Paused
from orchestrator.schedule.scheduler import Priority as Priority
from orchestrator.schedule.scheduler import ScheduleOptions as ScheduleOptions
from orchestrator.schedule.scheduler import Scheduler as Scheduler
from orchestrator.schedule.scheduler import SchedulerFactory as SchedulerFactory
from orchestrator.schedule.scheduler import ScheduleStatistics as ScheduleStatistics
from orchestrator.schedule.scheduler import SharesOutcomes as SharesOutcomes
from orchestrator.schedule.scheduler import Wait as Wait
