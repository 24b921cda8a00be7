"""Who compiles what, when: a pure state machine, events in, assignments out."""

from orchestrator.schedule.batches import Followers as Followers
from orchestrator.schedule.batches import Order as Order
from orchestrator.schedule.batches import ScheduleOptions as ScheduleOptions
from orchestrator.schedule.jobs import JobGraph as JobGraph
from orchestrator.schedule.jobs import JobState as JobState
from orchestrator.schedule.jobs import Priority as Priority
from orchestrator.schedule.scheduler import Assignment as Assignment
from orchestrator.schedule.scheduler import Cancellation as Cancellation
from orchestrator.schedule.scheduler import Done as Done
from orchestrator.schedule.scheduler import Paused as Paused
from orchestrator.schedule.scheduler import Scheduler as Scheduler
from orchestrator.schedule.scheduler import ScheduleStatistics as ScheduleStatistics
from orchestrator.schedule.scheduler import Wait as Wait
