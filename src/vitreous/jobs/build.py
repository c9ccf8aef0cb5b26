"""Builds the parts of a run from its recipe: objective, encoder, loaders, loop."""

from collections.abc import Iterable
from dataclasses import replace

import torch

from vitreous.batch import Batch
from vitreous.data.base import Source, with_classes
from vitreous.data.loader import EvalLoader, TrainLoader
from vitreous.data.splits import Splits
from vitreous.data.views import build_views
from vitreous.errors import UserError
from vitreous.models.base import Encoder
from vitreous.objectives.base import Objective
from vitreous.objectives.taught import TaughtSettings
from vitreous.recipes.recipe import Recipe
from vitreous.teaching.lessons import find_teacher, teacher_of, with_predictions
from vitreous.training.devices import World, compiles, is_half
from vitreous.training.loop import Loop
from vitreous.training.optim import MuonSettings
from vitreous.training.ranks import shard, wants_shards
from vitreous.weights.trained import Trained, found_at


def check_models(recipe: Recipe) -> None:
    """An error, before any picture is read, if a model is not there that the recipe starts or learns from."""
    if recipe.start is not None:
        found_at(recipe.start)
    if isinstance(recipe.objective, TaughtSettings) and recipe.objective.stored is None:
        found_at(teacher_of(recipe))


def with_batch_that_fits(recipe: Recipe, train: Source, world: World) -> Recipe:
    """The recipe with a batch no larger than the data. recipe.json keeps the size that was asked for."""
    fitting = recipe.for_pictures(len(train))
    if fitting is not recipe and world.is_first:
        print(
            f"batch_size {recipe.training.batch_size:,} becomes {fitting.training.batch_size:,}: "
            f"there are {len(train):,} pictures to train on",
            flush=True,
        )
    return fitting


def build_objective(recipe: Recipe, classes: tuple[str, ...]) -> Objective:
    teacher, objective = find_teacher(recipe, classes), recipe.objective
    if isinstance(objective, TaughtSettings):
        assert teacher is not None
        return objective.build(build_encoder(recipe), classes, teacher)
    built = objective.build(build_encoder(recipe), classes)
    if recipe.start_head:
        _take_head(built, recipe, classes)
    return built


def class_order(recipe: Recipe, classes: tuple[str, ...]) -> tuple[str, ...]:
    """If training starts from a head for these classes, the order of that head: names given by hand may come in any
    order."""
    known = Trained.load(recipe.start).card.classes if recipe.start_head and recipe.start is not None else ()
    return known if sorted(known) == sorted(classes) else classes


def numbered(splits: Splits, classes: tuple[str, ...]) -> Splits:
    val, test = (None if part is None else with_classes(part, classes) for part in (splits.val, splits.test))
    return replace(splits, train=with_classes(splits.train, classes), val=val, test=test)


def _take_head(objective: Objective, recipe: Recipe, classes: tuple[str, ...]) -> None:
    """Load all starting weights but the encoder's: a head that was fitted first distorts the features less (Kumar et
    al. 2022)."""
    start = Trained.load(recipe.start) if recipe.start else None
    named = {} if start is None else {name: value.float() for name, value in start.weights.items()}
    wanted = {name: value for name, value in objective.state_dict().items() if not name.startswith("encoder.")}
    if (
        start is None
        or start.card.classes != classes
        or any(name not in named or named[name].shape != value.shape for name, value in wanted.items())
    ):
        raise UserError(
            f"{recipe.name}: start_head needs weights that include a head of the same kind for the same classes; "
            "otherwise give --start_head false"
        )
    objective.load_state_dict({name: named[name] for name in wanted}, strict=False)


def build_encoder(recipe: Recipe) -> Encoder:
    """Also seeds the initial weights of what is built next."""
    torch.manual_seed(recipe.training.seed)
    encoder = Trained.load(recipe.start).encoder(recipe.model) if recipe.start else recipe.model.build()
    encoder.checkpointing = recipe.training.memory.recompute
    return encoder


def build_loop(recipe: Recipe, splits: Splits, objective: Objective, world: World) -> Loop:
    _place(objective, recipe, world)
    loader = build_loader(recipe, splits.train, world)
    return Loop(
        objective,
        with_predictions(loader, recipe, splits.train, rank=world.rank, world=world.size),
        optimizer=recipe.optimizer.build(objective),
        schedule=recipe.schedule,
        average=recipe.average.build(objective),
        settings=recipe.training,
        world=world,
    )


def _place(objective: Objective, recipe: Recipe, world: World) -> None:
    """Move the objective, or this rank's shard of it, to the device. Whatever refers to its weights is built after."""
    training = recipe.training
    if isinstance(recipe.optimizer, MuonSettings):
        if training.memory.shard is True:
            raise UserError(
                "Muon updates whole matrices, which no rank has under sharding: give --optimizer.kind AdamW, or "
                "leave out --training.memory.shard"
            )
        is_sharded = False
    else:
        is_sharded = wants_shards(objective, training.memory.shard, world, averaged=recipe.average.kind != "none")
    if is_sharded:
        half = is_half(world.device, training.precision)
        shard(objective, world, half=half, compiled=compiles(world.device, training.compile))
    else:
        objective.to(world.device)


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
        order=recipe.data.order,
    )


def eval_batches(source: Source, recipe: Recipe, world: World) -> Iterable[Batch]:
    return EvalLoader(
        source,
        recipe.preprocessing,
        batch_size=min(recipe.training.batch_size, 512),
        device=world.device,
        workers=recipe.training.workers,
    )
