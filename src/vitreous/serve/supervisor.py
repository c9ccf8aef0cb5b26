"""ModelProcess: a model's process as the HTTP side sees it. It starts and restarts it, admits pictures, and matches
replies with requests."""

import asyncio
import math
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.serve import frames
from vitreous.serve.body import Refused
from vitreous.serve.log import log
from vitreous.serve.settings import ServeSettings

MODEL_S = 60.0  # a process that has not replied by then is considered stuck, and killed
START_S = 600.0  # time for a process to become ready
STEADY_S = 30.0  # a process that works for this long is considered sound: earlier failures are forgotten
PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # before starts, by the number of failures in a row
GIVEN_UP = 10  # failures in a row after which the service reports itself as broken; it goes on trying
STOP_S = 3.0  # time for a process to end by itself
ENOUGH = 100  # indexed training pictures that are worth searching while the others are still being read


@dataclass(frozen=True)
class Reply:
    result: Any
    blob: bytes


@dataclass(frozen=True)
class Neighbour:
    label: str
    picture: str
    similarity: float


class Index:
    """Pooled features of training pictures, normalised to length 1, with labels and thumbnails."""

    def __init__(self) -> None:
        self.total = 0
        self.why: str | None = None  # why there is no index
        self.rows: list[NDArray[np.float32]] = []
        self.shown: list[tuple[str, str]] = []  # label, picture
        self.next = 0  # number of the next picture to index

    def about(self) -> dict[str, Any] | None:
        """For /v1/model: how many pictures will be searched, or why none; None until that is known."""
        return {"total": self.total, "why": self.why} if self.total or self.why else None

    @property
    def is_useful(self) -> bool:
        """Whether enough pictures have been indexed to search them."""
        return self.why is not None or 0 < min(self.total, ENOUGH) <= len(self.rows)

    def add(self, number: int, label: str, picture: str, pooled: NDArray[np.float32]) -> None:
        self.rows.append(_unit(pooled))
        self.shown.append((label, picture))
        self.next = number + 1

    def nearest(self, pooled: NDArray[np.float32], num: int) -> list[Neighbour]:
        if not self.rows:
            return []
        similarity = np.stack(self.rows) @ _unit(pooled)
        order = np.argsort(-similarity, kind="stable")[:num]
        found = [(self.shown[place], float(similarity[place])) for place in order.tolist()]
        return [Neighbour(label, picture, value) for (label, picture), value in found]


