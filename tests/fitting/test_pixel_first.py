"""A first model for masks: a linear head on the patches of a frozen encoder, which training has to beat."""

import numpy as np
import pytest
import torch

from boxes import CLASSES, write_boxes
from vitreous.batch import IGNORED, Batch
from vitreous.data.transforms import Preprocessing
from vitreous.evaluation.heads import FittedHead
from vitreous.evaluation.ridge import Linear
from vitreous.fitting.candidates import FINE_TUNED
from vitreous.fitting.first import FIRST_MODEL
from vitreous.fitting.fit import fit
from vitreous.fitting.pixel_first import patch_classes, patches, with_patch_head
from vitreous.models import ViTSettings, model_settings
from vitreous.tasks.segment import SegmentSettings
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained


def masked(mask, images, size=None, extent=None):
    ids = torch.arange(len(images))
    return Batch(views=(images,), targets={"mask": mask}, ids=ids, keys=ids, size=size, extent=extent)


def test_a_patch_has_the_class_of_most_of_its_pixels():
    """Two pictures on one canvas: the first fills it, the second its upper half; masks are of their own sizes."""
    rng = np.random.default_rng(0)
    mask = torch.from_numpy(rng.integers(-1, 3, (2, 12, 8)))
    size, extent = torch.tensor([[12, 8], [6, 8]]), torch.tensor([[16, 16], [8, 16]])
    found = patch_classes(masked(mask, torch.zeros(2, 3, 16, 16), size, extent), (4, 4)).view(2, 4, 4)
    for number, rows in ((0, 3), (1, 3)):
        for y in range(size[number, 0] // rows):
            for x in range(4):
                cell = mask[number, rows * y : rows * (y + 1), 2 * x : 2 * (x + 1)].flatten()
                counts = torch.bincount(cell[cell >= 0], minlength=3)
                expected = int(counts.argmax()) if counts.sum() > (cell < 0).sum() else IGNORED
                assert found[number, y, x] == expected
    assert (found[1, 2:] == IGNORED).all(), "there is no picture"


@pytest.mark.parametrize("name", ["vit", "convnext_atto"])
def test_the_model_says_of_patches_what_the_head_says(name):
    """With one map, and with several at different strides."""
    torch.manual_seed(0)
    model = ViTSettings(picture_px=(32, 32), patch=8, width=12, depth=1, heads=2) if name == "vit" else None
    model = model or model_settings(name).for_side(32)
    encoder = model.build().eval()
    images, width = torch.randn(2, 3, *model.picture_px), sum(output.width for output in encoder.outputs)
    linear = Linear(torch.randn(width, 3, dtype=torch.float64) / width, torch.randn(3, dtype=torch.float64))
    head = FittedHead("least squares", 1.0, linear, 0.5, 1.0)
    prepared = Preprocessing(size_px=model.picture_px)
    card = Card(model=model, task=SegmentSettings(decoder="linear"), classes=("a", "b", "c"), preprocessing=prepared)
    task = with_patch_head(encoder, head, card, "made").task().eval()
    mask = torch.zeros(2, *model.picture_px, dtype=torch.int64)
    seen = patches(encoder, [masked(mask, images)], per_picture=10_000)
    with torch.no_grad():
        logits = task.predict(images).logits  # (B, K, h, w)
    expected = {tuple(row) for row in linear(seen.values).float().round(decimals=3).tolist()}
    assert len(seen) == logits[:, 0].numel()
    assert {tuple(row) for row in logits.movedim(1, -1).flatten(0, 2).round(decimals=3).tolist()} == expected


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    torch.manual_seed(0)
    model = ViTSettings(picture_px=(32, 32), patch=4, width=24, depth=1, heads=2, pool="mean", num_prefix=0)
    where = tmp_path_factory.mktemp("encoder")
    weights = model.build().state_dict(prefix="encoder.")
    Trained(Card(model=model, preprocessing=Preprocessing(size_px=(32, 32))), weights, "made").save(where / "model")
    return where


def test_it_is_the_floor_of_what_is_delivered(encoder, tmp_path):
    """Colours tell these classes apart, patch by patch; a new decoder learns nothing in one step at no rate."""
    changes = {"training.steps": "1", "optimizer.lr": "0", "training.device": "cpu", "model.picture_px": "32,40"}
    changes["objective.heads"] = "2"
    found = fit(str(write_boxes(tmp_path / "boxes", 40)), tmp_path / "run", start=str(encoder), changes=changes)
    assert [one.name for one in found.candidates] == [FIRST_MODEL, FINE_TUNED]
    first, learned = found.candidates
    assert first.is_kept and first.score > learned.score
    assert found.first.headline == "mIoU" and found.first.val_score == pytest.approx(first.score)
    card = Trained.load(tmp_path / "run").card
    assert card.task.decoder == "linear" and card.classes == CLASSES and card.temperature != 1
    assert found.evaluation.headline.value > 0.3


def test_a_short_training_goes_on_from_it(encoder, tmp_path):
    changes = {"training.steps": "1", "optimizer.lr": "0", "training.device": "cpu", "model.picture_px": "32,40"}
    found = fit(str(write_boxes(tmp_path / "boxes", 40)), tmp_path / "run", start=str(encoder), changes=changes)
    first, learned = found.candidates
    recipe, decoder = found.plan.recipe, next(one for one in found.plan.choices if one.name == "decoder")
    assert (
        recipe.start == str(tmp_path / "run" / "first") and recipe.start_head and recipe.objective.decoder == "linear"
    )
    assert decoder.value == "linear" and "first model" in decoder.reason
    assert learned.score == pytest.approx(first.score), "no rate, nothing learned, nothing lost"
