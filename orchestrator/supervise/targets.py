"""Compiles one set for several devices, each in a supervised child process, side by side or in turn.

Drivers read their target once, so a process is one target. Of those that begin together one decodes the set,
with all processors; the others wait for its plan, and decode in turn where it does not fit. A target that
begins later takes the plan of an earlier one.

Guarantees: what happens to one target changes no other one. Each has a cache file of its own, by the identity
of its device. The total is fixed from the start, and what is done never gets less. No process is left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import trio
from attrs import define, evolve, field, frozen

from orchestrator.devices.families import expand, is_pattern, one_spelling
from orchestrator.errors import ExternalSynchronizationError, OrchestratorError
from orchestrator.run.first_error import first_error
from orchestrator.run.limits import has_memory
from orchestrator.run.options import CompileOptions, available_workers
from orchestrator.run.records import CompileReport, Progress
from orchestrator.run.steering import Settlement, Steering
from orchestrator.supervise.server import CompileServer
from orchestrator.supervise.supervisor import compile_supervised

_TARGET_BYTES: Final = 512 << 20
"""What a target is taken to need beside those that run: the interpreter, the driver, a decoded set."""
_MEMORY_LOOK_S: Final = 1.0
_COUNTED: Final = ("done", "compiled", "hits", "failed", "skipped", "in_flight")


@frozen
class TargetResult:
    """What became of one target; one that did not begin has neither report nor error."""

    selector: str
    report: CompileReport | None = None
    error: OrchestratorError | None = None  # what ended it; with a report, why a pack has nothing of it
    elapsed_s: float = 0.0  # with processes that the driver ended

    @property
    def has_ended(self) -> bool:
        """Whether it came to its end, also one in an error, and was not stopped."""
        return self.error is not None or (self.report is not None and not self.report.stopped)


class TargetListener(Protocol):
    """Hears how targets fare. Called in the trio thread; must not block."""

    def begins(self, selector: str, workers: int) -> None:
        """A target begins, with so many workers."""

    def stage(self, selector: str, name: str) -> None:
        """A stage of a target's compile begins."""

    def progress(self, selector: str, progress: Progress, overall: Progress) -> None:
        """Pipelines of a target got done; how far it is, and how far all are."""

    def settled(self, selector: str, settlement: Settlement) -> None:
        """Pipelines of a target came to their end; where it is steered."""

    def saved(self, selector: str, path: Path, size: int) -> None:
        """A target's cache file was saved."""

    def ends(self, result: TargetResult) -> None:
        """A target has ended."""


Compiler = Callable[..., Awaitable[CompileReport]]


async def _compile_in_turn(archives: Sequence[str], options: CompileOptions, **given: Any) -> CompileReport:
    server = CompileServer.start(archives, options, in_turn=True)
    return await compile_supervised(archives, options, server=server, **given)


@frozen
class TargetCompiler:
    """Compiles one target as `compile_supervised` does, and says how many targets run at a time."""

    compile: Compiler = _compile_in_turn
    together: int | None = None  # None: as many as the processors of this machine suit


IN_TURN: Final = TargetCompiler()
"""Compiles on this machine."""


@frozen
class Expected:
    """What there is to do for each target."""

    pipelines: int  # of the set
    # Of these, those that a target's cache is known to hold, or that it lacks for good.
    held: Mapping[str, int] = field(factory=dict)


@define(eq=False)
class Overall:
    """How far all targets are together, by how far each is. Pure; one thread.

    Times are seconds since the first target began. A target is taken to cost what it takes to begin and end
    one, and a time for each pipeline that its cache is not known to hold: both as the targets so far say.
    """

    expected: Expected
    targets: Sequence[str]  # in their order
    together: int  # that run at a time
    _latest: dict[str, Progress] = field(factory=dict)
    _began_s: dict[str, float] = field(factory=dict)
    _took_s: dict[str, float] = field(factory=dict)  # of those that are over

    def begin(self, selector: str, now_s: float) -> None:
        """A target begins."""
        self._began_s[selector] = now_s

    def take(self, selector: str, progress: Progress, now_s: float) -> Progress:
        """Take how far a target is; how far all are."""
        self._latest[selector] = progress
        latest = self._latest.values()
        running = [each for name, each in self._latest.items() if name not in self._took_s]
        slowest = [each.slowest for each in running if each.slowest is not None]
        counts = {name: sum(getattr(each, name) for each in latest) for name in _COUNTED}
        cancelled = sum(self.expected.pipelines - each.total for each in latest)
        return Progress(
            total=self.expected.pipelines * len(self.targets) - cancelled,
            elapsed_s=now_s,
            rate=sum(each.rate for each in running),
            eta_s=self._eta_s(now_s),
            slowest=max(slowest, key=lambda each: each.age_s, default=None),
            **counts,
        )

    def end(self, selector: str, now_s: float) -> None:
        """A target has ended; what it did not come to stays undone."""
        self._took_s[selector] = now_s - self._began_s.get(selector, now_s)

    def left(self, selector: str) -> float:
        """What is left of a target, 1..0."""
        latest = self._latest.get(selector)
        return 1.0 if latest is None or not latest.total else 1.0 - latest.share

    def _to_compile(self, selector: str) -> int:
        return max(0, self.expected.pipelines - self.expected.held.get(selector, 0))

    def _eta_s(self, now_s: float) -> float | None:
        around: list[float] = []  # time of each target but for what it compiles
        left: dict[str, float] = {}
        spent_s, compiles = 0.0, 0
        for name, each in self._latest.items():
            is_over = name in self._took_s
            if each.eta_s is None and not is_over:
                continue
            left[name] = 0.0 if is_over else each.eta_s or 0.0
            whole_s = self._took_s.get(name, now_s - self._began_s.get(name, 0.0)) + left[name]
            phase_s = each.elapsed_s + left[name] if self._to_compile(name) else 0.0
            around.append(max(0.0, whole_s - phase_s))
            spent_s, compiles = spent_s + phase_s, compiles + self._to_compile(name)
        if not around:
            return None
        rate = spent_s / compiles if compiles else 0.0
        for name in self.targets:
            if name not in left and name not in self._took_s:
                if not rate and self._to_compile(name):
                    return None
                whole_s = sum(around) / len(around) + rate * self._to_compile(name)
                left[name] = max(0.0, whole_s - (now_s - self._began_s.get(name, now_s)))
        running = [left[name] for name in self._began_s if name in left and name not in self._took_s]
        return max(sum(left.values()) / self.together, *running, 0.0)


