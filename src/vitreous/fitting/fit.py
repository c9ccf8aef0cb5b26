"""The main job: from a folder of pictures to a trained model, with an honest report.

The stages are the same for every kind of task; what differs is in `kinds`.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitreous import settings
from vitreous.display.words import counted
from vitreous.errors import UserError
from vitreous.fitting.after import costs_of, inspected, inspected_findings, shown_as
from vitreous.fitting.base import TaskFit
from vitreous.fitting.begun import Begun, Request, begun_before, hardware_of, wishes_of, write
from vitreous.fitting.budget import Pace, measured
from vitreous.fitting.candidates import Kept
from vitreous.fitting.choices import Plan, length
from vitreous.fitting.course import Course
from vitreous.fitting.first import FirstModel
from vitreous.fitting.fitted import Fitted
from vitreous.fitting.job import Job, task_of
from vitreous.fitting.keep import TRAINED, keep_best
from vitreous.fitting.kinds import fit_of
from vitreous.fitting.plan import plan
from vitreous.fitting.ranks import Ranks
from vitreous.fitting.stages import Stages, say
from vitreous.fitting.student import STUDENT, Lesson, check_unlabelled, with_student
from vitreous.fitting.threads import settled
from vitreous.fitting.transfer import Found, Start, check_start, starting
from vitreous.fitting.wishes import Balance
from vitreous.jobs.train import train
from vitreous.models.shapes import shapes_only
from vitreous.recipes.recipe import Recipe, short_name
from vitreous.terminal import duration, table
from vitreous.training.devices import World
from vitreous.training.run import RunDirectory, says_what_is_kept
from vitreous.training.schedule import ScheduleSettings
from vitreous.training.stopping import DivergedError
from vitreous.weights.trained import Trained


def fit(
    data: str,
    out: str | Path | None = None,
    *,
    start: str | None = None,
    minutes: float | None = None,
    unlabelled: str | None = None,
    balance: Balance = "auto",
    changes: Mapping[str, str] | None = None,
    began: float | None = None,
) -> Fitted[Any]:
    """Check, split, make a first model at once, plan, train, keep the best, calibrate, evaluate, look inside. The same
    call again resumes where it stopped. `unlabelled` pictures are learned from too, if that helps.

    `minutes` count from `began`, a reading of `time.monotonic()`, or else from now. Under torchrun, all processes
    train; the first does everything else alone, and the others end here.
    """
    request = Request(
        data=data,
        start=start,
        minutes=minutes,
        unlabelled=unlabelled,
        balance=balance,
        changes=tuple((changes or {}).items()),
    )
    if minutes is not None and not minutes > 0:
        raise UserError(f"--minutes {minutes:g}: a time budget must be more than 0")
    out = Path(out) if out is not None else Path("runs") / f"fit-{short_name(data)}"
    world = World.join(dict(request.changes).get("training.device", "auto"))
    if unlabelled is not None and world.size > 1:
        raise UserError("--unlabelled is for one process: leave out torchrun, or --unlabelled")
    with world.together(), says_what_is_kept(out):
        ranks = Ranks(world)
        if not world.is_first:
            ranks.follow(request, out)
            raise SystemExit(0)
        try:
            return _led(request, out, Stages(began), ranks)
        finally:
            ranks.dismiss()


def _led(request: Request, out: Path, clock: Stages, ranks: Ranks) -> Fitted[Any]:
    clock.begin("data", f"Looking at {request.data}")
    RunDirectory(out).check_ours()  # before anything is read
    task = task_of(request)
    kind = fit_of(task, request.data)
    kind.drafts.check(wishes_of(request), hardware_of(request))
    begun = begun_before(out, request)
    if begun is None:
        check_start(request.start)
    if request.unlabelled is not None:
        check_unlabelled(request, task)
    job = Job.opened(request, out, begun, clock)
    return _fitted(kind(job), begun, ranks)


def _fitted(task: TaskFit[Any], begun: Begun | None, ranks: Ranks) -> Fitted[Any]:
    """The stages after the data."""
    job = task.job
    if begun is None:
        settled()
    elif begun.plan.threads is not None:
        torch.set_num_threads(begun.plan.threads)
    job.clock.begin("first", "Making a first model at once, from frozen features")
    begins = _planned(task) if begun is None else begun
    told = f"Training on {counted(job.report.num_train, 'picture')}" if begins.plan.trains else "No further training"
    job.clock.begin("train", told)
    begins, results = _trained(job, begins, ranks, is_resumed=begun is not None)
    kept, lesson = None, None
    if job.request.unlabelled is not None:
        kept = keep_best(task, begins, trained=bool(results["steps"]))
        kept, lesson, begins = _with_student(task, begins, kept, results, is_resumed=begun is not None)
    job.clock.begin("evaluate", "Keeping the best, calibrating it on the validation part, testing it once")
    kept = kept or keep_best(task, begins, trained=bool(results["steps"]))
    # Recorded before it is evaluated, so that a resumed run keeps the same.
    begins = replace(begins, plan=begins.plan.with_choice("kept", kept.name, kept.reason), candidates=kept.candidates)
    job.note(begins)
    print(f"kept: {kept.name}, {kept.reason}", flush=True)
    found = task.evaluated(kept, begins)
    found.model.save(job.out / "model")
    write(job.out, "evaluation", found.evaluation.to_json())
    results = {**results, "test_scored": found.evaluation.scores.pictures, "test_pictures": job.report.size("test")}
    write(job.out, "results", results)
    print(found.evaluation.summary(), flush=True)
    job.clock.begin("inspect", "Looking inside")
    splits, shown = job.scored(begins.plan), shown_as(begins.plan.recipe, found.model.card)
    inside = inspected_findings(found.model.task().to(World.join(shown.training.device).device), shown, splits)
    return Fitted(
        out=job.out,
        request=job.request,
        data=job.report,
        plan=begins.plan,
        splits=splits,
        results=results,
        card=found.model.card,
        first_models=begins.first_models,
        candidates=kept.candidates,
        lesson=lesson,
        evaluation=found.evaluation,
        account=found.account,
        findings=inside,
        timings=job.clock.timings(),
        costs=costs_of(found.model, splits),
        resumed=begun is not None,
    )


# ---- before training


def _planned(task: TaskFit[Any]) -> Begun:
    """Make first models, and plan what to do with the time left; record both."""
    job, drafts = task.job, task.drafts(task.job.problem)
    with RunDirectory(job.out):  # an error if another process trains into it
        write(job.out, "data", settings.to_json(job.report))
        floor = task.floor()
        start = starting(job.report, drafts.hardware, drafts.wishes, job.clock(), print, passes=drafts.passes)
        encoder = start if isinstance(start, Start) else None
        draft = drafts.recipes(encoder)[0]
        with shapes_only():
            draft.model.build()  # an error if the settings make no model
        first = None if encoder is None else task.first(encoder, draft, floor)
    first_models = tuple(one for one in (floor, first) if one is not None)
    if not first_models:
        print("none: the whole model has to learn", flush=True)
    job.clock.begin("plan", "Choosing model and recipe")
    start = task.reconsidered(start, first_models)

    def measure(recipe: Recipe, seconds: float) -> Pace:
        return measured(recipe, job.parts.of(recipe), seconds)

    first_s = first_models[-1].picture_s if first_models else 0.0
    chosen = plan(drafts, start, measure=measure, clock=job.clock, first_s=first_s, must_train=not first_models)
    chosen = _with_part_embedded(chosen, first, job)
    chosen = _continued(task, chosen, start, first)
    print(table([(one.name, one.value, one.reason) for one in chosen.choices], ("choice", "value", "why")), flush=True)
    chosen = replace(chosen, threads=torch.get_num_threads())
    begins = Begun(request=job.request, plan=chosen, first_models=first_models, pictures=job.pictures)
    job.note(begins)
    return begins


def _with_part_embedded(chosen: Plan, first: FirstModel | None, job: Job) -> Plan:
    """Records it if the first model was made from only a part of the training pictures."""
    readable = job.report.num_train - len(job.report.parts[0].unreadable)
    if first is None or first.pictures >= readable:
        return chosen
    value = f"a head on {first.pictures:,} of {readable:,} training pictures"
    return chosen.with_choice("first model", value, "all of them would take too long")


def _continued(task: TaskFit[Any], chosen: Plan, start: Found, first: FirstModel | None) -> Plan:
    return task.continued(chosen, start) if isinstance(start, Start) and first is not None else chosen


# ---- training


def _trained(job: Job, begun: Begun, ranks: Ranks, *, is_resumed: bool) -> tuple[Begun, dict[str, Any]]:
    """With a budget, and if it was not resumed, the end of the run is adjusted to its pace."""
    chosen = begun.plan
    if not chosen.trains:
        return begun, _untrained(job, chosen.recipe)
    if (job.out / "recipe.json").is_file() and RunDirectory(job.out).results() is None:
        # A correction may have been interrupted between the two files.
        settings.save(chosen.recipe, job.out / "recipe.json")
    is_aimed = not is_resumed and chosen.budget is not None and bool(chosen.recipe.schedule.falls)
    course = _Recorded(job, begun) if is_aimed else None
    splits = job.parts.of(chosen.recipe)
    try:
        with ranks.training(chosen.recipe, is_aimed=is_aimed):
            followed = None if course is None else ranks.course(course)
            results = train(
                chosen.recipe, job.out, read_test=False, open_data=lambda _: splits, course=followed, into=TRAINED
            )
    except DivergedError as error:
        if not begun.first_models:
            raise
        print(f"training was given up: {error}", flush=True)  # the first model works
        return replace(begun, plan=replace(chosen, trains=False)), _untrained(job, chosen.recipe)
    return replace(begun, plan=chosen if course is None else course.plan), results


def _with_student(
    task: TaskFit[Any], begun: Begun, kept: Kept, results: dict[str, Any], *, is_resumed: bool
) -> tuple[Kept, Lesson, Begun]:
    before = next((one.score for one in kept.candidates if one.is_kept), None)
    best, lesson = with_student(task, begun, kept, results, is_resumed=is_resumed)
    score = next((one.score for one in best.candidates if one.name == STUDENT), None)
    value, reason = lesson.words(score, before, kept=best.name == STUDENT)
    return best, lesson, replace(begun, plan=begun.plan.with_choice("unlabelled pictures", value, reason))


def _untrained(job: Job, recipe: Recipe) -> dict[str, Any]:
    """The results of a run that trained nothing."""
    with RunDirectory(job.out) as directory:
        directory.write_environment()
        weights = Trained.load(job.out).weights
        results = {
            "recipe": recipe.name,
            "steps": 0,
            "batch_size": recipe.training.batch_size,
            "parameters": sum(value.numel() for value in weights.values()),
            "train_s": 0.0,
            "wall_s": 0.0,
        }
        write(job.out, "results", results)
    return results


class _Recorded:
    """A course (training.loop.Course) whose changes are recorded before they take effect."""

    def __init__(self, job: Job, begun: Begun) -> None:
        assert begun.plan.budget is not None
        self.job, self.begun, self.plan = job, begun, begun.plan
        per_epoch = max(1, job.report.num_train // begun.plan.recipe.training.batch_size)
        on_gpu = World.join(begun.plan.recipe.training.device).device.type == "cuda"
        self.aim = Course(
            begun.plan.recipe,
            begun.plan.budget,
            clock=job.clock,
            record=self._record,
            steps_per_epoch=per_epoch,
            most_steps=begun.plan.most_steps,
            # With a GPU, this thread mostly waits, whatever else the machine does.
            cpu_clock=job.clock if on_gpu else time.thread_time,
        )

    def __call__(self, step: int) -> tuple[ScheduleSettings, int] | None:
        return self.aim(step)

    def _record(self, recipe: Recipe) -> None:
        words = length(recipe, self.job.report)
        reason = f"{1000 * self.aim.step_s:.0f} ms per step recently; the length is adjusted as this changes"
        self.plan = replace(self.plan, recipe=recipe).with_choice("length", words, reason)
        write(self.job.out, "plan", settings.to_json(replace(self.begun, plan=self.plan)))
        settings.save(recipe, self.job.out / "recipe.json")


# ---- words


def ending(result: Fitted[Any], seconds: float) -> str:
    """The final message, after this many seconds."""
    budget = result.plan.budget
    asked = "" if budget is None else f" of {duration(budget.total_s)}"
    if result.resumed:  # the time before is unknown here
        asked = " since it was resumed"
    return (
        f"\nTest {result.evaluation.headline_name} {result.evaluation.headline.percent()}{result.on_a_part}, "
        f"{duration(seconds)}{asked}. "
        f"Saved to {result.out}:\n"
        "  report.html the account   model/ the model, calibrated   plan.json the choices   data.json the check   "
        "evaluation.json the numbers"
    )


__all__ = ["Begun", "Fitted", "Request", "ending", "fit", "inspected", "inspected_findings", "say"]
