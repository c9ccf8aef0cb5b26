"""What the verbs do: train, fine-tune, teach. A recipe goes in, a run directory comes out."""

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous import atomic, resuming, settings, teaching
from vitreous.batch import Batch
from vitreous.data.loader import EvalLoader, TrainLoader
from vitreous.data.names import ALL
from vitreous.data.sources import DataSettings, Source, Splits, check_classes, open_sources, same_data
from vitreous.data.views import build_views
from vitreous.errors import UserError, in_plain_words
from vitreous.evaluation.score import score
from vitreous.models.base import Encoder
from vitreous.objectives.base import Objective
from vitreous.recipes.recipe import Recipe
from vitreous.tasks import TaughtSettings, task_settings
from vitreous.tasks.base import Task
from vitreous.tasks.distill import DistillSettings, kept
from vitreous.teachers import Teacher
from vitreous.teaching import Answers, TaughtLoader
from vitreous.terminal import note
from vitreous.trained import Trained
from vitreous.training.devices import World, autocast
from vitreous.training.loop import Course, Evaluate, Loop, TrainingData
from vitreous.training.run import RunDirectory
from vitreous.weights import own
from vitreous.weights.card import Card

OpenData = Callable[[DataSettings], Splits]


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    read_test: bool = True,
    open_data: OpenData = DataSettings.build,
    until: int | None = None,
    *,
    course: Course | None = None,
    into: str = "model",
) -> dict[str, Any]:
    """Run a recipe to its end, from wherever its directory stands. Returns its results.

    `read_test=False` is for choosing: the test set stays unread. `open_data` is for several runs in one process, which
    need not decode the same pictures each. A run that goes `until` a step before its end is saved there; it returns {}.
    `course` may change schedule and length while it runs. The trained model goes `into` that folder of the run.
    """
    path = Path(out) if out is not None else Path("runs") / recipe.name
    recipe = recipe.located()
    if recipe.rates:
        return _train_at_best_rate(recipe, path, read_test, open_data)
    return _train(recipe, path, read_test, open_data, until=until, course=course, into=into)


def _train_at_best_rate(recipe: Recipe, path: Path, read_test: bool, open_data: OpenData) -> dict[str, Any]:
    """The paper's protocol (B.1.1): choose the rate on a held-out part of train, then train on all of it."""
    if recipe.data.val_fraction == 0:
        raise UserError(
            "a rate is chosen on a held-out part of train: give --data.val_fraction more than 0, or no --rates"
        )
    if task_settings(recipe.objective) is None:
        raise UserError(f"{recipe.name} learns without labels, and has no score to choose a rate by: leave out --rates")
    with RunDirectory(path, owner=World.join(recipe.training.device).is_first):
        pass  # the folder of the trials is a run's from the start
    accuracies = {}
    for rate in recipe.rates:
        trial = replace(recipe, rates=(), optimizer=replace(recipe.optimizer, lr=rate))
        accuracies[rate] = _train(trial, path / f"rate-{rate:g}", False, open_data)["val"]["accuracy"]
        if World.join(recipe.training.device).is_first:
            print(f"learning rate {rate:g}: {accuracies[rate]:.2%} on the held-out part", flush=True)
    best = max(accuracies, key=lambda rate: accuracies[rate])
    final = replace(
        recipe,
        rates=(),
        optimizer=replace(recipe.optimizer, lr=best),
        data=replace(recipe.data, val_fraction=0.0),
    )
    choice = {"rate": best, "held_out_accuracies": {f"{rate:g}": value for rate, value in accuracies.items()}}
    return _train(final, path, read_test, open_data, about=choice)


