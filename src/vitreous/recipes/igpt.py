"""iGPT: a causal transformer reads pictures pixel by pixel, and predicts the next (Chen et al. 2020)."""

from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.sources import DataSettings
from vitreous.data.transforms import Preprocessing
from vitreous.models import IGPTSettings, model_settings
from vitreous.objectives.igpt import NextPixelSettings
from vitreous.recipes.recipe import Recipe
from vitreous.recipes.unlabelled import unlabelled
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import AdamWSettings
from vitreous.training.schedule import ScheduleSettings


def cifar10_igpt(picture_px: int = 32, epochs: float = 50.0) -> Recipe:
    """CIFAR-10 without labels, pixel by pixel: an iGPT of 5.1 M parameters.

    Command:  vitreous train cifar10_igpt
    Cost:     1.1e17 FLOP; at 16 px 1.8 s per epoch on one H200, 1.9e16 FLOP in all
    Score:    at 16 px, 44 epochs: k-NN 46.0, linear 60.2, fine-tuned 75.4 % (docs/RESULTS.md)
    Section:  4.6 (self-supervision); Chen et al. 2020, sections 2 and 3
    """
    return unlabelled(
        "cifar10_igpt",
        NextPixelSettings(),
        IGPTSettings(picture_px=(picture_px, picture_px), width=256, depth=6, heads=8),
        epochs=epochs,
        # As Chen et al. fine-tune on it: shifts of 4 of 32 px, mirrored at the border. Large crops would blur targets.
        augmentation=Augmentation(crop=CropSettings(method="pad", pad_px=picture_px // 8, padding="reflect")),
        optimizer=AdamWSettings(lr=3e-3, beta2=0.95, weight_decay=0.01),
    )


def igpt_imagenet(model: str = "igpt_s", data: str = "imagenet", picture_px: int = 32) -> Recipe:
    """iGPT-S on ImageNet at 32 x 32, as Chen et al. 2020: a million steps of 128 pictures, no labels.

    Command:  vitreous train igpt_imagenet --data /path/to/imagenet
    Cost:     a million steps of 128 pictures; S: 207 GFLOP per picture forward, 7.9e19 FLOP in all
    Score:    Chen et al. report linear probes of CIFAR-10 for L, of 1,362 M parameters: 96.3 %
    Section:  4.6 (self-supervision); Chen et al. 2020, section 3
    """
    return Recipe(
        name=f"{model}-imagenet",
        # Their validation part is 4 % of train; they report on ImageNet's own.
        data=DataSettings(where=data, val_fraction=0.04, test_split="val", need_labels=False),
        model=model_settings(model, picture_px=picture_px),
        objective=NextPixelSettings(),
        normalise=Preprocessing(crop="centre", crop_fraction=1.0),
        # A square of 224 px from a picture whose shorter side is 256 to 384 px.
        augmentation=Augmentation(
            crop=CropSettings(method="random-resized", scale=(0.34, 0.77), ratio=(1.0, 1.0)), flip=0.0
        ),
        optimizer=AdamWSettings(lr=3e-3, beta2=0.95, weight_decay=0.0),
        schedule=ScheduleSettings(warmup_steps=9_600),  # one epoch
        training=TrainingSettings(
            steps=1_000_000, batch_size=128, precision="auto", compile="auto", evaluate_every_epochs=0
        ),
    )
