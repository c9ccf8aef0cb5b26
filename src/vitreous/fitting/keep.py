"""Keep: of all models that a fit has made, the one that is best on the validation part."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitreous.data.sources import Splits
from vitreous.evaluation.baseline import spread_out
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.pixels import ROUGHLY
from vitreous.fitting.after import seen
from vitreous.fitting.first import FIRST, PIXELS, FirstAnswer, card_of, embed, fitted_heads, with_head
from vitreous.fitting.transfer import ENOUGH_TO_LEARN
from vitreous.recipes.recipe import Recipe
from vitreous.training.devices import World, autocast
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

TRAINED = "trained"  # folder of what training left
ON_PIXELS, FIRST_ANSWER = "logistic regression on pixels", "first answer"
FINE_TUNED, FROM_SCRATCH = "fine-tuned", "trained from scratch"
BETWEEN, NEW_HEAD = "mean of both", "new head on its features"
NEAR = 0.5  # of the validation pictures that a linear model is right about
AHEAD = 2  # validation pictures that a model must have gained over one of another kind: fewer are chance


@dataclass(frozen=True, kw_only=True)
class Candidate:
    name: str
    score: float | None  # on the validation part; None: there is none
    is_kept: bool = False


@dataclass(frozen=True)
class Kept:
    model: Trained
    val: LabelledLogits | None  # what it says of the validation part
    candidates: tuple[Candidate, ...]
    why: str


def keep_best(
    first: FirstAnswer,
    pixels: FirstAnswer,
    out: Path,
    recipe: Recipe,
    splits: Splits,
    *,
    trained: bool,
    new_head: int,
    seen_before: FeatureSet | None = None,
) -> Kept:
    """`new_head`: training pictures for one; `seen_before`: features that the first answer is made of. Nothing here
    depends on the clock, so that a run that goes on comes to the same."""
    made = _Made(recipe, splits)
    made.add(ON_PIXELS, Trained.load(out / PIXELS))
    if first.digest:
        made.add(FIRST_ANSWER, Trained.load(out / FIRST), seen_before)
    # Linear models are compared on all pictures that they were judged by: more than a small validation part has.
    floor = FIRST_ANSWER if first.digest and first.accuracy >= pixels.accuracy else ON_PIXELS
    if trained:
        learned = Trained.load(out / TRAINED)
        made.add(FINE_TUNED if recipe.start else FROM_SCRATCH, learned)
        if splits.val is not None and recipe.start_head:
            made.add(BETWEEN, _between(made.models[FIRST_ANSWER], learned))
        # A head of its own cannot make up for random weights that have learned nothing yet, and takes long to fit.
        if splits.val is not None and new_head and (recipe.start or made.is_near(FROM_SCRATCH, floor)):
            renewed = _with_new_head(learned, recipe, splits, new_head)
            if renewed is not None:
                made.add(NEW_HEAD, *renewed)
    best, why = chosen(made.right, floor, is_continued=bool(recipe.start), num_train=len(splits.train))
    candidates = tuple(Candidate(name=name, score=made.score(name), is_kept=name == best) for name in made.models)
    return Kept(made.models[best], made.said[best], candidates, why)


class _Made:
    """Models by name, and what they say of the validation part."""

    def __init__(self, recipe: Recipe, splits: Splits) -> None:
        self.recipe, self.val = recipe, splits.val
        self.models: dict[str, Trained] = {}
        self.said: dict[str, LabelledLogits | None] = {}

    def add(self, name: str, model: Trained, features: FeatureSet | None = None) -> None:
        self.models[name], self.said[name] = model, None
        if self.val is not None:
            world, shown = World.join(self.recipe.training.device), shown_as(self.recipe, model.card)
            with autocast(world.device, self.recipe.training.precision):
                task = model.task().to(world.device)
                self.said[name] = seen(task, self.val, shown, model.card.classes, features)[0]

    @property
    def right(self) -> dict[str, tuple[float, int] | None]:
        """Validation pictures that each is right about, of how many; of several labels, as many as the headline is
        worth."""
        return {
            name: None if said is None else (round(said.score() * len(said), 6), len(said))
            for name, said in self.said.items()
        }

    def is_near(self, name: str, floor: str) -> bool:
        mine, theirs = self.right[name], self.right[floor]
        return mine is None or theirs is None or mine[0] >= NEAR * theirs[0]

    def score(self, name: str) -> float | None:
        found = self.right[name]
        return None if found is None else found[0] / found[1]


def chosen(
    right: dict[str, tuple[float, int] | None], floor: str, *, is_continued: bool, num_train: int
) -> tuple[str, str]:
    """Which is kept, and why. `floor` is the better one of the linear models; `is_continued`: training went on from the
    first answer, so that the two are of one kind."""
    known = {name: found for name, found in right.items() if found is not None}
    learned = [name for name in right if name not in (ON_PIXELS, FIRST_ANSWER)]
    if not known:
        best = learned[-1] if learned and num_train >= ENOUGH_TO_LEARN else floor
        return best, "there is no validation part to compare it on with others"
    best, gained = floor, 0 if is_continued and floor == FIRST_ANSWER else AHEAD - 1
    for name in learned:
        if known[name][0] > known[best][0] + gained:
            best, gained = name, 0
    others = ", ".join(f"{name} {num / of:.1%}" for name, (num, of) in known.items() if name != best)
    num, of = known[best]
    return best, f"{num / of:.1%} on the validation part" + (f"; {others}" if others else "")


def _between(first: Trained, trained: Trained) -> Trained:
    """The mean of the weights before and after fine-tuning: often better than both (WiSE-FT, Wortsman et al. 2022)."""
    pairs = ((name, first.weights[name].float(), value.float()) for name, value in trained.weights.items())
    return replace(trained, weights={name: torch.lerp(one, other, 0.5) for name, one, other in pairs})


def _with_new_head(
    trained: Trained, recipe: Recipe, splits: Splits, num: int
) -> tuple[Trained, FeatureSet | None] | None:
    """A linear head fitted to the features that were learned. Briefly trained, features run ahead of the head: its
    weights are large where features are nearly alike, and follow them slowly. None where no head could be fitted: the
    model keeps the one it has."""
    encoder, some = trained.encoder(), spread_out(splits.train, num)
    found = embed(encoder, recipe, replace(splits, train=some), seconds=0.0)
    heads = list(fitted_heads(found, len(splits.train.classes), tolerance=ROUGHLY))
    if not heads:
        return None
    head = min(heads, key=lambda head: head.log_loss)
    return with_head(encoder, head, card_of(recipe, splits.train.classes), trained.where), found.val


def shown_as(recipe: Recipe, card: Card) -> Recipe:
    """The recipe with the pictures as a model takes them that need not be the one it trains."""
    return replace(recipe, model=card.model, normalise=card.preprocessing)