def _train(
    recipe: Recipe,
    path: Path,
    read_test: bool,
    open_data: OpenData,
    *,
    about: dict[str, Any] | None = None,
    until: int | None = None,
    course: Course | None = None,
    into: str = "model",
) -> dict[str, Any]:
    """`about` goes into the results."""
    world = World.join(recipe.training.device)
    with in_plain_words(), RunDirectory(path, owner=world.is_first) as directory:
        finished = directory.results()
        if world.is_first:
            resuming.claim(directory, recipe)
            if finished is None:
                directory.write_environment()
        world.wait()  # for the first, which puts the directory in order before the others read it
        if finished is not None:
            if world.is_first:
                print(f"{path}: this run has finished; these are its results")
            return finished
        splits = open_data(recipe.data)
        resuming.check_pictures(directory, recipe.data.where, splits, owner=world.is_first)
        if world.is_first:
            note(*splits.notes)
        recipe = _with_batch_that_fits(recipe, splits.train, world)
        objective = build_objective(recipe, splits.train.classes).to(world.device)
        _check_scored(recipe, objective, splits.train)
        loop = build_loop(recipe, splits, objective, world)
        if not directory.checkpoints.paths():
            objective.look(eval_batches(splits.train, recipe, world))
            if (missing := objective.encoder.missing()) is not None:
                raise UserError(missing)
        began = time.monotonic()
        loop.run(directory, _validation(recipe, splits, directory, world), until, course)
        if until is not None and until < loop.num_steps:
            return {}
        train_s = time.monotonic() - began
        results = {"train_s": round(train_s, 1)} | _finish(recipe, path / into, loop, splits, read_test) | (about or {})
        results |= directory.timing()
        if len(splits.train.bad):
            results["unreadable"] = splits.train.bad.listed()
        if world.is_first:
            atomic.write_json(results, path / "results.json")
    return results


def _with_batch_that_fits(recipe: Recipe, train: Source, world: World) -> Recipe:
    """recipe.json keeps what was asked for: what becomes of it follows from the number of pictures."""
    fitting = recipe.for_pictures(len(train))
    if fitting is not recipe and world.is_first:
        print(
            f"batch_size {recipe.training.batch_size:,} becomes {fitting.training.batch_size:,}: "
            f"there are {len(train):,} pictures to train on",
            flush=True,
        )
    return fitting


def _check_scored(recipe: Recipe, objective: Objective, train: Source) -> None:
    """What has a task needs classes; what has none has no score to choose by."""
    if objective.task is not None:
        check_classes(train)
    elif recipe.training.keep == "best":
        raise UserError(
            f"{recipe.name} learns without labels, and has no score to keep the best by: --training.keep last"
        )


def build_objective(recipe: Recipe, classes: tuple[str, ...]) -> Objective:
    objective = recipe.objective
    if isinstance(objective, DistillSettings) and objective.answers is not None:
        fingerprint = _fingerprint_of_answers(recipe, Path(objective.answers))
        return objective.build(build_encoder(recipe), classes, fingerprint=fingerprint)
    if isinstance(objective, TaughtSettings):
        teacher = build_teacher(recipe, classes)
        return objective.build(build_encoder(recipe), classes, teacher)
    if recipe.teacher is not None:
        raise UserError(
            f"{recipe.name} has no use for a teacher: leave --teacher out, or choose another --objective.kind"
        )
    built = objective.build(build_encoder(recipe), classes)
    if recipe.start_head:
        _take_head(built, recipe, classes)
    return built


def _take_head(objective: Objective, recipe: Recipe, classes: tuple[str, ...]) -> None:
    """Of the weights that training starts from: a head that was fitted first moves the features less (Kumar et al.
    2022)."""
    start = Trained.load(recipe.start) if recipe.start else None
    named = {} if start is None else {name: value.float() for name, value in start.weights.items()}
    wanted = {name: value for name, value in objective.state_dict().items() if name.startswith("head.")}
    if (
        start is None
        or start.card.classes != classes
        or any(name not in named or named[name].shape != value.shape for name, value in wanted.items())
    ):
        raise UserError(f"{recipe.name}: start_head needs a start with a head for the same classes; leave it out")
    objective.load_state_dict({name: named[name] for name in wanted}, strict=False)


def build_encoder(recipe: Recipe) -> Encoder:
    """What is built next draws its first weights from the seed, too."""
    torch.manual_seed(recipe.training.seed)
    encoder = Trained.load(recipe.start).encoder(recipe.model) if recipe.start else recipe.model.build()
    encoder.checkpointing = recipe.training.checkpointing
    return encoder


def build_teacher(recipe: Recipe, classes: tuple[str, ...]) -> Teacher:
    if recipe.teacher is None:
        raise UserError(f"{recipe.name} learns from a trained model: name its run or weights with --teacher")
    teacher = Teacher.load(recipe.teacher, recipe.preprocessing)
    return teacher.in_order_of(classes) if isinstance(recipe.objective, DistillSettings) else teacher


