"""The loss of objects by their centres (Zhou et al. 2019, CenterNet, section 4), with boxes learned by their overlap.

Around the centre of an object there is a hill, of height 1 at the nearest place, which should be likely. All other
places should not be, and a place high on a hill is less wrong than one far from any. High places learn the box, too.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.nn.boxes import corners, generalised_iou
from vitreous.nn.centres import Placed
from vitreous.nn.gather import mean_over_ranks
from vitreous.tasks.detect_loss import LossSettings, Objects

SPREAD = 0.12  # standard deviation of a hill, in sides of its object
HIGH = 0.4  # height above which a place learns the box
SURE, FAR = 2.0, 4.0  # exponents of the focal loss: of a place's confidence, of its distance from the top


def centre_losses(placed: Placed, objects: Objects, weights: LossSettings) -> dict[str, Tensor]:
    """`class`, `l1` (in sides of the object) and `giou`, and their `loss`."""
    logits, boxes = placed.logits.float(), placed.boxes.float()
    with torch.no_grad():
        hills = heights(placed, objects)  # (B, M, N)
        top, owner = hills.max(dim=1)  # (B, N): the highest hill at each place, and its object
        learns = torch.where(top > HIGH, top, 0)
        known = objects.boxes.gather(1, owner[..., None].expand(-1, -1, 4))
        num_objects = mean_over_ranks(objects.valid.sum().float()).clamp(min=1)
        num_learning = mean_over_ranks(learns.sum()).clamp(min=1)
    by_class = class_loss(logits, by_classes(hills, objects.classes, logits.shape[-1]), placed.shown) / num_objects
    apart = (boxes - known).abs().sum(dim=-1) / known[..., 2:].sum(dim=-1)
    overlap = generalised_iou(corners(boxes), corners(known))
    l1, giou = ((learns * each).sum() / num_learning for each in (apart, 1 - overlap))
    loss = weights.classes * by_class + weights.l1 * l1 + weights.giou * giou
    return {"loss": loss, "class": by_class, "l1": l1, "giou": giou}


def heights(placed: Placed, objects: Objects) -> Tensor:
    """(B, M, N) from 0 to 1: each object's hill at each place; 0 if there is no such object."""
    middle, sides = objects.boxes[..., None, :2], objects.boxes[..., None, 2:]  # (B, M, 1, 2)
    away = ((placed.middles[:, None] - middle) / sides).square().sum(dim=-1)
    nearest = torch.arange(away.shape[-1], device=away.device) == away.argmin(dim=-1, keepdim=True)
    hills = torch.where(nearest, 1.0, (-away / (2 * SPREAD**2)).exp())
    return hills * objects.valid[..., None]


def by_classes(hills: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """(B, N, K): the highest hill of each class."""
    batch_size, _, num_places = hills.shape
    none = hills.new_zeros(batch_size, num_classes, num_places)
    return none.scatter_reduce(1, classes[..., None].expand_as(hills), hills, "amax").transpose(1, 2)


def class_loss(logits: Tensor, heights: Tensor, shown: Tensor | None) -> Tensor:
    """The sum of the focal loss that tolerates confident places beside a centre. logits, heights: (B, N, K)."""
    p = logits.sigmoid()
    at_top = -((1 - p) ** SURE) * F.logsigmoid(logits)
    beside = -((1 - heights) ** FAR) * p**SURE * F.logsigmoid(-logits)
    losses = torch.where(heights == 1, at_top, beside)
    return losses.sum() if shown is None else (losses * shown[..., None]).sum()
