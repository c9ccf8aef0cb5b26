"""Objects by their middles: what is learned and what is said, against plain loops; padding changes nothing."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from promises import keep_promises
from vitreous.batch import Batch
from vitreous.models import ViTSettings, model_settings
from vitreous.nn.boxes import corners, generalised_iou
from vitreous.nn.centres import NOTHING, Placed, surest
from vitreous.recipes.detect import rendered_detr
from vitreous.tasks.box_metric import BoxMetric
from vitreous.tasks.centre_loss import FAR, HIGH, SPREAD, SURE, by_classes, centre_losses, class_loss, heights
from vitreous.tasks.detect import DetectSettings
from vitreous.tasks.detect_loss import LossSettings, Objects
from vitreous.tasks.predictions import Detections

CENTRES = DetectSettings(decoder="centres", width=16, heads=2, encoder_depth=1, queries=20, finest=1)


def some_objects():
    """Two pictures with two objects each; the second of the last is none."""
    boxes = torch.tensor(
        [[[0.3, 0.41, 0.2, 0.3], [0.7, 0.61, 0.5, 0.2]], [[0.52, 0.1, 0.04, 0.04], [0.5, 0.5, 1.0, 1.0]]]
    )
    return Objects(boxes, torch.tensor([[0, 2], [1, 0]]), torch.tensor([[True, True], [True, False]]))


def said(size=(5, 6), num_classes=3, shown=None):
    """By a map of some size, at random."""
    torch.manual_seed(0)
    rows, columns = ((torch.arange(side) + 0.5) / side for side in size)
    middles = torch.stack([columns.repeat(size[0]), rows.repeat_interleave(size[1])], dim=-1)[None]
    num = size[0] * size[1]
    boxes = torch.cat([middles.expand(2, -1, -1), 0.1 + torch.rand(2, num, 2) / 4], dim=-1)
    return Placed(torch.randn(2, num, num_classes), boxes, middles, shown, size)


def test_hills_and_their_loss_are_what_loops_make_of_them():
    placed, objects = said(), some_objects()
    hills = heights(placed, objects)
    total = 0.0
    tops = by_classes(hills, objects.classes, 3)
    for b in range(2):
        expected = [[0.0] * 3 for _ in range(30)]
        for m in range(2):
            if not objects.valid[b, m]:
                assert (hills[b, m] == 0).all()
                continue
            cx, cy, w, h = objects.boxes[b, m].tolist()
            away = [((x - cx) / w) ** 2 + ((y - cy) / h) ** 2 for x, y in placed.middles[0].tolist()]
            for n, squared in enumerate(away):
                height = 1.0 if squared == min(away) else math.exp(-squared / (2 * SPREAD**2))
                assert hills[b, m, n].item() == pytest.approx(height, abs=1e-5)
                expected[n][objects.classes[b, m]] = max(expected[n][objects.classes[b, m]], height)
        for n in range(30):
            for k in range(3):
                p, height = torch.sigmoid(placed.logits[b, n, k]).item(), expected[n][k]
                top = -((1 - p) ** SURE) * math.log(p)
                total += top if height == 1 else -((1 - height) ** FAR) * p**SURE * math.log(1 - p)
    assert class_loss(placed.logits, tops, None).item() == pytest.approx(total, rel=1e-4)
    apart, over, learning = 0.0, 0.0, 0.0
    for b in range(2):
        for n in range(30):
            height, m = max((hills[b, m, n].item(), m) for m in range(2))
            if height > HIGH:
                ours, theirs = placed.boxes[b, n], objects.boxes[b, m]
                apart += height * ((ours - theirs).abs().sum() / theirs[2:].sum()).item()
                over += height * (1 - generalised_iou(corners(ours), corners(theirs))).item()
                learning += height
    expected = {"class": total / 3, "l1": apart / learning, "giou": over / learning}  # of three objects
    expected["loss"] = 3 * expected["class"] + 5 * expected["l1"] + 7 * expected["giou"]
    losses = centre_losses(placed, objects, LossSettings(classes=3.0, l1=5.0, giou=7.0))
    assert {name: value.item() for name, value in losses.items()} == pytest.approx(expected, rel=1e-4)


def test_only_high_places_learn_boxes_and_a_perfect_one_costs_nothing():
    placed, objects = said(), some_objects()
    top, owner = heights(placed, objects).max(dim=1)
    known = objects.boxes.gather(1, owner[..., None].expand(-1, -1, 4))
    perfect = placed._replace(boxes=torch.where((top > HIGH)[..., None], known, placed.boxes).requires_grad_())
    losses = centre_losses(perfect, objects, LossSettings())
    assert losses["l1"] < 1e-6 and losses["giou"] < 1e-5
    losses["loss"].backward()
    assert (perfect.boxes.grad[top <= HIGH] == 0).all() and perfect.boxes.grad.isfinite().all()
    nothing = replace(objects, valid=torch.zeros_like(objects.valid))
    assert all(value.isfinite() for value in centre_losses(placed, nothing, LossSettings()).values())


def test_of_neighbours_the_surest_speaks():
    size, shown = (5, 6), torch.ones(2, 30, dtype=torch.bool)
    shown[1, 18:] = False  # the lower rows of the second picture are padding
    placed = said(size, shown=shown)
    logits, boxes = surest(placed, 12)
    maps = torch.where(shown[..., None], placed.logits, NOTHING).view(2, *size, 3)
    for b in range(2):
        peaks = set()
        for y in range(size[0]):
            for x in range(size[1]):
                around = maps[b, max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].amax(dim=(0, 1))
                peaks |= {(y * 6 + x, k) for k in range(3) if maps[b, y, x, k] == around[k] > NOTHING}
        found = {
            (int((placed.boxes[b] == boxes[b, q]).all(dim=-1).nonzero()[0]), k)
            for q in range(12)
            for k in range(3)
            if logits[b, q, k] > NOTHING
        }
        assert found == peaks and not any(place >= 18 for place, _ in found if b)


def test_confidence_is_not_rounded_where_products_are():
    """Rounded to bfloat16, neighbours would be equally confident, and each would say the same object."""
    torch.manual_seed(0)
    encoder = ViTSettings(picture_px=(32, 32), patch=8, width=16, depth=1, heads=2).build()
    task = CENTRES.build(encoder, ("a", "b")).eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        logits = task.placed(torch.rand(2, 3, 32, 32)).logits
    assert logits.dtype == torch.float32 and (logits != logits.bfloat16()).any()


@pytest.mark.parametrize("name", ["vit", "convnext_atto"])
def test_a_place_speaks_of_the_picture_not_of_the_canvas(name):
    """With one map or several: the same head on a canvas that is padded below says the same of the part with picture
    that sees no padding."""
    torch.manual_seed(0)
    model = ViTSettings(picture_px=(64, 64), patch=8, width=24, depth=1, heads=2) if name == "vit" else None
    task = CENTRES.build((model or model_settings(name).for_side(64)).build(), ("a", "b")).eval()
    for parameter in task.head.parameters():
        nn.init.normal_(parameter, std=0.1)
    maps = [
        torch.randn(1, one.shape[1], one.shape[2] // 2, one.shape[3]) for one in task.maps(torch.zeros(1, 3, 64, 64))
    ]
    padded = [torch.cat([one, torch.randn_like(one)], dim=2) for one in maps]
    alone = task.head(maps, None, (32, 64))
    within = task.head(padded, torch.tensor([[32, 64]]), (64, 64))
    rows, columns = alone.size
    assert within.size == (2 * rows, columns) and within.shown.sum() == rows * columns
    assert torch.allclose(within.middles[0, within.shown[0]], alone.middles[0], atol=1e-6)
    first = slice(0, columns * (rows // 4))  # rows far from the border
    assert torch.allclose(within.logits[0, first], alone.logits[0, first], atol=1e-4)
    sides = within.boxes[0, first, 2:] / alone.boxes[0, first, 2:]
    assert torch.allclose(sides, torch.ones_like(sides), atol=1e-3)


def test_what_looks_the_same_has_the_same_box_however_much_of_the_canvas_is_picture():
    """In px of the canvas; also of a picture that ends within a place."""
    torch.manual_seed(0)
    encoder = ViTSettings(picture_px=(64, 64), patch=8, width=24, depth=1, heads=2).build()
    task = CENTRES.build(encoder, ("a", "b")).eval()
    for parameter in task.head.parameters():
        nn.init.normal_(parameter, std=0.1)
    maps = task.maps(torch.randn(1, 3, 64, 64))
    whole, part = (task.head(maps, extent, (64, 64)) for extent in (None, torch.tensor([[30, 50]])))
    assert torch.allclose(part.boxes * torch.tensor([50, 30, 50, 30]), whole.boxes * 64, atol=1e-4)


def test_promises(tmp_path):
    recipe = rendered_detr()
    small = replace(
        recipe,
        data=replace(recipe.data, train_limit=40, val_fraction=0.2),
        model=ViTSettings(picture_px=(32, 32), patch=8, width=24, depth=1, heads=2, pool="mean", num_prefix=0),
        start=None,
        objective=replace(CENTRES, finest=2),
        optimizer=replace(recipe.optimizer, lr=5e-3, layer_decay=1.0),
        training=replace(recipe.training, epochs=1, steps=24, batch_size=8, log_every_steps=8, workers=0),
    )
    rows = keep_promises(small, tmp_path, falls_to=0.9, finetune=False, probe=False)
    assert {"class", "l1", "giou"} <= rows[0].keys()


def test_who_knows_the_objects_finds_them_all():
    placed, objects = said((16, 16)), some_objects()
    hills = heights(placed, objects)
    known = objects.boxes.gather(1, hills.argmax(dim=1)[..., None].expand(-1, -1, 4))
    sure = placed._replace(logits=torch.logit(by_classes(hills, objects.classes, 3), eps=1e-4), boxes=known)
    ids, crowd = torch.arange(2), torch.zeros(2, 2, dtype=torch.bool)
    targets = {
        "boxes": 200 * corners(objects.boxes),
        "classes": torch.where(objects.valid, objects.classes, -1),
        "crowd": crowd,
    }
    metric = BoxMetric(3)
    metric.update(Detections(*surest(sure, 50)), Batch((torch.zeros(2, 3, 200, 200),), targets, ids, ids))
    assert metric.compute()["AP"] == pytest.approx(1.0)
