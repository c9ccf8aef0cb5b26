"""Vitreous: Vision Transformers from pictures to a trained, understood, reproducible model.

The public names are listed here by hand and resolved when they are first used, so that importing the package costs
nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous.assess import evaluate as evaluate
    from vitreous.commands import attention as attention
    from vitreous.commands import fit as fit
    from vitreous.commands import predict as predict
    from vitreous.create import create_model as create_model
    from vitreous.errors import UserError as UserError
    from vitreous.jobs import train as train
    from vitreous.prediction.predictor import Predictor as Predictor
    from vitreous.recipes.recipe import Recipe as Recipe
    from vitreous.trained import Trained as Trained
    from vitreous.trained import load as load

__version__ = "0.2.0"

_HOMES = {
    "Predictor": "vitreous.prediction.predictor",
    "Recipe": "vitreous.recipes.recipe",
    "Trained": "vitreous.trained",
    "UserError": "vitreous.errors",
    "attention": "vitreous.commands",
    "create_model": "vitreous.create",
    "evaluate": "vitreous.assess",
    "fit": "vitreous.commands",
    "load": "vitreous.trained",
    "predict": "vitreous.commands",
    "train": "vitreous.jobs",
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
