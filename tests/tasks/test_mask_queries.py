"""Masks by queries: what is built and refused, on which encoders; and what every objective promises."""

from dataclasses import replace

import pytest
import torch

from boxes import write_boxes
from promises import keep_promises
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models import ViTSettings, model_settings
from vitreous.nn.eomt import freed, masked_share
from vitreous.recipes.segment import rendered_segmenter
from vitreous.tasks.mask_loss import PointSettings
from vitreous.tasks.mask_queries import MaskQueries, MaskQuerySettings, PixelSettings
from vitreous.tasks.predictions import InstanceMasks, PixelLogits
from vitreous.training.run import RunDirectory
from vitreous.weights.trained import Trained

CLASSES = ("a", "b", "c")
SMALL = MaskQuerySettings(
    queries=6,
    width=16,
    heads=2,
    mlp_width=24,
    decoder_depth=3,
    pixel=PixelSettings(mask_width=16, mlp_width=24, depth=1, looks=2),
    blocks=2,
    points=PointSettings(number=64),
)
VIT = ViTSettings(picture_px=(32, 40), patch=8, width=24, depth=3, heads=2, pool="mean", num_prefix=0)


def batch_of(px: tuple[int, int], num: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(num, 3, *px, generator=generator)
    targets = {
        "mask": torch.randint(-1, 3, (num, *px), generator=generator),
        "masks": torch.randint(0, 4, (num, *px, 1), generator=generator, dtype=torch.uint8),
        "classes": torch.tensor([[0, 2], [1, -1]])[:num],
        "crowd": torch.zeros(num, 2, dtype=torch.bool),
    }
    return Batch((images,), targets, torch.arange(num), torch.arange(num) * 7)


# ---- what is built


@pytest.mark.parametrize(
    ("model", "stride"),
    [
        (replace(model_settings("swin_t"), width=12, depths=(1, 1, 1, 1), heads=(1, 1, 1, 1), window=2), 4),
        (replace(model_settings("convnext_t"), widths=(8, 8, 8, 8), depths=(1, 1, 1, 1)), 4),
        (replace(model_settings("pvt_v2_b0"), depths=(1, 1, 1, 1)), 4),
        (replace(model_settings("resnet18"), base_width=8), 4),
        (VIT, 4),
        (replace(VIT, patch=16, picture_px=(32, 48)), 4),
    ],
    ids=lambda one: getattr(one, "family", ""),
)
def test_on_every_kind_of_encoder(model, stride):
    px = model.picture_px if isinstance(model, ViTSettings) else (64, 64)
    task = SMALL.build(replace(model, picture_px=px).build(), CLASSES)
    losses = task(batch_of(px), torch.tensor(0.5))
    losses["loss"].backward()
    assert losses["loss"].isfinite() and {"class", "mask", "dice", "auxiliary"} <= losses.keys()
    with torch.no_grad():
        found = task.eval().predict(batch_of(px).images)
    assert isinstance(found, PixelLogits) and found.logits.shape == (2, 3, px[0] // stride, px[1] // stride)
    raw = [not output.normed for output in task.encoder.outputs]
    assert [len(list(norm.parameters())) > 0 for norm in task.head.norms] == (raw if len(raw) > 1 else [False] * 4)


@pytest.mark.parametrize("decoder", ["mask2former", "eomt"])
def test_objects_are_learned_and_said(decoder):
    task = replace(SMALL, decoder=decoder, output="instances").build(VIT.build(), CLASSES)
    assert task.settings.task_kind == "instances" and SMALL.task_kind == "segment"
    assert task(batch_of((32, 40)), torch.tensor(0.5))["loss"].isfinite()
    found = task.eval().predict(batch_of((32, 40)).images)
    assert isinstance(found, InstanceMasks)
    assert found.logits.shape == (2, 6, 4) and found.masks.shape == (2, 6, 8, 10)


def test_a_layer_less_says_less():
    """Every layer of Mask2Former speaks, what is known at first included; EoMT's when it learns, or else the last."""
    assert len(SMALL.build(VIT.build(), CLASSES).decoded(batch_of((32, 40)).images).logits) == 4
    assert (
        len(replace(SMALL, decoder="eomt").build(VIT.build(), CLASSES).decoded(batch_of((32, 40)).images).logits) == 1
    )


@pytest.mark.parametrize(
    ("changes", "model", "said"),
    [
        ({"decoder": "eomt"}, model_settings("resnet18"), "eomt needs a plain ViT"),
        ({"decoder": "eomt", "blocks": 4}, VIT, "blocks is 4, and the encoder has 3"),
        ({"width": 18}, VIT, "a width of 18 and 2 heads"),
        ({"queries": 0}, VIT, "must be at least 1"),
        ({"decoder_depth": -1}, VIT, "must not be negative"),
        ({"points": PointSettings(uncertain=1.5)}, VIT, "points.uncertain is 1.5"),
    ],
)
def test_what_cannot_be_is_refused(changes, model, said):
    with pytest.raises(UserError, match=said):
        replace(SMALL, **changes).build(model.build(), CLASSES)


def test_tokens_join_none_that_have_relative_positions():
    task = replace(SMALL, decoder="eomt").build(replace(VIT, positions="bias").build(), CLASSES)
    with pytest.raises(UserError, match="relative positions"):
        task.predict(batch_of((32, 40)).images)


# ---- annealing


def test_blocks_let_their_queries_go_one_after_another():
    shares = [[float(masked_share(torch.tensor(t), block, 2)) for block in range(2)] for t in (0, 0.3, 0.6, 0.76)]
    assert shares[0] == [1, 1] and shares[3] == [0, 0]
    assert 0 < shares[1][0] < 1 == shares[1][1] and 0 == shares[2][0] < shares[2][1] < 1
    keys = torch.arange(200)
    assert not freed(keys, torch.tensor(0.0), 0, 2, 6).any() and freed(keys, torch.tensor(1.0), 0, 2, 6).all()
    half = freed(keys, torch.tensor(0.375), 0, 2, 6).float()  # (1 - 0.5) ** 0.9 are kept
    assert abs(float(half.mean()) - (1 - 0.5**0.9)) < 0.05 and 0 < half[0].mean() < 1


# ---- promises


@pytest.mark.parametrize("decoder", ["mask2former", "eomt"])
def test_promises(decoder, tmp_path):
    recipe = rendered_segmenter(start=None)
    small = replace(
        recipe,
        data=replace(recipe.data, where=str(write_boxes(tmp_path / "boxes", 48)), val_fraction=0.25),
        model=replace(VIT, depth=2),
        objective=replace(SMALL, decoder=decoder, decoder_depth=1, blocks=1),
        training=replace(recipe.training, steps=30, batch_size=8, log_every_steps=10, workers=0),
    )
    rows = keep_promises(small, tmp_path, falls_to=0.8, finetune=False, probe=False)
    assert {"class", "mask", "dice", "auxiliary"} <= rows[0].keys()
    assert RunDirectory(tmp_path / "one").results()["val"]["mIoU"] > 0.3  # one class alone has 0.2
    trained = Trained.load(tmp_path / "one")
    assert trained.card.task == small.objective and isinstance(trained.task(), MaskQueries)
