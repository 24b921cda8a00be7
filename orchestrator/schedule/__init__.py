"""Who compiles what, when: pure state machines, events in, assignments out."""

from orchestrator.schedule.fifo import FifoScheduler as FifoScheduler
from orchestrator.schedule.scheduler import Assignment as Assignment
from orchestrator.schedule.scheduler import Done as Done
from orchestrator.schedule.scheduler import JobGraph as JobGraph
from orchestrator.schedule.scheduler import Scheduler as Scheduler
from orchestrator.schedule.scheduler import SchedulerFactory as SchedulerFactory
from orchestrator.schedule.scheduler import Wait as Wait
