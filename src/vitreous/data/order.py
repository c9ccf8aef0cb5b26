"""Order: which samples a step sees, as a function of (seed, step) alone."""

import torch
from torch import Tensor

from vitreous import keys as K


class Order:
    """Which samples a rank sees at a step, and their keys. With labels, every class comes equally often."""

    def __init__(
        self,
        num: int,
        batch_size: int,
        seed: int,
        part: slice,
        device: torch.device,
        *,
        labels: Tensor | None = None,
    ) -> None:
        self.num, self.batch_size, self.seed, self.device, self.labels = num, batch_size, seed, device, labels
        self.part = part  # of the batch; beyond its end it begins anew
        self.steps_per_epoch = num // batch_size
        self.balance = labels is not None
        self._epoch = -1
        self._drawn = torch.empty(0, dtype=torch.int64)

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        epoch, step = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._drawn, self._epoch = self._draw(epoch), epoch
        drawn = self._drawn[step * self.batch_size : (step + 1) * self.batch_size]
        if self.part.stop > self.batch_size:
            drawn = torch.cat([drawn, drawn])
        drawn = drawn[self.part]
        return drawn % self.num, K.sample_keys(self.seed, epoch, drawn)

    def _draw(self, epoch: int) -> Tensor:
        if self.labels is None:
            return K.epoch_order(self.seed, epoch, self.num, self.device)
        return balanced_order(self.seed, epoch, self.labels).to(self.device)


def balanced_order(seed: int, epoch: int, labels: Tensor) -> Tensor:
    """(N,) int64: an epoch in which every class comes equally often. A large class shows another part of itself in
    every epoch; the pictures of a small one come equally often, give or take one. Copy c of sample i is called i + c N,
    so that copies have keys of their own and are cropped and coloured differently.

    How often a picture may come again has no limit: one would make the rarest classes rare again, for which balancing
    is there. Which classes have too few pictures to learn from is for the data check to say."""
    classes, label, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    # What N samples leave over after equal shares goes to other classes in every epoch.
    rank = K.epoch_order(seed, epoch, len(classes)).argsort()
    shares = len(labels) // len(classes) + (rank < len(labels) % len(classes)).long()
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
