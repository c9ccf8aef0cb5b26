"""Semantic segmentation with Segmenter's decoders (Strudel et al. 2021): drawn pictures, street scenes, pets."""

from dataclasses import replace

from vitreous.data.augmentation import Augmentation, ColourSettings, CropSettings
from vitreous.data.sources import DataSettings, open_sources
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.models.stems import ConvStem
from vitreous.recipes.recipe import Recipe
from vitreous.recipes.small import plain_vit
from vitreous.tasks.segment import SegmentSettings
from vitreous.training.averages import AverageSettings
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import AdamWSettings, MuonSettings
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained


def rendered_segmenter(start: str | None = "vitreous-xs", epochs: float = 6.0) -> Recipe:
    """Shapes drawn from a seed, a class per pixel, at 64 px on the CPU: from an encoder that ships, or from scratch.

    Command:  vitreous train rendered_segmenter
              vitreous train rendered_segmenter --start none --epochs 8
    Cost:     200 s of CPU time on one thread (AMD EPYC; 5 minutes on a busy machine); from scratch about 300 s
    Score:    mIoU 59.2 % on its 500 test pictures, from scratch 34.8 % (one seed each)
    Section:  Strudel et al. 2021, section 3.2 (mask transformer); the recipe is ours
    """
    # A few convolutions find the edges; a transformer of this size would need many more pictures for that.
    stem = ConvStem(widths=(32, 64), strides=(2, 2), residuals=(1, 1))
    scratch = Recipe(
        name="rendered_segmenter",
        data=DataSettings(where="rendered:segment"),
        model=ViTSettings(
            picture_px=(64, 64), stem=stem, patch=1, width=64, depth=3, heads=4, pool="mean", num_prefix=0
        ),
        objective=SegmentSettings(depth=1, heads=4),
        normalise=Preprocessing(crop="squash"),
        augmentation=Augmentation(crop=CropSettings(scale=(0.5, 1.0))),
        optimizer=MuonSettings(lr=4e-3, weight_decay=0.1, adam_lr=4e-3),
        schedule=ScheduleSettings(warmup_fraction=0.05),
        average=AverageSettings(kind="ema", factor=0.98),
        training=TrainingSettings(epochs=epochs, batch_size=32, evaluate_every_epochs=2, device="cpu"),
    )
    if start is None:
        return scratch
    card = Trained.load(start).card
    return replace(
        scratch,
        start=start,
        model=replace(card.model, picture_px=(64, 64)),
        normalise=replace(card.preprocessing, crop="squash"),
        # Shapes are recognised by their outlines, so they are shifted and hardly cropped.
        augmentation=Augmentation(crop=CropSettings(method="pad", pad_px=8, padding="reflect")),
        optimizer=AdamWSettings(lr=1e-3, weight_decay=0.05, layer_decay=0.8),
        training=replace(scratch.training, batch_size=16),
    )


def camvid_segmenter(start: str | None = None, epochs: float = 300.0) -> Recipe:
    """CamVid's street scenes, 11 classes at 320 x 240: from scratch, or from a trained encoder.

    Command:  vitreous train camvid_segmenter
              vitreous train camvid_segmenter --start vitreous-s --epochs 100
    Cost:     3 and 2 minutes on one H200 that four such runs shared
    Score:    mIoU 48.1 % from scratch, 53.5 % from vitreous-s (one seed each; docs/RESULTS.md)
    Section:  Strudel et al. 2021, sections 3.2 and 4.1 (random scales, flips); the recipe is ours
    """
    # Scales as in the paper; a street is not stretched.
    crops = Augmentation(
        crop=CropSettings(method="zoom", zoom=(0.75, 2.0)),
        colour=ColourSettings(brightness=0.3, contrast=0.3, saturation=0.3),
    )
    return _on_a_gpu("camvid_segmenter", "camvid", picture_px=(240, 320), crops=crops, start=start, epochs=epochs)


def pets_segmenter(start: str | None = None, epochs: float = 120.0) -> Recipe:
    """The trimaps of Oxford-IIIT Pets at 192 px: pet and background; the border between them does not count.

    Command:  vitreous train pets_segmenter
              vitreous train pets_segmenter --start vitreous-s --epochs 40
    Cost:     3 and 2 minutes on one H200 that four such runs shared
    Score:    mIoU 91.7 % from scratch, 95.5 % from vitreous-s (one seed each; docs/RESULTS.md)
    Section:  Strudel et al. 2021, section 3.2; the recipe is ours
    """
    crops = Augmentation(
        crop=CropSettings(scale=(0.3, 1.0)),
        colour=ColourSettings(brightness=0.3, contrast=0.3, saturation=0.3, hue=0.05),
    )
    return _on_a_gpu("pets_segmenter", "pets_trimaps", picture_px=(192, 192), crops=crops, start=start, epochs=epochs)


def _on_a_gpu(
    name: str, where: str, *, picture_px: tuple[int, int], crops: Augmentation, start: str | None, epochs: float
) -> Recipe:
    """From scratch with Muon; trained weights change gently, earlier layers least."""
    scratch = Recipe(
        name=name,
        data=DataSettings(where=where, val_fraction=0.1),
        model=plain_vit(picture_px, patch=8),
        objective=SegmentSettings(depth=2, heads=8),
        normalise=Preprocessing(crop="squash", mean=(0.4802, 0.4481, 0.3975), std=(0.277, 0.2691, 0.2821)),
        augmentation=crops,
        optimizer=MuonSettings(lr=1e-3, weight_decay=0.5, adam_lr=1e-3),
        schedule=ScheduleSettings(warmup_fraction=0.05),
        average=AverageSettings(kind="ema", factor=0.998),
        training=TrainingSettings(
            epochs=epochs,
            batch_size=16,
            precision="auto",
            compile="auto",
            evaluate_every_epochs=max(1.0, epochs / 10),
            workers=4,
        ),
    )
    if start is None:
        return scratch
    card = Trained.load(start).card
    return replace(
        scratch,
        start=start,
        model=replace(card.model.regularised(stochastic_depth=0.1), picture_px=picture_px),
        normalise=replace(card.preprocessing, crop="squash"),
        optimizer=AdamWSettings(lr=5e-4, weight_decay=0.05, layer_decay=0.8),
        schedule=ScheduleSettings(warmup_fraction=0.1),
    )


# ---- fine-tuning on pictures with masks


def has_masks(data: str) -> bool:
    """Whether the pictures have them; False if they cannot be opened: training on them will report why."""
    try:
        return any(source.targets.task == "segment" for source in open_sources(data).values())
    except UserError:
        return False


def for_pixels(recipe: Recipe, card: Card) -> Recipe:
    """A recipe that fine-tunes, with a decoder instead of a head: that of the weights it starts from, or a new one."""
    return replace(
        recipe,
        objective=card.task if card.task is not None and card.task.task_kind == "segment" else SegmentSettings(),
        normalise=replace(recipe.normalise, crop="squash"),
        optimizer=AdamWSettings(lr=5e-4, weight_decay=0.05, layer_decay=0.8),
        training=replace(recipe.training, batch_size=16),
    )
