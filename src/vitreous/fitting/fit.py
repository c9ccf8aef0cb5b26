"""The main job: a folder of pictures in, a trained model and an honest account of it out."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous import atomic, jobs, settings
from vitreous.data.base import Labels
from vitreous.data.check import DataReport, check
from vitreous.data.fingerprint import names_digest
from vitreous.data.sources import DataSettings, InMemory, Source, Splits, Subset, without
from vitreous.errors import UserError
from vitreous.evaluation.answers import Answers, answers
from vitreous.evaluation.baseline import Baseline
from vitreous.evaluation.features import pooled_features
from vitreous.evaluation.full import Evaluation, evaluate_fully
from vitreous.evaluation.probes import FewShot, few_shot
from vitreous.fitting.budget import PROBED, Pace, measured
from vitreous.fitting.costs import Costs, costs
from vitreous.fitting.drafts import Balance, Hardware, Wishes, check_wishes
from vitreous.fitting.plan import Plan, corrected, plan, rechecks, run_step_s
from vitreous.html import tag, together
from vitreous.inspection.findings import Findings, look_inside
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.recipes.recipe import Recipe, short_name
from vitreous.tasks.base import Task
from vitreous.terminal import duration, table
from vitreous.trained import Trained
from vitreous.training.devices import World, autocast
from vitreous.training.run import RunDirectory

NUM_INSPECTED = 128  # pictures over which attention distances are means, as in the paper's figure 7
NUM_SHOWN = 8  # pictures whose attention is kept
UNCALIBRATED = "uncalibrated"  # the model's folder until it is calibrated: only then is there a model to predict with
LEAKED = 0.5  # of train: above this share of pictures that stand in val or test the split itself is wrong


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for: the same again goes on with the run."""

    data: str
    start: str | None = None
    minutes: float | None = None
    balance: Balance = "auto"
    changes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Begun:
    """plan.json: what was asked for, and what was made of it; measured once, so that resuming is exact."""

    request: Request
    plan: Plan
    pictures: tuple[str, ...] = ()  # digests of names and labels by part: others would be split in another way


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Everything that a report needs."""

    out: Path  # the run directory: recipe.json, environment.json, metrics.jsonl, results.json, model/
    request: Request
    data: DataReport
    plan: Plan
    splits: Splits  # what was trained on, chosen on, tested on
    results: Mapping[str, Any]  # results.json of the run
    val: Answers | None
    test: Answers
    evaluation: Evaluation
    few_shot: tuple[FewShot, ...]
    findings: Findings | str  # or why there are none
    timings: Mapping[str, float]  # stage -> seconds
    costs: Costs
    baseline: Baseline | None = None  # logistic regression on pixels of the same split
    resumed: bool = False  # an earlier call had begun it

    def _repr_html_(self) -> str:
        """The report, where it is written, in a frame of its own; a notebook's styles stay out of it."""
        page = self.out / "report.html"
        line = tag.p(f"Test accuracy {self.evaluation.scores.top1.percent()}. Saved to {self.out}.")
        if not page.is_file():
            return line.markup
        frame = tag.iframe(srcdoc=page.read_text(encoding="utf-8"), style="width: 100%; height: 44rem; border: 0")
        return together(line, frame).markup


