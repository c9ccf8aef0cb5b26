"""All studies by name: their classes, and what they ask. Imports no torch, so that a listing is quick."""

from importlib import import_module
from typing import TYPE_CHECKING

from vitreous.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from vitreous.studies.study import Study

# name -> (module, class, what it asks)
STUDIES = {
    "data-size": (
        "data_size",
        "DataSize",
        "How much data does a ViT need, against a ResNet and a hybrid? (Figures 3, 4)",
    ),
    "scaling": ("scaling", "Scaling", "What does compute buy: transfer accuracy against pre-training FLOPs (Figure 5)"),
    "positions": ("positions", "Positions", "Which position embedding, and added where? (appendix D.4)"),
    "shape": ("shape", "Shape", "Deeper, wider, smaller patches: what pays? (appendix D.2)"),
    "head": ("head", "Head", "Class token against mean pooling, each at its own learning rate (appendix D.3)"),
    "optimizer": ("optimizer", "OptimizerChoice", "Adam against SGD for pre-training ResNets (appendix D.1)"),
    "cost": ("cost", "Cost", "Pictures per second, and the largest batch, against the picture size (appendix D.5)"),
    "resolution": ("resolution", "Resolution", "Fine-tuning at other picture sizes (section 3.2)"),
    "transfer": ("transfer", "Transfer", "VTAB: 1,000 examples of many tasks, natural, specialised, structured"),
}


def find_study(name: str) -> "type[Study]":
    if name not in STUDIES:
        raise UserError(
            f"there is no study {name!r}.{did_you_mean(name, list(STUDIES))} `vitreous study --help` lists them"
        )
    module, cls, _ = STUDIES[name]
    return getattr(import_module(f"vitreous.studies.{module}"), cls)  # type: ignore[no-any-return]
