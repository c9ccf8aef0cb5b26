"""Checkpoints of all ranks, written while training continues.

After the same step, every rank copies what it saves to the host (see `shares`), then writes its files in a thread. When
all are done, the first rank writes the manifest and puts the checkpoint in place. Until then the previous one counts.
"""

import json
import os
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from vitreous.errors import UserError
from vitreous.training.devices import World
from vitreous.training.run import RunDirectory
from vitreous.training.shares import Shares, State
from vitreous.training.stopping import EndedTogetherError
from vitreous.weights import own

LOOK_S = 0.02  # between checks whether all ranks have written


class Saver:
    """Writes at most one checkpoint at a time; all ranks begin and finish it together."""

    def __init__(self, directory: RunDirectory, world: World) -> None:
        self._directory, self._world = directory, world
        self._shares = Shares(world)
        self._copies: dict[tuple[str, str], Tensor] = {}  # on the host, reused for the next checkpoint
        self._writing: _Writing | None = None

    def begin(self, step: int, tensors: State, state: Mapping[str, Any]) -> None:
        """Returns as soon as the state is copied and may be changed."""
        self.finish()
        opened = json.loads(self._world.collect(json.dumps(self._opened(step)))[0])
        _check(opened["error"])
        draft = self._directory.checkpoints.draft(step, opened["process"])
        named, documents = self._shares.of(tensors, state)
        copied = {stem: self._copied(stem, each) for stem, each in named.items()}
        if self._world.device.type == "cuda":
            torch.cuda.synchronize()
        self._writing = _Writing(step, draft, self._directory.elapsed_s, _Thread(draft, copied, documents))

    def _opened(self, step: int) -> dict[str, Any]:
        """The first rank creates the folder that all write into."""
        said = {"process": os.getpid(), "error": ""}
        if self._world.is_first:
            try:
                self._directory.keep_log()
                self._directory.checkpoints.draft(step).begin()
            except UserError as error:
                said["error"] = str(error)
        return said

    def _copied(self, stem: str, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, tensor in named.items():
            copy = self._copies.get((stem, name))
            if copy is None or copy.shape != tensor.shape:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                self._copies[stem, name] = copy
            found[name] = copy.copy_(tensor, non_blocking=tensor.is_cuda)
        return found

    @property
    def is_writing(self) -> bool:
        """On this rank."""
        return self._writing is not None and self._writing.thread.is_alive()

    def finish(self) -> None:
        """Wait for all ranks and put the checkpoint in place; does nothing if none was begun."""
        if self._writing is None:
            return
        while self._world.any(self.is_writing)[0]:
            time.sleep(LOOK_S)
        step, draft, elapsed_s, thread = self._writing
        self._writing = None
        try:
            files: own.Files = {}
            for said in map(json.loads, self._world.collect(json.dumps(thread.said()))):
                _check(said["error"])
                files |= said["files"]
            _check(self._place(step, draft, files, elapsed_s))
        finally:
            if self._world.is_first:
                draft.drop()

    def _place(self, step: int, draft: own.Draft, files: own.Files, elapsed_s: float) -> str:
        """Returns what went wrong, for all ranks."""
        error = ""
        if self._world.is_first:
            try:
                self._directory.checkpoints.finish(step, draft, files, elapsed_s)
            except UserError as found:
                error = str(found)
        return self._world.collect(error)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An error of one rank does not reach the others, which would not answer: the checkpoint needs all of them.
        theirs = isinstance(error, UserError if self._world.size == 1 else EndedTogetherError)
        if error is None or theirs:
            self.finish()


def _check(error: str) -> None:
    if error:
        raise UserError(error)


class _Thread(threading.Thread):
    def __init__(self, draft: own.Draft, tensors: State, documents: Mapping[str, Any]) -> None:
        super().__init__(name="checkpoint", daemon=True)  # a rank that lost another does not wait for this thread
        self._draft, self._tensors, self._documents = draft, tensors, documents
        self._files: own.Files = {}
        self._error = ""
        self.start()

    def run(self) -> None:
        try:
            self._files = self._draft.add(self._tensors, self._documents)
        except UserError as error:
            self._error = str(error)
        except Exception as error:  # all ranks must know
            self._error = f"{self._draft.path}: cannot be written ({type(error).__name__}: {error})"

    def said(self) -> dict[str, Any]:
        return {"error": self._error, "files": self._files}


class _Writing(NamedTuple):
    step: int
    draft: own.Draft
    elapsed_s: float
    thread: _Thread
