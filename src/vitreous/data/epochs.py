"""Epochs: all samples in an order, once per epoch, as a function of (seed, epoch) alone; four ways.

`SortedEpochs` sorts the samples by their keys. `PermutedEpochs` looks each place up in a permutation that is computed
entry by entry: neither time nor memory grows with the number of samples. `StreamedEpochs` does so inside fixed ranges
of the samples. `BalancedEpochs` shows every class equally often, or groups by weights.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from vitreous import keys as K
from vitreous.data.permutation import permuted


class Epochs(ABC):
    is_balanced = False

    @abstractmethod
    def drawn(self, epoch: int, places: Tensor) -> Tensor:
        """(B,) the samples at these places of an epoch; copy c of sample i is called i + c N."""


class _Listed(Epochs):
    """An epoch at a time is listed from end to end."""

    def __init__(self) -> None:
        self._epoch, self._list = -1, torch.empty(0, dtype=torch.int64)

    def drawn(self, epoch: int, places: Tensor) -> Tensor:
        if epoch != self._epoch or self._list.device != places.device:
            self._list, self._epoch = self._listed(epoch, places.device), epoch
        return self._list[places]

    @abstractmethod
    def _listed(self, epoch: int, device: torch.device) -> Tensor: ...


class SortedEpochs(_Listed):
    def __init__(self, seed: int, num: int) -> None:
        super().__init__()
        self.seed, self.num = seed, num

    def _listed(self, epoch: int, device: torch.device) -> Tensor:
        return K.epoch_order(self.seed, epoch, self.num, device)


class BalancedEpochs(_Listed):
    is_balanced = True

    def __init__(self, seed: int, labels: Tensor, weights: Tensor | None = None) -> None:
        super().__init__()
        self.seed, self.labels, self.weights = seed, labels, weights

    def _listed(self, epoch: int, device: torch.device) -> Tensor:
        return balanced_order(self.seed, epoch, self.labels, self.weights).to(device)


class PermutedEpochs(Epochs):
    def __init__(self, seed: int, num: int) -> None:
        self.seed, self.num = seed, num

    def drawn(self, epoch: int, places: Tensor) -> Tensor:
        return permuted(places, self.num, _key(self.seed, epoch, torch.zeros_like(places), "order"))


class StreamedEpochs(Epochs):
    """Stream k is the samples [k N / K, (k + 1) N / K), in every epoch: who owns it reads no others. Every step takes
    equally many samples of each stream, stream after stream, so that a range of the batch is a range of streams. (The
    fixed number of streams, whatever the number of readers, is the idea of MosaicML's canonical nodes.)

    A stream is read in runs of neighbours, which come in another order in every epoch, and the samples of some
    successive runs, a window, are shuffled among each other: blocks, then tuples, as in CorgiPile (Xu et al. 2022).
    Nothing is buffered for that: the sample at a place is computed, and a window only says how far apart in the order
    neighbours in a run can get.
    """

    def __init__(self, seed: int, num: int, batch_size: int, *, streams: int, run: int, window: int) -> None:
        self.seed, self.num, self.batch_size = seed, num, batch_size
        self.streams, self.run, self.window = streams, run, window

    def drawn(self, epoch: int, places: Tensor) -> Tensor:
        step, in_batch = places // self.batch_size, places % self.batch_size
        per_step = self.batch_size // self.streams
        stream, place = in_batch // per_step, step * per_step + in_batch % per_step
        first, end = stream * self.num // self.streams, (stream + 1) * self.num // self.streams
        return first + self._inside(epoch, stream, end - first, place)

    def _inside(self, epoch: int, stream: Tensor, size: Tensor, place: Tensor) -> Tensor:
        """Places in the streams' order of this epoch -> places in the streams as they are stored."""
        window = place // self.window
        first = window * self.window
        key = _key(self.seed, epoch, stream, "window") + window * K.GOLDEN
        place = first + permuted(place - first, (size - first).clamp(max=self.window), key)  # the last may be smaller
        run, runs = place // self.run, size // self.run
        moved = permuted(run % runs.clamp(min=1), runs.clamp(min=1), _key(self.seed, epoch, stream, "runs"))
        place = torch.where(run < runs, moved, run) * self.run + place % self.run
        # What is left over beside whole runs stays last, and what does not fill a batch is not seen: so that it is
        # something else in every epoch, the stream is a ring that begins anywhere.
        return (place + (_key(self.seed, epoch, stream, "turn") & (2**62 - 1))) % size


def _key(seed: int, epoch: int, about: Tensor, purpose: str) -> Tensor:
    return K.mix(K.sample_keys(seed, epoch, about) ^ K.purpose_code(purpose))


def balanced_order(seed: int, epoch: int, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """(N,) int64: an epoch in which every class comes equally often, or as often as its weight says. A large class
    shows another part of itself in every epoch; the pictures of a small one come equally often, give or take one. Copy
    c of sample i is called i + c N, so that copies have keys of their own and are cropped and coloured differently.

    How often a picture may come again has no limit: one would make the rarest classes rare again, for which balancing
    is there. Which classes have too few pictures to learn from is for the data check to say."""
    classes, label, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    # What N samples leave over after whole shares goes to other classes in every epoch.
    rank = K.epoch_order(seed, epoch, len(classes)).argsort()
    parts = torch.ones(len(classes), dtype=torch.float64) if weights is None else weights[classes]
    shares = (len(labels) * parts / parts.sum()).long()
    shares += (rank < len(labels) - shares.sum()).long()
    copies = -(-shares // counts)[label]  # of every sample
    sample = torch.arange(len(labels)).repeat_interleave(copies)
    first = (copies.cumsum(0) - copies).repeat_interleave(copies)
    copy = torch.arange(len(sample)) - first
    drawn, label = sample + copy * len(labels), label[sample]
    keys = K.sample_keys(seed, epoch, drawn)
    order = K.mix(keys ^ K.purpose_code("balance")).argsort()
    for place in (copy, label):  # by class, then by copy, then by chance
        order = order[place[order].argsort(stable=True)]
    sizes = torch.bincount(label)
    within = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[label[order]]
    chosen = order[within < shares[label[order]]]
    shuffled: Tensor = drawn[chosen[keys[chosen].argsort()]]
    return shuffled
