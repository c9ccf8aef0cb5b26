"""TaskFit: what a kind of task brings to a fit. The stages are the same for all of them (`fit`)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Generic, Self, TypeVar

from vitreous.evaluation.full import Evaluation
from vitreous.evaluation.score import score
from vitreous.fitting.after import shown_as
from vitreous.fitting.begun import Begun
from vitreous.fitting.candidates import Kept, Said, Scored
from vitreous.fitting.choices import Plan
from vitreous.fitting.drafts import Drafts
from vitreous.fitting.first import FIRST, FIRST_MODEL, FirstModel, Made, calibrated, save_both
from vitreous.fitting.job import Job
from vitreous.fitting.transfer import Found, Start
from vitreous.jobs.build import eval_batches
from vitreous.jobs.by_picture import BY_PICTURE
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.recipes.recipe import Recipe
from vitreous.training.devices import World, autocast
from vitreous.weights.calibration import Calibration
from vitreous.weights.trained import Trained


class Account(ABC):
    """What a kind of task measures beside its evaluation, for its report; kept in the run."""

    @abstractmethod
    def save(self, run: Path) -> None: ...

    @classmethod
    @abstractmethod
    def load(cls, run: Path) -> Self: ...


class NoAccount(Account):
    """The evaluation is all there is."""

    def save(self, run: Path) -> None:
        pass

    @classmethod
    def load(cls, run: Path) -> Self:
        return cls()


Own = TypeVar("Own", bound=Account)


@dataclass(frozen=True)
class Measured(Generic[Own]):
    """Of the model that was kept."""

    model: Trained  # calibrated
    evaluation: Evaluation
    account: Own


class TaskFit(ABC, Generic[Own]):
    drafts: ClassVar[type[Drafts]]
    account: type[Own]

    def __init__(self, job: Job) -> None:
        self.job = job

    # ---- before training

    def floor(self) -> FirstModel | None:
        """A model within seconds and without an encoder, saved; None: there is none."""
        return None

    def first(self, start: Start, draft: Recipe, floor: FirstModel | None) -> FirstModel | None:
        """A model on frozen features of an encoder, saved; None: there is none."""
        return None

    def reconsidered(self, start: Found, first_models: tuple[FirstModel, ...]) -> Found:
        """Another start, where the first models show that this one does not suit the pictures."""
        return start

    def continued(self, plan: Plan, start: Start) -> Plan:
        """Where training can go on from the first model, head and all."""
        return plan

    # ---- after training

    def seen(self, name: str, model: Trained, recipe: Recipe) -> Said | None:
        """What a candidate says of the validation part; None: there is none."""
        val = self.job.parts.of(recipe).val
        if val is None:
            return None
        world = World.join(recipe.training.device)
        task = model.task().to(world.device).eval()
        with autocast(world.device, recipe.training.precision):
            found = score(task, eval_batches(val, shown_as(recipe, model.card), world))
        return Scored(found[task.metric().headline], len(val))

    def variants(
        self, learned: Trained, begun: Begun, scores: Mapping[str, Scored | None], floor: FirstModel | None
    ) -> Iterator[tuple[str, Trained]]:
        """More candidates, made of what training left. `scores`: of all so far."""
        return iter(())

    @abstractmethod
    def evaluated(self, kept: Kept, begun: Begun) -> Measured[Own]:
        """Calibrated on the validation part, tested once."""


class ByPictureFit(TaskFit[NoAccount]):
    """Of a task that is measured as it predicts, picture by picture (`jobs.by_picture`)."""

    account = NoAccount

    def made(self, start: Start, draft: Recipe) -> Made | None:
        """A model on frozen features of an encoder; None: there is none."""
        return None

    def first(self, start: Start, draft: Recipe, floor: FirstModel | None) -> FirstModel | None:
        made = self.made(start, draft)
        if made is None:
            return None
        save_both(made.model, None, self.job.out, FIRST)  # calibrated when it is measured, if it is kept
        said = self.seen(FIRST_MODEL, made.model, made.recipe)
        score = None if said is None else said.score()
        first = FirstModel(
            name=FIRST_MODEL,
            folder=FIRST,
            start=start.where,
            digest=start.digest,
            picture_px=made.recipe.model.picture_px,
            head=made.head,
            penalty=made.penalty,
            log_loss=made.log_loss,
            headline=made.headline,
            score=score,
            val_score=score,
            pictures=made.pictures,
            views=made.views,
            picture_s=made.picture_s,
            ready_s=round(self.job.clock(), 2),
        )
        print(first.words(), flush=True)
        return first

    @cached_property
    def said(self) -> dict[str, Said | None]:
        """Of the validation part, by candidate."""
        return {}

    def seen(self, name: str, model: Trained, recipe: Recipe) -> Said | None:
        """Once: a first model is scored as it is made, and again among the others."""
        if name not in self.said:
            self.said[name] = self.judged(name, model, recipe)
        return self.said[name]

    def judged(self, name: str, model: Trained, recipe: Recipe) -> Said | None:
        return super().seen(name, model, recipe)

    def calibration(self, kept: Kept) -> Calibration | None:
        """By what the kept model says of the validation part; None: it has to predict for that again."""
        return None

    def evaluated(self, kept: Kept, begun: Begun) -> Measured[NoAccount]:
        splits, predictor = self.job.scored(begun.plan), self.predictor(kept.model, begun.plan.recipe)
        assert splits.test is not None
        evaluate = BY_PICTURE[self.job.report.task]
        evaluation = evaluate(predictor, splits.val, splits.test, calibration=self.calibration(kept))
        return Measured(calibrated(kept.model, evaluation.calibration), evaluation, NoAccount())

    def predictor(self, model: Trained, recipe: Recipe) -> TorchPredictor:
        return TorchPredictor(model, World.join(recipe.training.device).device)
