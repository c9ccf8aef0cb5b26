"""The process that holds a model. It reads frames, decodes pictures, runs waiting jobs in batches, and replies.

Batches run in lanes: threads that share the machine's cores. Every job gets exactly one reply, which carries its
number. The process ends when the HTTP process does, however that ended: its end of the connection is then closed.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from vitreous.data.images import BadPicture, read_picture
from vitreous.errors import UserError, in_plain_words
from vitreous.serve import frames
from vitreous.serve.answers import as_json
from vitreous.serve.log import log, log_to_stderr
from vitreous.serve.served import Served, open_served

NUM_DECODERS = 2  # so that one huge picture does not delay all others
NUM_SPARE = 4  # training pictures decoded ahead
TEXTS = ("embed-texts", "search-texts")  # kinds of jobs that bring texts instead of a picture


@dataclass(eq=False)
class Job:
    number: int
    kind: str  # predict, segment, detect, embed, attention, zero-shot, search; embed-texts, search-texts
    options: dict[str, Any]
    data: bytes
    prepared: Any = None
    is_dropped: bool = False


@dataclass(frozen=True)
class Spare:
    """A training picture to index when there are no jobs."""

    number: int
    label: str
    thumbnail: str
    prepared: Any


@dataclass(frozen=True)
class Turn:
    """What a lane does next."""

    work: list[Job] | Spare
    lanes: int  # that share the cores meanwhile: 1 if this one has them all


class Inbox:
    """Jobs that are ready for the model, and pictures to index when there are none.

    In a pass on many cores, every core waits for the slowest at every step. Separate passes in several lanes
    therefore give more replies per second, and are used if several pictures are waiting. A single picture is fastest
    on all cores.
    """

    def __init__(self) -> None:
        self.lanes = 1
        self.num_running = 0  # turns
        self.is_whole = False  # whether a turn that has all cores is running
        self.changed = threading.Condition()
        self.known: dict[int, Job] = {}  # jobs that are not yet in a batch, by number
        self.ready: deque[Job] = deque()
        self.spare: deque[Spare] = deque()

    def expect(self, job: Job) -> None:
        with self.changed:
            self.known[job.number] = job

    def put(self, job: Job) -> None:
        with self.changed:
            if not job.is_dropped:
                self.ready.append(job)
                self.changed.notify_all()

    def forget(self, number: int) -> bool:
        """Drop a job. Returns False if it was already in a batch."""
        with self.changed:
            job = self.known.pop(number, None)
            if job is None:
                return False
            job.is_dropped = True
            if job in self.ready:
                self.ready.remove(job)
            self.changed.notify_all()
            return True

    def put_spare(self, spare: Spare) -> None:
        with self.changed:
            self.changed.wait_for(lambda: len(self.spare) < NUM_SPARE)
            self.spare.append(spare)
            self.changed.notify_all()

    def take(self, max_batch: int) -> Turn:
        """Wait for a turn. The caller must call `finish` after it."""
        with self.changed:
            while (turn := self._next(max_batch)) is None:
                self.changed.wait()
            if isinstance(turn.work, Spare):
                self.spare.popleft()
            else:
                for job in turn.work:
                    self.ready.remove(job)
                    del self.known[job.number]
            self.num_running += 1
            self.is_whole = turn.lanes == 1
            self.changed.notify_all()
            return turn

    def finish(self) -> None:
        with self.changed:
            self.num_running -= 1
            self.is_whole = False
            self.changed.notify_all()

    def _next(self, max_batch: int) -> Turn | None:
        """Jobs of the same kind as the oldest, in order. With one lane, all that are ready. With several lanes, one
        picture at a time, so that replies are spread evenly in time, unless many are waiting: then a batch, which takes
        less time per picture, but leaves as many for each other lane."""
        is_free = self.num_running == 0
        if self.is_whole or self.num_running == self.lanes:
            return None
        if not self.ready:
            return Turn(self.spare[0], 1) if self.spare and not self.known and is_free else None
        first = self.ready[0]
        if first.kind == "attention":  # is read from inside the model, which no other lane may use meanwhile
            return Turn([first], 1) if is_free else None
        if is_free and len(self.known) == 1:
            return Turn([first], 1)
        alike = [job for job in self.ready if job.kind == first.kind]
        share = len(alike) if self.lanes == 1 else max(1, len(alike) // (self.lanes + 1))
        return Turn(alike[: min(max_batch, share)], self.lanes)


class Worker:
    def __init__(self, connection: socket.socket, start: dict[str, Any]) -> None:
        self.connection, self.start = connection, start
        self.sending = threading.Lock()
        self.inbox = Inbox()
        self.served: Served
        self.max_batch: int

    def send(self, header: dict[str, Any], blob: bytes = b"") -> None:
        try:
            with self.sending:
                self.connection.sendall(frames.pack(header, blob))
        except OSError:
            os._exit(0)  # the HTTP process has ended

    def run(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self._load()
        except UserError as error:
            self.send({"failed": str(error)})
            return
        self.send({"ready": self.served.describe(), "queue": self.served.queue, "max_batch": self.max_batch})
        threading.Thread(target=self._show, daemon=True).start()
        for _ in range(self.inbox.lanes - 1):
            threading.Thread(target=self._work, daemon=True).start()
        self._work()

    def _work(self) -> None:
        """Run one lane."""
        try:
            while True:
                turn = self.inbox.take(self.max_batch)
                self.served.take_cores(turn.lanes)
                if isinstance(turn.work, list):
                    self._answer(turn.work, turn.lanes)
                else:
                    self._index(turn.work)
                self.inbox.finish()
        except BaseException:
            log.exception("the model's process failed")
            os._exit(1)  # otherwise the other lanes would go on, and nobody would notice that one is missing

    def _load(self) -> None:
        told = self.start
        self.served = open_served(told["where"], told["device"], told["threads"])
        self.inbox.lanes = self.served.lanes
        self.max_batch = told["max_batch"] or self.served.max_batch
        begun = threading.Barrier(NUM_DECODERS + 1)

        def begin() -> None:
            self.served.begin_decoder()
            begun.wait()

        self.decoders = ThreadPoolExecutor(NUM_DECODERS, "decoder", begin)
        for _ in range(NUM_DECODERS):
            self.decoders.submit(time.monotonic)
        begun.wait()  # the decoders' settings of threads must not override the model's
        self.served.warm_up()

    # ---- jobs

    def _read(self) -> None:
        while True:
            frame = frames.receive(self.connection)
            if frame is None:
                os._exit(0)  # the HTTP process has ended
            header, blob = frame
            if "drop" in header:
                if self.inbox.forget(header["drop"]):
                    self.send({"id": header["drop"], "dropped": True})
                continue
            job = Job(header["id"], header["kind"], header["options"], blob)
            self.inbox.expect(job)
            self.decoders.submit(self._decode, job)

    def _decode(self, job: Job) -> None:
        if job.is_dropped:
            return
        try:
            if job.kind in TEXTS:
                job.prepared = json.loads(job.data)
            else:
                with in_plain_words():
                    job.prepared = self.served.prepare(read_picture(job.data, self.start["max_pixels"]))
        except BadPicture as error:
            self._refuse(job, 422, str(error))
        except UserError:
            self._refuse(job, 413, "the picture needs more memory than is available")
        except Exception:
            self._fail([job])
        else:
            job.data = b""
            self.inbox.put(job)

    def _refuse(self, job: Job, status: int, reason: str) -> None:
        if self.inbox.forget(job.number):  # otherwise it was dropped, and has its reply
            self.send({"id": job.number, "status": status, "error": reason})

    def _fail(self, jobs: list[Job]) -> None:
        log.exception("the model failed on a picture")
        for job in jobs:
            self.inbox.forget(job.number)
            self.send({"id": job.number, "status": 500, "error": "the model failed on this picture"})

    def _answer(self, batch: list[Job], lanes: int) -> None:
        began = time.monotonic()
        try:
            results = self._results(batch)
        except UserError as error:
            for job in batch:
                self.send({"id": job.number, "status": 422, "error": str(error)})
            return
        except Exception as error:
            self._fail(batch)
            if self.served.is_lost(error):
                raise
            return
        self.send({"batch": len(batch), "seconds": (time.monotonic() - began) / lanes})
        for job, (result, blob) in zip(batch, results, strict=True):
            self.send({"id": job.number, "result": result}, blob)

    def _results(self, batch: list[Job]) -> list[tuple[Any, bytes]]:
        prepared = [job.prepared for job in batch]
        if batch[0].kind in ("predict", "segment", "detect"):
            found = self.served.predict(prepared, looks=any(job.options.get("looks") for job in batch))
            return [(as_json(outcome, job.options), b"") for outcome, job in zip(found, batch, strict=True)]
        if batch[0].kind == "zero-shot":
            said = self.served.zero_shot(prepared, [job.options for job in batch])
            return [(each, b"") for each in said]
        if batch[0].kind == "embed":
            return [(None, row.tobytes()) for row in self.served.embed(prepared)]
        if batch[0].kind == "embed-texts":
            return [(None, self.served.embed_texts(texts).tobytes()) for texts in prepared]
        if batch[0].kind in ("search", "search-texts"):
            return self._found(batch)
        return [(None, self.served.attention(prepared[0], batch[0].options))]

    def _found(self, batch: list[Job]) -> list[tuple[Any, bytes]]:
        prepared = [job.prepared for job in batch]
        is_words = batch[0].kind in TEXTS
        vectors = self.served.embed_texts([texts[0] for texts in prepared]) if is_words else self.served.embed(prepared)
        return [(self.served.search(row, job.options["num"]), b"") for row, job in zip(vectors, batch, strict=True)]

    # ---- pictures of the model's own data

    def _show(self) -> None:
        """Send examples, then queue pictures to index, from where an earlier process of this model stopped."""
        from vitreous.serve.gallery import EXAMPLE_PX, THUMBNAIL_PX, as_data_url, chosen, examples, own_data

        why = "this model does not say what it was trained on, so there are no training pictures to search"
        try:
            own = own_data(self.start["where"])
        except Exception as error:  # the data may be anywhere, in any state; the service works without it
            log.warning("no training pictures to show: %s", error)
            own, why = None, "the data that this model was trained on cannot be read on this machine"
        if self.start["examples"]:
            shown = self.served.examples(self.start["examples"]) or [
                (each.label, as_data_url(each.picture, EXAMPLE_PX)) for each in examples(own, self.start["examples"])
            ]
            self.send({"examples": shown})
        num = self.start["neighbours"]
        if own is None or not num or "embed" not in self.served.describe()["can"]:
            self.send({"no_neighbours": why if own is None else "this service does not index training pictures"})
            return
        self.send({"to_index": min(num, len(own.train))})
        num_readable = self.start["num_indexed"]
        for each in chosen(own.train, num, self.start["indexed"]):
            thumbnail = as_data_url(each.picture, THUMBNAIL_PX)
            self.inbox.put_spare(Spare(each.number, each.label, thumbnail, self.served.prepare(each.picture)))
            num_readable += 1
        self.send({"to_index": num_readable})  # unreadable pictures have been skipped

    def _index(self, spare: Spare) -> None:
        pooled = self.served.embed([spare.prepared])[0]
        self.send({"indexed": spare.number, "label": spare.label, "picture": spare.thumbnail}, pooled.tobytes())


def main() -> None:
    # Ctrl-C, closing a terminal and service managers signal all processes of the group, but the HTTP process decides
    # when this one ends.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    log_to_stderr()
    connection = socket.socket(fileno=0)
    frame = frames.receive(connection)
    if frame is None:
        sys.exit(0)
    Worker(connection, frame[0]).run()


if __name__ == "__main__":
    main()