def _fingerprint_of_answers(recipe: Recipe, folder: Path) -> int:
    """Of the teacher that gave them; an error where the recipe names another one."""
    where, fingerprint = teaching.taught_by(folder)
    try:
        named = None if recipe.teacher is None else Teacher.load(recipe.teacher, recipe.preprocessing)
    except UserError:
        named = None  # it is not here any more, and its answers suffice
    if named is not None and int(named.fingerprint) != fingerprint:
        raise UserError(
            f"{folder}: its answers are not of {recipe.teacher} as it is now, but of {where} as it was when they were "
            "stored; name that --teacher, or none, or other --objective.answers"
        )
    return fingerprint


def build_loop(recipe: Recipe, splits: Splits, objective: Objective, world: World) -> Loop:
    loader = build_loader(recipe, splits.train, world)
    return Loop(
        objective,
        _with_answers(loader, recipe, splits.train, world),
        optimizer=recipe.optimizer.build(objective),
        schedule=recipe.schedule,
        average=recipe.average.build(objective),
        settings=recipe.training,
        world=world,
    )


def build_loader(recipe: Recipe, train: Source, world: World) -> TrainLoader:
    return TrainLoader(
        train,
        build_views(recipe.augmentation, recipe.more_views, recipe.preprocessing),
        batch_size=recipe.training.batch_size,
        seed=recipe.training.seed,
        device=world.device,
        workers=recipe.training.workers,
        rank=world.rank,
        world=world.size,
        balance=recipe.data.balance,
    )


def _with_answers(loader: TrainLoader, recipe: Recipe, train: Source, world: World) -> TrainingData:
    if not isinstance(recipe.objective, DistillSettings) or recipe.objective.answers is None:
        return loader
    answers = Answers(Path(recipe.objective.answers), answered_views(recipe, train), loader)
    answers.check(recipe.training.num_steps(loader.steps_per_epoch))
    return TaughtLoader(loader, answers, world.rank, world.size)


def answered_views(recipe: Recipe, train: Source) -> dict[str, Any]:
    """Everything that decides which views a teacher is shown, and what is kept of its answers."""
    assert isinstance(recipe.objective, DistillSettings)
    return {
        "distillation": recipe.objective.distillation,
        "classes": list(train.classes),
        "pictures": teaching.identity(train),
        "augmentation": settings.to_json(recipe.augmentation),
        "preprocessing": settings.to_json(recipe.preprocessing),
        "balance": recipe.data.balance,
        "batch_size": recipe.training.batch_size,
        "seed": recipe.training.seed,
    }


def _validation(recipe: Recipe, splits: Splits, directory: RunDirectory, world: World) -> Evaluate | None:
    keeps_best = recipe.training.keep == "best"
    if splits.val is None:
        if keeps_best:
            raise UserError("the best weights are chosen on a validation part: give --data.val_fraction more than 0")
        return None
    if world.is_first and not directory.checkpoints.paths():
        atomic.remove(directory.path / BEST)  # of a run that ended before its first checkpoint, and begins anew
    batches = eval_batches(splits.val, recipe, world)

    def evaluate(objective: Objective) -> dict[str, float]:
        if not isinstance(objective.task, Task):
            return {}
        scores = score(objective.task, batches)
        if keeps_best and world.is_first:
            _keep_if_best(directory.path / BEST, objective, scores)
        return scores

    return evaluate


BEST = "best"  # folder of the weights that scored best on the validation part, where they are what is kept


def _keep_if_best(folder: Path, objective: Objective, scores: dict[str, float]) -> None:
    """A run that goes on from an earlier step meets its best again, and it stays."""
    if not folder.is_dir() or scores["accuracy"] > atomic.read_json(folder / "model.json")["accuracy"]:
        own.save_model(folder, objective.state_dict(), scores)


def eval_batches(source: Source, recipe: Recipe, world: World) -> Iterable[Batch]:
    return EvalLoader(
        source,
        recipe.preprocessing,
        batch_size=min(recipe.training.batch_size, 512),
        device=world.device,
        workers=recipe.training.workers,
    )


