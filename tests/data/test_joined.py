"""Two sets as one: what is read, how often, and what is learned."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitreous import settings
from vitreous.data.augmentation import Augmentation, MixSettings
from vitreous.data.base import Subset
from vitreous.data.joined import ABOUT, LABELS, joined, write_joined
from vitreous.data.loader import TrainLoader
from vitreous.data.order import OrderSettings
from vitreous.data.sources import DataSettings
from vitreous.data.targets import PseudoLabels
from vitreous.data.transforms import Preprocessing
from vitreous.data.views import build_views
from vitreous.errors import UserError
from vitreous.tasks.classify import softmax_loss

FEW = DataSettings(where="fashion", train_limit=40, val_fraction=0.1)
REST = replace(FEW, train_limit=300, split_seed=1)


@pytest.fixture(scope="module")
def sets():
    return FEW.build(), REST.build().train


def drawn(num, classes=10, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(classes, 0.3), num).astype(np.float32)


def written(folder, sets, num=120, ratio=2.0):
    taken = np.sort(np.random.default_rng(0).permutation(len(sets[1]))[:num])
    probabilities = drawn(num)
    write_joined(
        folder,
        labelled=settings.to_json(FEW),
        unlabelled=settings.to_json(REST),
        classes=sets[0].train.classes,
        pictures=len(sets[1]),
        taken=taken,
        probabilities=probabilities,
        ratio=ratio,
        account={},
    )
    return taken, probabilities


def test_it_is_a_data_set_like_any_other(sets, tmp_path):
    (few, rest), folder = sets, tmp_path / "set"
    taken, probabilities = written(folder, sets)
    found = DataSettings(where=str(folder), val_fraction=0.0).build()
    assert len(found.train) == len(few.train) + len(taken)
    assert len(found.val) == len(few.val) and np.array_equal(found.test.labels, few.test.labels)
    for index in (0, len(few.train) - 1):
        assert np.array_equal(found.train.read(index), few.train.read(index))
        assert found.train.where(index) == few.train.where(index)
    for place in (0, len(taken) - 1):
        index = len(few.train) + place
        assert np.array_equal(found.train.read(index), rest.read(int(taken[place])))
        assert "says a model" in found.train.described(index)
    targets = found.train.targets
    assert np.array_equal(targets.labels[: len(few.train)], few.train.labels)
    assert np.abs(targets.probabilities[len(few.train) :] - probabilities).max() < 1e-3
    assert not targets.known[len(few.train) :].any()


def test_a_model_is_not_judged_by_its_own_word(sets, tmp_path):
    whole = replace(FEW, val_fraction=0.0)
    written(tmp_path / "set", sets)
    document = json.loads((tmp_path / "set" / ABOUT).read_text())
    document["labelled"] = settings.to_json(whole)
    (tmp_path / "set" / ABOUT).write_text(json.dumps(document))
    with pytest.raises(UserError, match="which cannot judge models: set --data"):
        DataSettings(where=str(tmp_path / "set"), val_fraction=0.1).build()
    assert DataSettings(where=str(tmp_path / "set"), val_fraction=0.0).build().val is None


def test_damage_and_other_pictures_are_noticed(sets, tmp_path):
    folder = tmp_path / "set"
    written(folder, sets)
    content = (folder / LABELS).read_bytes()
    (folder / LABELS).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="damaged, or of another data set"):
        DataSettings(where=str(folder), val_fraction=0.0).build()
    (folder / LABELS).write_bytes(content)
    document = json.loads((folder / ABOUT).read_text())
    (folder / ABOUT).write_text(json.dumps(document | {"pictures": 299}))
    with pytest.raises(UserError, match="have changed; label them again"):
        DataSettings(where=str(folder), val_fraction=0.0).build()


def loader_of(source, *, rank=0, world=1, workers=0, balance=True):
    views = build_views(Augmentation(mix=MixSettings(mixup=0.8, cutmix=1.0)), (), Preprocessing(size_px=(28, 28)))
    order = OrderSettings(balance=balance)
    return TrainLoader(source, views, batch_size=20, seed=3, rank=rank, world=world, workers=workers, order=order)


def test_pictures_with_labels_come_as_often_as_the_ratio_says(sets):
    few, rest = sets
    probabilities = drawn(200)
    source = joined(few.train, Subset(rest, range(200)), probabilities, ratio=3.0)
    order, num = loader_of(source).order, len(source)
    seen = torch.cat([order(step)[0] for step in range(10 * order.steps_per_epoch)])
    shares = torch.bincount((seen < len(few.train)).long(), minlength=2) / len(seen)
    assert shares[1].item() == pytest.approx(0.25, abs=0.01)
    named = torch.tensor(source.labels)[seen[seen >= len(few.train)]]
    counts = torch.bincount(named, minlength=10)[np.unique(probabilities.argmax(axis=1))]
    assert counts.max() - counts.min() <= 0.05 * counts.float().mean()  # every class equally often
    assert set(seen.tolist()) == set(range(num))


def test_two_ranks_and_readers_see_what_one_process_sees(sets):
    few, rest = sets
    held = joined(few.train, Subset(rest, range(100)), drawn(100), ratio=2.0)
    read = joined(few.train, Subset(rest, range(100)), drawn(100), ratio=2.0)
    read.pictures = None  # as where pictures are of several sizes, or too many
    whole = list(loader_of(held).batches(3, 5))
    parts = [list(loader_of(read, rank=rank, world=2, workers=rank).batches(3, 5)) for rank in (0, 1)]
    for step in range(2):
        for name in ("label", "partner", "weight", "probabilities"):
            both = torch.cat([parts[rank][step].targets[name] for rank in (0, 1)])
            assert torch.equal(both, whole[step].targets[name])
        images = torch.cat([parts[rank][step].images for rank in (0, 1)])
        assert torch.equal(images, whole[step].images)
        mixed = whole[step].targets
        assert mixed["probabilities"].dtype == torch.float32
        assert torch.allclose(mixed["probabilities"].sum(dim=1), torch.ones(20), atol=2e-3)


def test_certain_probabilities_are_learned_as_labels_are():
    torch.manual_seed(0)
    logits, labels, partners = torch.randn(6, 4), torch.randint(4, (6,)), torch.randint(4, (6,))
    weight = torch.rand(6)
    targets = {"label": labels, "partner": partners, "weight": weight}
    share = weight[:, None]
    soft = F.one_hot(labels, 4) * share + F.one_hot(partners, 4) * (1 - share)
    for smoothing in (0.0, 0.1):
        torch.testing.assert_close(
            softmax_loss(logits, targets | {"probabilities": soft}, smoothing), softmax_loss(logits, targets, smoothing)
        )


def test_classes_may_be_called_in_another_order():
    targets = PseudoLabels([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]], [True, False], 1.0).relabelled(np.array([2, 0, -1]), 3)
    assert targets.labels.tolist() == [2, 0]
    assert np.allclose(targets.probabilities, [[0.1, 0, 0.9], [0.8, 0, 0.2]], atol=1e-3)
