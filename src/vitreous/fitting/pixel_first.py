"""The first model of a segmenter: a linear head on every patch of a frozen encoder.

A patch has the class of most of its pixels, so that heads are fitted as for classifiers, to patches in place of
pictures. Bilinear enlargement turns patches into pixels, as in every segmenter.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.batch import IGNORED, Batch
from vitreous.data.base import Source, Subset
from vitreous.data.splits import Splits
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.heads import FittedHead
from vitreous.fitting.class_first import LEAST_PICTURES, Embedded, beginning, fitted_heads
from vitreous.fitting.transfer import Start
from vitreous.jobs.build import build_encoder, eval_batches
from vitreous.models.base import Encoder, Features
from vitreous.nn.bilinear import resized_maps
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.pixel_metric import sizes_of
from vitreous.tasks.segment import SegmentSettings
from vitreous.training.devices import World, autocast
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

MOST_PATCHES = 12_000  # to fit a head to, and to score it on: neighbours add little
SHARE = 0.15  # of the time for the features of training pictures: a few hundred have enough patches
JUDGES = 100  # validation pictures


@dataclass(frozen=True)
class PatchHead:
    model: Trained
    head: FittedHead
    pictures: int  # of train
    picture_s: float  # seconds per picture


def patch_head(start: Start, recipe: Recipe, splits: Splits, out: Path, seconds: float) -> PatchHead | None:
    """The best head within `seconds`, what is left of the command's time. None if no patch has a class."""
    world = World.join(recipe.training.device)
    encoder = build_encoder(recipe).to(world.device).eval()
    area, known = np.prod(recipe.model.picture_px), np.prod(start.picture_px)
    affordable = int(SHARE * seconds / (start.picture_s * area / known))
    train, began = _some(splits.train, max(LEAST_PICTURES, affordable)), time.monotonic()
    with autocast(world.device, recipe.training.precision):
        batches = beginning(eval_batches(train, recipe, world), began + SHARE * seconds, least=LEAST_PICTURES)
        seen = patches(encoder, batches, MOST_PATCHES // len(train))
        pictures = len(set(seen.ids.tolist()))
        picture_s = (time.monotonic() - began) / max(1, pictures)
        val = None
        if splits.val is not None:
            judges = _some(splits.val, JUDGES)
            val = patches(encoder, eval_batches(judges, recipe, world), MOST_PATCHES // len(judges))
    if not len(seen) or int(seen.labels.min()) == int(seen.labels.max()):
        return None
    heads = fitted_heads(Embedded(seen, None, val, picture_s), len(splits.train.classes))
    best = min(heads, key=lambda head: head.log_loss)
    task, classes = SegmentSettings(decoder="linear"), splits.train.classes
    card = Card(model=recipe.model, task=task, classes=classes, preprocessing=recipe.preprocessing)
    return PatchHead(with_patch_head(encoder, best, card, str(out)), best, pictures, picture_s)


def _some(source: Source, most: int) -> Source:
    """At most this many pictures, in random order, so that any first part is a fair sample."""
    return Subset(source, np.random.default_rng(0).permutation(len(source))[:most])


@torch.no_grad()
def patches(encoder: Encoder, batches: Iterable[Batch], per_picture: int) -> FeatureSet:
    """Features and classes of some patches of every picture, drawn by its number."""
    values: list[Tensor] = []
    labels: list[Tensor] = []
    ids: list[Tensor] = []
    for batch in batches:
        maps = _side_by_side(encoder(batch.images))  # (B, D, h, w)
        found = patch_classes(batch, (maps.shape[-2], maps.shape[-1]))  # (B, h * w)
        for features, classes, number in zip(maps.flatten(2).transpose(1, 2), found, batch.ids.tolist(), strict=True):
            places = (classes != IGNORED).nonzero()[:, 0].cpu()
            drawn = np.random.default_rng(number).permutation(len(places))[: max(1, per_picture)]
            places = places[torch.from_numpy(drawn)].to(classes.device)
            values.append(features[places].float().cpu())
            labels.append(classes[places].cpu())
            ids.append(torch.full((len(places),), number))
    return FeatureSet(torch.cat(values), torch.cat(labels), torch.cat(ids))


def _side_by_side(features: Features) -> Tensor:
    """All maps at the size of the finest."""
    first = features.maps[0]
    return torch.cat([resized_maps(one, (first.shape[-2], first.shape[-1])) for one in features.maps], dim=1)


def patch_classes(batch: Batch, grid: tuple[int, int]) -> Tensor:
    """(B, h * w): the class of most of a patch's pixels; IGNORED unless more than half of them have one."""
    canvas, num = batch.images.shape[-2:], max(0, int(batch.targets["mask"].max())) + 1
    found = []
    for padded, size, extent in zip(batch.targets["mask"], *sizes_of(batch), strict=True):
        mask = padded[: size[0], : size[1]]
        rows, columns = (
            ((torch.arange(px, device=mask.device) + 0.5) * (part / px) * (cells / whole)).long()
            for px, part, cells, whole in zip(size, extent, grid, canvas, strict=True)
        )
        cell = rows[:, None] * grid[1] + columns  # of every pixel
        counts = torch.bincount((cell * (num + 1) + mask + 1).flatten(), minlength=grid[0] * grid[1] * (num + 1))
        counts = counts.view(-1, num + 1)  # the first is what is ignored
        classes = counts[:, 1:].argmax(dim=1)
        found.append(torch.where(counts[:, 1:].sum(dim=1) > counts[:, 0], classes, IGNORED))
    return torch.stack(found)


def with_patch_head(encoder: Encoder, head: FittedHead, card: Card, where: str) -> Trained:
    """An ordinary segmenter with a linear decoder."""
    weights = encoder.state_dict(prefix="encoder.")
    parts = torch.split(head.linear.weights.T.float(), [output.width for output in encoder.outputs], dim=1)
    for level, part in enumerate(parts):
        weights[f"head.levels.{level}.weight"] = part.contiguous()
        weights[f"head.levels.{level}.bias"] = head.linear.bias.float() * (level == 0)
    return Trained(card, {name: value.detach().cpu() for name, value in weights.items()}, where)
