"""Segmenter's decoders and loss: against formulas of their own, and torch's cross-entropy."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitreous.batch import IGNORED, Batch
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ResNetSettings, ViTSettings
from vitreous.models.base import Features
from vitreous.prediction.reading import Reading, Windowing
from vitreous.tasks.pixel_metric import PixelMetric, confusion
from vitreous.tasks.predictions import PixelLogits
from vitreous.tasks.segment import LinearDecoder, MaskTransformer, SegmentSettings, pixel_loss
from vitreous.weights.card import Card

CLASSES = ("sky", "road", "car")
SMALL = {"picture_px": (16, 24), "patch": 8, "width": 16, "depth": 1, "heads": 2}


def encoder(**changes):
    torch.manual_seed(0)
    return ViTSettings(**(SMALL | changes)).build()


def masks(*shape, seed=0, num=3):
    found = torch.randint(0, num, shape, generator=torch.Generator().manual_seed(seed))
    return torch.where(torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.2, IGNORED, found)


def batch(num=2, size=(16, 24), **more):
    images = torch.randn(num, 3, *size, generator=torch.Generator().manual_seed(1))
    ids = torch.arange(num)
    return Batch(views=(images,), targets={"mask": masks(num, *size)}, ids=ids, keys=ids, **more)


# ---- decoders


def test_masks_are_cosines_of_classes_and_patches():
    task = SegmentSettings(depth=2).build(encoder(), CLASSES)
    head = task.head
    assert isinstance(head, MaskTransformer)
    maps = torch.randn(2, 16, 3, 5)
    found = head(Features(maps=(maps,), prefix=None, pooled=maps.mean(dim=(2, 3))))
    # By hand: place by place, and cosines by their definition.
    tokens = [head.project_in(maps[:, :, y, x]) for y in range(3) for x in range(5)]
    tokens = torch.stack([*(row.expand(2, -1) for row in head.classes), *tokens], dim=1)
    for block in head.blocks:
        tokens = block(tokens)
    tokens = head.norm(tokens)
    for number in range(3):
        for place in range(15):
            name = tokens[:, number] @ head.project_classes.weight.T
            patch = tokens[:, 3 + place] @ head.project_patches.weight.T
            expected = head.factor * nn.CosineSimilarity()(name, patch)
            torch.testing.assert_close(found[:, number, place // 5, place % 5], expected, atol=1e-5, rtol=1e-4)


def test_two_classes_have_gradients():
    """A norm over two classes would leave the sign of their difference alone."""
    task = SegmentSettings(depth=1).build(encoder(), CLASSES[:2])
    logits = task.predict(batch().images).logits
    (logits[:, 0] - logits[:, 1]).sum().backward()
    assert task.head.classes.grad.abs().max() > 1e-6


@pytest.mark.parametrize(
    "settings",
    [
        ViTSettings(**SMALL),
        ViTSettings(**SMALL, pool="mean", num_prefix=0),
        ViTSettings(**SMALL, num_registers=2),
        ResNetSettings(picture_px=(32, 48), depths=(1, 1), base_width=8),
    ],
)
def test_a_linear_decoder_on_anything_with_maps(settings):
    torch.manual_seed(0)
    task = SegmentSettings(decoder="linear").build(settings.build(), CLASSES)
    assert isinstance(task.head, LinearDecoder)
    for parameter in task.head.parameters():
        nn.init.normal_(parameter)
    images = torch.randn(2, 3, *settings.picture_px)
    maps = task.encoder(images).maps
    # One layer on all maps side by side, enlarged to the finest.
    finest = maps[0].shape[-2:]
    aside = torch.cat([F.interpolate(one, finest, mode="bilinear", align_corners=False) for one in maps], dim=1)
    weight = torch.cat([level.weight for level in task.head.levels], dim=1)
    bias = sum(level.bias for level in task.head.levels)
    expected = F.conv2d(aside, weight[:, :, None, None], bias)
    torch.testing.assert_close(task.predict(images).logits, expected, atol=1e-3, rtol=1e-3)


def test_settings_that_make_no_sense():
    for settings, wrong in (
        (SegmentSettings(class_weights=(1.0,)), "class_weights"),
        (SegmentSettings(heads=3), "multiple of the heads"),
        (SegmentSettings(overlap=1.0), "overlap"),
    ):
        with pytest.raises(UserError, match=wrong):
            settings.build(encoder(), CLASSES)
    with pytest.raises(UserError, match="at least two classes"):
        SegmentSettings().build(encoder(), CLASSES[:1])


# ---- loss


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 1.0, 3.0])])
def test_loss_against_torch(weights):
    logits = torch.randn(2, 3, 7, 5, requires_grad=True)
    mask = masks(2, 7, 5)
    ours, theirs = pixel_loss(logits, mask, weights), F.cross_entropy(logits, mask, weights, ignore_index=IGNORED)
    torch.testing.assert_close(ours, theirs)
    (ours_back,), (theirs_back,) = (torch.autograd.grad(loss, logits) for loss in (ours, theirs))
    torch.testing.assert_close(ours_back, theirs_back)


def test_a_batch_without_one_labelled_pixel_changes_nothing():
    logits = torch.randn(2, 3, 4, 4, requires_grad=True)
    loss = pixel_loss(logits, torch.full((2, 4, 4), IGNORED))
    loss.backward()
    assert loss == 0 and (logits.grad == 0).all()


def test_the_loss_is_of_the_pictures_own_pixels():
    task = SegmentSettings(depth=1).build(encoder(), CLASSES)
    shown = batch()
    logits = F.interpolate(task.predict(shown.images).logits, (16, 24), mode="bilinear")
    expected = F.cross_entropy(logits, shown.targets["mask"], ignore_index=IGNORED)
    torch.testing.assert_close(task(shown, torch.tensor(0.0))["loss"], expected)
    with pytest.raises(UserError, match="no masks"):
        task(Batch(views=shown.views, targets={}, ids=shown.ids, keys=shown.keys), torch.tensor(0.0))


# ---- metric


def test_metric_in_the_masks_own_sizes():
    """Pictures of two sizes, the second in the upper left corner of a padded mask and of a padded input."""
    logits = torch.randn(2, 3, 4, 6)
    sizes = [(30, 40), (17, 20)]
    mask = torch.full((2, 30, 40), IGNORED)
    for place, (height, width) in enumerate(sizes):
        mask[place, :height, :width] = masks(height, width, seed=place)
    ids = torch.arange(2)
    shown = Batch(
        views=(torch.zeros(2, 3, 16, 24),),
        targets={"mask": mask},
        ids=ids,
        keys=ids,
        size=torch.tensor(sizes),
        extent=torch.tensor([[16, 24], [16, 12]]),
    )
    metric = PixelMetric()
    metric.update(PixelLogits(logits), shown)
    found = metric.compute()
    first = F.interpolate(logits[:1], sizes[0], mode="bilinear").argmax(dim=1)[0]
    second = F.interpolate(logits[1:, :, :, :3], sizes[1], mode="bilinear").argmax(dim=1)[0]
    counts = confusion(mask[0], first, 3) + confusion(mask[1, :17, :20], second, 3)
    right = counts.diagonal().double()
    iou = right / (counts.sum(dim=0) + counts.sum(dim=1) - right)
    assert metric.headline == "mIoU" and found["mIoU"] == pytest.approx(float(iou.mean()))
    assert found["pixel_accuracy"] == pytest.approx(float(right.sum() / counts.sum())) and found["pictures"] == 2


def test_metric_needs_a_label():
    metric = PixelMetric()
    with pytest.raises(UserError, match="no labelled pixels"):
        metric.compute()


# ---- on the card


def test_formats_of_others_refuse_it_in_one_line():
    model = ViTSettings(**SMALL)
    card = Card(model=model, task=SegmentSettings(), classes=CLASSES, preprocessing=Preprocessing(size_px=(16, 24)))
    with pytest.raises(UserError, match="holds encoders and classifiers"):
        _ = card.classifier
    assert replace(card, task=None).classifier is None


def test_windows_are_known_to_whoever_reads_its_outputs():
    for decoder, cell_px in (("linear", (4, 4)), ("mask-transformer", (8, 8))):
        settings = SegmentSettings(decoder=decoder, inference="windows", overlap=0.25)
        model = ResNetSettings(picture_px=(32, 48), depths=(1, 1), base_width=8)
        card = Card(model=model, task=settings, classes=CLASSES, preprocessing=Preprocessing(size_px=(32, 48)))
        assert Reading.of(card).windows == Windowing(cell_px=cell_px, overlap=0.25)
