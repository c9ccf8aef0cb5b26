"""A teacher's predictions, computed once and stored: further students do not pay for the teacher.

A prediction belongs to a view, which follows from a sample, its partner (Mixup), the epoch, and what `answers.json`
says about views: pictures, augmentation, preprocessing, seed, batch size (a partner is the next in the batch). A step's
batch is a function of these, for any number of workers and ranks; so predictions are stored in the order of the steps.

DIR/answers.json                   which views, and whose predictions (the name is from an earlier version)
DIR/epoch-0003/steps-00000064/     predictions for some thousand samples, see weights/own.py
"""

import hashlib
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous import platforms
from vitreous.batch import Batch
from vitreous.data.base import Source
from vitreous.data.images import BadPicture
from vitreous.data.loader import Inputs, TrainLoader
from vitreous.errors import UserError
from vitreous.storage import atomic, locks
from vitreous.teaching.teachers import KnownTeacher
from vitreous.terminal import Bar
from vitreous.weights import own

ABOUT = "answers.json"
SAMPLES = 2**14  # least samples in a part, unless the epoch ends: what a kill can cost
PICTURES = 256  # of a source are hashed to recognise it

Ask = Callable[[Batch], Tensor]  # what is stored of a teacher's predictions: (B,) decisions or (B, K) logits


