"""Keep: of all models that a fit has made, the one that is best on the validation part."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitreous.data.base import Source
from vitreous.data.sources import Splits
from vitreous.evaluation.baseline import spread_out
from vitreous.evaluation.score import score
from vitreous.fitting.first import FIRST, FirstAnswer, embed, fitted_heads, with_head
from vitreous.jobs.build import eval_batches
from vitreous.recipes.recipe import Recipe
from vitreous.training.devices import World, autocast
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

TRAINED = "trained"  # folder of what training left
NEW_HEAD = "new head on its features"
NEW_HEAD_PICTURES = 4000  # that it is fitted to, at most


@dataclass(frozen=True, kw_only=True)
class Candidate:
    name: str
    score: float | None  # on the validation part; None: there is none
    is_kept: bool = False


@dataclass(frozen=True)
class Kept:
    model: Trained
    candidates: tuple[Candidate, ...]
    why: str


def keep_best(
    first: FirstAnswer, out: Path, recipe: Recipe, splits: Splits, results: dict[str, Any], *, with_new_head: bool
) -> Kept:
    """The first answer stays unless something is better. Nothing here depends on the clock, so that a run that goes on
    comes to the same."""
    models = {"first answer": (Trained.load(out / FIRST), first.val_accuracy)}
    if results["steps"]:
        trained = Trained.load(out / TRAINED)
        own_score = results["val"][results["headline"]] if "val" in results else None
        models["fine-tuned" if recipe.start else "trained from scratch"] = (trained, own_score)
        if splits.val is not None and recipe.start_head:
            mean = _between(models["first answer"][0], trained)
            models["mean of both"] = (mean, scored(mean, splits.val, recipe))
        if splits.val is not None and with_new_head:
            renewed = _with_new_head(trained, recipe, splits)
            models[NEW_HEAD] = (renewed, scored(renewed, splits.val, recipe))
    best, why = _best({name: value for name, (_, value) in models.items()})
    candidates = tuple(Candidate(name=name, score=value, is_kept=name == best) for name, (_, value) in models.items())
    return Kept(models[best][0], candidates, why)


def _best(scores: dict[str, float | None]) -> tuple[str, str]:
    """Of equals the first, and why."""
    known = {name: value for name, value in scores.items() if value is not None}
    if not known:
        *_, last = scores
        return last, "there is no validation part to compare it on with others"
    best = max(known, key=lambda name: known[name])
    others = ", ".join(f"{name} {value:.1%}" for name, value in known.items() if name != best)
    return best, f"{known[best]:.1%} on the validation part" + (f"; {others}" if others else "")


def _between(first: Trained, trained: Trained) -> Trained:
    """The mean of the weights before and after fine-tuning: often better than both (WiSE-FT, Wortsman et al. 2022)."""
    pairs = ((name, first.weights[name].float(), value.float()) for name, value in trained.weights.items())
    return replace(trained, weights={name: torch.lerp(one, other, 0.5) for name, one, other in pairs})


def _with_new_head(trained: Trained, recipe: Recipe, splits: Splits) -> Trained:
    """A linear head fitted to the features that were learned: better than one that was trained too briefly."""
    encoder, some = trained.encoder(), spread_out(splits.train, NEW_HEAD_PICTURES)
    found = embed(encoder, recipe, replace(splits, train=some), seconds=0.0)
    head = max(fitted_heads(found, len(splits.train.classes)), key=lambda head: -head.log_loss)
    return with_head(encoder, head, recipe, splits.train.classes, trained.where)


def scored(model: Trained, val: Source, recipe: Recipe) -> float:
    world = World.join(recipe.training.device)
    with autocast(world.device, recipe.training.precision):
        task = model.task().to(world.device)
        return score(task, eval_batches(val, shown_as(recipe, model.card), world))[task.metric().headline]


def shown_as(recipe: Recipe, card: Card) -> Recipe:
    """The recipe with the pictures as a model takes them that need not be the one it trains."""
    return replace(recipe, model=card.model, normalise=card.preprocessing)
