"""A first model for boxes: a head on the maps of a frozen encoder, from which training goes on."""

import pytest
import torch

from detections import write_shapes
from vitreous.data.transforms import Preprocessing
from vitreous.fitting.candidates import FINE_TUNED
from vitreous.fitting.first import FIRST_MODEL
from vitreous.fitting.fit import fit
from vitreous.models import ViTSettings
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    torch.manual_seed(0)
    model = ViTSettings(picture_px=(32, 32), patch=4, width=24, depth=1, heads=2, pool="mean", num_prefix=0)
    where = tmp_path_factory.mktemp("encoder")
    weights = model.build().state_dict(prefix="encoder.")
    Trained(Card(model=model, preprocessing=Preprocessing(size_px=(32, 32))), weights, "made").save(where / "model")
    return where


def test_it_is_made_in_seconds_and_training_goes_on_from_it(encoder, tmp_path):
    folder = write_shapes(tmp_path / "shapes", {"train": 60, "val": 12, "test": 12})
    changes = {"training.steps": "1", "optimizer.lr": "0", "training.device": "cpu", "objective.width": "32"}
    found = fit(str(folder), tmp_path / "run", start=str(encoder), minutes=0.25, changes=changes)
    first, learned = found.candidates
    assert (first.name, learned.name) == (FIRST_MODEL, FINE_TUNED)
    assert learned.score == pytest.approx(first.score, abs=1e-6), "no rate, nothing learned, nothing lost"
    recipe = found.plan.recipe
    assert recipe.start == str(tmp_path / "run" / "first") and recipe.start_head
    assert recipe.objective.decoder == "centres" and recipe.objective.width == 32
    assert found.first.headline == "AP" and found.first.views > 0 and found.first.picture_px == recipe.model.picture_px
    before, after = (Trained.load(place).weights for place in (encoder, tmp_path / "run" / "first"))
    kept = [name for name in before if "positions" not in name]  # those are resized
    assert kept and all(torch.equal(before[name], after[name]) for name in kept), "the encoder stays as it was"
    assert 0 < found.data.parts[0].boxes.side < 1
