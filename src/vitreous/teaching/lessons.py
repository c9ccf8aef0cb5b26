"""What the objective of a recipe learns from: its teacher, or what that teacher predicted, stored."""

from pathlib import Path
from typing import Any

from vitreous import settings
from vitreous.data.base import Source
from vitreous.data.loader import TrainLoader
from vitreous.errors import UserError
from vitreous.objectives.taught import TaughtSettings
from vitreous.recipes.recipe import Recipe
from vitreous.teaching.stored import StoredPredictions, StoredTeacher, TaughtLoader, identity, taught_by
from vitreous.teaching.teachers import Teacher


def find_teacher(recipe: Recipe, classes: tuple[str, ...]) -> Teacher | StoredTeacher | None:
    """None if the recipe's objective learns from no other model."""
    objective = recipe.objective
    if isinstance(objective, TaughtSettings):
        return load_teacher(recipe, classes) if objective.stored is None else _stored_teacher(recipe, objective.stored)
    if recipe.teacher is not None:
        raise UserError(
            f"{recipe.name} does not learn from a teacher: leave out --teacher, or choose another --objective.kind"
        )
    return None


def load_teacher(recipe: Recipe, classes: tuple[str, ...]) -> Teacher:
    teacher = Teacher.load(teacher_of(recipe), recipe.preprocessing)
    needs_classes = isinstance(recipe.objective, TaughtSettings) and recipe.objective.same_classes
    return teacher.in_order_of(classes) if needs_classes else teacher


def teacher_of(recipe: Recipe) -> str:
    if recipe.teacher is None:
        raise UserError(f"{recipe.name} learns from a trained model: name its run or weights with --teacher")
    return recipe.teacher


def _stored_teacher(recipe: Recipe, folder: str) -> StoredTeacher:
    """An error if the recipe names a different teacher than the one that made the predictions."""
    where, fingerprint = taught_by(Path(folder))
    try:
        named = None if recipe.teacher is None else Teacher.load(recipe.teacher, recipe.preprocessing)
    except UserError:
        named = None  # the teacher is gone, and its predictions suffice
    if named is not None and int(named.fingerprint) != fingerprint:
        raise UserError(
            f"{folder}: these predictions are not from {recipe.teacher} as it is now, but from {where} as it was when "
            "they were stored; name that --teacher, or none, or another --objective.stored"
        )
    return StoredTeacher(folder, fingerprint)


def with_predictions(
    loader: TrainLoader, recipe: Recipe, train: Source, *, rank: int = 0, world: int = 1
) -> TrainLoader | TaughtLoader:
    """The loader, with the teacher's predictions in its batches if the recipe learns from stored ones."""
    objective = recipe.objective
    if not isinstance(objective, TaughtSettings) or objective.stored is None:
        return loader
    predictions = StoredPredictions(Path(objective.stored), views_of(recipe, train), loader)
    predictions.check(recipe.training.num_steps(loader.steps_per_epoch))
    return TaughtLoader(loader, predictions, rank, world)


def views_of(recipe: Recipe, train: Source) -> dict[str, Any]:
    """Everything that decides which views a teacher sees, and what is stored of its predictions."""
    return {
        "distillation": storable(recipe).keeps,
        "classes": list(train.classes),
        "pictures": identity(train),
        "augmentation": settings.to_json(recipe.augmentation),
        "preprocessing": settings.to_json(recipe.preprocessing),
        "balance": recipe.data.order.balance,
        "batch_size": recipe.training.batch_size,
        "seed": recipe.training.seed,
        **({"streams": settings.to_json(recipe.data.order)} if recipe.data.order.streams else {}),
    }


def storable(recipe: Recipe) -> TaughtSettings:
    """The recipe's objective, if it can learn from stored predictions."""
    objective = recipe.objective
    if not isinstance(objective, TaughtSettings) or objective.keeps is None:
        raise UserError(
            f"{recipe.name} does not learn from a teacher's stored predictions; --objective.kind Distill does"
        )
    return objective
