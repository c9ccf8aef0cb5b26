"""Student: a model that learns from the labels, and from unlabelled pictures that the best model so far has labelled
(Xie et al. 2020). It is one more candidate: it is kept only if it is better on the validation part.

RUN/student.json     what was decided about the unlabelled pictures, so that resuming is exact
RUN/teacher/         the best model so far
RUN/named/           its labels for them: a data set (data/joined)
RUN/student/         the student's run
"""

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import settings
from vitreous.data.base import Source, Subset
from vitreous.data.joined import read_joined
from vitreous.data.kinds import TaskKind
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.fitting.base import TaskFit
from vitreous.fitting.begun import Begun, Request, data_settings, hardware_of, write
from vitreous.fitting.budget import Budget
from vitreous.fitting.candidates import AHEAD, Candidate, Kept, Said, Scored
from vitreous.fitting.class_drafts import most_in_batch
from vitreous.fitting.course import Course, can_be_paced, paced
from vitreous.fitting.first import ON_PIXELS
from vitreous.fitting.job import Job
from vitreous.fitting.keep import TRAINED
from vitreous.fitting.plan import LEAST_STEPS
from vitreous.jobs.train import train
from vitreous.recipes.recipe import Recipe, batch_for
from vitreous.storage import atomic
from vitreous.teaching.pseudo import Believed, PseudoLabelled, PseudoSettings, ask, believed
from vitreous.teaching.sets import Sets, held, leaks, on_joined, without_labels
from vitreous.training.averages import AverageSettings
from vitreous.training.devices import World, autocast
from vitreous.training.stopping import DivergedError
from vitreous.weights.trained import Trained

