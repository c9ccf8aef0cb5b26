"""Checkpoints: a folder for each, of which the newest whole one counts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.errors import UserError
from vitreous.storage import atomic
from vitreous.weights import own


@dataclass(frozen=True)
class Checkpoint:
    step: int  # optimizer steps taken
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    elapsed_s: float  # spent on the run until then
    notes: tuple[str, ...] = ()  # newer ones that were passed over, and why


class Checkpoints:
    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 2:
            raise ValueError("one checkpoint is none: a damaged one needs another before it")
        self.folder, self.keep = folder, keep
        self._passed_over: set[Path] = set()

    def paths(self) -> dict[int, Path]:
        """Step -> folder, oldest first; whole or not."""
        if not self.folder.is_dir():
            return {}
        # The second is of a checkpoint whose replacement was interrupted; it is read under its own name.
        names = re.compile(r"step-(\d+)|\.step-(\d+)\.vitreous-old")
        found = (names.fullmatch(path.name) for path in self.folder.iterdir())
        return {step: self._path(step) for step in sorted({int(match[1] or match[2]) for match in found if match})}

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08}"

    def save(
        self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], elapsed_s: float = 0.0
    ) -> None:
        """Write one; older ones go only when it is in its place."""
        about = {"step": step, "elapsed_s": elapsed_s}
        own.write_folder(self._path(step), tensors, {"state": dict(state)}, about)
        self._passed_over.discard(self._path(step))
        self._prune(step)

    def _prune(self, newest: int) -> None:
        paths = self.paths()
        # Later ones, and those found damaged, belong to a course that the run has left by resuming before them.
        sound = [step for step, path in paths.items() if step <= newest and path not in self._passed_over]
        for step, path in paths.items():
            if step not in sound[-self.keep :]:
                atomic.remove(path)

    def latest(self) -> Checkpoint | None:
        """The newest one that verifies; None where there is none at all."""
        notes: list[str] = []
        for step, path in reversed(self.paths().items()):
            try:
                return replace(self.read(step), notes=tuple(notes))
            except UserError as error:
                self._passed_over.add(path)
                notes.append(str(error))
        if notes:
            raise UserError(f"{self.folder}: no checkpoint is whole ({notes[0]}); remove the folder to start over")
        return None

    def read(self, step: int) -> Checkpoint:
        """That of one step; a UserError says what is wrong with it."""
        path = self._path(step)
        found = own.read_folder(path)
        if found.about.get("step") != step:
            raise UserError(f"{path}: renamed, for it was saved after {found.about.get('step')} steps")
        return Checkpoint(step, found.tensors, found.documents["state"], float(found.about.get("elapsed_s", 0.0)))
