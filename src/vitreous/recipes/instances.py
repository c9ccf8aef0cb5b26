"""Overfitting a few pictures with shapes of objects: a test of the path from polygons to masks."""

from dataclasses import replace

from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.names import LayoutSettings
from vitreous.data.sources import DataSettings
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.mask_loss import PointSettings
from vitreous.tasks.mask_queries import MaskQuerySettings, PixelSettings
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import AdamWSettings
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.trained import Trained


def coco_small_instances(
    start: str = "vitreous-s", pictures: int = 16, px: int = 640, steps: int = 2000, gpu: bool = True
) -> Recipe:
    """A few photos of COCO with their polygons, memorised by Mask2Former: no flips, no crops, no held-out part.

    Command:  vitreous train coco_small_instances
              vitreous evaluate RUN --split train
    Cost:     not measured yet
    Score:    not measured yet (the AP of masks on its training pictures should exceed 90 %)
    Section:  Cheng et al. 2022, section 3; the recipe is ours. Masks have a place for every 4 px of the canvas: small
              objects need a large one (docs/DETECTION.md)
    """
    card = Trained.load(start).card
    head = MaskQuerySettings(
        output="instances",
        queries=60,
        width=256 if gpu else 64,
        heads=8 if gpu else 4,
        mlp_width=1024 if gpu else 128,
        decoder_depth=6 if gpu else 3,
        pixel=PixelSettings(mask_width=256 if gpu else 64, mlp_width=1024 if gpu else 128, depth=3 if gpu else 1),
        points=PointSettings(number=8192 if gpu else 1024),
    )
    training = TrainingSettings(steps=steps, batch_size=min(8, pictures), evaluate_every_epochs=0, log_every_steps=50)
    if gpu:
        training = replace(training, precision="bf16")
    return Recipe(
        name="coco_small_instances",
        data=DataSettings(
            where="coco_small", layout=LayoutSettings(targets="instances"), train_limit=pictures, test_split="val"
        ),
        model=replace(card.model, picture_px=(px, px)),
        start=start,
        objective=head,
        normalise=replace(card.preprocessing, crop="letterbox"),
        augmentation=Augmentation(crop=CropSettings(method="zoom", zoom=(1.0, 1.0)), flip=0.0),  # as in prediction
        optimizer=AdamWSettings(lr=4e-4 if gpu else 1e-3, weight_decay=0.0),
        schedule=ScheduleSettings(warmup_fraction=0.05),
        training=training,
    )
