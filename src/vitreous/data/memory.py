"""Pictures decoded once and kept as uint8, with what is read beside them, where they fit."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch

from vitreous.data.base import Derived, Sample, Source
from vitreous.data.geometry import of_placement
from vitreous.data.images import BadPicture, Picture
from vitreous.data.placement import Placement
from vitreous.data.resample import resize
from vitreous.data.targets import Targets
from vitreous.data.targets.base import Large
from vitreous.data.threads import in_threads

T = TypeVar("T")

MAX_SIDE = 4096  # px of pictures that are cut by whole batches, with weights for every pixel of a side


class InMemory(Derived):
    """A source decoded by threads. Bad pictures are left out: later indices, targets and names move up.

    Where `shrink_px` is given, larger pictures are kept with a shorter side of so many pixels.
    """

    def __init__(self, parent: Source, shrink_px: int | None = None) -> None:
        kept: list[int] = []
        block: Picture | None = None  # all pictures in one array, as long as they are of one size
        loose: list[Picture] = []
        large: list[Large] = []
        sizes: list[tuple[int, ...]] = []
        decoded = worked(parent, lambda sample: shrunk(sample, parent.targets, shrink_px), f"decoding {parent.name}")
        for index, (picture, beside) in decoded:
            if not kept:
                block = np.empty((len(parent), *picture.shape), dtype=np.uint8)
            if block is not None and picture.shape == block.shape[1:]:
                block[len(kept)] = picture
            else:
                if block is not None:
                    loose, block = list(block[: len(kept)]), None
                loose.append(picture)
            kept.append(index)
            large.append(beside)
            sizes.append(picture.shape[:2])
        super().__init__(parent, np.array(kept, dtype=np.int64))
        self.targets = self.targets.held(large)
        if shrink_px is not None:
            self.targets = self.targets.rescaled(np.array(sizes, dtype=np.int64).reshape(-1, 2))
        self.unreadable = unread(parent, kept)  # where they lie
        self.pictures = None if block is None or max(block.shape[1:3]) > MAX_SIDE else block[: len(kept)]
        self._pictures: Sequence[Picture] | Picture = loose if block is None else block

    def read(self, index: int) -> Picture:
        return self._pictures[index]


def shrunk(sample: Sample, targets: Targets, shorter_px: int | None) -> Sample:
    """In its proportions, with what is read beside it; a picture that is not larger stays as it is."""
    picture, large = sample
    height, width = picture.shape[:2]
    if shorter_px is None or min(height, width) <= shorter_px:
        return sample
    tall, wide = (round(side * shorter_px / min(height, width)) for side in (height, width))
    batch = torch.from_numpy(picture if picture.flags.writeable else picture.copy())[None].permute(0, 3, 1, 2)
    small = resize(batch, (tall, wide), "bilinear")[0].permute(1, 2, 0).contiguous().numpy()
    if not large:
        return Sample(small, large)
    squeezed = Placement((height, width), 0, 0, tall, wide, (tall, wide))
    geometry = of_placement(squeezed, torch.zeros(1, dtype=torch.int64))
    moved = targets.moved({name: torch.tensor(target)[None] for name, target in large.items()}, geometry)
    return Sample(small, {name: target[0].numpy() for name, target in moved.items()})


def worked(source: Source, work: Callable[[Sample], T], what: str) -> Iterator[tuple[int, T]]:
    """What `work` makes of all readable samples, by threads, in order. A UserError where too many are not."""
    for index, result in enumerate(in_threads(len(source), lambda index: work(source.sample(index)), what)):
        if isinstance(result, BadPicture):
            source.bad.add(source.where(index), str(result))
        else:
            yield index, result
    source.bad.check()  # at the end, so that the message can count them all


def unread(source: Source, readable: Sequence[int]) -> tuple[str, ...]:
    """Where the others lie."""
    return tuple(source.where(int(index)) for index in np.setdiff1d(np.arange(len(source)), readable))


PROBES = 24  # pictures that are read to judge all


def estimated_bytes(source: Source) -> float:
    """What a source would take when decoded, judged by pictures spread evenly over it."""
    sizes = []
    for index in np.unique(np.linspace(0, len(source) - 1, PROBES).astype(int)):
        try:
            picture, large = source.sample(int(index))
            sizes.append(picture.nbytes + sum(target.nbytes for target in large.values()))
        except BadPicture:
            continue
    return float(np.mean(sizes)) * len(source) if sizes else 0.0