STUDENT = "student"  # as a candidate, and its folder
NOTES, TEACHER, NAMED = "student", "teacher", "named"  # its file and the other folders
LOOKED_SHARE = 0.3  # of the student's time, at most, for reading, comparing and naming pictures
LEAST_NAMED = 20  # pictures that are worth a student
BELIEVED = PseudoSettings()
NOISE = 0.1  # stochastic depth of a student, where its recipe has less


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What was decided about the unlabelled pictures."""

    where: str
    pictures: int  # the number there are
    shown: int = 0  # shown to the teacher, as far as time allowed, without those in the validation or test part
    leaked: int = 0  # also in the validation or test part
    teacher: str = ""  # the name of a candidate
    by_class: tuple[Believed, ...] = ()  # those that were learned from
    recipe: Recipe | None = None  # of the student; None: there is none
    why_not: str = ""

    @property
    def learned_from(self) -> int:
        return sum(one.pictures for one in self.by_class)

    def words(self, score: float | None, before: float | None, *, kept: bool) -> tuple[str, str]:
        """The decision, and its reason."""
        if self.recipe is None or score is None or before is None:
            return "not used", self.why_not
        value = f"{self.learned_from:,} of {self.pictures:,} {'used' if kept else 'tried, but not used'}"
        left_out = f"; {self.leaked:,} also in the validation or test part were left out" if self.leaked else ""
        return value, f"with them {100 * score:.1f} % on the validation part, without {100 * before:.1f} %{left_out}"


def check_unlabelled(request: Request, task: TaskKind | None) -> None:
    """Refuse unlabelled pictures that are not there, or that a task cannot learn from, before any time is spent."""
    where = request.unlabelled
    assert where is not None
    if task not in (None, "classify"):
        raise UserError(f"{request.data}: --unlabelled needs pictures with one class each")
    print(f"  {len(_opened(where).train):,} unlabelled pictures in {where}", flush=True)


def _opened(where: str) -> Any:
    return without_labels(where, keep_gb=0.0).build()


def with_student(
    task: TaskFit[Any], begun: Begun, kept: Kept, results: dict[str, Any], *, is_resumed: bool
) -> tuple[Kept, Lesson]:
    """`kept`: the best model without a student, which is its teacher."""
    job = task.job
    path = job.out / f"{NOTES}.json"
    if is_resumed and path.is_file():
        lesson = settings.load(Lesson, path)
    else:
        for name in (STUDENT, TEACHER, NAMED):
            shutil.rmtree(job.out / name, ignore_errors=True)
        lesson = _lesson(job, begun, kept, results)
        write(job.out, NOTES, settings.to_json(lesson))
        is_resumed = False
    if lesson.recipe is not None:
        lesson = _trained(job, begun, lesson, _pace(begun, results)[0], is_resumed=is_resumed)
    if lesson.recipe is None:
        print(f"unlabelled pictures not used: {lesson.why_not}", flush=True)
        return kept, lesson
    model = Trained.load(job.out / STUDENT / TRAINED)
    return _compared(kept, model, task.seen(STUDENT, model, begun.plan.recipe)), lesson


def _compared(kept: Kept, student: Trained, said: Said | None) -> Kept:
    """A student must gain more than chance may, like any model of another kind."""
    assert kept.said is not None and said is not None
    before, now = (Scored(one.score(), len(one)) for one in (kept.said, said))
    gains = now.worth >= before.worth + AHEAD
    others = tuple(replace(one, is_kept=one.is_kept and not gains) for one in kept.candidates)
    candidates = (*others, Candidate(name=STUDENT, score=now.value, is_kept=gains))
    if not gains:
        return replace(kept, candidates=candidates, reason=f"{kept.reason}, {STUDENT} {100 * now.value:.1f} %")
    reason = f"{100 * now.value:.1f} % on the validation part; its teacher, {kept.name}, {100 * before.value:.1f} %"
    return Kept(student, said, candidates, STUDENT, reason)


# ---- what to learn


def _lesson(job: Job, begun: Begun, kept: Kept, results: dict[str, Any]) -> Lesson:
    recipe, where = begun.plan.recipe, job.request.unlabelled
    assert where is not None
    rest: Source = _opened(where).train
    lesson = Lesson(where=where, pictures=len(rest), teacher=kept.name)
    if kept.said is None:
        return replace(lesson, why_not="there is no validation part to tell whether they help")
    step_s, picture_s = _pace(begun, results)
    left_s = _left_s(begun.plan.budget, job)
    num = _num_looked(job, LOOKED_SHARE * left_s, picture_s, len(rest))
    if num < LEAST_NAMED or left_s < LEAST_STEPS * step_s:
        return replace(
            lesson, why_not=f"{max(0.0, left_s):.0f} s are too short to learn from them; --minutes gives more"
        )
    kept.model.save(job.out / TEACHER)
    drawn = np.sort(np.random.default_rng(recipe.data.split_seed).permutation(len(rest))[:num])
    found, leaked = _named(job, recipe, kept.model, Subset(rest, drawn))
    classes = job.parts.splits.train.classes
    lesson = replace(lesson, shown=found.shown, leaked=leaked, by_class=found.by_class(classes))
    if len(found.taken) < LEAST_NAMED:
        return replace(lesson, why_not=f"{kept.name} is sure of only {len(found.taken):,} of {found.shown:,}")
    _sets(job, recipe, where, rest).write(job.out / NAMED, found.among(drawn), BELIEVED.ratio)
    recipe = _recipe(job, begun, kept, lesson)
    steps = _num_steps(job, begun, recipe, step_s)
    if steps < LEAST_STEPS:
        return replace(lesson, why_not="labelling them took all the time; --minutes gives more")
    return replace(lesson, recipe=_of_length(recipe, steps, dict(job.request.changes)))


def _named(job: Job, recipe: Recipe, teacher: Trained, part: Source) -> tuple[PseudoLabelled, int]:
    """The teacher's predictions for the pictures, except those also in the validation or test part; and how many these
    are."""
    world = World.join(recipe.training.device)
    shown = held(part, recipe.data)
    leaked = leaks(shown, job.parts.splits)
    others = np.setdiff1d(np.arange(len(shown)), leaked)
    places, probabilities = ask(
        teacher,
        job.parts.splits.train.classes,
        Subset(shown, others),
        device=world.device,
        within=lambda: autocast(world.device, recipe.training.precision),
        workers=recipe.training.workers,
    )
    in_part = others if shown is part else shown.places[others]  # type: ignore[attr-defined]
    return believed(places, probabilities, BELIEVED).among(in_part), len(leaked)


def _sets(job: Job, recipe: Recipe, where: str, rest: Source) -> Sets:
    data = replace(data_settings(job.request), leave_out=recipe.data.leave_out, shrink_px=recipe.data.shrink_px)
    unlabelled: DataSettings = without_labels(where, keep_gb=0.0)
    return Sets(data.located(), unlabelled, job.parts.of(recipe), rest)


# ---- time


def _left_s(budget: Budget | None, job: Job) -> float:
    """The time for all of it; unlimited without a budget."""
    return math.inf if budget is None else budget.total_s - (budget.after_s - budget.student_s) - job.clock()


def _pace(begun: Begun, results: dict[str, Any]) -> tuple[float, float]:
    """Seconds per step and per prediction."""
    budget = begun.plan.budget
    if budget is None:
        return 0.0, 0.0
    trained = results["train_s"] / results["steps"] if results["steps"] else 0.0
    return max(trained, budget.pace.step_s), budget.pace.picture_s


def _num_looked(job: Job, seconds: float, picture_s: float, num: int) -> int:
    """How many pictures there is time to read, compare and label, by how long reading and comparing the data took."""
    if math.isinf(seconds):
        return num
    read_s = job.clock.timings().get("data", 0.0) / max(1, sum(part.pictures for part in job.report.parts))
    return min(num, int(max(0.0, seconds) / (read_s + picture_s + 1e-9)))


def _num_steps(job: Job, begun: Begun, recipe: Recipe, step_s: float) -> int:
    """How many steps of the student there is time for; `step_s`: seconds per step of its teacher."""
    plan, left_s = begun.plan, _left_s(begun.plan.budget, job)
    if math.isinf(left_s):
        return plan.recipe.training.num_steps(max(1, job.report.num_train // plan.recipe.training.batch_size))
    steps, most = int((left_s - 1.0) / (step_s * _larger(begun, recipe))) - 1, _most_steps(job, begun, recipe)
    return steps if most is None else min(steps, most)


def _larger(begun: Begun, recipe: Recipe) -> float:
    """The size of the student's batch relative to the teacher's."""
    return recipe.training.batch_size / begun.plan.recipe.training.batch_size


def _most_steps(job: Job, begun: Begun, recipe: Recipe) -> int | None:
    """Steps beyond which more would not help: as many passes as the teacher may take, over more pictures."""
    if begun.plan.most_steps is None:
        return None
    num = len(job.parts.of(begun.plan.recipe).train) + len(read_joined(job.out / NAMED)[1])
    return round(begun.plan.most_steps / _larger(begun, recipe) * num / max(1, job.report.num_train))


# ---- the student


def _recipe(job: Job, begun: Begun, kept: Kept, lesson: Lesson) -> Recipe:
    """The planned recipe, from the teacher's weights if they have its shape, with a little more noise and batches that
    suit more pictures."""
    recipe = on_joined(begun.plan.recipe, job.out / NAMED)
    if kept.name != ON_PIXELS and kept.model.card.model == recipe.model:
        recipe = replace(recipe, start=str(job.out / TEACHER), start_head=True)
    given = dict(job.request.changes)
    if "model.stochastic_depth" not in given:
        noise = max(NOISE, getattr(recipe.model, "stochastic_depth", 0.0))
        recipe = replace(recipe, model=recipe.model.regularised(stochastic_depth=noise))
    training = replace(recipe.training, steps=None, evaluate_every_epochs=0.0)
    if "training.batch_size" not in given:
        most = most_in_batch(hardware_of(job.request), finetunes=bool(recipe.start))
        training = replace(training, batch_size=batch_for(job.report.num_train + lesson.learned_from, most))
    return replace(recipe, training=training)


def _of_length(recipe: Recipe, steps: int, given: Mapping[str, str]) -> Recipe:
    if not any(name.startswith("average") for name in given):
        factor = round(min(max(1 - 12 / steps, 0.9), 0.9999), 6)
        recipe = replace(recipe, average=AverageSettings(kind="ema", factor=factor))
    if can_be_paced(recipe):
        return paced(recipe, steps)
    return replace(recipe, training=replace(recipe.training, steps=steps))


def _trained(job: Job, begun: Begun, lesson: Lesson, step_s: float, *, is_resumed: bool) -> Lesson:
    """With a budget, and if it was not resumed, the end is adjusted to its pace."""
    recipe, budget, out = lesson.recipe, begun.plan.budget, job.out / STUDENT
    assert recipe is not None
    splits = _sets(job, begun.plan.recipe, lesson.where, _opened(lesson.where).train).joined(job.out / NAMED)
    course = None
    if budget is not None and not is_resumed and recipe.schedule.falls:
        course = Course(
            recipe,
            _own_budget(budget, job, step_s * _larger(begun, recipe)),
            clock=job.clock,
            record=lambda changed: _note(job, out, replace(lesson, recipe=changed)),
            steps_per_epoch=max(1, len(splits.train) // recipe.training.batch_size),
            most_steps=_most_steps(job, begun, recipe),
        )
    print(f"a student learns from {lesson.learned_from:,} more pictures, labelled by {lesson.teacher}", flush=True)
    try:
        train(recipe, out, read_test=False, open_data=lambda _: splits, course=course, into=TRAINED)
    except DivergedError as error:
        return replace(lesson, recipe=None, why_not=f"the student was given up: {error}")
    return settings.load(Lesson, job.out / f"{NOTES}.json")


def _own_budget(budget: Budget, job: Job, step_s: float) -> Budget:
    """The student's budget, from here to the end, by its teacher's pace."""
    after_s, now = budget.after_s - budget.student_s, job.clock()
    pace, train_s = replace(budget.pace, step_s=step_s), budget.total_s - after_s - now
    return replace(budget, before_s=now, after_s=after_s, train_s=train_s, student_s=0.0, pace=pace)


def _note(job: Job, out: Path, lesson: Lesson) -> None:
    write(job.out, NOTES, settings.to_json(lesson))
    assert lesson.recipe is not None
    settings.save(lesson.recipe, out / "recipe.json")


def lesson_of(run: Path) -> Lesson | None:
    """The lesson of a finished fit; None if it was given no unlabelled pictures."""
    path = run / f"{NOTES}.json"
    return settings.from_json(Lesson, atomic.read_json(path), where=str(path)) if path.is_file() else None