def side_by_side(targets: int, workers: int | None, processors: int) -> int:
    """How many targets run at a time: as many as there are processors for their workers."""
    return max(1, min(targets, processors // (workers or 1)))


async def compile_targets(
    archives: Sequence[str],
    options: Sequence[CompileOptions],
    *,
    expected: Expected,
    cache_directory: Path | None,
    listener: TargetListener,
    stop: trio.Event | Steering | None = None,
    keep: Callable[[TargetResult], None] | None = None,
    compiler: TargetCompiler = IN_TURN,
) -> list[TargetResult]:
    """Compile a set for several devices; what became of each, in the order of the options.

    Args:
        archives: Paths of the set's archives, or of one manifest.
        options: How, one for each target, which differ in their selector. Without a number of workers the
            processors are divided among the targets that run at a time. A time limit is one for all.
        expected: What there is to do for each, for the progress.
        cache_directory: Where cache files are kept; None keeps none.
        listener: Hears how they fare.
        stop: Ends all early when set; targets that have not begun do not begin, as after the time limit. A
            `Steering` may say more, to all.
        keep: Called in a thread with what became of each target that began, one at a time; may block.
        compiler: What compiles them.
    """
    processors = available_workers()
    together = compiler.together or side_by_side(len(options), options[0].workers, processors)
    job = _Targets(
        tuple(archives),
        cache_directory,
        listener,
        Steering.of(stop),
        keep,
        compiler.compile,
        Overall(expected, [each.selector for each in options], together),
        processors,
        len(options),
    )
    limiter = trio.Semaphore(together)
    with first_error():
        async with trio.open_nursery() as nursery:
            for each in options:
                await limiter.acquire()
                await job.wait_for_memory()
                each = each.after(trio.current_time() - job.began)
                if each.left_s(0.0) == 0.0 or job.steering.stop.is_set():
                    break
                job.running += 1
                nursery.start_soon(job.run, each, limiter)
    return [job.results.get(each.selector, TargetResult(each.selector)) for each in options]


@define(eq=False)
class _Targets:
    archives: tuple[str, ...]
    directory: Path | None
    listener: TargetListener
    steering: Steering
    keep: Callable[[TargetResult], None] | None
    compiler: Compiler
    overall: Overall
    processors: int
    waiting: int
    results: dict[str, TargetResult] = field(factory=dict)
    running: int = 0
    begun: set[str] = field(factory=set)
    began: float = field(factory=trio.current_time)
    keeping: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1))

    async def wait_for_memory(self) -> None:
        """Wait until there is memory for one more, or none runs."""
        while self.running and not has_memory(_TARGET_BYTES) and not self.steering.stop.is_set():
            await trio.sleep(_MEMORY_LOOK_S)

    async def run(self, options: CompileOptions, limiter: trio.Semaphore) -> None:
        selector, began = options.selector, trio.current_time()
        # Those that begin last have the processors of those that are over, or nearly so.
        others = sum(self.overall.left(each) for each in self.begun)
        beside = min(self.overall.together, round(self.waiting + others))
        self.waiting -= 1
        self.begun.add(selector)
        workers = options.workers or max(1, self.processors // max(1, beside))
        self.overall.begin(selector, began - self.began)
        self.listener.begins(selector, workers)
        report = problem = None
        try:
            report = await self.compiler(
                self.archives,
                evolve(options, workers=workers),
                cache_directory=self.directory,
                stop=self.steering.beside(
                    on_settled=lambda settlement: self.listener.settled(selector, settlement),
                    on_saved=lambda path, size: self.listener.saved(selector, path, size),
                ),
                on_stage=lambda name: self.listener.stage(selector, name),
                on_progress=lambda progress: self._tell(selector, progress),
            )
        except ExternalSynchronizationError:
            raise  # a bug of this program
        except OrchestratorError as error:
            problem = error
        finally:
            self.running -= 1
            self.begun.discard(selector)
            limiter.release()
        result = TargetResult(selector, report, problem, trio.current_time() - began)
        if self.keep is not None:
            await trio.to_thread.run_sync(self.keep, result, limiter=self.keeping)
        self.results[selector] = result
        self.overall.end(selector, trio.current_time() - self.began)
        self.listener.ends(result)

    def _tell(self, selector: str, progress: Progress) -> None:
        elapsed_s = trio.current_time() - self.began
        self.listener.progress(selector, progress, self.overall.take(selector, progress, elapsed_s))


def selectors_of(devices: Sequence[str]) -> tuple[str, ...]:
    """The targets that selectors and patterns stand for, each once, in their order; families in lower case.

    Raises:
        NoDeviceError: No family of the installed RADV fits a pattern.
    """
    found: dict[str, None] = {}
    for each in map(one_spelling, devices or ("",)):
        found.update(dict.fromkeys([one.selector for one in expand(each)] if is_pattern(each) else [each]))
    return tuple(found)
