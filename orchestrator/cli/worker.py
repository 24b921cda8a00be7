"""The verb `worker`: a worker of a Dask cluster, which compiles for `compile --cluster`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.application import CacheDirectory, JsonFlag
from orchestrator.cli.errors import ExitCode
from orchestrator.cli.output import Output, path_text
from orchestrator.cli.values import extra, usable_directory


def worker_verb(
    address: Annotated[str, Parameter(help="The scheduler's address, such as `tls://build1:8786`.")],
    /,
    *,
    name: Annotated[str, Parameter(show_default=lambda _: "made by Dask")] = "",
    cache_dir: Annotated[
        CacheDirectory, Parameter(help="Where sets and unfinished shards are kept, in the folder `worker`.")
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Serve a Dask cluster: compile shards of sets for `compile --cluster`, until Ctrl-C.

    `dask scheduler` starts the scheduler. A worker compiles one shard at a time, with all processors, in a
    child process that a driver may crash. docs/cluster.md shows clusters from two terminals to twenty
    machines with TLS.

    **EXAMPLES**

        dask scheduler --host 127.0.0.1
        orchestrator worker tcp://127.0.0.1:8786
        orchestrator worker tls://build1:8786 --name build7 --cache-dir /fast/worker
        orchestrator compile game.foz -d 'radv:*' --out pack --cluster tcp://127.0.0.1:8786

    Args:
        name: What the worker is called.
    """
    with extra("cluster", "worker"):
        from orchestrator.cluster.connection import require_safe
        from orchestrator.cluster.worker import run_worker
    from orchestrator.cli.documents import WorkerDocument

    require_safe(address)
    directory = usable_directory(cache_dir).absolute() / "worker"
    output = Output(json=json)
    output.message(f"serving {address}, in {path_text(directory)}; Ctrl-C ends it")
    code = ExitCode.OK
    try:
        run_worker(address, directory, name or None)
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    output.document(lambda: WorkerDocument(address=address, directory=directory))
    return code
