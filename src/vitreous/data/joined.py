"""Two sets as one: pictures that people labelled, and pictures that a model labelled (Xie et al. 2020).

DIR/joined.json            both sets, as settings, and how often each is shown
DIR/labels.safetensors     which pictures of the second set were taken, and the probabilities of their classes

It is a data set like any other: `--data.where DIR`. Its validation and test parts are those of the first set.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from vitreous.data.base import BadFiles, Labels, Source, Subset
from vitreous.data.images import Picture
from vitreous.data.splits import Splits
from vitreous.data.targets import PseudoLabels
from vitreous.errors import UserError
from vitreous.storage import atomic

ABOUT, LABELS = "joined.json", "labels.safetensors"
FORMAT = 1

OpenSet = Callable[[Any, str], Splits]  # of settings as JSON, and of the file that they stand in


class Joined(Source):
    """The pictures of one source, then those of another."""

    def __init__(self, first: Source, second: Source, targets: PseudoLabels) -> None:
        self.parts, self.targets = (first, second), targets
        self.name, self.classes = f"{first.name} and {second.name}", first.classes
        self.notes = first.notes + second.notes
        held = [part.pictures for part in self.parts if part.pictures is not None]
        if len(held) == 2 and held[0].shape[1:] == held[1].shape[1:]:
            self.pictures = np.concatenate(held)

    def _place(self, index: int) -> tuple[Source, int]:
        first, second = self.parts
        return (first, index) if index < len(first) else (second, index - len(first))

    def read(self, index: int) -> Picture:
        source, place = self._place(index)
        return source.read(place)

    def where(self, index: int) -> str:
        source, place = self._place(index)
        return source.where(place)

    def orientation(self, index: int) -> int:
        source, place = self._place(index)
        return source.orientation(place)

    def size(self, index: int) -> int:
        source, place = self._place(index)
        return source.size(place)

    def hold(self, pictures: int, runs: int) -> None:
        for part in self.parts:
            part.hold(pictures, runs)


def joined(labelled: Source, named: Source, probabilities: NDArray[Any], ratio: float) -> Joined:
    """With pictures that a model has named: their classes have these probabilities (M, K)."""
    own = np.eye(len(labelled.classes), dtype=np.float16)[labelled.labels]
    targets = PseudoLabels(
        np.concatenate([own, probabilities.astype(np.float16)]), np.arange(len(own) + len(named)) < len(own), ratio
    )
    return Joined(labelled, named, targets)


# ---- on the disk


@dataclass(frozen=True)
class About:
    """joined.json"""

    labelled: Any  # settings of both sets, as JSON
    unlabelled: Any
    classes: Sequence[str]
    pictures: int  # of the second set, with those that were not taken
    ratio: float
    account: Any  # of the labels, for whoever asks how they were made
    sha256: str  # of the labels
    format: int = FORMAT


def write_joined(
    folder: Path,
    *,
    labelled: Any,
    unlabelled: Any,
    classes: Sequence[str],
    pictures: int,
    taken: Labels,
    probabilities: NDArray[Any],
    ratio: float,
    account: Any,
) -> None:
    """Whole or not at all. `labelled` and `unlabelled` are settings of data, as JSON."""
    content = save({"taken": taken.astype(np.int64), "probabilities": probabilities.astype(np.float16)})
    about = About(labelled, unlabelled, list(classes), pictures, ratio, account, hashlib.sha256(content).hexdigest())
    if folder.exists():
        atomic.remove(folder)
    with atomic.placed(folder) as new:
        new.mkdir()
        atomic.write_bytes(content, new / LABELS)
        atomic.write_json(asdict(about), new / ABOUT)


def is_joined(folder: Path) -> bool:
    return (folder / ABOUT).is_file()


def read_joined(folder: Path) -> tuple[About, Labels, NDArray[np.float16]]:
    """What it is about, which pictures were taken, and their probabilities."""
    path = folder / ABOUT
    document = atomic.read_json(path)
    try:
        about = About(**document)
    except TypeError:
        raise UserError(f"{path}: not written by `vitreous selftrain` or `fit --unlabelled`") from None
    if about.format != FORMAT:
        raise UserError(f"{path}: has format {about.format}, but this version reads format {FORMAT}")
    try:
        content = (folder / LABELS).read_bytes()
        if hashlib.sha256(content).hexdigest() != about.sha256:
            raise UserError(f"{folder / LABELS}: damaged, or of another data set; remove {folder} and label again")
        tensors = load(content)
        return about, tensors["taken"], tensors["probabilities"]
    except (OSError, SafetensorError, KeyError) as error:
        raise UserError(f"{folder / LABELS}: cannot be read ({error})") from None


def open_joined(folder: Path, open_set: OpenSet) -> dict[str, Source]:
    about, taken, probabilities = read_joined(folder)
    path = str(folder / ABOUT)
    splits, unlabelled = open_set(about.labelled, path), open_set(about.unlabelled, path).train
    if splits.train.classes != tuple(about.classes) or len(unlabelled) != about.pictures:
        raise UserError(f"{folder}: the pictures it was made from have changed; label them again, in another folder")
    found: dict[str, Source] = {"train": joined(splits.train, Subset(unlabelled, taken), probabilities, about.ratio)}
    found["train"].bad = BadFiles(folder.name, len(found["train"]))
    if splits.val is not None:
        found["val"] = splits.val
    if splits.test is not None:
        found["test"] = splits.test
    return found
