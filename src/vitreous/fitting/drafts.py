"""Drafts: what could be done with some data on some machine, whatever the time. Every kind of task has its own
(`class_drafts`, `pixel_drafts`); what they share is here."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

from vitreous import settings
from vitreous.data.check import DataReport, Part
from vitreous.data.sources import DataSettings, parse_numbers, written_numbers
from vitreous.errors import UserError
from vitreous.fitting.budget import FIGURES_S, NUM_VALIDATIONS, SCORED_SHARE, Budget, Pace
from vitreous.fitting.choices import Choice, usual_steps
from vitreous.fitting.transfer import NONE, Found, Start
from vitreous.fitting.wishes import Hardware, Wishes
from vitreous.recipes.recipe import Recipe
from vitreous.training.averages import AverageSettings

LEAST_SCORED = 200  # test pictures to score, whatever the time


@dataclass(frozen=True)
class Problem:
    """What to fit, and with what."""

    report: DataReport
    data: DataSettings
    hardware: Hardware
    wishes: Wishes


class Drafts(ABC):
    """What a kind of task could do; `plan` chooses by the time there is."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.report, self.wishes, self.hardware = problem.report, problem.wishes, problem.hardware

    @classmethod
    def check(cls, wishes: Wishes, hardware: Hardware) -> None:
        """Reports settings that no data would suit before any is read, by drafting for made-up data that suits all."""
        if wishes.start not in (None, NONE) and "model" in wishes.changes:
            raise UserError(
                f"--model {wishes.changes['model']} and --from {wishes.start} contradict each other, since weights "
                "are for one model: leave one of them out"
            )
        num, side, channels = 1_000_000, (224, 224, 224), (0.5, 0.5, 0.5)
        any_data = DataReport(
            where="",
            classes=("one", "other"),
            parts=(Part(name="train", pictures=num, counts=(num // 2, num // 2), unreadable=()),),
            heights=side,
            widths=side,
            aspects=(1.0, 1.0, 1.0),
            grey_share=0.0,
            mean=channels,
            std=channels,
            num_equal=0,
            num_near=0,
            twins=(),
            two_labels=(),
            num_two_labels=0,
            leaks=(),
            left_out=(),
            tiny=(),
            flat=(),
        )
        cls(Problem(any_data, DataSettings(), hardware, wishes)).recipes(None)

    @abstractmethod
    def recipes(self, start: Start | None) -> list[Recipe]:
        """From small to large; the first is the default."""

    @abstractmethod
    def is_enough(self, epochs: float) -> bool:
        """Whether a larger draft that sees the pictures this often pays off."""

    @abstractmethod
    def choices(self, recipe: Recipe, start: Found, kept: Budget | None) -> tuple[Choice, ...]:
        """The decisions and their reasons."""

    def foreseen(self, recipe: Recipe, start: Start) -> Pace | None:
        """The pace of a recipe that starts from trained weights; None: it has to be measured."""
        return None

    def most_steps(self, usual: int, start: Start | None) -> int | None:
        """Steps beyond which more would not help; None: as many as there is time for."""
        return usual if self.wishes.seconds is None else None

    passes: ClassVar[float] = 1.0  # of every training picture through an encoder before it is useful

    def budget(self, total_s: float, pace: Pace, before_s: float, first_s: float = 0.0) -> Budget:
        """`first_s`: seconds per picture of the first model, which may be the one that is kept."""
        scoring_s, num_test = max(pace.picture_s, first_s) + self.scoring_s, self.report.size("test")
        affordable = int(min(total_s - before_s - FIGURES_S, SCORED_SHARE * total_s) / scoring_s)
        scored = min(num_test, max(LEAST_SCORED, affordable))
        judging_s = pace.picture_s + self.judging_s
        after_s = FIGURES_S + judging_s * self.val_passes * self.report.size("val") + scoring_s * scored
        return Budget(
            total_s=total_s,
            before_s=before_s,
            after_s=after_s,
            train_s=total_s - before_s - after_s,
            pace=pace,
            scored=scored if scored < num_test else None,
        )

    val_passes = 4  # after the last step: raw weights, averaged weights, those that are kept, and their calibration
    scoring_s = 0.0  # per test picture, in addition to the model
    judging_s = 0.0  # per validation picture, likewise

    # ---- what a recipe becomes

    def data(self) -> DataSettings:
        """Without the training pictures that are also in another part."""
        data = self.problem.data
        given = parse_numbers(data.leave_out) if data.leave_out else []
        return replace(data, leave_out=written_numbers([*given, *self.report.left_out]))

    def changed(self, recipe: Recipe) -> Recipe:
        """With the user's changes, except those to the data, which were applied when it was opened."""
        changes = self.wishes.changes
        return settings.changed(
            recipe, {name: text for name, text in changes.items() if name != "model" and not name.startswith("data.")}
        )

    def of_length(self, recipe: Recipe, epochs: float) -> Recipe:
        """The recipe with this length, and everything that depends on it."""
        training = replace(recipe.training, epochs=round(epochs, 4))
        steps = usual_steps(replace(recipe, training=training), self.report)
        # An average over about the last tenth.
        average = AverageSettings(kind="ema", factor=round(min(max(1 - 12 / steps, 0.9), 0.9999), 6))
        training = replace(training, evaluate_every_epochs=round(epochs / NUM_VALIDATIONS, 4))
        return replace(recipe, average=average, training=training)

    def lengthened(self, recipe: Recipe, epochs: float) -> Recipe:
        """The recipe with this length, unless one was given."""
        return recipe if self.wishes.gives_a_length else self.changed(self.of_length(recipe, epochs))

    def with_its_length(self, recipe: Recipe) -> Recipe:
        """With everything that depends on the recipe's length, planned or given, except what was given itself."""
        training, per_epoch = recipe.training, max(1, self.report.num_train // recipe.training.batch_size)
        epochs = training.epochs if training.steps is None else training.steps / per_epoch
        return self.changed(self.of_length(recipe, epochs))
