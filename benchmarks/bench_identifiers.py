"""From process start to all pipelines: are identifiers faster than translating, or than SPIR-V on disk?

Compares whole processes in turn. Each calls `compile_set` with a filled cache file in mode shared:

    identifiers       the archive has no SPIR-V; identifiers are known, so no shader is translated
    translate         the archive has no SPIR-V; no identifier is known, so every shader is translated
    stored            the archive has all SPIR-V, deflated
    ... (again)       identifiers again: the A/A control

All use the plan of the decoded set, as a second start does; with `--no-plan` each decodes its archive. A
translation takes `--cost-ms` of processor time without the GIL; workers limit how many run at a time.

    wall_s, cpu_s     of the whole process, measured from outside
    created           pipelines; `without` of them without SPIR-V
    asked, provider_s translated shaders, and the sum of the times from request to answer
    bytes             shader data on disk: identifiers, or modules as in the archive

On a busy machine compare CPU time.

Command: python benchmarks/bench_identifiers.py --device radv:navi21 --samples 7 --output FILE SET.foz...
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fresh import (
    CONTROL,
    Figures,
    Job,
    answer_if_asked,
    environment_for,
    in_turns,
    machine,
    measured,
    parser_of,
    row_writer,
    table,
)
from orchestrator import CompileOptions, PipelineSet, SpirvProvider
from orchestrator.run.compile import compile_set
from orchestrator.sets.archive.reader import Archive
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.records import RecordTag
from orchestrator.sets.sample import sample_path
from orchestrator.sets.subset import Subset

KNOWN, TRANSLATE, STORED = "identifiers", "translate", "stored"
CONTENDERS = (KNOWN, TRANSLATE, STORED, KNOWN + CONTROL)
_CALIBRATION = 200_000


def iterations_of(cost_ms: float) -> int:
    """How many rounds of PBKDF2, which runs without the GIL, burn so much processor time."""
    began = time.thread_time_ns()
    hashlib.pbkdf2_hmac("sha256", b"shader", b"salt", _CALIBRATION)
    return max(1, round(cost_ms * 1e6 * _CALIBRATION / (time.thread_time_ns() - began)))


def copied(path: Path, target: Path, *, code: bool) -> int:
    """Write the archive anew, deflated, with or without its shader modules; how many bytes those take."""
    with PipelineSet.open(path) as source, ArchiveWriter(target) as writer:
        for tag in RecordTag:
            if tag is not RecordTag.SHADER_MODULE or code:
                for key in source.records.keys(tag):
                    writer.add(tag, key, source.records.payload(tag, key))
    tag = RecordTag.SHADER_MODULE
    with Archive.open(target) as archive:
        return sum(len(archive.stored_payload(tag, key).data) for key in archive.keys(tag))


def measure(job: Job) -> Figures:
    """Be one process of a contender, or the one that primes its folder."""
    contender, folder = job["contender"].removesuffix(CONTROL), Path(job["folder"])
    with PipelineSet.open(job["set"]) as source, PipelineSet.open(job["bare"]) as bare:

        def translate(key: int) -> bytes:
            hashlib.pbkdf2_hmac("sha256", b"shader", b"salt", job["iterations"])
            return source.module(key).code

        provider = SpirvProvider(translate, concurrency=job["workers"])
        primes = "keys" not in job
        supplied = contender in (KNOWN, TRANSLATE) and not primes
        options = CompileOptions(
            selector=job["device"],
            workers=job["workers"],
            mode="shared",
            plan=job["plan"],
            identifiers=primes,
            subset=Subset() if primes else Subset(keys=frozenset(job["keys"])),
        )

        async def main() -> Figures:
            report = await compile_set(
                bare.supplied_by(provider) if supplied else source, options, cache_directory=folder
            )
            record = report.identifiers
            figures: Figures = {
                "created": report.outcomes.compiled + report.outcomes.cache_hits,
                "compiled": report.outcomes.compiled,
                "without": record.created if record else 0,
                "asked": record.asked if record else 0,
                "provider_s": record.provider_ns / 1e9 if record else 0.0,
            }
            if primes:
                figures["keys"] = [int(each.key) for each in report.pipelines if each.created]
            return figures

        return trio.run(main)


def process(contender: str, job: Job, folder: Path) -> Figures:
    """One process."""
    own = folder / contender.replace(" ", "-")
    if contender == TRANSLATE:
        for each in own.glob("*.identifiers"):
            each.unlink()
    output, arguments = folder / "output", folder / "job.json"
    arguments.write_text(json.dumps(job | {"contender": contender, "folder": str(own)}))
    command = [sys.executable, __file__, "--measure", f"@{arguments}"]
    figures = measured(command, environment_for(job["device"]), output)
    if figures["exit"]:
        raise SystemExit(f"a process of {contender!r} ended with {figures['exit']}")
    return figures | json.loads(output.read_text().splitlines()[-1])


def main() -> None:
    """Measure the sets."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "sets", nargs="*", type=Path, default=[sample_path()], help="archives; default: the sample"
    )
    parser.add_argument("--device", default="radv:navi21", help="as in `orchestrator compile --device`")
    parser.add_argument("--workers", type=int, default=2, help="number of workers")
    parser.add_argument("--no-plan", action="store_true", help="decode the archive in every process")
    parser.add_argument("--cost-ms", type=float, default=2.0, help="processor time of a translation")
    options = parser.parse_args()
    if options.measure and options.measure.startswith("@"):
        options.measure = Path(options.measure[1:]).read_text()
    if answer_if_asked(options, measure):
        return
    iterations = iterations_of(options.cost_ms)
    for path in options.sets:
        named = {"benchmark": "bench_identifiers", "set": path.name, "device": options.device} | machine()
        named |= {"cost_ms": options.cost_ms, "plan": not options.no_plan, "workers": options.workers}
        rows: list[Figures] = []
        with tempfile.TemporaryDirectory() as name, row_writer(options) as write:
            folder = Path(name)
            copied(path, folder / "bare.foz", code=False)
            modules = copied(path, folder / "full.foz", code=True)
            job: Job = {
                "device": options.device,
                "workers": options.workers,
                "plan": not options.no_plan,
                "set": str(folder / "full.foz"),
                "bare": str(folder / "bare.foz"),
                "iterations": iterations,
            }
            primed = process("primed", job, folder)
            for contender in CONTENDERS:
                shutil.copytree(folder / "primed", folder / contender.replace(" ", "-"))
            job["keys"] = primed["keys"]
            (store,) = (folder / "primed").glob("*.identifiers")
            kept = {TRANSLATE: 0, STORED: modules}
            for number, contender in in_turns(CONTENDERS, options.samples):  # the warm-up makes plans
                taken = process(contender, job, folder)
                size = kept.get(contender, store.stat().st_size)
                rows.append({"contender": contender, "round": number, "bytes": size, **taken})
                write(named | rows[-1])
        for figure in ("wall_s", "cpu_s"):
            table(rows, CONTENDERS[:-1], figure, lower_is_better=True)
        for contender in CONTENDERS:
            last = next(each for each in reversed(rows) if each["contender"] == contender)
            print(
                f"{path.name} {contender}: {last['created']} pipelines, {last['without']} without SPIR-V, "
                f"{last['asked']} translated, {last['bytes']:,} bytes of shaders on disk",
                file=sys.stderr,
            )


if __name__ == "__main__":
    main()
