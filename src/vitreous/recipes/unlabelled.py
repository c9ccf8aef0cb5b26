"""What the recipes without labels share: one ViT, one set of pictures, so that only the objective differs."""

import math
from dataclasses import replace

from vitreous.data.augmentation import Augmentation, ColourSettings, CropSettings
from vitreous.data.sources import DataSettings
from vitreous.data.views import ViewSettings
from vitreous.errors import UserError
from vitreous.models import ModelSettings, ViTSettings
from vitreous.models.vit import BlockSettings, Pool
from vitreous.recipes.recipe import Recipe
from vitreous.recipes.small import CIFAR10, small_pictures
from vitreous.tasks import ObjectiveSettings
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import MuonSettings, OptimizerSettings
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.trained import Trained

# Only random crops and flips, as in masked modelling.
CROPS = Augmentation(crop=CropSettings(method="random-resized", scale=(0.2, 1.0)))

# Chen et al. 2020 (SimCLR), appendix B.9: for pictures of 32 px, at half the colour strength and without blur.
CONTRAST = Augmentation(
    crop=CropSettings(method="random-resized", scale=(0.2, 1.0)),
    colour=ColourSettings(probability=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, grey=0.2),
)


def small_vit(pool: Pool, picture_px: int = 32) -> ViTSettings:
    """4.8 M parameters, patches of 4 px at 32 px. It always has a class token: its cost does not depend on `pool`."""
    return ViTSettings(
        picture_px=(picture_px, picture_px),
        patch=cell_of(picture_px),
        width=256,
        depth=6,
        heads=8,
        pool=pool,
        positions="sincos",
        block=BlockSettings(gelu="tanh"),
    )


def cell_of(picture_px: int) -> int:
    """The side of a patch: the power of two such that 8 to 15 patches span the picture: 4 at 32 px, 16 at 224 px."""
    cell = 1 << int(math.log2(max(picture_px, 8) / 8))
    if picture_px < 8 or picture_px % cell:
        lower = max(8, picture_px // cell * cell)
        raise UserError(f"--picture_px {picture_px}: patches have {cell} px here; give {lower} or {lower + cell}")
    return cell


def unlabelled(
    name: str,
    objective: ObjectiveSettings,
    model: ModelSettings,
    *,
    epochs: float,
    augmentation: Augmentation,
    more_views: tuple[ViewSettings, ...] = (),
    optimizer: OptimizerSettings | None = None,
    batch_size: int = 512,
) -> Recipe:
    """CIFAR-10 without its labels. A tenth of train is left out, for choices."""
    return Recipe(
        name=name,
        data=DataSettings(where="cifar10", val_fraction=0.1, need_labels=False),
        model=model,
        objective=objective,
        normalise=CIFAR10,
        augmentation=augmentation,
        more_views=more_views,
        # On held-out pictures Muon beat AdamW (1e-3, decay 0.05) by 5 and 7 points of a linear probe (docs/RESULTS.md).
        optimizer=optimizer or MuonSettings(lr=2e-3, weight_decay=0.1, adam_lr=1e-3),
        schedule=ScheduleSettings(warmup_fraction=0.05),
        training=TrainingSettings(
            epochs=epochs,
            batch_size=batch_size,
            precision="auto",
            compile="auto",
            evaluate_every_epochs=0,
        ),
    )


def cifar10_tuned(start: str | None = None, epochs: float = 220.0, picture_px: int = 32) -> Recipe:
    """Fine-tune on CIFAR-10 an encoder that learned from its pictures without labels; without a start, from scratch.

    Command:  vitreous train cifar10_tuned --start runs/cifar10_mae --data.val_fraction 0
    Cost:     0.9 s per epoch on one H200, so 3.4 minutes
    Score:    96.2 % after cifar10_mae, and 96.3 % when cifar10_finetune follows at 48 px (docs/RESULTS.md)
    Section:  4.6 (self-supervision); the recipe is ours
    """
    model: ModelSettings = small_vit("mean", picture_px) if start is None else Trained.load(start).card.model
    recipe = small_pictures("cifar10_tuned", model.regularised(stochastic_depth=0.1), epochs)
    if start is None:
        return recipe
    # Shallow layers hold most of what was learned, so they change least (Bao et al. 2021, appendix H).
    return replace(recipe, start=start, optimizer=replace(recipe.optimizer, layer_decay=0.75))


def share_of_run(first: float, epochs: float) -> float:
    """The first epochs as a share of a run of `epochs`: all of it if it is shorter, even a run of none."""
    return first / epochs if epochs > first else 1.0
