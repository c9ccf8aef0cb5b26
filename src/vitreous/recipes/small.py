"""What the recipes for small pictures share: two models, and one way to train all families."""

from vitreous.data.augmentation import Augmentation, CropSettings, EraseSettings, MixSettings, WarpSettings
from vitreous.data.sources import DataSettings
from vitreous.data.transforms import Preprocessing
from vitreous.models import ModelSettings, SwinSettings, ViTSettings
from vitreous.models.vit import BlockSettings
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.averages import AverageSettings
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import MuonSettings
from vitreous.training.schedule import ScheduleSettings

CIFAR10 = Preprocessing(crop="squash", mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


def plain_vit(picture_px: tuple[int, int] = (32, 32), patch: int = 4) -> ViTSettings:
    return ViTSettings(
        picture_px=picture_px,
        patch=patch,
        width=256,
        depth=8,
        heads=8,
        pool="mean",
        num_prefix=0,
        positions="sincos",
        stochastic_depth=0.1,
        block=BlockSettings(gelu="tanh"),
    )


def small_swin(picture_px: int = 32, patch: int = 2) -> SwinSettings:
    return SwinSettings(
        picture_px=(picture_px, picture_px),
        patch=patch,
        width=96,
        depths=(2, 6, 2),
        heads=(3, 6, 12),
        window=4,
        stochastic_depth=0.1,
    )


def small_pictures(name: str, model: ModelSettings, epochs: float) -> Recipe:
    """One recipe for all families, so that only the model differs."""
    return Recipe(
        name=name,
        data=DataSettings(where="cifar10", val_fraction=0.1),
        model=model,
        objective=ClassifySettings(label_smoothing=0.1),
        normalise=CIFAR10,
        augmentation=Augmentation(
            crop=CropSettings(method="pad", pad_px=4, padding="reflect"),
            warp=WarpSettings(ops=2, magnitude=14, spread=True),
            erase=EraseSettings(probability=0.25),
            mix=MixSettings(mixup=0.8, cutmix=1.0, probability=0.6),
        ),
        optimizer=MuonSettings(lr=2e-3, weight_decay=0.5, adam_lr=1e-3),
        schedule=ScheduleSettings(warmup_fraction=0.03),
        average=AverageSettings(kind="ema", factor=0.999),
        training=TrainingSettings(
            epochs=epochs, batch_size=256, precision="auto", compile="auto", evaluate_every_epochs=0
        ),
    )
