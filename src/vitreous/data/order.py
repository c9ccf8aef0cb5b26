"""Order: which samples a step sees, as a function of (seed, step) alone."""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from vitreous import keys as K
from vitreous.data.epochs import BalancedEpochs, Epochs, PermutedEpochs, SortedEpochs, StreamedEpochs
from vitreous.data.targets import Shares
from vitreous.errors import UserError

TOGETHER = 64  # steps, drawn at once
SORTED_UP_TO = 2**24  # samples: beyond, sorting them in every process takes seconds and gigabytes


@dataclass(frozen=True, kw_only=True)
class OrderSettings:
    """In which order training sees its pictures."""

    balance: bool = False  # train on every class equally often, whatever its size
    streams: int = 0  # cut the pictures into so many ranges, each read by one rank alone; 0: every rank reads anywhere
    run: int = 256  # neighbours that a stream reads together; for parquet, no fewer than a row group has
    window: int = 4096  # pictures of a stream that are shuffled among each other; parquet holds as many in memory
    version: Literal[1, 2] = field(default=2, compare=False)  # 1 sorts any number, 2 up to 2^24; a run keeps its own

    def check(self) -> None:
        for name, least in (("streams", 0), ("run", 1), ("window", 1)):
            if getattr(self, name) < least:
                raise UserError(f"--data.order.{name} is {getattr(self, name)}; it must be at least {least}.")
        if self.streams and self.balance:
            raise UserError(
                "--data.order.streams reads ranges of pictures, so it cannot balance classes: set --data.order.balance "
                "false, or --data.order.streams 0."
            )

    def build(self, num: int, batch_size: int, seed: int, world: int, shares: Shares | None) -> "Order":
        """Of whole batches. `shares`: of groups to balance, where that is asked for."""
        self.check()
        if self.streams % world:
            raise UserError(
                f"--data.order.streams is {self.streams:,}, which {world:,} processes cannot share evenly: train with "
                f"{_nearest(self.streams, world):,} processes, or another number that divides it."
            )
        if self.streams and batch_size % self.streams:
            raise UserError(
                f"batch_size is {batch_size:,}, to which {self.streams:,} streams cannot contribute equally: set "
                "--training.batch_size to a multiple of --data.order.streams."
            )
        return Order(self._epochs(num, batch_size, seed, shares), num, batch_size, seed)

    def _epochs(self, num: int, batch_size: int, seed: int, shares: Shares | None) -> Epochs:
        if self.streams:
            return StreamedEpochs(seed, num, batch_size, streams=self.streams, run=self.run, window=self.window)
        if shares is not None:
            weights = None if shares.weights is None else torch.from_numpy(shares.weights)
            return BalancedEpochs(seed, torch.tensor(shares.groups), weights)
        if self.version == 1 or num <= SORTED_UP_TO:
            return SortedEpochs(seed, num)
        return PermutedEpochs(seed, num)


def _nearest(streams: int, world: int) -> int:
    """The largest number of processes, not above `world`, that can share the streams."""
    return max(number for number in range(1, world + 1) if streams % number == 0)


class Order:
    """Which samples of a batch are seen at a step, and their keys."""

    def __init__(self, epochs: Epochs, num: int, batch_size: int, seed: int) -> None:
        self.epochs, self.num, self.batch_size, self.seed = epochs, num, batch_size, seed
        self.steps_per_epoch = num // batch_size
        self.part, self.device = slice(0, batch_size), torch.device("cpu")

    def narrowed(self, part: slice, device: torch.device) -> "Order":
        """To a part of every batch, which begins anew beyond its end."""
        narrow = copy(self)
        narrow.part, narrow.device = part, device
        narrow.epochs = copy(self.epochs)  # an epoch that is listed is kept on one device
        return narrow

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        return next(self.steps(step, step + 1))

    def steps(self, start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each step in [start, stop). Many are drawn at once: one by one, a GPU of a small model would wait for the
        launch of a dozen small kernels in every step."""
        while start < stop:
            epoch, first = divmod(start, self.steps_per_epoch)
            num = min(stop - start, self.steps_per_epoch - first, TOGETHER)
            yield from zip(*self._drawn(epoch, first, num), strict=True)
            start += num

    def _drawn(self, epoch: int, first: int, num: int) -> tuple[Tensor, Tensor]:
        """(num, B) samples and their keys, of steps in a row."""
        in_batch = torch.arange(self.part.start, self.part.stop, device=self.device) % self.batch_size
        steps = torch.arange(first, first + num, device=self.device)[:, None]
        drawn = self.epochs.drawn(epoch, (steps * self.batch_size + in_batch).flatten())
        return (drawn % self.num).view(num, -1), K.sample_keys(self.seed, epoch, drawn).view(num, -1)
