"""A worker: parts in, files of rows out. Every engine runs some, in whatever processes."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from vitreous.bulk.output import Output, Written
from vitreous.bulk.parts import Part, Stored
from vitreous.bulk.places import Unreached
from vitreous.bulk.work import Opened, Work
from vitreous.data.images import BadPicture, Picture
from vitreous.errors import UserError

READERS = 8  # threads that fetch and decode: decoders release Python's lock, and networks are slow
AHEAD = 2  # batches to read before they are needed


class Line(NamedTuple):
    """A part as engines refer to it: its number, and where its line in the plan begins and ends."""

    part: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker must know. It is small, and sent to other machines."""

    work: Work
    out: str
    root: str  # the folder that relative paths start from
    device: str
    batch: int  # pictures that go through the model together
    fingerprint: str  # of the model that this job began with


class Worker:
    def __init__(self, job: Job, opened: Opened | None = None) -> None:
        """`opened`: the model, if this process has it already."""
        self.job, self.root, self.output = job, Path(job.root), Output(job.out)
        self.opened = opened or job.work.open(job.device)
        if self.opened.fingerprint != job.fingerprint:
            raise UserError(
                f"{job.work.model}: not the model that this job began with; every machine needs the same one"
            )
        columns = self.opened.columns.items()
        self.schema = pa.schema([("name", pa.string()), *columns, ("error", pa.string())])

    def __call__(self, line: Line) -> Written:
        part = self.output.part(line.start, line.end)
        return self.output.write(line.part, self.table(part), part, self.job.fingerprint)

    def table(self, part: Part) -> pa.Table:
        """One row per picture. Batches never span parts, so that they are the same with every engine."""
        unreached = 0
        read = _ahead(part.stored(self.root), lambda stored: stored.read(self.root), AHEAD * self.job.batch)
        batches = []
        while some := list(islice(read, self.job.batch)):
            batches.append(self._rows(some))
            unreached += sum(isinstance(one, Unreached) for _, one in some)
        table = pa.Table.from_batches(batches, self.schema)
        if table.num_rows and unreached == table.num_rows:  # so our own network is down
            reason = table["error"][0]
            raise UserError(f"none of {unreached} pictures could be reached: {reason}; the same command resumes later")
        return table

    def _rows(self, some: list[tuple[Stored, Picture | BadPicture]]) -> pa.RecordBatch:
        good = [picture for _, picture in some if not isinstance(picture, BadPicture)]
        count = iter(range(len(good)))
        places = pa.array([None if isinstance(one, BadPicture) else next(count) for _, one in some], pa.int64())
        names = [_text(stored.name) for stored, _ in some]
        errors = [_text(str(one)) if isinstance(one, BadPicture) else None for _, one in some]
        values = [values.take(places) for values in self.opened.arrays(good)]
        return pa.record_batch([pa.array(names), *values, pa.array(errors, pa.string())], schema=self.schema)


def _ahead(
    items: Iterable[Stored], read: Callable[[Stored], Picture | BadPicture], num: int
) -> Iterator[tuple[Stored, Picture | BadPicture]]:
    """In order; at most `num` are read ahead, so that memory does not grow."""
    waiting: deque[tuple[Stored, Future[Picture | BadPicture]]] = deque()
    with ThreadPoolExecutor(READERS) as threads:
        for item in items:
            waiting.append((item, threads.submit(read, item)))
            if len(waiting) > num:
                first, picture = waiting.popleft()
                yield first, picture.result()
        for first, picture in waiting:
            yield first, picture.result()


def _text(name: str) -> str:
    """File names need not be UTF-8, but a table's text must."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