def _unit(pooled: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = pooled / np.maximum(np.linalg.norm(pooled), np.float32(1e-12))
    return unit


class ModelProcess:
    def __init__(self, name: str, where: str, settings: ServeSettings, on_batch: Callable[[str, int], None]) -> None:
        self.name, self.where, self.settings, self.on_batch = name, where, settings, on_batch
        self.description: dict[str, Any] | None = None  # known once the process has been ready
        self.is_ready = False
        self.failure: str | None = None  # why the first start failed
        self.examples: list[tuple[str, str]] = []  # label, picture
        self.index = Index()
        self.num_starts = 0
        self.num_failures = 0  # in a row
        self.admitted = 0  # pictures that are waiting or in progress
        self.queue, self.max_batch = settings.queue or 0, settings.max_batch or 0  # 0: the process will tell
        self.picture_s = 0.1  # recent time per picture, in batches
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._next = 0
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._is_stopping = False

    # ---- admission

    def check_room(self, num: int = 1) -> None:
        """Refuse at once if the model is not ready, or has no room for this many pictures."""
        if not self.is_ready:
            raise Refused(503, "the model is starting; try again", retry_s=2)
        # A request with more pictures than there are places is admitted if no other is waiting.
        if self.admitted and self.admitted + num > self.queue:
            raise Refused(429, "too many pictures are waiting; try again", retry_s=self.retry_s)

    @property
    def retry_s(self) -> int:
        """The time until the current queue has been processed."""
        return max(1, math.ceil(self.admitted * self.picture_s))

    # ---- requests

    async def ask(self, kind: str, pictures: list[bytes], options: dict[str, Any]) -> "list[Reply | Refused]":
        """The replies, in the order of the pictures. Cancelling this drops pictures that are not yet in a batch."""
        self.check_room(len(pictures))
        numbers = [self._send(kind, picture, options) for picture in pictures]
        futures = [self._waiting[number] for number in numbers]
        try:
            async with asyncio.timeout(MODEL_S):
                await asyncio.wait(futures)
        except TimeoutError:
            self.kill()
            raise Refused(503, "the model did not respond in time; try again", retry_s=5) from None
        except asyncio.CancelledError:
            for number, future in zip(numbers, futures, strict=True):
                if not future.done():
                    self._write({"drop": number})
            raise
        return [_outcome(future) for future in futures]

    def _send(self, kind: str, picture: bytes, options: dict[str, Any]) -> int:
        self._next += 1
        number = self._next
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self.admitted += 1
        self._write({"id": number, "kind": kind, "options": options}, picture)
        return number

    def _write(self, header: dict[str, Any], blob: bytes = b"") -> None:
        # No drain: the queue bounds what can be in transit.
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frames.pack(header, blob))

    def _settle(self, number: int, reply: Reply | Refused) -> None:
        """Free the picture's place. Only its process can tell when: a dropped picture may already be in a batch."""
        future = self._waiting.pop(number, None)
        if future is None:
            return
        self.admitted -= 1
        if future.cancelled():
            return
        if isinstance(reply, Refused):
            future.set_exception(reply)
            future.exception()  # marks it as seen: a client that left asks no more
        else:
            future.set_result(reply)

    # ---- the process

    async def start(self) -> None:
        self._supervision = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """End the process, and wait for it."""
        self._is_stopping = True
        self.is_ready = False
        if self._supervision is not None:
            self._supervision.cancel()
            await asyncio.gather(self._supervision, return_exceptions=True)
        await self._end()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    @property
    def has_given_up(self) -> bool:
        """Whether restarting the whole service would help more than waiting."""
        has_ended = self._supervision is not None and self._supervision.done()
        return not self.is_ready and (has_ended or self.num_failures >= GIVEN_UP)

    async def _supervise(self) -> None:
        """Start the process whenever there is none, whatever ended it, unless the model could not be read at all."""
        while not self._is_stopping and self.failure is None:
            await asyncio.sleep(PAUSES_S[min(self.num_failures, len(PAUSES_S) - 1)])
            self.num_failures += 1  # until it has worked for a while
            try:
                await self._live()
            except (asyncio.IncompleteReadError, ConnectionError):
                pass  # it has ended
            except Exception as error:  # out of descriptors, memory or processes; an invalid frame ...
                log.error("%s: its process failed (%s: %s); trying again", self.name, type(error).__name__, error)

    async def _live(self) -> None:
        """Run one process, from its start to its end."""
        try:
            await self._listen(await self._spawn())
        finally:
            self.is_ready = False
            for number in list(self._waiting):
                self._settle(number, Refused(503, "the model's process ended; try again", retry_s=2))
            await self._end()

    async def _spawn(self) -> asyncio.StreamReader:
        here, there = socket.socketpair()
        # -P: a file in the current folder must not be imported instead of a library.
        command = [sys.executable, "-P", "-m", "vitreous.serve.worker"]
        try:
            with there:
                self._process = await asyncio.create_subprocess_exec(*command, stdin=there.fileno(), stdout=sys.stderr)
            reader, self._writer = await asyncio.open_unix_connection(sock=here)
        except BaseException:
            here.close()  # ends the process if it did start
            raise
        self.num_starts += 1
        self._write(
            {
                "where": self.where,
                "device": self.settings.device,
                "threads": self.settings.threads,
                "max_batch": self.settings.max_batch,
                "max_pixels": self.settings.max_pixels,
                "examples": 0 if self.examples else self.settings.examples,
                "neighbours": self.settings.neighbours,
                "indexed": self.index.next,
                "num_indexed": len(self.index.rows),
            }
        )
        return reader

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Handle everything that the process sends, until it ends."""
        async with asyncio.timeout(START_S):
            while not self.is_ready:
                self._handle(*await frames.read(reader))
        sound = asyncio.get_running_loop().call_later(STEADY_S, self._forgive)
        try:
            while True:
                self._handle(*await frames.read(reader))
        finally:
            sound.cancel()

    def _forgive(self) -> None:
        self.num_failures = 0

    async def _end(self) -> None:
        """Close the connection, which ends the process, and kill it if it does not notice."""
        process, self._process = self._process, None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for _ in range(2):
            if process is None:
                return
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
                return
            except TimeoutError:
                with suppress(ProcessLookupError):
                    process.kill()
        log.error("%s: its process cannot be killed; continuing without it", self.name)

    def _handle(self, header: frames.Header, blob: bytes) -> None:
        if "id" in header:
            if "error" in header:
                self._settle(header["id"], Refused(header["status"], header["error"]))
            else:
                self._settle(header["id"], Reply(header.get("result"), blob))
        elif "batch" in header:
            self.on_batch(self.name, header["batch"])
            self.picture_s += 0.1 * (header["seconds"] / header["batch"] - self.picture_s)
        elif "ready" in header:
            self.description, self.is_ready = header["ready"], True
            self.queue, self.max_batch = self.settings.queue or header["queue"], header["max_batch"]
        elif "failed" in header:
            if self.description is None:
                self.failure = header["failed"]
        elif "examples" in header:
            self.examples = [(label, picture) for label, picture in header["examples"]]
        elif "no_neighbours" in header:
            self.index.why = header["no_neighbours"]
        elif "to_index" in header:
            self.index.total = header["to_index"]
        elif "indexed" in header:
            pooled = np.frombuffer(blob, dtype=np.float32)
            self.index.add(header["indexed"], header["label"], header["picture"], pooled)


def _outcome(future: "asyncio.Future[Reply]") -> Reply | Refused:
    error = future.exception()
    if error is None:
        return future.result()
    assert isinstance(error, Refused)
    return error
