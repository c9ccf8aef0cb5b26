"""Balanced sampling keeps every promise of the plain order."""

import numpy as np
import pytest
import torch

from scenes import Pictures, scene
from vitreous.data.augmentation import Augmentation, MixSettings
from vitreous.data.epochs import balanced_order
from vitreous.data.loader import TrainLoader
from vitreous.data.order import OrderSettings
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError

LABELS = torch.tensor([0] * 70 + [1] * 20 + [3] * 7 + [4] * 3)[
    torch.randperm(100, generator=torch.Generator().manual_seed(0))
]


def test_every_class_comes_equally_often():
    drawn = balanced_order(1, 0, LABELS)
    assert len(drawn) == 100 == len(drawn.unique()), "copies have names of their own"
    assert torch.bincount(LABELS[drawn % 100]).tolist() == [25, 25, 0, 25, 25]


def test_pictures_of_a_small_class_come_equally_often_and_a_large_class_shows_itself_in_turn():
    seen = torch.zeros(100, dtype=torch.int64)
    for epoch in range(30):
        times = torch.bincount(balanced_order(1, epoch, LABELS) % 100, minlength=100)
        assert set(times[LABELS == 4].tolist()) == {8, 9}
        assert set(times[LABELS == 1].tolist()) == {1, 2}
        assert set(times[LABELS == 0].tolist()) == {0, 1}
        seen += times
    assert seen.min() >= 3, "each of the largest class is due 10.7 times"


def test_what_does_not_divide_evenly_goes_round():
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    counts = torch.stack([torch.bincount(labels[balanced_order(5, epoch, labels) % 8]) for epoch in range(60)])
    assert (counts.sum(dim=1) == 8).all() and counts.min() == 2 and counts.max() == 3
    assert (counts.float().mean(dim=0) - 8 / 3).abs().max() < 0.25


def test_the_order_is_a_function_of_seed_and_epoch_and_mixes_classes():
    assert torch.equal(balanced_order(1, 3, LABELS), balanced_order(1, 3, LABELS))
    assert not torch.equal(balanced_order(1, 3, LABELS), balanced_order(1, 4, LABELS))
    assert not torch.equal(balanced_order(1, 3, LABELS), balanced_order(2, 3, LABELS))
    first_half = torch.cat([LABELS[balanced_order(1, epoch, LABELS)[:50] % 100] for epoch in range(20)])
    assert (torch.bincount(first_half)[[0, 1, 3, 4]] - 250).abs().max() < 60


@pytest.mark.parametrize("in_memory", [True, False])
def test_workers_ranks_and_resuming_change_nothing(in_memory):
    source = Pictures([scene(number, (16, 16)) for number in range(48)], labels=[0] * 40 + [1] * 8)
    if in_memory:
        source.pictures = np.stack(source.given)

    def loader(**options):
        mixed = Augmentation(mix=MixSettings(mixup=0.8)).build(Preprocessing(size_px=(16, 16)))
        return TrainLoader(source, [mixed], batch_size=8, seed=3, order=OrderSettings(balance=True), **options)

    whole = list(loader().batches(0, 9))
    assert loader().steps_per_epoch == 6
    labels = torch.cat([batch.targets["label"] for batch in whole[:6]])
    assert torch.bincount(labels).tolist() == [24, 24]
    for step in (0, 5, 7):
        (resumed,) = loader(workers=0 if in_memory else 1).batches(step, step + 1)
        parts = [next(loader(rank=rank, world=2).batches(step, step + 1)) for rank in range(2)]
        for name in ("ids", "keys", "images"):
            assert torch.equal(getattr(resumed, name), getattr(whole[step], name))
            torch.testing.assert_close(torch.cat([getattr(part, name) for part in parts]), getattr(whole[step], name))
    repeated = [batch for batch in whole[:6] for place in (batch.ids == 45).nonzero()]
    keys = {int(key) for batch in repeated for key in batch.keys[batch.ids == 45]}
    assert len(keys) >= 3, "a picture that comes again is cropped and mixed anew"


@pytest.mark.parametrize("in_memory", [True, False])
def test_one_picture_comes_as_often_as_a_class_of_fifty_two(in_memory):
    counts = [52, 40, 30, 13, 2, 1]
    source = Pictures([scene(number, (8, 8)) for number in range(138)], labels=np.repeat(range(6), counts))
    if in_memory:
        source.pictures = np.stack(source.given)
    view = Augmentation().build(Preprocessing(size_px=(8, 8)))
    loader = TrainLoader(source, [view], batch_size=23, seed=0, order=OrderSettings(balance=True))
    for epoch in range(3):
        batches = loader.batches(6 * epoch, 6 * (epoch + 1))
        assert torch.cat([batch.targets["label"] for batch in batches]).bincount().tolist() == [23] * 6


def test_several_labels_a_picture_cannot_be_balanced():
    source = Pictures([scene(0), scene(1)], labels=np.ones((2, 2)))
    with pytest.raises(UserError, match=r"data\.order\.balance false"):
        TrainLoader(
            source, [Augmentation().build(Preprocessing())], batch_size=1, seed=0, order=OrderSettings(balance=True)
        )
