"""Fits of classifiers, of one class per picture or several labels: first models on pixels and on pooled features, more
candidates, few-shot probes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import torch

from vitreous import settings
from vitreous.data.check import DataReport
from vitreous.data.splits import Splits
from vitreous.evaluation.baseline import spread_out
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.full import evaluate_fully
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.pixels import ROUGHLY, Baseline, PixelRegression
from vitreous.evaluation.probes import FewShot
from vitreous.fitting.after import shown_as
from vitreous.fitting.base import Account, Measured, TaskFit
from vitreous.fitting.begun import Begun
from vitreous.fitting.budget import num_for_new_head, num_probed
from vitreous.fitting.candidates import FROM_SCRATCH, Kept, Scored
from vitreous.fitting.choices import Plan
from vitreous.fitting.class_after import probed, seen
from vitreous.fitting.class_drafts import ClassDrafts
from vitreous.fitting.class_first import card_of, embed, first_model, fitted_heads, pixel_model, with_head
from vitreous.fitting.first import FIRST, FIRST_MODEL, FirstModel, calibrated
from vitreous.fitting.transfer import Found, Start, reconsidered
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.devices import World, autocast
from vitreous.weights import own
from vitreous.weights.trained import Trained

BETWEEN, NEW_HEAD = "mean of both", "new head on its features"
NEAR = 0.5  # of the validation pictures that a first model is right about
PREDICTIONS = "predictions"  # folder of the run


@dataclass(frozen=True, kw_only=True)
class _Small:
    """What is stored beside the logits."""

    classes: tuple[str, ...]
    few_shot: tuple[FewShot, ...]
    baseline: Baseline | None


@dataclass(frozen=True)
class ClassAccount(Account):
    val: LabelledLogits | None
    test: LabelledLogits
    few_shot: tuple[FewShot, ...]
    baseline: Baseline | None = None  # logistic regression on pixels of the same split

    def save(self, run: Path) -> None:
        parts = {"val": self.val, "test": self.test}
        tensors = {
            name: {"logits": part.logits, "labels": part.labels, "ids": part.ids}
            for name, part in parts.items()
            if part is not None
        }
        small = _Small(classes=self.test.classes, few_shot=self.few_shot, baseline=self.baseline)
        own.write_folder(run / PREDICTIONS, tensors, {"account": settings.to_json(small)})

    @classmethod
    def load(cls, run: Path) -> Self:
        found = own.read_folder(run / PREDICTIONS)
        small = settings.from_json(_Small, found.documents["account"], where=str(run / PREDICTIONS))
        parts = {
            name: LabelledLogits(part["logits"], part["labels"], part["ids"], small.classes)
            for name, part in found.tensors.items()
        }
        return cls(parts.get("val"), parts["test"], small.few_shot, small.baseline)


class ClassFit(TaskFit[ClassAccount]):
    drafts, account = ClassDrafts, ClassAccount

    @cached_property
    def regression(self) -> PixelRegression:
        splits = self.job.parts.splits
        return PixelRegression(splits.train, splits.val)

    @cached_property
    def features(self) -> dict[str, FeatureSet]:
        """Of the validation part, by the name of the candidate that computed them."""
        return {}

    # ---- before training

    def floor(self) -> FirstModel:
        return pixel_model(self.regression, self.job.out, clock=self.job.clock)

    def first(self, start: Start, draft: Recipe, floor: FirstModel | None) -> FirstModel | None:
        splits, seconds = self.job.parts.of(draft), max(1.0, self.job.seconds_left)
        bar = 0.0 if floor is None or floor.score is None else floor.score
        found, features = first_model(
            start, draft, splits, self.job.out, bar=bar, seconds=seconds, clock=self.job.clock
        )
        if found is not None and features is not None:
            self.features[FIRST_MODEL] = features
        return found

    def reconsidered(self, start: Found, first_models: tuple[FirstModel, ...]) -> Found:
        first, pixels = first_models[-1], first_models[0]
        return reconsidered(start, first.val_score, pixels.val_score, self.job.report, self.job.seconds_left)

    def continued(self, plan: Plan, start: Start) -> Plan:
        """If its task is the same."""
        recipe, task = plan.recipe, plan.recipe.objective
        is_alike = isinstance(task, ClassifySettings) and task.head == "linear"
        if not is_alike or recipe.model.picture_px != start.picture_px:
            return plan
        return replace(plan, recipe=replace(recipe, start=str(self.job.out / FIRST), start_head=True))

    # ---- after training

    def seen(self, name: str, model: Trained, recipe: Recipe) -> LabelledLogits | None:
        val, world = self.job.parts.of(recipe).val, World.join(recipe.training.device)
        if val is None:
            return None
        with autocast(world.device, recipe.training.precision):
            task, shown = model.task().to(world.device), shown_as(recipe, model.card)
            return seen(task, val, shown, model.card.classes, self.features.get(name))[0]

    def variants(
        self, learned: Trained, begun: Begun, scores: Mapping[str, Scored | None], floor: FirstModel | None
    ) -> Iterator[tuple[str, Trained]]:
        recipe, report = begun.plan.recipe, self.job.report
        splits = self.job.parts.of(recipe)
        if splits.val is None:
            return
        if recipe.start_head:
            yield BETWEEN, _between(Trained.load(self.job.out / FIRST), learned)
        # A new head takes long to fit, and cannot make up for random weights that have learned nothing yet.
        num = new_head(begun.plan, report)
        if num and (recipe.start or floor is None or _is_near(scores[FROM_SCRATCH], scores[floor.name])):
            renewed = _with_new_head(learned, recipe, splits, num)
            if renewed is not None:
                model, features = renewed
                if features is not None:
                    self.features[NEW_HEAD] = features
                yield NEW_HEAD, model

    def evaluated(self, kept: Kept, begun: Begun) -> Measured[ClassAccount]:
        """Temperature and prediction sets are fitted to its predictions on the validation part and stored in its
        card."""
        val, model, splits = kept.said, kept.model, self.job.scored(begun.plan)
        assert splits.test is not None and (val is None or isinstance(val, LabelledLogits))
        shown = shown_as(begun.plan.recipe, model.card)
        world = World.join(shown.training.device)
        task = model.task().to(world.device)
        with autocast(world.device, shown.training.precision):
            test, features = seen(task, splits.test, shown, model.card.classes)
            shots = probed(task, shown, splits.train, features, self._num_probed(begun))
        evaluation = evaluate_fully(val, test)
        account = ClassAccount(val, test, shots, self.regression.baseline(splits.test))
        return Measured(calibrated(model, evaluation.calibration), evaluation, account)

    def _num_probed(self, begun: Begun) -> int:
        budget = begun.plan.budget
        if budget is None:
            return num_probed(None, self.job.report, 0.0)
        picture_s = max(budget.pace.picture_s, begun.first_models[-1].picture_s)
        return num_probed(budget.total_s, self.job.report, picture_s)


def new_head(plan: Plan, report: DataReport) -> int:
    """The number of training pictures to which a new head is fitted after training."""
    if plan.budget is None:
        return num_for_new_head(None, report, 0.0)
    return num_for_new_head(plan.budget.total_s, report, plan.budget.pace.picture_s)


def _is_near(mine: Scored | None, theirs: Scored | None) -> bool:
    return mine is None or theirs is None or mine.worth >= NEAR * theirs.worth


def _between(first: Trained, trained: Trained) -> Trained:
    """The mean of the weights before and after fine-tuning: often better than both (WiSE-FT, Wortsman et al. 2022)."""
    pairs = ((name, first.weights[name].float(), value.float()) for name, value in trained.weights.items())
    return replace(trained, weights={name: torch.lerp(one, other, 0.5) for name, one, other in pairs})


def _with_new_head(
    trained: Trained, recipe: Recipe, splits: Splits, num: int
) -> tuple[Trained, FeatureSet | None] | None:
    """A linear head fitted to the learned features. In short training, features run ahead of the head: its weights are
    large where features are nearly equal, and follow slowly. None if no head could be fitted: the model keeps its
    own."""
    encoder, some = trained.encoder(), spread_out(splits.train, num)
    found = embed(encoder, recipe, replace(splits, train=some), seconds=0.0)
    heads = list(fitted_heads(found, len(splits.train.classes), tolerance=ROUGHLY))
    if not heads:
        return None
    head = min(heads, key=lambda head: head.log_loss)
    return with_head(encoder, head, card_of(recipe, splits.train.classes), trained.where), found.val
