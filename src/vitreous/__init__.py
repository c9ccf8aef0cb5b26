"""Vitreous: Vision Transformers from pictures to a trained, understood, reproducible model.

The public names are listed here by hand and resolved when they are first used, so that importing the package costs
nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.commands import attention as attention
    from vitreous.commands import fit as fit
    from vitreous.commands import predict as predict
    from vitreous.errors import UserError as UserError
    from vitreous.jobs.evaluate import evaluate as evaluate
    from vitreous.jobs.train import train as train
    from vitreous.prediction.predictor import Predictor as Predictor
    from vitreous.recipes.recipe import Recipe as Recipe
    from vitreous.weights.create import create_model as create_model
    from vitreous.weights.trained import Trained as Trained
    from vitreous.weights.trained import load as load

__version__ = "0.2.0"

_HOMES = {
    "Predictor": "vitreous.prediction.predictor",
    "Recipe": "vitreous.recipes.recipe",
    "Trained": "vitreous.weights.trained",
    "UserError": "vitreous.errors",
    "attention": "vitreous.commands",
    "create_model": "vitreous.weights.create",
    "evaluate": "vitreous.jobs.evaluate",
    "fit": "vitreous.commands",
    "load": "vitreous.weights.trained",
    "predict": "vitreous.commands",
    "train": "vitreous.jobs.train",
}
__all__ = [
    "Predictor",
    "Recipe",
    "Trained",
    "UserError",
    "__version__",
    "attention",
    "create_model",
    "evaluate",
    "fit",
    "load",
    "predict",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'vitreous' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
