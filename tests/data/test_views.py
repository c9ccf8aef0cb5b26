"""Several views of a picture: their order, their sizes, and that each has random choices of its own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from vitreous import settings
from vitreous.data.augmentation import Augmentation, ColourSettings, CropSettings, MixSettings
from vitreous.data.base import Source
from vitreous.data.loader import TrainLoader
from vitreous.data.targets import ClassLabels
from vitreous.data.transforms import Preprocessing
from vitreous.data.views import ViewSettings, build_views
from vitreous.errors import UserError
from vitreous.jobs.build import build_loop
from vitreous.objectives.base import Objective
from vitreous.recipes.fashion import fashion_vit
from vitreous.recipes.recipe import Recipe
from vitreous.training.devices import World

SIZE = Preprocessing(size_px=(12, 14))
COLOURS = ColourSettings(brightness=0.4, grey=0.3, blur=0.5, solarize=0.3)
FIRST = Augmentation(crop=CropSettings(scale=(0.3, 1.0)), colour=COLOURS)
MORE = (
    ViewSettings(augmentation=replace(FIRST, colour=replace(COLOURS, solarize=0.0))),
    ViewSettings(augmentation=replace(FIRST, crop=CropSettings(scale=(0.1, 0.3))), times=3, size_px=(6, 8)),
)


class Made(Source):
    """Pictures made from their number, read one by one."""

    def __init__(self, num: int) -> None:
        self.name, self.classes = "made", ("a", "b")
        self.targets = ClassLabels(np.arange(num) % 2)

    def read(self, index: int) -> np.ndarray:
        small = np.random.default_rng(index).integers(0, 256, (4, 5, 3)).astype(np.uint8)
        return small.repeat(5, axis=0).repeat(5, axis=1)

    def where(self, index: int) -> str:
        return f"made/{index}"


class Kept(Made):
    def __init__(self, num: int) -> None:
        super().__init__(num)
        self.pictures = np.stack([self.read(index) for index in range(num)])


def loader(
    source: Source, first: Augmentation = FIRST, more: tuple[ViewSettings, ...] = MORE, **options
) -> TrainLoader:
    return TrainLoader(source, build_views(first, more, SIZE), **{"batch_size": 8, "seed": 3, **options})


def batch_of(source: Source, step: int = 0, **options):
    return next(loader(source, **options).batches(step, step + 1))


# ---- building them


def test_order_names_and_sizes():
    views = build_views(FIRST, MORE, SIZE)
    assert [view.name for view in views] == ["view0", "view1", "view2", "view3", "view4"]
    assert [view.preprocessing.size_px for view in views] == [(12, 14), (12, 14), (6, 8), (6, 8), (6, 8)]
    assert [view.augmentation.crop.scale[0] for view in views] == [0.3, 0.3, 0.1, 0.1, 0.1]
    assert all(view.preprocessing.mean == SIZE.mean for view in views)


def test_none_of_a_kind():
    assert len(build_views(FIRST, (ViewSettings(times=0), MORE[0]), SIZE)) == 2
    assert len(build_views(FIRST, (), SIZE)) == 1
    with pytest.raises(UserError, match="times is -2"):
        ViewSettings(times=-2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mix": MixSettings(mixup=0.8)}, "mixup and cutmix mix the labels of one view"),
        ({"mix": MixSettings(cutmix=1.0)}, "mixup and cutmix mix the labels of one view"),
        ({"crop": CropSettings(method="zoom")}, "leaves padding, which only a single view may have"),
    ],
)
def test_what_one_view_may_have_is_refused_of_several(change, message):
    with pytest.raises(UserError, match=message):
        build_views(replace(FIRST, **change), MORE, SIZE)
    with pytest.raises(UserError, match=message):
        build_views(FIRST, (ViewSettings(augmentation=Augmentation(**change)),), SIZE)
    assert len(build_views(replace(FIRST, **change), (), SIZE)) == 1


# ---- batches


@pytest.mark.parametrize("kind", [Made, Kept])
def test_a_batch_holds_all_views_in_order(kind):
    batch = batch_of(kind(40))
    assert [tuple(view.shape) for view in batch.views] == [(8, 3, 12, 14)] * 2 + [(8, 3, 6, 8)] * 3
    assert batch.images is batch.views[0]
    assert [[len(view) for view in part.views] for part in batch.parts(2)] == [[4] * 5] * 2


@pytest.mark.parametrize("kind", [Made, Kept])
def test_each_view_has_random_choices_of_its_own(kind):
    """Equal settings, yet no two views of a picture are the same, in their crops or in their colours."""
    for what in (
        FIRST,
        replace(FIRST, crop=CropSettings(method="squash"), flip=0.0),
        Augmentation(crop=CropSettings(method="random-resized")),
    ):
        views = batch_of(kind(40), first=what, more=(ViewSettings(augmentation=what, times=3),)).views
        for a in range(4):
            for b in range(a):
                equal = (views[a] == views[b]).flatten(1).all(1)
                assert equal.float().mean() < 0.3, (what.crop, a, b)


@pytest.mark.parametrize("kind", [Made, Kept])
def test_a_view_is_the_same_whatever_comes_after_it(kind):
    """More crops change nothing about those that were there: recipes stay comparable."""
    alone, all_of_them = batch_of(kind(40), more=()), batch_of(kind(40))
    assert torch.equal(alone.images, all_of_them.images)
    fewer = batch_of(kind(40), more=(MORE[0], replace(MORE[1], times=1)))
    assert all(torch.equal(a, b) for a, b in zip(fewer.views, all_of_them.views, strict=False))


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_change_the_views(workers):
    alone = loader(Made(40)).batches(0, 7)
    helped = loader(Made(40), workers=workers).batches(0, 7)
    for a, b in zip(alone, helped, strict=True):
        assert torch.equal(a.keys, b.keys)
        assert all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True))


def test_in_memory_and_read_pictures_agree():
    crops = Augmentation(crop=CropSettings(method="random-resized", scale=(0.3, 1.0)))
    more = (ViewSettings(augmentation=crops), ViewSettings(augmentation=crops, times=2, size_px=(6, 8)))
    kept, read = (loader(source, crops, more).batches(0, 3) for source in (Kept(40), Made(40)))
    for a, b in zip(kept, read, strict=True):
        assert torch.equal(a.ids, b.ids)
        for x, y in zip(a.views, b.views, strict=True):
            assert (x - y).abs().max() <= 2 / 255 + 1e-6  # one level, normalised by a std of a half


@pytest.mark.parametrize("kind", [Made, Kept])
def test_two_ranks_share_the_views_of_one(kind):
    for step in range(3):
        whole = batch_of(kind(40), step)
        parts = [batch_of(kind(40), step, rank=rank, world=2) for rank in range(2)]
        for number, view in enumerate(whole.views):
            assert torch.equal(torch.cat([part.views[number] for part in parts]), view)


def test_views_trace_without_breaks():
    plain = Augmentation(crop=CropSettings(method="random-resized"))
    made = loader(Kept(40), plain, (ViewSettings(augmentation=plain, size_px=(6, 8)),))
    compiled = torch.compile(made.prepare, backend="eager", fullgraph=True)
    for inputs in made.inputs(0, 2):
        for view, traced in zip(made.prepare(*inputs).views, compiled(*inputs).views, strict=True):
            torch.testing.assert_close(traced, view)


# ---- the way to an objective


def test_a_recipe_s_views_reach_its_objective(tmp_path):
    recipe = fashion_vit()
    recipe = replace(
        recipe,
        augmentation=Augmentation(crop=CropSettings(method="random-resized")),
        more_views=(ViewSettings(), ViewSettings(times=2, size_px=(14, 14))),
        model=replace(recipe.model, picture_px=(28, 28), patch=7, width=16, depth=1, heads=2),
        data=replace(recipe.data, train_limit=40, val_fraction=0.2),
        training=replace(recipe.training, batch_size=8),
    )
    settings.save(recipe, tmp_path / "recipe.json")
    assert settings.load(Recipe, tmp_path / "recipe.json") == recipe

    class Looks(Objective):
        def __init__(self, encoder):
            super().__init__()
            self.encoder, self.seen = encoder, []

        def forward(self, batch, progress):
            self.seen += [tuple(view.shape) for view in batch.views]
            return {"loss": self.encoder(batch.images).pooled.square().mean()}

    objective = Looks(recipe.model.build())
    world = World(rank=0, size=1, device=torch.device("cpu"))
    loop = build_loop(recipe, recipe.data.build(), objective, world)
    loop.step(*next(loop.data.inputs(0, 1)))
    assert objective.seen == [(8, 3, 28, 28)] * 2 + [(8, 3, 14, 14)] * 2