def about(views: Mapping[str, Any], teacher: Mapping[str, Any], loader: TrainLoader, samples: int = SAMPLES) -> Any:
    """The contents of answers.json."""
    batch_size = loader.order.batch_size
    return {"views": views, "teacher": teacher, "steps_a_part": max(1, -(-samples // batch_size))}


def identity(source: Source) -> str:
    """A hash of all labels and of some pictures, evenly spread. It is the same in memory and on disk; a single picture
    that was replaced may go unnoticed."""
    digest = hashlib.sha256()
    source.targets.update(digest)
    for index in np.unique(np.linspace(0, len(source) - 1, PICTURES).astype(int)):
        try:
            digest.update(np.ascontiguousarray(source.read(int(index))).tobytes())
        except BadPicture:
            continue
    return digest.hexdigest()


# ---- storing


@contextmanager
def claimed(folder: Path, document: Mapping[str, Any]) -> Iterator[None]:
    """Claims the folder for this process. The same predictions are continued, others are refused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: predictions cannot be stored there ({error.strerror})") from None
    lock = locks.take(folder / "lock")
    if lock is None:
        raise UserError(
            f"{folder}: in use by {locks.holder(folder / 'lock')}; wait for it to end, or choose another --out"
        )
    with lock:
        if (folder / ABOUT).is_file():
            there = _read(folder)
            _compare(folder, there["views"], document["views"])
            if there["teacher"]["fingerprint"] != document["teacher"]["fingerprint"]:
                raise UserError(
                    f"{folder}: holds predictions of another teacher ({there['teacher']['where']}); "
                    "choose another --out"
                )
        elif names := atomic.strangers(folder):
            raise UserError(f"{folder}: contains {names[0]!r}, but no teacher's predictions; choose another --out")
        else:
            atomic.write_json(document, folder / ABOUT)
        for epoch in folder.glob("epoch-*"):
            atomic.sweep(epoch)
        yield


def store(folder: Path, loader: TrainLoader, ask: Ask, epochs: int, *, rank: int = 0, world: int = 1) -> int:
    """Compute every part that is missing or damaged. Returns for how many samples."""
    stored = StoredPredictions(folder, _read(folder)["views"], loader)
    mine = stored.parts(epochs)[rank::world]
    missing = [part for part in mine if own.verify_folder(stored.path(part)) is not None]
    asked = 0
    with Bar("teaching", sum(map(len, missing)), unit="steps", silent=rank > 0) as bar:
        for part in missing:
            predictions = []
            with closing(loader.batches(part.start, part.stop)) as batches:
                for batch in batches:
                    predictions.append(ask(batch).cpu())
                    asked += len(batch)
                    bar.update(asked // loader.order.batch_size)
            if stored.path(part).exists():  # damaged, so perhaps no longer recognisable as ours
                atomic.remove(stored.path(part))
            stored.write(part, torch.cat(predictions))
    return asked


# ---- storing and reading


class StoredPredictions:
    """Predictions in a folder, for the views that `views` describes."""

    def __init__(self, folder: Path, views: Mapping[str, Any], loader: TrainLoader) -> None:
        document = _read(folder)
        _compare(folder, document["views"], views)
        self.folder, self.steps_a_part = folder, int(document["steps_a_part"])
        self.steps_per_epoch, order = loader.steps_per_epoch, loader.order
        self._batch_size = order.batch_size
        self._order = order.narrowed(slice(0, order.batch_size), torch.device("cpu"))
        self._views = _hash(document["views"])
        self._part, self._predictions = range(0), torch.empty(0)

    def parts(self, epochs: int) -> list[range]:
        """The steps of each part. A part ends with its epoch at the latest."""
        ends = range(self.steps_per_epoch, (epochs + 1) * self.steps_per_epoch, self.steps_per_epoch)
        return [
            range(first, min(first + self.steps_a_part, end))
            for end in ends
            for first in range(end - self.steps_per_epoch, end, self.steps_a_part)
        ]

    def path(self, part: range) -> Path:
        epoch, step = divmod(part.start, self.steps_per_epoch)
        return self.folder / f"epoch-{epoch:04}" / f"steps-{step:08}"

    def check(self, num_steps: int) -> None:
        """An error unless there are predictions for a run of this many steps."""
        epochs = -(-num_steps // self.steps_per_epoch)
        for part in self.parts(epochs):
            if part.start < num_steps and not self.path(part).is_dir():
                raise UserError(
                    f"{self.folder}: no predictions for epoch {part.start // self.steps_per_epoch + 1} of the {epochs} "
                    f"of this run; store them with `vitreous teach ... --epochs {epochs} --out {self.folder}`"
                )

    def write(self, part: range, predictions: Tensor) -> None:
        if predictions.dtype == torch.int64:
            small = torch.int16 if int(predictions.max()) < 2**15 else torch.int32
            predictions = predictions.to(small)
        about = {"views": self._views, "samples": self._samples(part)}
        own.write_folder(self.path(part), {"answers": {"answers": predictions}}, {}, about)

    def __call__(self, step: int) -> Tensor:
        """Those for the batch of a step: (B,) int64 decisions or (B, K) float16 logits, on the CPU."""
        if step not in self._part:
            first = step - step % self.steps_per_epoch % self.steps_a_part
            end = (step // self.steps_per_epoch + 1) * self.steps_per_epoch
            self._part = range(first, min(first + self.steps_a_part, end))
            self._predictions = self._load(self._part)
        at = (step - self._part.start) * self._batch_size
        predictions = self._predictions[at : at + self._batch_size]
        return predictions if predictions.is_floating_point() else predictions.long()

    def _load(self, part: range) -> Tensor:
        found = own.read_folder(self.path(part))
        expected = {"views": self._views, "samples": self._samples(part)}
        if found.about != expected or len(found.tensors["answers"]["answers"]) != len(part) * self._batch_size:
            raise UserError(f"{self.path(part)}: predictions for other views or samples; remove it and teach again")
        return found.tensors["answers"]["answers"]

    def _samples(self, part: range) -> str:
        """Which samples, in which epoch and with which partners: a hash of their keys, in order."""
        digest = hashlib.sha256()
        for step in part:
            digest.update(self._order(step)[1].numpy().tobytes())
        return digest.hexdigest()


class StoredTeacher(KnownTeacher):
    """Stands for a teacher whose predictions are stored; the teacher itself need not exist any more."""

    def __init__(self, folder: str, fingerprint: int) -> None:
        super().__init__(fingerprint, f"{folder}: its predictions are not from", f"store that one's in {folder}")


class TaughtLoader:
    """A loader whose batches also hold a teacher's predictions, as the target `teacher`."""

    def __init__(self, loader: TrainLoader, predictions: StoredPredictions, rank: int = 0, world: int = 1) -> None:
        self.loader, self.predictions = loader, predictions
        self.steps_per_epoch, self.waited_s = loader.steps_per_epoch, 0.0
        share = loader.order.batch_size // world
        self._own = slice(rank * share, (rank + 1) * share)

    def inputs(self, start: int, stop: int) -> Generator[Inputs, None, None]:
        with closing(self.loader.inputs(start, stop)) as found:
            for step, inputs in enumerate(found, start):
                self.waited_s = self.loader.waited_s
                yield platforms.moved(self.predictions(step)[self._own], self.loader.device), *inputs

    def prepare(self, *inputs: Tensor) -> Batch:
        predictions, *rest = inputs
        batch = self.loader.prepare(*rest)
        return replace(batch, targets=batch.targets | {"teacher": predictions})

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        for inputs in self.inputs(start, stop):
            yield self.prepare(*inputs)


# ---- the document beside the predictions


def taught_by(folder: Path) -> tuple[str, int]:
    """The teacher that made the predictions: where it was, and its fingerprint."""
    teacher = _read(folder)["teacher"]
    return teacher["where"], teacher["fingerprint"]


def _read(folder: Path) -> dict[str, Any]:
    path = folder / ABOUT
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(
            f"{folder}: no predictions are stored there; `vitreous teach RECIPE --out {folder}` does"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    match document:
        case {
            "views": dict(),
            "teacher": {"where": str(), "fingerprint": int(fingerprint)},
            "steps_a_part": int(steps),
        } if 0 <= fingerprint < 2**63 and steps > 0:
            return document  # type: ignore[no-any-return]
    raise UserError(f"{path}: not written by `vitreous teach`; run it again with another --out")


def _hash(views: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(views, sort_keys=True).encode()).hexdigest()


def _compare(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    if _hash(there) == _hash(here):
        return
    old, new = _leaves(there), _leaves(here)
    differing = [name for name in old | new if old.get(name) != new.get(name)]
    words = [f"{name} {old.get(name)} there, {new.get(name)} here" for name in differing[:3]]
    raise UserError(
        f"{folder}: contains predictions for other views ({'; '.join(words)}). Give the settings they were made with, "
        "or run `vitreous teach` again with another --out"
    )


def _leaves(tree: Any, name: str = "") -> dict[str, str]:
    """By dotted name, as text short enough to read."""
    if isinstance(tree, Mapping):
        return {k: v for key, value in tree.items() for k, v in _leaves(value, f"{name}.{key}".lstrip(".")).items()}
    text = json.dumps(tree)
    return {name: text if len(text) <= 40 else f"{text[:30]}... ({hashlib.sha256(text.encode()).hexdigest()[:6]})"}