def _finish(recipe: Recipe, folder: Path, loop: Loop, splits: Splits, read_test: bool) -> dict[str, Any]:
    """Keep the model (averaged where averages were kept) in the folder and read the test set, once."""
    objective, world = loop.objective.eval(), loop.world
    results: dict[str, Any] = {
        "recipe": recipe.name,
        "steps": loop.num_steps,
        "batch_size": recipe.training.batch_size,
        "parameters": sum(p.numel() for p in objective.parameters()),
    }
    with loop.average.swapped(), torch.no_grad(), autocast(world.device, recipe.training.precision):
        task = objective.task
        if isinstance(task, Task):
            if recipe.training.keep == "best":
                objective.load_state_dict(own.load_model(folder.parent / BEST)[0])
            if splits.val is not None:
                known = loop.final_scores if recipe.training.keep == "last" else None
                results["val"] = known or score(task, eval_batches(splits.val, recipe, world))
            if read_test and splits.test is not None:
                results["test"] = score(task, eval_batches(splits.test, recipe, world))
        if world.is_first:
            trained(recipe, objective, splits.train.classes, str(folder.parent)).save(folder)
    return results


def trained(recipe: Recipe, objective: Objective, classes: tuple[str, ...], where: str) -> Trained:
    """What a run leaves behind: a task with its head, or the encoder alone."""
    task = objective.task
    weights = objective.encoder.state_dict(prefix="encoder.") if task is None else task.state_dict()
    card = Card(
        model=recipe.model,
        task=None if task is None else task_settings(recipe.objective),
        classes=() if task is None else classes,
        preprocessing=recipe.preprocessing,
    )
    return Trained(card, weights, where)


def teach(
    recipe: Recipe, out: str | Path, epochs: int | None = None, samples: int = teaching.SAMPLES
) -> dict[str, int]:
    """Ask a recipe's teacher about every view of so many epochs (all of the recipe's by default) and store the answers,
    from wherever the folder stands. `samples`: so many in a part."""
    kind = recipe.objective
    if not isinstance(kind, DistillSettings):
        raise UserError(f"{recipe.name} learns from no teacher's answers; choose one with --objective.kind Distill")
    world, folder = World.join(recipe.training.device), Path(out)
    train = recipe.data.build().train
    recipe = _with_batch_that_fits(recipe, train, world)
    loader = build_loader(recipe, train, World(rank=0, size=1, device=world.device))  # every rank takes whole batches
    teacher = build_teacher(recipe, train.classes).to(world.device)
    whose = {"where": recipe.teacher, "fingerprint": int(teacher.fingerprint)}
    document = teaching.about(answered_views(recipe, train), whose, loader, samples)
    if epochs is None:
        epochs = -(-recipe.training.num_steps(loader.steps_per_epoch) // loader.steps_per_epoch)

    def ask(batch: Batch) -> Tensor:
        with torch.no_grad(), autocast(world.device, recipe.training.precision):
            return kept(teacher(batch.images), kind)

    with teaching.claimed(folder, document) if world.is_first else nullcontext():
        world.wait()  # for the first, which puts the folder in order before the others write
        asked = torch.tensor(teaching.store(folder, loader, ask, epochs, rank=world.rank, world=world.size)).double()
        world.average([asked])  # also waits for the others, so that the folder is claimed until all have ended
    views = epochs * loader.steps_per_epoch * loader.order.batch_size
    return {"epochs": epochs, "views": views, "asked": round(float(asked) * world.size)}


def part(where: str | Path, data: str | None, split: str) -> Source:
    """A split of the data that the run at `where` was trained on, as it was split then; or of other data."""
    own = own_data(where, data)
    if data is None and own is None:
        raise UserError(f"{where} does not say what it was trained on; name the data to evaluate on")
    if own is not None:
        source: Source | None = getattr(own.build(), split)
    else:
        found = open_sources(str(data))
        source = found.get(split, found.get(ALL))  # what is not split has no part that was trained on: all counts
        note(*(source.notes if source is not None else ()))
    if source is None:
        raise UserError(f"{data or where}: there is no {split} part")
    return source


def own_data(where: str | Path, data: str | None) -> DataSettings | None:
    """What a run was trained on, where that is what is asked for, by whatever path; None for other data."""
    own = data_of(where)
    return own if own is not None and (data is None or same_data(data, own.where)) else None


def data_of(where: str | Path) -> DataSettings | None:
    """What a run was trained on; None where that is not known."""
    path = Path(where) / "recipe.json"
    return settings.load(Recipe, path).data if path.is_file() else None
