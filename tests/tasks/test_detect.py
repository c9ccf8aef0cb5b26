"""Detection: the loss against transformers' own, what counts as a target, encoders of every kind."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models import ConvNeXtSettings, ResNetV1Settings, ViTSettings
from vitreous.nn.detr import Decoded
from vitreous.tasks.detect import DetectSettings
from vitreous.tasks.detect_loss import (
    CostSettings,
    LossSettings,
    costs,
    detection_losses,
    hint_loss,
    noised,
    objects_of,
)
from vitreous.weights.peers import imported

PX = (64, 96)
SMALL = DetectSettings(queries=6, width=16, heads=2, mlp_width=24, encoder_depth=1, decoder_depth=2, points=2)
HINTS = LossSettings(hints=1.0)
# In px of the canvas; the last picture has no objects.
BOXES = [[(4, 8, 20, 40), (30, 10, 70, 50)], [(0, 0, 60, 30)], []]
CLASSES = [[1, 0], [2], []]


def batch_of(extent: Tensor | None = None, slots: int = 4) -> Batch:
    boxes, classes = torch.zeros(3, slots, 4), torch.full((3, slots), -1)
    for i, (some, numbers) in enumerate(zip(BOXES, CLASSES, strict=True)):
        for j, (box, number) in enumerate(zip(some, numbers, strict=True)):
            boxes[i, j], classes[i, j] = torch.tensor(box).float(), number
    targets = {"boxes": boxes, "classes": classes, "crowd": torch.zeros(3, slots, dtype=torch.bool)}
    images = torch.randn(3, 3, *PX, generator=torch.Generator().manual_seed(0))
    return Batch((images,), targets, torch.arange(3), torch.arange(3), extent=extent)


def decoded_at_random(num_logits: int) -> Decoded:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 3, 6, num_logits, generator=generator, dtype=torch.float64)
    boxes = 0.2 + 0.4 * torch.rand(3, 3, 6, 4, generator=generator, dtype=torch.float64)
    return Decoded(logits.float().requires_grad_(), boxes.float().requires_grad_())


@pytest.mark.parametrize("softmax", [True, False])
def test_the_loss_is_that_of_transformers(softmax):
    library = imported("transformers")
    if softmax:
        from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss as Theirs

        config = library.DetrConfig(num_labels=3, auxiliary_loss=True, decoder_layers=3)
    else:
        from transformers.loss.loss_deformable_detr import DeformableDetrForObjectDetectionLoss as Theirs

        config = library.DeformableDetrConfig(num_labels=3, auxiliary_loss=True, decoder_layers=3)
    ours, theirs = (decoded_at_random(4 if softmax else 3) for _ in range(2))
    objects = objects_of(batch_of())
    labels = [
        {"class_labels": objects.classes[i][objects.valid[i]], "boxes": objects.boxes[i][objects.valid[i]]}
        for i in range(3)
    ]
    loss, parts, _ = Theirs(theirs.logits[-1], labels, "cpu", theirs.boxes[-1], config, theirs.logits, theirs.boxes)
    weights, cost = LossSettings(classes=1.0), CostSettings(classes=1.0)
    found = detection_losses(ours, objects, cost, weights, softmax=softmax)
    torch.testing.assert_close(found["loss"], loss)
    for mine, other in {"class": "loss_ce", "l1": "loss_bbox", "giou": "loss_giou"}.items():
        torch.testing.assert_close(found[mine], parts[other])
    found["loss"].backward()
    loss.backward()
    torch.testing.assert_close(ours.logits.grad, theirs.logits.grad)
    torch.testing.assert_close(ours.boxes.grad, theirs.boxes.grad)


def test_the_loss_by_quality_is_that_of_transformers():
    library = imported("transformers")
    from transformers.loss.loss_rt_detr import RTDetrLoss

    config = library.RTDetrConfig(num_labels=3, matcher_class_cost=1.0, matcher_bbox_cost=5.0, matcher_giou_cost=2.0)
    ours, theirs = (decoded_at_random(3) for _ in range(2))
    objects = objects_of(batch_of())
    labels = [
        {"class_labels": objects.classes[i][objects.valid[i]], "boxes": objects.boxes[i][objects.valid[i]]}
        for i in range(3)
    ]
    peer, said = RTDetrLoss(config), {"logits": theirs.logits[-1], "pred_boxes": theirs.boxes[-1]}
    matched = peer.matcher(said, labels)
    wanted = peer.loss_labels_vfl(said, labels, matched, 3)["loss_vfl"]
    weights, cost = LossSettings(quality=True), CostSettings(classes=1.0)
    found = detection_losses(ours, objects, cost, weights, softmax=False)["class"]
    torch.testing.assert_close(found, wanted)
    found.backward()
    wanted.backward()
    torch.testing.assert_close(ours.logits.grad, theirs.logits.grad)


def test_hints_teach_the_decoder_and_are_no_help_to_the_rest():
    torch.manual_seed(0)
    task = replace(SMALL, two_stage=True, dropout=0.0).build(ENCODERS["vit"].build(), ("a", "b"))
    batch = batch_of()
    boxes = objects_of(batch).boxes
    plain, hinted = task.decoded(batch.images), task.decoded(batch.images, hints=noised(boxes, batch.keys))
    torch.testing.assert_close(hinted.logits, plain.logits)
    assert plain.hinted is None and hinted.hinted is not None
    assert [tuple(each.shape) for each in hinted.hinted] == [(2, 3, 4, 2), (2, 3, 4, 4)]


def test_a_hint_has_to_find_the_target_that_it_began_at():
    batch, weights, num = batch_of(), LossSettings(hints=1.0), torch.tensor(3.0)
    objects = objects_of(batch)
    right = torch.nn.functional.one_hot(objects.classes, 3) * 40.0 - 20.0
    boxes = objects.boxes
    perfect = hint_loss((right[None], boxes[None]), objects, num, weights)
    torch.testing.assert_close(perfect, torch.tensor(0.0), atol=1e-4, rtol=0)
    empty = torch.where(objects.valid[..., None], right, 20.0), torch.where(objects.valid[..., None], boxes, 0.1)
    torch.testing.assert_close(hint_loss((empty[0][None], empty[1][None]), objects, num, weights), perfect)
    swapped = boxes.clone()
    swapped[0, :2] = boxes[0, :2].flip(0)  # a matching would put them right
    assert hint_loss((right[None], swapped[None]), objects, num, weights) > 1
    moved = noised(boxes, batch.keys)
    assert ((moved - boxes)[..., :2].abs() <= 0.2 * boxes[..., 2:] + 1e-3).all() and not torch.equal(moved, boxes)
    assert torch.equal(moved[1:], noised(boxes[1:], batch.keys[1:]))  # whatever part of a batch a rank has


def test_targets_are_shares_of_the_picture_and_not_of_the_canvas():
    whole, part = objects_of(batch_of()), objects_of(batch_of(torch.tensor([[64, 96], [32, 96], [64, 96]])))
    torch.testing.assert_close(whole.boxes[1, 0], torch.tensor([30 / 96, 15 / 64, 60 / 96, 30 / 64]))
    torch.testing.assert_close(part.boxes[1, 0], torch.tensor([30 / 96, 15 / 32, 60 / 96, 30 / 32]))


def test_crowds_and_empty_boxes_are_no_targets():
    batch = batch_of()
    batch.targets["crowd"][0, 0] = True
    batch.targets["boxes"][1, 0, 2] = 0.0
    assert objects_of(batch).valid.sum() == 1
    with pytest.raises(UserError, match="no boxes"):
        objects_of(replace(batch, targets={}))


def test_more_slots_change_nothing():
    decoded, losses = decoded_at_random(3), []
    for slots in (2, 9):
        objects = objects_of(batch_of(slots=slots))
        losses.append(detection_losses(decoded, objects, CostSettings(), LossSettings(), softmax=False)["loss"])
        assert costs(decoded.logits[0], decoded.boxes[0], objects, CostSettings(), False).shape == (3, 6, slots)
    torch.testing.assert_close(*losses)


def test_without_any_object_the_loss_is_finite():
    batch = batch_of()
    batch.targets["classes"].fill_(-1)
    decoded = decoded_at_random(4)
    detection_losses(decoded, objects_of(batch), CostSettings(), LossSettings(), softmax=True)["loss"].backward()
    assert decoded.logits.grad.isfinite().all() and (decoded.boxes.grad == 0).all()


ENCODERS = {
    "vit": ViTSettings(picture_px=PX, patch=16, width=16, depth=1, heads=2),
    "convnext": ConvNeXtSettings(picture_px=PX, patch=2, widths=(8, 12, 16, 20), depths=(1, 1, 1, 1)),
    "two maps": ResNetV1Settings(picture_px=PX, depths=(1, 1), base_width=4),
}


@pytest.mark.parametrize(
    "changes",
    [
        {"decoder": "detr"},
        {},
        {"refine": False, "levels": 1},
        {"two_stage": True},
        {"two_stage": True, "finest": 1, "weights": LossSettings(quality=True, hints=1.0)},
    ],
    ids=["detr", "refined", "one level", "two stages", "by quality"],
)
@pytest.mark.parametrize("name", ENCODERS)
def test_any_encoder_becomes_a_detector(name, changes):
    torch.manual_seed(0)
    settings = replace(SMALL, **changes)
    task = settings.build(ENCODERS[name].build(), ("a", "b", "c"))
    batch = batch_of(torch.tensor([[64, 96], [40, 96], [64, 50]]))
    losses = task(batch, torch.tensor(0.0))
    assert all(value.ndim == 0 for value in losses.values())
    losses["loss"].backward()
    grads = {name: p.grad for name, p in task.named_parameters() if not name.startswith("encoder.norm")}  # of `pooled`
    assert not [name for name, grad in grads.items() if grad is None or not grad.isfinite().all()]
    found = task.eval().predict(batch.images, batch.extent)
    assert found.logits.shape == (3, 6, 4 if changes.get("decoder") == "detr" else 3)
    assert found.boxes.shape == (3, 6, 4) and ((found.boxes >= 0) & (found.boxes <= 1)).all()
    task.metric().update(found, batch)


@pytest.mark.parametrize(
    "changes", [{"decoder": "detr"}, {"two_stage": True, "weights": HINTS}], ids=["detr", "two stages"]
)
def test_a_step_is_one_graph(changes):
    torch.manual_seed(0)
    task = replace(SMALL, dropout=0.0, decoder_depth=1, **changes).build(ENCODERS["vit"].build(), ("a", "b", "c"))
    batch = batch_of(torch.tensor([[64, 96], [40, 96], [64, 50]]))
    whole = torch.compile(task, backend="eager", fullgraph=True, dynamic=False)
    torch.manual_seed(1)
    loss = whole(batch, torch.tensor(0.0))["loss"]
    torch.manual_seed(1)
    torch.testing.assert_close(loss, task(batch, torch.tensor(0.0))["loss"])
    loss.backward()


def test_padding_is_not_looked_at():
    """What lies outside of a picture changes nothing but what the encoder itself makes of it."""
    torch.manual_seed(0)
    for changes in ({"decoder": "detr"}, {}, {"two_stage": True}):
        task = replace(SMALL, **changes).build(ENCODERS["vit"].build(), ("a", "b", "c")).eval()
        for parameter in task.parameters():  # boxes begin where they are proposed, whatever is seen
            parameter.detach().add_(torch.randn_like(parameter) * 0.1)
        maps = [torch.randn(1, task.head.project.in_channels if changes.get("decoder") else 16, 4, 6)]
        maps = maps if changes.get("decoder") else [torch.randn(1, 16, 4 * 2 // 2**i, 6 * 2 // 2**i) for i in range(3)]
        other = [one.clone() for one in maps]
        for one in other:
            one[..., (one.shape[-1] + 1) // 2 :] += 1.0  # of three columns the second shows the picture, too
        extent, canvas = torch.tensor([[64, 48]]), PX
        head = _without_extra_level(task)
        found, again = (head(some, extent, canvas).boxes[-1] for some in (maps, other))
        assert torch.equal(found, again)
        found, again = (head(some, None, canvas).boxes[-1] for some in (maps, other))
        assert not torch.equal(found, again)


def _without_extra_level(task):
    """Group norms see all of a map: what they say is left out here."""
    for module in task.head.modules():
        if isinstance(module, torch.nn.GroupNorm):
            module.forward = lambda x: x
        if isinstance(module, torch.nn.Conv2d) and module.kernel_size == (3, 3):
            module.forward = lambda x: x[:, :, ::2, ::2]
    return task.head


def test_settings_are_checked():
    encoder = ENCODERS["vit"].build()
    for changes, what in (
        ({"width": 18}, "multiple"),
        ({"queries": 0}, "at least 1"),
        ({"two_stage": True, "refine": False}, "two_stage needs refine"),
        ({"weights": LossSettings(hints=1.0)}, "hints needs two_stage"),
    ):
        with pytest.raises(UserError, match=what):
            replace(SMALL, **changes).build(encoder, ("a",))
    with pytest.raises(UserError, match="at least one class"):
        SMALL.build(encoder, ())
