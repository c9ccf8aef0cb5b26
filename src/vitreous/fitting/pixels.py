"""Fit for pictures with masks: plan, train, calibrate, test, look inside. The same call again goes on."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitreous import settings
from vitreous.data.check import DataReport
from vitreous.data.fingerprint import names_digest
from vitreous.data.sources import DataSettings, Splits, without
from vitreous.errors import UserError
from vitreous.evaluation.pixel_scores import PixelEvaluation
from vitreous.fitting.after import inspected_findings
from vitreous.fitting.begun import Request, checked, data_settings, hardware_of, wishes_of, write
from vitreous.fitting.budget import FIGURES_S, Budget, Pace, measured
from vitreous.fitting.costs import costs
from vitreous.fitting.course import Course, can_be_paced, paced
from vitreous.fitting.fitted import Fitted
from vitreous.fitting.pixel_drafts import pixel_choices, pixel_drafts
from vitreous.fitting.plan import Plan
from vitreous.fitting.stages import Stages
from vitreous.fitting.threads import settled
from vitreous.fitting.wishes import Wishes
from vitreous.jobs.pixels import evaluate_pixels
from vitreous.jobs.train import train
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.recipes.recipe import Recipe
from vitreous.training.run import RunDirectory
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.trained import Trained

ENOUGH_EPOCHS = 12  # seen before larger pictures pay
PROBE_S = 2.0  # for the pace of a draft
OUTLINES_S = 0.06  # that scoring a picture takes beside the model: its outlines, its counts
LEAST_STEPS = 8


def has_masks(request: Request) -> bool:
    """Whether a fit of these pictures is one of their pixels. Nothing is decoded."""
    return replace(data_settings(request), keep_gb=0.0).build().train.targets.task == "segment"


@dataclass(frozen=True, kw_only=True)
class PixelFit(Fitted):
    """Of a segmenter."""


@dataclass(frozen=True, kw_only=True)
class PixelsBegun:
    """plan.json: what was asked for, and what was made of it; measured once, so that resuming is exact."""

    request: Request
    plan: Plan
    pictures: tuple[str, ...]  # digests of names and labels by part


@dataclass(frozen=True)
class PixelJob:
    """One fit: what was asked for, and the data."""

    request: Request
    out: Path
    report: DataReport
    source: DataSettings
    splits: Splits
    clock: Stages

    @classmethod
    def opened(cls, request: Request, out: Path, clock: Stages) -> "PixelJob":
        """With the data found, split and checked."""
        source = data_settings(request)
        splits = source.build()
        report = checked(splits, source, out, resumed=False)
        train = without(splits.train, report.left_out) if report.left_out else splits.train
        return cls(request, out, report, source.located(), replace(splits, train=train, notes=()), clock)

    def run(self) -> PixelFit:
        begun = self._begun_before()
        if begun is None:
            settled()
        elif begun.plan.threads is not None:
            torch.set_num_threads(begun.plan.threads)
        self.clock.begin("plan", "Choosing model and recipe")
        chosen = self._planned() if begun is None else begun.plan
        self.clock.begin("train", f"Training on {self.report.num_train:,} pictures")
        course = (
            _Recorded(self, chosen)
            if begun is None and chosen.budget is not None and chosen.recipe.schedule.falls
            else None
        )
        splits = self.splits
        results = train(chosen.recipe, self.out, read_test=False, open_data=lambda _: splits, course=course)
        chosen = chosen if course is None else course.plan
        self.clock.begin("evaluate", "Calibrating on the validation part, testing once")
        model, evaluation = self._evaluated()
        print(evaluation.summary(), flush=True)
        self.clock.begin("inspect", "Looking inside")
        assert splits.test is not None
        return PixelFit(
            out=self.out,
            request=self.request,
            data=self.report,
            plan=chosen,
            splits=splits,
            results=results,
            card=model.card,
            evaluation=evaluation,
            findings=inspected_findings(model.task(), chosen.recipe, splits),
            timings=self.clock.timings(),
            costs=costs(TorchPredictor(model), splits.test.read(0)),
            resumed=begun is not None,
        )

    # ---- plan

    def _planned(self) -> Plan:
        wishes, hardware = wishes_of(self.request), hardware_of(self.request)
        drafted = pixel_drafts(self.report, self.source, hardware, wishes)
        seconds = wishes.budget_s
        if seconds is None:
            recipe, kept = drafted[0], None
        else:
            recipe, kept = self._largest(drafted, seconds)
            recipe = self._of_length(recipe, kept, wishes)
        chosen = Plan(
            recipe=recipe,
            choices=pixel_choices(recipe, self.report, hardware, wishes, kept),
            budget=kept,
            threads=torch.get_num_threads(),
        )
        for one in chosen.choices:
            print(f"  {one.what}: {one.value} ({one.why})", flush=True)
        self.note(chosen)
        return chosen

    def _largest(self, drafted: list[Recipe], seconds: float) -> tuple[Recipe, Budget]:
        """The largest pictures that the model can see often enough in the time."""
        found: tuple[Recipe, Budget] | None = None
        for recipe in drafted:
            pace = measured(recipe, self.splits, min(PROBE_S, seconds / 100))
            kept = self._budget(seconds, pace)
            epochs = self._steps(kept) * recipe.training.batch_size / self.report.num_train
            if found is not None and epochs < ENOUGH_EPOCHS:
                break
            found = recipe, kept
        assert found is not None
        return found

    def _budget(self, seconds: float, pace: Pace) -> Budget:
        val, test = (self.report.part(name) for name in ("val", "test"))
        num_after = (0 if val is None else 2 * val.pictures) + (0 if test is None else test.pictures)
        before_s, after_s = self.clock(), FIGURES_S + (pace.picture_s + OUTLINES_S) * num_after
        return Budget(
            total_s=seconds, before_s=before_s, after_s=after_s, train_s=seconds - before_s - after_s, pace=pace
        )

    def _steps(self, kept: Budget) -> int:
        return int((kept.train_s - kept.pace.start_s) / kept.pace.step_s)

    def _of_length(self, recipe: Recipe, kept: Budget, wishes: Wishes) -> Recipe:
        if wishes.gives_a_length or not can_be_paced(recipe):
            return recipe
        usual = recipe.training.num_steps(max(1, self.report.num_train // recipe.training.batch_size))
        steps = max(LEAST_STEPS, self._steps(kept))
        return paced(recipe, steps if wishes.seconds is not None else min(steps, usual))

    def note(self, chosen: Plan) -> None:
        begun = PixelsBegun(request=self.request, plan=chosen, pictures=self._pictures())
        with RunDirectory(self.out):
            write(self.out, "data", settings.to_json(self.report))
            write(self.out, "plan", settings.to_json(begun))
            settings.save(chosen.recipe, self.out / "recipe.json")

    def _pictures(self) -> tuple[str, ...]:
        parts = (self.splits.train, self.splits.val, self.splits.test)
        return tuple(names_digest(part) for part in parts if part is not None)

    def _begun_before(self) -> PixelsBegun | None:
        """What an earlier call left, if it was the same call on the same pictures."""
        there, path = RunDirectory(self.out), self.out / "plan.json"
        there.check_ours()
        if not path.is_file() or not (there.checkpoints.paths() or there.results() is not None):
            return None
        begun = settings.load(PixelsBegun, path)
        if begun.request != self.request or begun.pictures != self._pictures():
            raise UserError(f"{self.out} holds another fit, or its pictures have changed; give another --out")
        return begun

    # ---- after training

    def _evaluated(self) -> tuple[Trained, PixelEvaluation]:
        model = Trained.load(self.out)
        predictor = TorchPredictor(model, self._device())
        assert self.splits.test is not None
        evaluation = evaluate_pixels(predictor, self.splits.val, self.splits.test)
        model = replace(model, card=replace(model.card, calibration=evaluation.calibration))
        model.save(self.out / "model")
        write(self.out, "evaluation", evaluation.to_json())
        return model, evaluation

    def _device(self) -> str:
        return dict(self.request.changes).get("training.device", "auto")


class _Recorded:
    """A course (training.loop.Course) whose every change is written down before it is followed."""

    def __init__(self, job: PixelJob, plan: Plan) -> None:
        assert plan.budget is not None
        self.job, self.plan = job, plan
        self.aim = Course(
            plan.recipe,
            plan.budget,
            clock=job.clock,
            record=self._record,
            steps_per_epoch=max(1, job.report.num_train // plan.recipe.training.batch_size),
        )

    def __call__(self, step: int) -> tuple[ScheduleSettings, int] | None:
        return self.aim(step)

    def _record(self, recipe: Recipe) -> None:
        steps, batch = recipe.training.steps or 0, recipe.training.batch_size
        words = f"{steps * batch / self.job.report.num_train:.1f} epochs, {steps:,} steps"
        why = f"{1000 * self.aim.step_s:.0f} ms per step recently; the end is moved as the pace changes"
        self.plan = replace(self.plan, recipe=recipe).with_choice("length", words, why)
        begun = PixelsBegun(request=self.job.request, plan=self.plan, pictures=self.job._pictures())
        write(self.job.out, "plan", settings.to_json(begun))
        settings.save(recipe, self.job.out / "recipe.json")
