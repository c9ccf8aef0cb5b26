"""Engines: who does the parts of a plan. Nothing else differs between them.

local   this process, one part after the other
ray     a Ray cluster (Ray Data): the one that RAY_ADDRESS names or that runs here, else one that lives as long as this
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from vitreous.bulk.output import Written
from vitreous.bulk.work import Opened
from vitreous.bulk.worker import Job, Line, Worker
from vitreous.errors import UserError

Name = Literal["local", "ray"]
TRIES = 4  # of a part whose workers die: Ray itself would begin it again for ever
MOST_BLOCKS = 10_000  # of lines, that a cluster is handed


@dataclass(frozen=True, kw_only=True)
class Pool:
    """How much of a cluster is used; None: all of it."""

    workers: int | None = None
    cpus: int = 1  # per worker, where there is no GPU: as many threads


def local(job: Job, lines: Sequence[Line], opened: Opened) -> Iterator[Written]:
    worker = Worker(job, opened)
    return map(worker, lines)


def on_ray(job: Job, lines: Sequence[Line], pool: Pool) -> Iterator[Written]:
    ray = connected()
    gpus = int(ray.cluster_resources().get("GPU", 0)) if job.device in ("auto", "cuda") else 0
    if job.device == "cuda" and not gpus:
        raise UserError("--device cuda: this Ray cluster has no GPU")
    cpus = int(ray.cluster_resources().get("CPU", 1))
    workers = pool.workers or (gpus or max(1, cpus // pool.cpus))
    needs = {"num_gpus": 1} if gpus else {"num_cpus": pool.cpus}
    job = replace(job, device="cuda" if gpus else "cpu")
    blocks = min(len(lines), MOST_BLOCKS)
    done = ray.data.from_items([line._asdict() for line in lines], override_num_blocks=blocks).map_batches(
        RayWorker,
        fn_constructor_args=(job,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(lines))),
        **needs,
    )
    try:
        for row in done.iter_rows():
            yield Written(*(int(row[name]) for name in ("part", "rows", "failed")))
    except Exception as error:
        raise _plain(error) from None


class RayWorker:
    """A worker, as Ray Data calls it: lines in columns, one at a time."""

    def __init__(self, job: Job) -> None:
        self.worker = Worker(job)

    def __call__(self, lines: dict[str, Any]) -> dict[str, list[int]]:
        line, output = Line(*(int(lines[name][0]) for name in Line._fields)), self.worker.output
        if not output.begin(line.part, TRIES):
            raise UserError(
                f"{output.where}: {TRIES} workers died over one part; line {line.part + 1} of plan.jsonl names its "
                "pictures, of which one may be to blame, or give each worker more memory. The same command goes on"
            )
        done = self.worker(line)
        output.end(line.part)
        return {"part": [done.part], "rows": [done.rows], "failed": [done.failed]}


def connected() -> Any:
    """Ray, connected to a cluster; quiet, and with its reports home switched off."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it takes every restart for an error
    try:
        import ray
        import ray.data
    except ImportError:
        raise UserError("--engine ray needs Ray: pip install 'vitreous[ray]'; --engine local needs nothing") from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray


def _plain(error: Exception) -> BaseException:
    """What a worker raised, without what it went through on the way here."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, UserError):
        cause = getattr(cause, "cause", None) or cause.__cause__
    return error if cause is None else UserError(str(cause))
