"""DETR's loss (Carion et al. 2020, section 3.1): each target is matched to a query; then losses of classes and boxes.

All layers of a decoder form one larger batch: one matrix of costs, one assignment. No shape depends on the data.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous import keys as K
from vitreous.batch import IGNORED, Batch
from vitreous.errors import UserError
from vitreous.nn.assignment import assign
from vitreous.nn.boxes import centred, corners, generalised_iou, iou
from vitreous.nn.detr import Decoded
from vitreous.nn.gather import mean_over_ranks

ALPHA, GAMMA = 0.25, 2.0  # of the focal loss (Lin et al. 2017)
NOISE = 0.4  # of a hint's box: it moves by at most this share of its half sides, and its sides change by this share


@dataclass(frozen=True, kw_only=True)
class CostSettings:
    """Factors of the costs of assigning a query to a target."""

    classes: float = 2.0  # how unlikely its class is
    l1: float = 5.0  # the distances of centre and sides
    giou: float = 2.0  # the generalised IoU


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """Factors of the sum of losses."""

    classes: float = 2.0
    l1: float = 5.0
    giou: float = 2.0
    auxiliary: float = 1.0  # on the losses of all layers of the decoder but the last
    no_object: float = 0.1  # detr: on the class loss of queries without a target
    hints: float = 0.0  # two_stage: on the loss of queries that each start near a target, and have to find it
    quality: bool = False  # deformable: the score to learn is the overlap with the target, not 1


@dataclass(frozen=True)
class Objects:
    """The targets of a batch."""

    boxes: Tensor  # (B, M, 4) as (cx, cy, w, h), 0 to 1 of the picture; if not valid, the whole picture
    classes: Tensor  # (B, M) int64; if not valid, 0
    valid: Tensor  # (B, M) bool

    def repeated(self, times: int) -> "Objects":
        """Once for each of `times` layers, concatenated."""
        return Objects(self.boxes.repeat(times, 1, 1), self.classes.repeat(times, 1), self.valid.repeat(times, 1))


def objects_of(batch: Batch) -> Objects:
    """From boxes in px of the canvas. Crowds and boxes that are cut off entirely are not learned."""
    if "boxes" not in batch.targets:
        raise UserError("these pictures have no boxes, and detection learns from nothing else")
    boxes, classes = batch.targets["boxes"].float(), batch.targets["classes"]
    canvas = batch.images.shape[-2:]
    if batch.extent is None:
        boxes = torch.stack([boxes[..., i] / canvas[1 - i % 2] for i in range(4)], dim=-1)
    else:
        boxes = boxes / batch.extent.flip(1).repeat(1, 2)[:, None].float()  # (B, 1, 4): width, height, width, height
    valid = (classes != IGNORED) & (boxes[..., 2:] > boxes[..., :2]).all(dim=-1)
    if "crowd" in batch.targets:
        valid = valid & ~batch.targets["crowd"]
    # A box that is not valid must still have an area: otherwise its gradients are not finite, and 0 times them is NaN.
    whole = torch.stack([torch.full_like(boxes[..., 0], value) for value in (0.5, 0.5, 1.0, 1.0)], dim=-1)
    return Objects(torch.where(valid[..., None], centred(boxes), whole), torch.where(valid, classes, 0), valid)


def costs(logits: Tensor, boxes: Tensor, objects: Objects, cost: CostSettings, softmax: bool) -> Tensor:
    """(B, Q, M): of every query for every target of its picture."""
    if softmax:
        per_class = -logits.softmax(dim=-1)
    else:
        p = logits.sigmoid()
        per_class = ALPHA * (1 - p) ** GAMMA * -(p + 1e-8).log() - (1 - ALPHA) * p**GAMMA * -(1 - p + 1e-8).log()
    by_class = per_class.gather(2, objects.classes[:, None].expand(-1, logits.shape[1], -1))
    apart = sum((boxes[:, :, None, i] - objects.boxes[:, None, :, i]).abs() for i in range(4))
    overlap = generalised_iou(corners(boxes)[:, :, None], corners(objects.boxes)[:, None])
    return cost.classes * by_class + cost.l1 * apart - cost.giou * overlap


def class_loss(logits: Tensor, wanted: Tensor, num_objects: Tensor, softmax: bool, no_object: float) -> Tensor:
    """(B,) parts of the sum. wanted: (B, Q) int64, the class of each query's target, IGNORED if it has none."""
    if not softmax:  # sigmoid focal loss
        targets = one_hot(wanted, logits)
        plain = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        p = logits.sigmoid()
        wrong = p + targets - 2 * p * targets
        factor = (1 - ALPHA) + (2 * ALPHA - 1) * targets
        return (factor * wrong**GAMMA * plain).sum(dim=(1, 2)) / num_objects
    none = logits.shape[-1] - 1
    labels = torch.where(wanted == IGNORED, none, wanted)
    losses = logits.logsumexp(dim=-1) - logits.gather(2, labels[..., None])[..., 0]
    factors = torch.where(labels == none, no_object, 1.0)
    return (losses * factors).sum(dim=1) / mean_over_ranks(factors.sum())


