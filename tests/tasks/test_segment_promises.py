"""Segmentation keeps what every objective promises: the loss falls, resuming is exact, a step is one graph."""

from dataclasses import replace

import pytest

from boxes import write_boxes
from promises import keep_promises
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.jobs.train import train
from vitreous.recipes.segment import rendered_segmenter
from vitreous.tasks.segment import SegmentSettings
from vitreous.training.run import RunDirectory


def test_what_is_scored_must_be_seen(tmp_path):
    recipe = rendered_segmenter(start=None)
    where = str(write_boxes(tmp_path / "boxes", 12))
    cut = replace(recipe, data=replace(recipe.data, where=where), normalise=Preprocessing(crop="centre"))
    with pytest.raises(UserError, match="squash or letterbox"):
        train(cut, tmp_path / "run")


@pytest.mark.parametrize("decoder", ["linear", "mask-transformer"])
def test_promises(decoder, tmp_path):
    recipe = rendered_segmenter(start=None)
    small = replace(
        recipe,
        data=replace(recipe.data, where=str(write_boxes(tmp_path / "boxes", 48)), val_fraction=0.25),
        model=replace(recipe.model, picture_px=(32, 40), stem=None, patch=8, width=32, depth=1, heads=2),
        objective=SegmentSettings(decoder=decoder, depth=1, heads=2),
        training=replace(recipe.training, steps=30, batch_size=8, log_every_steps=10, workers=0),
    )
    keep_promises(small, tmp_path, falls_to=0.8, finetune=False, probe=False)
    assert RunDirectory(tmp_path / "one").results()["val"]["mIoU"] > 0.3  # one class alone has 0.2
