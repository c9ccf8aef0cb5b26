"""The main job: a folder of pictures in, a trained model and an honest account of it out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vitreous import settings
from vitreous.data.check import DataReport
from vitreous.data.fingerprint import names_digest
from vitreous.data.sources import DataSettings, Splits, without
from vitreous.errors import UserError
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.pixels import Baseline, PixelRegression
from vitreous.evaluation.probes import FewShot
from vitreous.fitting.after import costs_of, evaluated, inspected, inspected_findings, scored_part
from vitreous.fitting.begun import Begun, Request, begun_before, checked, data_settings, hardware_of, wishes_of, write
from vitreous.fitting.budget import Pace, measured, num_probed
from vitreous.fitting.course import Course
from vitreous.fitting.drafts import Parts, check_wishes, drafts
from vitreous.fitting.first import FIRST, FirstAnswer, first_answer, pixel_answer
from vitreous.fitting.fitted import Fitted
from vitreous.fitting.keep import TRAINED, Candidate, Kept, keep_best, shown_as
from vitreous.fitting.pixels import PixelFit, PixelJob, has_masks
from vitreous.fitting.plan import Plan, length, plan
from vitreous.fitting.stages import Stages, say
from vitreous.fitting.threads import settled
from vitreous.fitting.transfer import Start, reconsidered, starting
from vitreous.fitting.wishes import DEFAULT_S, Balance
from vitreous.jobs.train import train
from vitreous.models.shapes import shapes_only
from vitreous.recipes.recipe import Recipe, short_name
from vitreous.tasks.classify import ClassifySettings
from vitreous.terminal import duration, table
from vitreous.training.devices import World
from vitreous.training.loop import DivergedError
from vitreous.training.run import RunDirectory
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.trained import Trained


@dataclass(frozen=True, kw_only=True)
class FitResult(Fitted):
    """Of a classifier: everything that a report needs."""

    first: FirstAnswer
    candidates: tuple[Candidate, ...]  # all that could have been kept
    val: LabelledLogits | None
    test: LabelledLogits
    few_shot: tuple[FewShot, ...]
    baseline: Baseline | None = None  # logistic regression on pixels of the same split


def fit(
    data: str,
    out: str | Path | None = None,
    *,
    start: str | None = None,
    minutes: float | None = None,
    balance: Balance = "auto",
    changes: Mapping[str, str] | None = None,
    began: float | None = None,
) -> FitResult | PixelFit:
    """Check, split, answer at once, plan, train, keep the best, calibrate, evaluate, look inside. The same call again
    goes on where it stopped.

    `minutes` count from `began`, a reading of `time.monotonic()`; without it from now.
    """
    request = Request(data=data, start=start, minutes=minutes, balance=balance, changes=tuple((changes or {}).items()))
    if minutes is not None and not minutes > 0:
        raise UserError(f"--minutes {minutes:g}: a time budget is more than 0")
    if World.join("cpu").size > 1:
        raise UserError("fit is for one process; train its recipe.json with torchrun and `vitreous train` instead")
    clock = Stages(began)
    clock.begin("data", f"Looking at {data}")
    out = Path(out) if out is not None else Path("runs") / f"fit-{short_name(data)}"
    RunDirectory(out).check_ours()  # before anything is read
    if has_masks(request):
        return PixelJob.opened(request, out, clock).run()
    begun = begun_before(out, request)
    return _fitted(Job.opened(request, out, begun, clock), begun)


def _fitted(job: "Job", begun: Begun | None) -> FitResult:
    """The stages after the data, for labels."""
    if begun is None:
        settled()
    elif begun.plan.threads is not None:
        torch.set_num_threads(begun.plan.threads)
    job.clock.begin("first", "Answering at once: linear heads on pixels and on frozen features")
    regression = PixelRegression(job.parts.splits.train, job.parts.splits.val)
    begins = job.planned(regression) if begun is None else begun
    job.clock.begin("train", f"Training on {job.report.num_train:,} pictures")
    begins, results = job.trained(begins, is_resumed=begun is not None)
    job.clock.begin("evaluate", "Keeping the best, calibrating it on the validation part, testing it once")
    begins, kept = job.kept(begins, trained=bool(results["steps"]))
    shown, splits = shown_as(begins.plan.recipe, kept.model.card), job.to_score(begins)
    model, found = evaluated(kept.model, kept.val, shown, splits, job.num_probed(begins))
    model.save(job.out / "model")
    write(job.out, "evaluation", found.evaluation.to_json())
    results = {**results, "test_scored": len(found.test), "test_pictures": job.report.size("test")}
    write(job.out, "results", results)
    assert splits.test is not None
    baseline = regression.baseline(splits.test)
    print(found.evaluation.summary(), flush=True)
    job.clock.begin("inspect", "Looking inside")
    findings = inspected_findings(found.task, shown, splits)
    return FitResult(
        out=job.out,
        request=job.request,
        data=job.report,
        plan=begins.plan,
        splits=splits,
        results=results,
        card=model.card,
        first=begins.first,
        candidates=kept.candidates,
        val=found.val,
        test=found.test,
        evaluation=found.evaluation,
        few_shot=found.few_shot,
        findings=findings,
        timings=job.clock.timings(),
        costs=costs_of(job.out, splits, found.test),
        baseline=baseline,
        resumed=begun is not None,
    )


@dataclass(frozen=True)
class Job:
    """One fit: what was asked for, the data, and the stages that need both."""

    request: Request
    out: Path
    report: DataReport
    source: DataSettings
    pictures: tuple[str, ...]  # digests of names and labels by part
    parts: Parts
    clock: Stages
    seen: dict[str, FeatureSet] = field(default_factory=dict)  # features of the validation part, by the model's folder

    @classmethod
    def opened(cls, request: Request, out: Path, begun: Begun | None, clock: Stages) -> "Job":
        """With the data found, split and checked."""
        source, hardware = data_settings(request), hardware_of(request)
        if begun is None:
            check_wishes(wishes_of(request), hardware)
        splits = source.build()
        pictures = tuple(names_digest(part) for part in (splits.train, splits.val, splits.test) if part is not None)
        if begun is not None and begun.pictures != pictures:
            raise UserError(
                f"the pictures in {request.data} have changed since the fit in {out} began; give another --out"
            )
        report = checked(splits, source, out, resumed=begun is not None)
        train = without(splits.train, report.left_out) if report.left_out else splits.train
        parts = Parts(replace(splits, train=train, notes=()))  # the report has them
        return cls(request, out, report, source.located(), pictures, parts, clock)

    def planned(self, regression: PixelRegression) -> Begun:
        """First models that work, and what to do with the time that is left; all noted."""
        wishes, report, clock = wishes_of(self.request), self.report, self.clock
        hardware = hardware_of(self.request)
        with RunDirectory(self.out):  # an error where another process trains into it
            write(self.out, "data", settings.to_json(report))
            first = pixels = pixel_answer(regression, self.out, clock=clock)
            start = starting(report, hardware, wishes, clock(), print)
            draft = drafts(report, self.source, hardware, wishes, start if isinstance(start, Start) else None)[0]
            with shapes_only():
                draft.model.build()  # an error where the settings make no model
            if isinstance(start, Start):
                first = self._first(start, draft, pixels)
        clock.begin("plan", "Choosing model and recipe")
        left_s = (wishes.budget_s or DEFAULT_S) - clock()
        start = reconsidered(start, first.val_accuracy, pixels.val_accuracy, report, left_s)

        def measure(recipe: Recipe, seconds: float) -> Pace:
            return measured(recipe, self.parts.of(recipe), seconds)

        chosen = plan(
            report, self.source, hardware, wishes, start, measure=measure, clock=clock, first_s=first.picture_s
        )
        chosen = self._with_part_embedded(chosen, first)
        print(table([(one.what, one.value, one.why) for one in chosen.choices], ("choice", "value", "why")), flush=True)
        chosen = self._from_first(chosen, start) if isinstance(start, Start) and first.digest else chosen
        chosen = replace(chosen, threads=torch.get_num_threads())
        begins = Begun(request=self.request, plan=chosen, first=first, on_pixels=pixels, pictures=self.pictures)
        self.note(begins)
        return begins

    def _first(self, start: Start, draft: Recipe, pixels: FirstAnswer) -> FirstAnswer:
        seconds = max(1.0, (wishes_of(self.request).budget_s or DEFAULT_S) - self.clock())
        found, features = first_answer(
            start, draft, self.parts.of(draft), self.out, bar=pixels.accuracy, seconds=seconds, clock=self.clock
        )
        if found is None:
            return pixels
        if features is not None:
            self.seen[FIRST] = features
        return found

    def _with_part_embedded(self, chosen: Plan, first: FirstAnswer) -> Plan:
        """Noted where the first answer is made of a part of the training pictures."""
        readable = self.report.num_train - len(self.report.parts[0].unreadable)
        if not first.digest or first.pictures >= readable:
            return chosen
        value = f"a head on {first.pictures:,} of {readable:,} training pictures"
        return chosen.with_choice(
            "first answer", value, "spread evenly over the classes; the time is too short for all"
        )

    def _from_first(self, chosen: Plan, start: Start) -> Plan:
        """Fine-tuning starts from the first answer, head and all, where its task is the same."""
        recipe, task = chosen.recipe, chosen.recipe.objective
        is_alike = isinstance(task, ClassifySettings) and task.head == "linear"
        if not is_alike or recipe.model.picture_px != start.picture_px:
            return chosen
        return replace(chosen, recipe=replace(recipe, start=str(self.out / FIRST), start_head=True))

    def trained(self, begun: Begun, *, is_resumed: bool) -> tuple[Begun, dict[str, Any]]:
        """With a budget, and from its start, the end of the run is aimed by the pace it has."""
        chosen = begun.plan
        if not chosen.trains:
            return begun, self._untrained(chosen.recipe)
        if (self.out / "recipe.json").is_file() and RunDirectory(self.out).results() is None:
            # A correction may have been interrupted between the two files.
            settings.save(chosen.recipe, self.out / "recipe.json")
        course = None if is_resumed else self._course(begun)
        splits = self.parts.of(chosen.recipe)
        try:
            results = train(
                chosen.recipe, self.out, read_test=False, open_data=lambda _: splits, course=course, into=TRAINED
            )
        except DivergedError as error:  # there is a model that works
            print(f"training was given up: {error}", flush=True)
            return replace(begun, plan=replace(chosen, trains=False)), self._untrained(chosen.recipe)
        return replace(begun, plan=chosen if course is None else course.plan), results

    def _course(self, begun: Begun) -> "_Recorded | None":
        if begun.plan.budget is None or not begun.plan.recipe.schedule.falls:
            return None
        return _Recorded(self, begun)

    def note(self, begun: Begun) -> None:
        with RunDirectory(self.out):
            write(self.out, "plan", settings.to_json(begun))
            settings.save(begun.plan.recipe, self.out / "recipe.json")

    def _untrained(self, recipe: Recipe) -> dict[str, Any]:
        """What a run leaves in which nothing was trained."""
        with RunDirectory(self.out) as directory:
            directory.write_environment()
            weights = Trained.load(self.out).weights
            results = {
                "recipe": recipe.name,
                "steps": 0,
                "batch_size": recipe.training.batch_size,
                "parameters": sum(value.numel() for value in weights.values()),
                "train_s": 0.0,
                "wall_s": 0.0,
            }
            write(self.out, "results", results)
        return results

    def to_score(self, begun: Begun) -> Splits:
        """With the part of test that was planned."""
        recipe = begun.plan.recipe
        return scored_part(self.parts.of(recipe), begun.plan.scored, recipe.data.split_seed)

    def num_probed(self, begun: Begun) -> int:
        budget = begun.plan.budget
        if budget is None:
            return num_probed(None, self.report, 0.0)
        return num_probed(budget.total_s, self.report, max(budget.pace.picture_s, begun.first.picture_s))

    def kept(self, begun: Begun, *, trained: bool) -> tuple[Begun, Kept]:
        """Noted before it is evaluated, so that a run that goes on keeps the same."""
        recipe = begun.plan.recipe
        found = keep_best(
            begun.first,
            begun.on_pixels,
            self.out,
            recipe,
            self.parts.of(recipe),
            trained=trained,
            new_head=begun.plan.new_head,
            seen_before=self.seen.get(FIRST),
        )
        name = next(one.name for one in found.candidates if one.is_kept)
        noted = replace(begun, plan=begun.plan.with_choice("kept", name, found.why), candidates=found.candidates)
        self.note(noted)
        print(f"kept: {name}, {found.why}", flush=True)
        return noted, found


class _Recorded:
    """A course (training.loop.Course) whose every change is written down before it is followed."""

    def __init__(self, job: Job, begun: Begun) -> None:
        assert begun.plan.budget is not None
        self.job, self.begun, self.plan = job, begun, begun.plan
        per_epoch = max(1, job.report.num_train // begun.plan.recipe.training.batch_size)
        self.aim = Course(
            begun.plan.recipe,
            begun.plan.budget,
            clock=job.clock,
            record=self._record,
            steps_per_epoch=per_epoch,
            most_steps=begun.plan.most_steps,
        )

    def __call__(self, step: int) -> tuple[ScheduleSettings, int] | None:
        return self.aim(step)

    def _record(self, recipe: Recipe) -> None:
        words = length(recipe, self.job.report)
        why = f"{1000 * self.aim.step_s:.0f} ms per step recently; the end is moved as the pace changes"
        self.plan = replace(self.plan, recipe=recipe).with_choice("length", words, why)
        write(self.job.out, "plan", settings.to_json(replace(self.begun, plan=self.plan)))
        settings.save(recipe, self.job.out / "recipe.json")


# ---- words


def ending(result: Fitted, seconds: float) -> str:
    """The last words, after so many seconds."""
    budget = result.plan.budget
    asked = "" if budget is None else f" of {duration(budget.total_s)}"
    if result.resumed:  # the time before is not known here
        asked = " since it went on"
    return (
        f"\nTest {result.evaluation.headline_name} {result.evaluation.headline.percent()}{result.on_a_part}, "
        f"{duration(seconds)}{asked}. "
        f"Saved to {result.out}:\n"
        "  report.html the account   model/ the model, calibrated   plan.json the choices   data.json the check   "
        "evaluation.json the numbers"
    )


__all__ = ["Begun", "FitResult", "Request", "ending", "fit", "inspected", "inspected_findings", "say"]