def fit(
    data: str,
    out: str | Path | None = None,
    *,
    start: str | None = None,
    minutes: float | None = None,
    balance: Balance = "auto",
    changes: Mapping[str, str] | None = None,
    began: float | None = None,
) -> FitResult:
    """Check, split, plan, train, calibrate, evaluate, look inside. The same call again goes on where it stopped.

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
    begun = _begun(out, request)
    source, hardware = _data_settings(request), Hardware.here(dict(request.changes).get("training.device", "auto"))
    if begun is None:
        check_wishes(_wishes(request), hardware)
    splits = source.build()
    pictures = tuple(names_digest(part) for part in (splits.train, splits.val, splits.test) if part is not None)
    if begun is not None and not begun.pictures:
        raise UserError(f"{out}: begun by an earlier version, which did not note its pictures; give another --out")
    if begun is not None and begun.pictures != pictures:
        raise UserError(f"the pictures in {data} have changed since the fit in {out} began; give another --out")
    report = _checked(splits, source, out, resumed=begun is not None)
    splits = replace(splits, notes=())  # the report has them
    parts = Parts(replace(splits, train=without(splits.train, report.left_out)) if report.left_out else splits)
    clock.begin("plan", "Choosing model and recipe")
    chosen = begun.plan if begun else _planned(request, report, source.located(), hardware, parts=parts, clock=clock)
    splits = parts.of(chosen.recipe)
    begins = Begun(request=request, plan=chosen, pictures=pictures)
    with RunDirectory(out):  # an error where another process trains into it
        _write(out, "data", settings.to_json(report))
        _write(out, "plan", settings.to_json(begins))
    print(table([(one.what, one.value, one.why) for one in chosen.choices], ("choice", "value", "why")), flush=True)
    clock.begin("train", f"Training on {len(splits.train):,} pictures")
    chosen, results = _trained(begins, out, report, splits, None if begun else clock)
    clock.begin("evaluate", "Calibrating on the validation part, testing once")
    task, val, test, evaluation, shots = _evaluated(chosen.recipe, out, splits)
    print(evaluation.summary(), flush=True)
    clock.begin("inspect", "Looking inside")
    findings = inspected_findings(task, chosen.recipe, splits)
    return FitResult(
        out=out,
        request=request,
        data=report,
        plan=chosen,
        splits=splits,
        results=results,
        val=val,
        test=test,
        evaluation=evaluation,
        few_shot=shots,
        findings=findings,
        timings=clock.timings(),
        costs=_costs(out, splits, test),
        resumed=begun is not None,
    )


class Stages:
    """Says what is being done, and keeps the time of it."""

    names = ("data", "plan", "train", "evaluate", "inspect", "report")  # the last is the caller's

    def __init__(self, began: float | None = None) -> None:
        self.began = time.monotonic() if began is None else began
        self._starts: dict[str, float] = {}

    def __call__(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def begin(self, name: str, what: str) -> None:
        self._starts[name] = self()
        say(name, what)

    def timings(self) -> dict[str, float]:
        ends = [*list(self._starts.values())[1:], self()]
        return {name: round(end - at, 2) for (name, at), end in zip(self._starts.items(), ends, strict=True)}


def say(stage: str, what: str) -> None:
    print(f"\n[{Stages.names.index(stage) + 1}/{len(Stages.names)}] {what}", flush=True)


# ---- the data


@dataclass(frozen=True, kw_only=True)
class _Data:
    data: DataSettings


def _data_settings(request: Request) -> DataSettings:
    given = {name: text for name, text in request.changes if name.startswith("data.")}
    return settings.changed(_Data(data=DataSettings(where=request.data)), given).data


def _checked(splits: Splits, source: DataSettings, out: Path, resumed: bool) -> DataReport:
    if splits.test is None:
        raise UserError(
            f"{source.where}: nothing is left to test on, so nothing could be said of the model. Give every class two "
            "pictures or more, or a test part"
        )
    path = out / "data.json"
    report = settings.load(DataReport, path) if resumed and path.is_file() else check(splits, source.where)
    if len(report.left_out) > LEAKED * len(splits.train):
        raise UserError(
            f"{source.where}: {len(report.left_out):,} of {len(splits.train):,} training pictures also stand in the "
            f"validation or test part, such as {report.leaks[0].picture}. Separate the parts, or remove the copies"
        )
    print("\n".join(f"  {line}" for line in report.summary()), flush=True)
    return report


# ---- the plan


def _begun(out: Path, request: Request) -> Begun | None:
    """What an earlier call left, if it was the same call."""
    path = out / "plan.json"
    # A plan of which nothing was trained binds nobody: it may not even be possible.
    there = RunDirectory(out)
    there.check_ours()
    trained = bool(there.checkpoints.paths()) or there.results() is not None
    if not (trained and path.is_file()):
        return None
    begun = settings.load(Begun, path)
    if begun.request != request:
        there, here = settings.to_json(begun.request), settings.to_json(request)
        differing = [f"{name} {there[name]} there, {here[name]} here" for name in here if there[name] != here[name]]
        raise UserError(
            f"{out} holds another fit ({'; '.join(differing)}). "
            "Give another --out, or the same options to go on with it"
        )
    return begun


class Parts:
    """What a recipe's `data.build()` would give, from pictures that are there already."""

    def __init__(self, splits: Splits) -> None:
        self.splits = splits
        self._made: dict[int, Splits] = {}  # by the size that train is kept at

    def of(self, recipe: Recipe) -> Splits:
        px = recipe.data.shrink_px
        if px is None:
            return self.splits
        if px not in self._made:
            self._made = {px: replace(self.splits, train=InMemory(self.splits.train, px))}
        return self._made[px]


def _planned(
    request: Request, report: DataReport, source: DataSettings, hardware: Hardware, *, parts: Parts, clock: Stages
) -> Plan:
    def measure(recipe: Recipe, seconds: float) -> Pace:
        return measured(recipe, parts.of(recipe), seconds)

    return plan(report, source, hardware, _wishes(request), measure=measure, clock=clock)


def _wishes(request: Request) -> Wishes:
    return Wishes(
        start=request.start,
        balance=request.balance,
        seconds=None if request.minutes is None else 60 * request.minutes,
        changes=dict(request.changes),
    )


# ---- training


