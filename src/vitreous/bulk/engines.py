"""Engines: what computes the parts of a plan. Nothing else differs between them.

local   this process, one part after another
ray     a Ray cluster (Ray Data): the one that RAY_ADDRESS names or that runs here, else a temporary one
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from vitreous.bulk.output import Written
from vitreous.bulk.work import Opened
from vitreous.bulk.worker import Job, Line, Worker
from vitreous.errors import UserError, first_line, in_plain_words

Name = Literal["local", "ray"]
TRIES = 4  # of a part whose workers die: Ray itself would restart it for ever
MOST_BLOCKS = 10_000  # of lines that a cluster is given


@dataclass(frozen=True, kw_only=True)
class Pool:
    """How much of a cluster to use; None: all of it."""

    workers: int | None = None
    cpus: int = 1  # per worker without a GPU, and its number of threads


def local(job: Job, lines: Sequence[Line], opened: Opened) -> Iterator[Written]:
    worker = Worker(job, opened)
    return map(worker, lines)


def on_ray(job: Job, lines: Sequence[Line], pool: Pool) -> Iterator[Written]:
    ray = connected()
    device, room, needs = _room(ray, job.device, pool)
    given = ray.data.from_items([line._asdict() for line in lines], override_num_blocks=min(len(lines), MOST_BLOCKS))
    done = given.map_batches(
        RayWorker,
        fn_constructor_args=(replace(job, device=device),),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(pool.workers or room, len(lines))),
        **needs,
    )
    for row in done.iter_rows():
        if row["problem"]:
            raise UserError(row["problem"])
        yield Written(*(int(row[name]) for name in ("part", "rows", "failed")))


def _room(ray: Any, device: str, pool: Pool) -> tuple[str, int, dict[str, int]]:
    """Where workers compute, how many there is room for, and the resources that Ray must give each."""
    machines = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    gpus = sum(int(machine.get("GPU", 0)) for machine in machines) if device in ("auto", "cuda") else 0
    if gpus:
        return "cuda", gpus, {"num_gpus": 1}
    room = sum(int(machine.get("CPU", 0)) // pool.cpus for machine in machines)
    if device == "cuda" or not room:
        lacking = "no GPU" if device == "cuda" else f"no machine with {pool.cpus} cores"
        raise UserError(
            f"--engine ray: this cluster has {lacking}; ask for less, or start a larger one with `ray start`"
        )
    return "cpu", room, {"num_cpus": pool.cpus}


class RayWorker:
    """A worker as Ray Data calls it: lines in columns, one at a time. Errors that a user can fix are reported, not
    raised: Ray would wrap them in its own words."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.worker: Worker | None = None

    def __call__(self, lines: dict[str, Any]) -> dict[str, list[Any]]:
        line, problem = Line(*(int(lines[name][0]) for name in Line._fields)), ""
        done = Written(line.part, 0, 0)
        try:
            with in_plain_words():
                done = self._done(line)
        except UserError as error:
            problem = str(error)
        return {"part": [done.part], "rows": [done.rows], "failed": [done.failed], "problem": [problem]}

    def _done(self, line: Line) -> Written:
        self.worker = self.worker or Worker(self.job)
        output = self.worker.output
        if not output.begin(line.part, TRIES):
            raise UserError(
                f"{output.where}: {TRIES} workers died on one part; one of its pictures (line {line.part + 1} of "
                "plan.jsonl) may be to blame, or each worker needs more memory. The same command resumes it"
            )
        done = self.worker(line)
        output.end(line.part)
        return done


def connected() -> Any:
    """Ray, connected to a cluster, quiet, and with its usage reports switched off."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it reports every restart as an error
    try:
        import ray
        import ray.data
    except ImportError:
        raise UserError("--engine ray needs Ray: pip install 'vitreous[ray]'; --engine local needs nothing") from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (ConnectionError, RuntimeError) as error:  # no cluster is there, or another version
            where = os.environ.get("RAY_ADDRESS", "this machine")
            raise UserError(f"--engine ray: no cluster at {where} ({first_line(error)})") from None
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray
