"""Detection keeps what every objective promises: the loss falls, resuming is exact, a step is one graph."""

from dataclasses import replace

from promises import keep_promises
from vitreous.models import ViTSettings
from vitreous.recipes.detect import rendered_detr
from vitreous.tasks.detect import DetectSettings
from vitreous.training.run import RunDirectory
from vitreous.weights.trained import Trained


def test_promises(tmp_path):
    recipe = rendered_detr()
    small = replace(
        recipe,
        data=replace(recipe.data, train_limit=40, val_fraction=0.2),
        model=ViTSettings(picture_px=(32, 32), patch=8, width=24, depth=1, heads=2, pool="mean", num_prefix=0),
        start=None,
        objective=DetectSettings(
            queries=6,
            width=16,
            heads=2,
            mlp_width=24,
            encoder_depth=1,
            decoder_depth=2,
            levels=2,
            points=2,
            dropout=0.0,
        ),
        optimizer=replace(recipe.optimizer, lr=5e-3, layer_decay=1.0),
        training=replace(recipe.training, epochs=1, steps=24, batch_size=8, log_every_steps=8, workers=0),
    )
    rows = keep_promises(small, tmp_path, falls_to=0.9, finetune=False, probe=False)
    assert {"class", "l1", "giou", "auxiliary"} <= rows[0].keys()
    results = RunDirectory(tmp_path / "one").results()
    assert results["headline"] == "AP" and 0 <= results["val"]["AP"] <= 1
    card = Trained.load(tmp_path / "one").card
    assert card.task == small.objective and "disc" in card.classes
