"""The order of samples: a function of (seed, step), of a version that a recipe names."""

import hashlib
import json
from dataclasses import replace

import pytest
import torch

from vitreous import keys as K
from vitreous import settings
from vitreous.data import order as order_module
from vitreous.data.epochs import PermutedEpochs, SortedEpochs
from vitreous.data.order import SORTED_UP_TO, Order, OrderSettings
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.recipes.fashion import fashion_vit
from vitreous.recipes.recipe import Recipe, read_recipe

CPU = torch.device("cpu")


def ordered(num: int, batch_size: int = 20, seed: int = 3, world: int = 1, **given) -> Order:
    return OrderSettings(**given).build(num, batch_size, seed, world, None)


def epoch_of(order: Order, epoch: int) -> torch.Tensor:
    return order.epochs.drawn(epoch, torch.arange(order.steps_per_epoch * order.batch_size))


# ---- versions


@pytest.mark.parametrize(
    ("num", "given", "digest"),
    [
        (1000, {"version": 1}, "1fbc27773c53586e"),
        (1000, {"version": 2}, "1fbc27773c53586e"),
        (SORTED_UP_TO + 1, {"version": 2}, "16980cfe6ef7e3fc"),
        (1000, {"streams": 4, "run": 8, "window": 32}, "371d9fbc42e49d91"),
    ],
)
def test_recorded_orders_never_change(num, given, digest):
    order, found = ordered(num, **given), hashlib.sha256()
    for step in (0, 1, 17, order.steps_per_epoch - 1, order.steps_per_epoch * 5 + 3):
        for tensor in order(step):
            found.update(tensor.numpy().tobytes())
    assert found.hexdigest()[:16] == digest


def test_small_sets_are_sorted_by_their_keys_as_ever():
    ids, keys = ordered(100)(7)
    assert ids.equal(K.epoch_order(3, 1, 100)[40:60]) and keys.equal(K.sample_keys(3, 1, ids))


def test_what_decides_is_the_number_of_samples_and_the_version():
    kinds = {
        (num, version): type(ordered(num, version=version).epochs)
        for num in (SORTED_UP_TO, SORTED_UP_TO + 1)
        for version in (1, 2)
    }
    assert [number for number, kind in kinds.items() if kind is PermutedEpochs] == [(SORTED_UP_TO + 1, 2)]
    assert set(kinds.values()) == {SortedEpochs, PermutedEpochs}


def test_a_later_version_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"order\.version: 3 is not one of 1, 2"):
        settings.from_json(DataSettings, {"order": {"version": 3}}, where="recipe.json")


# ---- above 2^24


@pytest.fixture
def few_are_many(monkeypatch):
    monkeypatch.setattr(order_module, "SORTED_UP_TO", 10)


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize(("num", "batch_size"), [(11, 3), (64, 64), (1000, 7), (1013, 20)])
def test_none_twice_and_none_missing(num, batch_size):
    order = ordered(num, batch_size)
    epochs = [epoch_of(order, epoch) for epoch in range(3)]
    for found in epochs:
        assert len(found) == num // batch_size * batch_size == len(found.unique())
    assert not epochs[0].equal(epochs[1])
    assert not epoch_of(ordered(num, batch_size, seed=4), 0).equal(epochs[0])
    missing = [set(range(num)) - set(found.tolist()) for found in epochs]
    assert num % batch_size == 0 or missing[0] != missing[1], "another remainder is left out each time"


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_share_the_global_batch(world):
    order = ordered(1013, 20)
    for step in (0, 13, 77):
        own = [order.narrowed(slice(20 // world * rank, 20 // world * (rank + 1)), CPU) for rank in range(world)]
        for whole, parts in zip(order(step), zip(*(one(step) for one in own), strict=True), strict=True):
            assert torch.cat(parts).equal(whole)
    beyond = order.narrowed(slice(15, 21), CPU)(5)[0]
    assert beyond.equal(torch.cat([order(5)[0][15:], order(5)[0][:1]])), "beyond its end the batch begins anew"


def test_a_step_of_many_samples_computes_its_own_alone():
    """Listing them would take 8 TB."""
    ids, keys = ordered(10**12, 512)(10**12 // 512 * 3 + 12345)
    assert len(ids.unique()) == 512 and ids.max() < 10**12 and keys.equal(K.sample_keys(3, 3, ids))


@pytest.mark.parametrize("given", [{}, {"streams": 4, "run": 2, "window": 8}])
def test_steps_drawn_together_are_those_drawn_alone(given, monkeypatch):
    monkeypatch.setattr(order_module, "TOGETHER", 3)
    order = OrderSettings(**given).build(50, 8, 1, 1, None).narrowed(slice(4, 9), CPU)
    together = list(order.steps(2, 16))  # into a third epoch
    assert len(together) == 14 and order.steps_per_epoch == 6
    for step, found in enumerate(together, start=2):
        for some, alone in zip(found, order(step), strict=True):
            assert some.equal(alone) and some.shape == (5,)


# ---- what is stored


def old_recipe(folder, **data) -> Recipe:
    """As it was written before the order had a version."""
    recipe = replace(fashion_vit(), data=DataSettings(**data))
    document = settings.to_json(recipe)
    document["data"]["balance"] = document["data"].pop("order")["balance"]
    (folder / "recipe.json").write_text(json.dumps(document))
    return recipe


def test_old_recipes_are_sorted_and_new_ones_say_what_they_are(tmp_path):
    recipe = old_recipe(tmp_path, order=OrderSettings(balance=True))
    found = read_recipe(tmp_path / "recipe.json")
    assert found == recipe and found.data.order == OrderSettings(balance=True)
    assert (found.data.order.version, recipe.data.order.version) == (1, 2)
    settings.save(recipe, tmp_path / "recipe.json")
    assert read_recipe(tmp_path / "recipe.json").data.order.version == 2