def _trained(
    begun: Begun, out: Path, report: DataReport, splits: Splits, clock: Stages | None
) -> tuple[Plan, dict[str, Any]]:
    """With a budget, and from its start, the run is stopped now and then, and its length corrected."""

    def train(until: int | None = None) -> dict[str, Any]:
        return jobs.train(
            chosen.recipe, out, read_test=False, open_data=lambda _: splits, until=until, into=UNCALIBRATED
        )

    chosen, done = begun.plan, 0
    if (out / "recipe.json").is_file() and RunDirectory(out).results() is None:
        # A correction may have been interrupted between the two files.
        settings.save(chosen.recipe, out / "recipe.json")
    while clock is not None:
        steps = chosen.recipe.training.num_steps(len(splits.train) // chosen.recipe.training.batch_size)
        until = next(iter(rechecks(chosen, _wishes(begun.request), steps, done)), None)
        if until is None:
            break
        at = clock()
        train(until)
        step_s = run_step_s(chosen, until - done, clock() - at)
        chosen, done = corrected(chosen, report, until, step_s, clock()), until
        _write(out, "plan", settings.to_json(replace(begun, plan=chosen)))
        settings.save(chosen.recipe, out / "recipe.json")
        length = next(one for one in chosen.choices if one.what == "length")
        print(f"  length: {length.value}; {length.why.partition('; ')[2]}", flush=True)
    return chosen, train()


# ---- after training


def _evaluated(
    recipe: Recipe, out: Path, splits: Splits
) -> tuple[Task, Answers | None, Answers, Evaluation, tuple[FewShot, ...]]:
    """Temperature and sets are fitted on val and go into the model's card; test is measured."""
    assert splits.test is not None
    world = World.join(recipe.training.device)
    model = Trained.load(out / UNCALIBRATED if (out / UNCALIBRATED).is_dir() else out)
    task = model.task().to(world.device)
    with autocast(world.device, recipe.training.precision):
        val, test = (
            None if part is None else answers(task, jobs.eval_batches(part, recipe, world), model.card.classes)
            for part in (splits.val, splits.test)
        )
        shots = _few_shot(task, recipe, splits, world)
    assert test is not None
    evaluation = evaluate_fully(val, test)
    card = replace(model.card, temperature=evaluation.temperature, sets=evaluation.card_sets)
    replace(model, card=card).save(out / "model")
    atomic.remove(out / UNCALIBRATED)
    _write(out, "evaluation", evaluation.to_json())
    return task, val, test, evaluation, shots


def _few_shot(task: Task, recipe: Recipe, splits: Splits, world: World) -> tuple[FewShot, ...]:
    """From a part of train, spread evenly over each class: a rare one must not give less than it has."""
    assert splits.test is not None
    train = splits.train
    of_classes = [np.flatnonzero(train.labels == label) for label in range(len(train.classes))]
    some = Subset(train, np.sort(np.concatenate([_spread(places, PROBED) for places in of_classes])))
    features = [
        pooled_features(task.encoder, jobs.eval_batches(part, recipe, world), world.device)
        for part in (some, splits.test)
    ]
    return few_shot(features[0], features[1])


def _costs(out: Path, splits: Splits, test: Answers) -> Costs:
    assert splits.test is not None
    return costs(TorchPredictor(Trained.load(out)), splits.test.read(int(test.ids[0])))


def inspected_findings(task: Task, recipe: Recipe, splits: Splits) -> Findings | str:
    assert splits.test is not None
    try:
        return look_inside(task.encoder, inspected_images(splits.test, recipe), num_shown=NUM_SHOWN, num=NUM_INSPECTED)
    except UserError as error:  # a network without attention
        return str(error)


def inspected(source: Source) -> Source:
    """The pictures that are looked into: spread evenly over the source, so that all classes are among them. The first
    ones, which are shown, are spread evenly over these."""
    places = _spread(np.arange(len(source)), NUM_INSPECTED)
    shown = _spread(places, NUM_SHOWN)
    return Subset(source, np.concatenate([shown, np.setdiff1d(places, shown)]))


def _spread(places: Labels, num: int) -> Labels:
    """So many of them, evenly; all where they are fewer."""
    return places[np.unique(np.linspace(0, len(places) - 1, num).round().astype(np.int64))] if len(places) else places


def inspected_images(source: Source, recipe: Recipe) -> torch.Tensor:
    """(P, 3, h, w): those that can be read, as the model takes them."""
    batches = jobs.eval_batches(inspected(source), recipe, World(0, 1, torch.device("cpu")))
    return torch.cat([batch.images for batch in batches])


# ---- words and files


def ending(result: FitResult, seconds: float) -> str:
    """The last words, after so many seconds."""
    budget = result.plan.budget
    asked = "" if budget is None else f" of {duration(budget.total_s)} asked for"
    if result.resumed:  # the time before is not known here
        asked = " since it went on"
    return (
        f"\nTest accuracy {result.evaluation.scores.top1.percent()}, {duration(seconds)}{asked}. "
        f"Everything lies in {result.out}:\n"
        "  report.html the account   model/ the model, calibrated   plan.json the choices   data.json the check   "
        "evaluation.json the numbers"
    )


def _write(out: Path, name: str, document: Any) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        atomic.write_json(document, out / f"{name}.json")
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None


__all__ = ["FitResult", "Request", "ending", "fit"]
