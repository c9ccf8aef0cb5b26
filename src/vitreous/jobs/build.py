"""The parts of a run, built as its recipe says: objective, encoder, teacher, loaders, loop."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from vitreous import settings
from vitreous.batch import Batch
from vitreous.data.loader import EvalLoader, TrainLoader
from vitreous.data.sources import Source, Splits
from vitreous.data.views import build_views
from vitreous.errors import UserError
from vitreous.models.base import Encoder
from vitreous.objectives.base import Objective
from vitreous.recipes.recipe import Recipe
from vitreous.tasks import TaughtSettings
from vitreous.tasks.distill import DistillSettings
from vitreous.teaching import stored
from vitreous.teaching.stored import Answers, TaughtLoader
from vitreous.teaching.teachers import Teacher
from vitreous.training.devices import World
from vitreous.training.loop import Loop, TrainingData
from vitreous.weights.trained import Trained


def with_batch_that_fits(recipe: Recipe, train: Source, world: World) -> Recipe:
    """recipe.json keeps what was asked for: what becomes of it follows from the number of pictures."""
    fitting = recipe.for_pictures(len(train))
    if fitting is not recipe and world.is_first:
        print(
            f"batch_size {recipe.training.batch_size:,} becomes {fitting.training.batch_size:,}: "
            f"there are {len(train):,} pictures to train on",
            flush=True,
        )
    return fitting


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
    where, fingerprint = stored.taught_by(folder)
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
        "pictures": stored.identity(train),
        "augmentation": settings.to_json(recipe.augmentation),
        "preprocessing": settings.to_json(recipe.preprocessing),
        "balance": recipe.data.balance,
        "batch_size": recipe.training.batch_size,
        "seed": recipe.training.seed,
    }


def eval_batches(source: Source, recipe: Recipe, world: World) -> Iterable[Batch]:
    return EvalLoader(
        source,
        recipe.preprocessing,
        batch_size=min(recipe.training.batch_size, 512),
        device=world.device,
        workers=recipe.training.workers,
    )