def quality_loss(logits: Tensor, wanted: Tensor, overlaps: Tensor, num_objects: Tensor) -> Tensor:
    """(B,) parts of the sum of the varifocal loss (Zhang et al. 2021): the probability of a target's class should equal
    the overlap of the query's box with it, (B, Q) from 0 to 1, and better boxes count more."""
    is_target = one_hot(wanted, logits)
    targets = is_target * overlaps[..., None]
    plain = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    factors = targets + (1 - is_target) * (1 - ALPHA) * logits.sigmoid() ** GAMMA
    return (factors.detach() * plain).sum(dim=(1, 2)) / num_objects


def one_hot(wanted: Tensor, logits: Tensor) -> Tensor:
    return (wanted[..., None] == torch.arange(logits.shape[-1], device=wanted.device)).to(logits.dtype)


def box_losses(chosen: Tensor, objects: Objects, found: Tensor, num_objects: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) parts of the sums of L1 and 1 - GIoU. chosen: (B, M, 4), the box of every target's query; found: (B, M),
    that query, or -1."""
    counts = (found >= 0).to(chosen.dtype)
    l1 = (chosen - objects.boxes).abs().sum(dim=-1)
    giou = 1 - generalised_iou(corners(chosen), corners(objects.boxes))
    return (l1 * counts).sum(dim=1) / num_objects, (giou * counts).sum(dim=1) / num_objects


def detection_losses(
    decoded: Decoded, objects: Objects, cost: CostSettings, weights: LossSettings, *, softmax: bool
) -> dict[str, Tensor]:
    """`class`, `l1` and `giou` of the last layer, `auxiliary` of all others, and their `loss`; `hints` of the queries
    that started near the targets."""
    logits, boxes = decoded.logits.float(), decoded.boxes.float()  # (L, B, Q, ...)
    if decoded.proposals is not None:
        # One more layer, the first: whether there is an object, whatever its class.
        logits, boxes = (
            torch.cat([one[None].float(), layers])
            for one, layers in zip(decoded.proposals, (logits, boxes), strict=True)
        )
    num_layers, batch_size = logits.shape[:2]
    every = objects.repeated(num_layers)
    if decoded.proposals is not None:
        every.classes[:batch_size] = 0
    logits, boxes = logits.flatten(0, 1), boxes.flatten(0, 1)  # (L B, Q, ...)
    with torch.no_grad():
        found = assign(costs(logits, boxes, every, cost, softmax), every.valid)  # (L B, M)
        num_objects = mean_over_ranks(objects.valid.sum().float()).clamp(min=1)
    parts = losses_of(logits, boxes, every, found, num_objects=num_objects, weights=weights, softmax=softmax)
    # A softmax's loss is a weighted mean over a layer's queries. All layers match equally many targets: equal weights.
    parts["class"] = num_layers * parts["class"] if softmax else parts["class"]
    sums = {name: part.view(num_layers, batch_size).sum(dim=1) for name, part in parts.items()}
    by_layer = _weighed(sums, weights)
    auxiliary = weights.auxiliary * by_layer[:-1].sum()
    told = {name: layers[-1] for name, layers in sums.items()} | {"auxiliary": auxiliary}
    if decoded.hinted is None:
        return {"loss": by_layer[-1] + auxiliary, **told}
    hints = weights.hints * hint_loss(decoded.hinted, objects, num_objects, weights)
    return {"loss": by_layer[-1] + auxiliary + hints, **told, "hints": hints}


def losses_of(
    logits: Tensor,
    boxes: Tensor,
    objects: Objects,
    found: Tensor,
    *,
    num_objects: Tensor,
    weights: LossSettings,
    softmax: bool = False,
) -> dict[str, Tensor]:
    """(L B,) parts of the sums `class`, `l1` and `giou`. found: (L B, M), the query of each target or -1."""
    chosen = boxes.gather(1, found.clamp(min=0)[..., None].expand(-1, -1, 4))  # (L B, M, 4)
    wanted = at_queries(found, objects.classes, logits.shape[1], IGNORED)
    if weights.quality and not softmax:
        overlaps = iou(corners(chosen.detach()), corners(objects.boxes))
        by_class = quality_loss(logits, wanted, at_queries(found, overlaps, logits.shape[1], 0.0), num_objects)
    else:
        by_class = class_loss(logits, wanted, num_objects, softmax, weights.no_object)
    l1, giou = box_losses(chosen, objects, found, num_objects)
    return {"class": by_class, "l1": l1, "giou": giou}


def _weighed(parts: Mapping[str, Tensor], weights: LossSettings) -> Tensor:
    return weights.classes * parts["class"] + weights.l1 * parts["l1"] + weights.giou * parts["giou"]


def noised(boxes: Tensor, keys: Tensor) -> Tensor:
    """Boxes (B, M, 4), moved and resized at random, by the samples' keys (Li et al. 2022, DN-DETR)."""
    drawn = 2 * K.uniform(keys, "hints", boxes.shape[1] * 4).view_as(boxes) - 1
    middle = boxes[..., :2] + NOISE * drawn[..., :2] * boxes[..., 2:] / 2
    return torch.cat([middle, boxes[..., 2:] * (1 + NOISE * drawn[..., 2:])], dim=-1).clamp(0.001, 0.999)


def hint_loss(hinted: tuple[Tensor, Tensor], objects: Objects, num_objects: Tensor, weights: LossSettings) -> Tensor:
    """The loss of queries (L, B, M, ...) that each started near the target of the same number, so none is matched."""
    logits, boxes = (each.float().flatten(0, 1) for each in hinted)
    every = objects.repeated(len(hinted[0]))
    # Queries that started at no target are made to predict none, which is right.
    logits = torch.where(every.valid[..., None], logits, -30.0)
    own = torch.arange(logits.shape[1], device=logits.device).expand_as(every.classes)
    found = torch.where(every.valid, own, -1)
    return _weighed(losses_of(logits, boxes, every, found, num_objects=num_objects, weights=weights), weights).sum()


def at_queries(found: Tensor, values: Tensor, num_queries: int, none: float) -> Tensor:
    """(B, Q): the value of every target (B, M), at the query that was found for it; `none` at those without one."""
    places = torch.full((len(found), num_queries + 1), none, dtype=values.dtype, device=values.device)
    # Targets without a query write into an additional place, which is then cut off.
    return places.scatter(1, torch.where(found >= 0, found, num_queries), values)[:, :num_queries]
