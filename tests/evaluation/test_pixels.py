import numpy as np
import pytest
import torch

from scenes import write_scenes
from vitreous.data.sources import DataSettings
from vitreous.evaluation import pixels
from vitreous.evaluation.baseline import spread_out
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.heads import ENOUGH_TO_JUDGE
from vitreous.evaluation.pixels import MainComponents, PixelRegression


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    root = write_scenes(tmp_path_factory.mktemp("scenes"), {"dark": 60, "grey": 50, "light": 20}, size=(50, 40))
    (root / "dark" / "0003.png").write_bytes(b"broken")
    return DataSettings(where=str(root), keep_gb=0).build()


def test_pictures_of_any_source_within_bounds(scenes):
    found = PixelRegression(scenes.train, scenes.val, most=60)
    assert (found.pictures, found.px) in ((59, 32), (60, 32)) and found.val_score > 0.5
    told = found.baseline(scenes.test)
    assert told.score > 0.5 and told.pictures == found.pictures and told.penalty in pixels.PENALTIES
    assert PixelRegression(scenes.train, None).val_score is None


def test_few_validation_pictures_do_not_decide():
    """Judged on training pictures that are left out in turn: the validation part has no say."""
    parts = DataSettings(where="fashion", train_limit=150).build()
    few = spread_out(parts.val, ENOUGH_TO_JUDGE - 1)
    alone, with_few = (PixelRegression(parts.train, val) for val in (None, few))
    assert with_few.head.score == alone.head.score and with_few.head.penalty == alone.head.penalty
    enough = PixelRegression(parts.train, spread_out(parts.val, ENOUGH_TO_JUDGE))
    assert enough.head.score == enough.val_score
    assert abs(alone.head.score - PixelRegression(parts.train, parts.val).val_score) < 0.1, "an honest guess"


def test_a_part_of_a_source_has_all_classes_in_proportion():
    source = DataSettings(where="fashion").build().train
    some = spread_out(source, 500)
    assert np.bincount(some.labels).tolist() == [50] * 10
    assert spread_out(some, 500) is some


def test_the_main_components_are_enough():
    torch.manual_seed(0)
    values = torch.rand(300, 40) @ torch.rand(40, 400) / 10 + 0.01 * torch.rand(300, 400)
    data = FeatureSet(values, torch.arange(300) % 3, torch.arange(300))
    whole, main = MainComponents(values, 5000), MainComponents(values, 60)
    assert whole.of(data).values.shape == (300, 400)
    turned = main.of(data).values
    kept = turned.square().sum() / (values - values.mean(dim=0)).double().square().sum()
    assert turned.shape == (300, 60) and 0.95 < kept <= 1.001


def test_its_head_is_for_the_pixels_themselves(monkeypatch, scenes):
    """So that it can be a model of its own."""
    found = PixelRegression(scenes.train, scenes.val)
    read = found._read(scenes.val)
    assert found.head.linear.weights.shape == (3 * 32 * 32, 3)
    assert torch.equal(found.head.linear(read.values).argmax(dim=1), found.val.best())
