"""The loss of masks by queries (Cheng et al. 2022, sections 3.2 and 3.3): each target is matched to a query; then the
losses of classes and masks, of masks only at some points.

Points are drawn from the samples' keys, once per picture for all layers and masks: pixels are sampled there once, and a
mask's logits are products with them. No mask is ever computed whole, and no shape depends on the data.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous import keys as K
from vitreous.batch import IGNORED
from vitreous.nn.assignment import assign
from vitreous.nn.gather import mean_over_ranks
from vitreous.nn.query_masks import QueryMasks, logits_at, pixels_at, uncertain_first
from vitreous.tasks.detect_loss import at_queries, class_loss
from vitreous.tasks.mask_targets import MaskTargets


@dataclass(frozen=True, kw_only=True)
class PointSettings:
    """Where masks are compared."""

    number: int = 12544  # points per mask
    candidates: float = 3.0  # candidates per point; the least certain are chosen
    uncertain: float = 0.75  # share of the points that are chosen in this way; the others are drawn anywhere


@dataclass(frozen=True, kw_only=True)
class MaskWeights:
    """Factors of the sum of losses, and of the costs in matching."""

    classes: float = 2.0
    mask: float = 5.0  # cross-entropy of points
    dice: float = 5.0
    auxiliary: float = 1.0  # on the losses of all layers but the last
    no_object: float = 0.1  # on the class loss of queries without a target


@dataclass(frozen=True)
class Points:
    """For each picture, (B, P, 2) as (x, y), 0 to 1 of the canvas."""

    matching: Tensor
    candidates: Tensor
    anywhere: Tensor
    num_uncertain: int  # how many of the candidates are chosen for a mask, the least certain

    @classmethod
    def drawn(cls, keys: Tensor, settings: PointSettings) -> "Points":
        num, num_uncertain = settings.number, int(settings.uncertain * settings.number)

        def draw(purpose: str, num: int) -> Tensor:
            return K.uniform(keys, f"mask points: {purpose}", 2 * num).view(-1, num, 2)

        return cls(
            draw("matching", num),
            draw("candidates", int(settings.candidates * num)),
            draw("anywhere", num - num_uncertain),
            num_uncertain,
        )


# ---- Matching


def match(said: QueryMasks, targets: MaskTargets, points: Tensor, weights: MaskWeights) -> Tensor:
    """(L, B, M) int64: the query of every target in each layer, or -1."""
    logits = logits_at(said.embeddings, pixels_at(said.pixels, points)).float()  # (L, B, Q, P)
    known = targets.known(points).float()  # (B, P)
    wanted = targets.at(points) * known[:, None]  # (B, M, P)
    # Pairs of queries and targets: sums over points are products of matrices.
    alone = (F.softplus(logits) * known[:, None]).sum(dim=-1)  # (L, B, Q): as if no point were part of a mask
    entropies = (alone[..., None] - _pairs(logits, wanted)) / _count(known)[:, None, None]  # (L, B, Q, M)
    shares = logits.sigmoid() * known[:, None]
    both = shares.sum(dim=-1)[..., None] + wanted.sum(dim=-1)[:, None]
    dices = 1 - (2 * _pairs(shares, wanted) + 1) / (both + 1)
    classes = targets.classes[None, :, None].expand(*said.logits.shape[:3], -1)
    likely = said.logits.float().softmax(dim=-1).gather(3, classes)
    costs = weights.mask * entropies + weights.dice * dices - weights.classes * likely
    found = assign(costs.flatten(0, 1), targets.valid.repeat(len(costs), 1))
    return found.view(len(costs), *targets.valid.shape)


def _pairs(values: Tensor, wanted: Tensor) -> Tensor:
    """(L, B, Q, P), (B, M, P) -> (L, B, Q, M): sums over points, by one product for all layers of a picture."""
    num_layers, batch, queries = values.shape[:3]
    joined = values.transpose(0, 1).reshape(batch, num_layers * queries, -1)
    return (joined @ wanted.mT).view(batch, num_layers, queries, -1).transpose(0, 1)


def _count(known: Tensor) -> Tensor:
    return known.sum(dim=-1).clamp(min=1)


# ---- The losses after matching


def mask_losses(said: QueryMasks, targets: MaskTargets, found: Tensor, points: Points) -> tuple[Tensor, Tensor]:
    """(L, B, M) each: cross-entropy and dice of every target's mask and its query's; 0 if it has no query."""
    places = torch.cat([points.candidates, points.anywhere], dim=1)  # (B, P', 2)
    queries = found.clamp(min=0)[..., None].expand(-1, -1, -1, said.embeddings.shape[-1])
    logits = logits_at(said.embeddings.gather(2, queries), pixels_at(said.pixels, places)).float()  # (L, B, M, P')
    chosen = _chosen(logits, targets.known(places), points)
    logits = logits.gather(3, chosen)  # (L, B, M, P)
    wanted, known = (
        one.expand(len(found), -1, found.shape[2], -1).gather(3, chosen)
        for one in (targets.at(places)[None], targets.known(places).float()[None, :, None])
    )
    matched = (found >= 0).to(logits.dtype)
    entropies = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    entropy = (entropies * known).sum(dim=-1) / _count(known)
    shares, wanted = logits.sigmoid() * known, wanted * known
    dice = 1 - (2 * (shares * wanted).sum(dim=-1) + 1) / (shares.sum(dim=-1) + wanted.sum(dim=-1) + 1)
    return entropy * matched, dice * matched


def _chosen(logits: Tensor, known: Tensor, points: Points) -> Tensor:
    """(L, B, M, P) int64: for each mask, its least certain candidates and all points drawn anywhere."""
    num_candidates, num_anywhere = points.candidates.shape[1], points.anywhere.shape[1]
    of_candidates = known[None, :, None, :num_candidates]
    doubtful = uncertain_first(logits[..., :num_candidates], of_candidates, points.num_uncertain)
    others = num_candidates + torch.arange(num_anywhere, device=logits.device)
    return torch.cat([doubtful, others.expand(*doubtful.shape[:-1], -1)], dim=-1)


def query_losses(said: QueryMasks, targets: MaskTargets, points: Points, weights: MaskWeights) -> dict[str, Tensor]:
    """`class`, `mask` and `dice` of the last layer, `auxiliary` of all others, and their `loss`."""
    num_layers, _, num_queries = said.logits.shape[:3]
    with torch.no_grad():
        found = match(said, targets, points.matching, weights)  # (L, B, M)
        num_masks = mean_over_ranks(targets.valid.sum().float()).clamp(min=1)
    classes = targets.classes.repeat(num_layers, 1)
    wanted = at_queries(found.flatten(0, 1), classes, num_queries, IGNORED)
    by_picture = class_loss(said.logits.float().flatten(0, 1), wanted, num_masks, True, weights.no_object)
    # A weighted mean over a layer's queries. All layers match equally many targets: equal weights.
    sums = {"class": num_layers * by_picture.view(num_layers, -1).sum(dim=1)}
    entropy, dice = mask_losses(said, targets, found, points)
    sums |= {name: part.sum(dim=(1, 2)) / num_masks for name, part in (("mask", entropy), ("dice", dice))}
    total = weights.classes * sums["class"] + weights.mask * sums["mask"] + weights.dice * sums["dice"]  # (L,)
    auxiliary = weights.auxiliary * total[:-1].sum()
    return {
        "loss": total[-1] + auxiliary,
        **{name: layers[-1] for name, layers in sums.items()},
        "auxiliary": auxiliary,
    }
