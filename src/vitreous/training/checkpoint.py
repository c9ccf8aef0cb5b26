"""Checkpoints: one folder each; the newest intact one counts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.errors import UserError
from vitreous.storage import atomic
from vitreous.training.shares import joined
from vitreous.weights import own


@dataclass(frozen=True)
class Checkpoint:
    step: int  # optimizer steps taken
    tensors: dict[str, Mapping[str, Tensor]]
    state: dict[str, Any]
    elapsed_s: float  # time spent on the run until then
    notes: tuple[str, ...] = ()  # newer ones that were skipped, and why


def restore(live: Mapping[str, Tensor], saved: Mapping[str, Tensor], of: str) -> None:
    """Copy saved tensors into the live ones of their names, in place. They must be of the same names and shapes."""
    for name in sorted(live.keys() ^ saved.keys()):
        side = "lacks" if name in live else "has an unknown"
        raise UserError(f"{of}: the saved state {side} {name!r}; it belongs to another model or other settings")
    for name, tensor in live.items():
        if tensor.shape != saved[name].shape:
            shapes = f"{tuple(saved[name].shape)}, not {tuple(tensor.shape)}"
            raise UserError(f"{of}: the saved {name!r} has the shape {shapes}; it belongs to another model")
        tensor.copy_(saved[name])


class Checkpoints:
    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 2:
            raise ValueError("keep at least 2 checkpoints: if one is damaged, an earlier one is needed")
        self.folder, self.keep = folder, keep
        self._passed_over: set[Path] = set()

    def paths(self) -> dict[int, Path]:
        """Step -> folder, oldest first, intact or not."""
        if not self.folder.is_dir():
            return {}
        # The second is a checkpoint whose replacement was interrupted; it is read under its own name.
        names = re.compile(r"step-(\d+)|\.step-(\d+)\.vitreous-old")
        found = (names.fullmatch(path.name) for path in self.folder.iterdir())
        return {step: self._path(step) for step in sorted({int(match[1] or match[2]) for match in found if match})}

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08}"

    def save(
        self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], elapsed_s: float = 0.0
    ) -> None:
        """Write one; older ones are removed only when it is in place."""
        draft = self.draft(step)
        try:
            draft.begin()
            self.finish(step, draft, draft.add(tensors, {"state": dict(state)}), elapsed_s)
        finally:
            draft.drop()

    def draft(self, step: int, process: int | None = None) -> own.Draft:
        """A checkpoint to write; see `saving` for how several processes do that."""
        return own.Draft(self._path(step), process)

    def finish(self, step: int, draft: own.Draft, files: own.Files, elapsed_s: float) -> None:
        if self._path(step) in self._passed_over:  # damaged, so perhaps no longer recognisable as ours
            atomic.remove(self._path(step))
        draft.finish(files, {"step": step, "elapsed_s": elapsed_s})
        self._passed_over.discard(self._path(step))
        self._prune(step)

    def _prune(self, newest: int) -> None:
        paths = self.paths()
        # Later ones, and those found damaged, are from before the run resumed from an earlier one.
        sound = [step for step, path in paths.items() if step <= newest and path not in self._passed_over]
        for step, path in paths.items():
            if step not in sound[-self.keep :]:
                atomic.remove(path)

    def latest(self) -> Checkpoint | None:
        """The newest one that is intact; None if there are no checkpoints."""
        notes: list[str] = []
        for step, path in reversed(self.paths().items()):
            try:
                return replace(self.read(step), notes=tuple(notes))
            except UserError as error:
                self._passed_over.add(path)
                notes.append(str(error))
        if notes:
            raise UserError(f"{self.folder}: no checkpoint is intact ({notes[0]}); remove the folder to start over")
        return None

    def read(self, step: int) -> Checkpoint:
        """The checkpoint of a step; a UserError says what is wrong with it."""
        path = self._path(step)
        found = own.read_folder(path)
        if found.about.get("step") != step:
            raise UserError(f"{path}: renamed; it was saved after {found.about.get('step')} steps")
        elapsed_s = float(found.about.get("elapsed_s", 0.0))
        return Checkpoint(step, joined(found, path), found.documents["state"], elapsed_s)
