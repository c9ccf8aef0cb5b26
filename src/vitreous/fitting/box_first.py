"""The first model of a detector: every place of a frozen encoder predicts the object centred there (`nn/centres`).

The encoder processes every picture once as it is, then augmented views while time remains. Its maps are kept, and a
small head learns from them.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.batch import Batch
from vitreous.data.augmentation import Augmentation
from vitreous.data.base import Source, Subset
from vitreous.fitting.class_first import LEAST_PICTURES, beginning
from vitreous.jobs.build import build_loader, build_objective, eval_batches
from vitreous.nn.centres import picture_shares
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.centre_loss import centre_losses
from vitreous.tasks.detect import DetectSettings
from vitreous.tasks.detect_centres import DetectByCentres
from vitreous.tasks.detect_loss import Objects, objects_of
from vitreous.tasks.detector import Detect
from vitreous.training.devices import World, autocast
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

MOST_VIEWS = 8  # augmented views per picture
MOST_SEEN = 2000  # views in all: beyond that, training the whole model helps more
MOST_BYTES = 2**30  # of maps, which are kept in half precision
RATE, DECAY, CLIP, WARM_UP = 2e-3, 0.05, 1.0, 20  # of AdamW: the rate rises for WARM_UP steps, then falls to 0
MOST_EPOCHS = 30  # passes over the views: more would overfit


@dataclass(frozen=True)
class Seen:
    """The encoder's maps of views, and the objects in them."""

    maps: tuple[Tensor, ...]  # (V, C, h, w) half precision each
    objects: Objects  # (V, M, ...)
    extent: Tensor | None  # (V, 2)
    pictures: int
    picture_s: float  # seconds per picture

    def __len__(self) -> int:
        return len(self.maps[0])

    @property
    def views(self) -> int:
        """Augmented views per picture."""
        return round(len(self) / self.pictures) - 1


@dataclass(frozen=True)
class CentreHead:
    model: Trained
    seen: Seen
    epochs: float


def centre_head(
    recipe: Recipe, train: Source, out: Path, *, looking_s: float, learning_s: Callable[[float], float]
) -> CentreHead | None:
    """A detector whose head learned for this time, which may depend on the seconds that each picture took. None if the
    pictures have no objects."""
    world = World.join(recipe.training.device)
    task = build_objective(replace(recipe, start_head=False), train.classes).to(world.device)
    assert isinstance(task, DetectByCentres)
    seen = looked_at(task, recipe, train, looking_s, world)
    if not seen.objects.valid.any():
        return None
    epochs = learned(task, seen, learning_s(seen.picture_s), batch_size=recipe.training.batch_size)
    assert isinstance(recipe.objective, DetectSettings)
    card = Card(model=recipe.model, task=recipe.objective, classes=train.classes, preprocessing=recipe.preprocessing)
    weights = {name: value.detach().cpu() for name, value in task.state_dict().items()}
    return CentreHead(Trained(card, weights, str(out)), seen, epochs)


@torch.no_grad()
def looked_at(task: Detect, recipe: Recipe, train: Source, seconds: float, world: World) -> Seen:
    """Pictures as they are, in random order, so that any first part is a fair sample; then augmented views of them."""
    task.eval()
    began = time.monotonic()
    ends, room = began + seconds, min(MOST_SEEN, max(1, MOST_BYTES // bytes_of_maps(task)))
    some = Subset(train, np.random.default_rng(0).permutation(len(train))[:room])
    batches = beginning(eval_batches(some, recipe, world), ends, least=LEAST_PICTURES)
    plain = [_seen(task, one, recipe) for one in batches]
    pictures = sum(len(maps[0]) for maps, *_ in plain)
    picture_s = (time.monotonic() - began) / pictures
    altered = _altered(recipe, some, min(MOST_VIEWS * len(some), room - pictures), world)
    every = [*plain, *(_seen(task, one, recipe) for one in beginning(altered, ends, least=0))]
    maps, objects, extents = zip(*every, strict=True)
    return Seen(
        tuple(torch.cat(level) for level in zip(*maps, strict=True)),
        Objects(*(torch.cat([getattr(one, name) for one in objects]) for name in ("boxes", "classes", "valid"))),
        None if extents[0] is None else torch.cat(extents),
        pictures,
        picture_s,
    )


def bytes_of_maps(task: Detect) -> int:
    """The bytes of one picture's maps in half precision."""
    images = torch.zeros(1, 3, *task.encoder.picture_px, device=next(task.parameters()).device)
    return sum(2 * one.numel() for one in task.maps(images))


def _seen(task: Detect, batch: Batch, recipe: Recipe) -> tuple[tuple[Tensor, ...], Objects, Tensor | None]:
    with autocast(batch.images.device, recipe.training.precision):
        maps = task.maps(batch.images)
    return tuple(one.half() for one in maps), objects_of(batch), batch.extent


def _altered(recipe: Recipe, train: Source, most: int, world: World) -> Iterator[Batch]:
    """Views as in training, except colours: at most this many."""
    light = Augmentation(crop=recipe.augmentation.crop, flip=recipe.augmentation.flip)
    batch_size = min(recipe.training.batch_size, len(train))
    altered = replace(recipe, augmentation=light, training=replace(recipe.training, batch_size=batch_size))
    return build_loader(altered, train, world).batches(0, max(0, most // batch_size))


def learned(task: DetectByCentres, seen: Seen, seconds: float, *, batch_size: int) -> float:
    """Train the head for this time. Returns the passes over the views. Its boxes start at the usual size."""
    head, canvas = task.head, task.encoder.picture_px
    head.begin_with(_sides(seen, canvas, head.size(seen.maps)))
    optimizer = torch.optim.AdamW(head.parameters(), lr=RATE, weight_decay=DECAY)
    draws, began, step = torch.Generator().manual_seed(0), time.monotonic(), 0
    most = max(1, MOST_EPOCHS * len(seen) // batch_size)
    head.train()
    while (progress := max((time.monotonic() - began) / seconds, step / most)) < 1 or step < WARM_UP:
        rows = torch.randint(len(seen), (batch_size,), generator=draws).to(seen.maps[0].device)
        for group in optimizer.param_groups:
            group["lr"] = RATE * max(0.0, min(1.0, (step + 1) / WARM_UP, 2 * (1 - progress)))
        extent = None if seen.extent is None else seen.extent[rows]
        found = head([one[rows].float() for one in seen.maps], extent, canvas)
        objects = Objects(seen.objects.boxes[rows], seen.objects.classes[rows], seen.objects.valid[rows])
        losses = centre_losses(found, objects, task.weights)
        losses["loss"].backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(head.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    head.eval()
    return step * batch_size / len(seen)


def _sides(seen: Seen, canvas: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """(N, 2): width and height of the boxes of all objects, in places of a map."""
    boxes, valid = seen.objects.boxes, seen.objects.valid
    across = picture_shares(seen.extent, canvas, boxes) * boxes.new_tensor((size[1], size[0]))
    return (boxes[..., 2:] * across[:, None])[valid]
