"""Masks by queries: Mask2Former (Cheng et al. 2022) and EoMT (Kerssies et al. 2025), for objects and classes; on VOC
also Segmenter (Strudel et al. 2021)."""

from dataclasses import replace

from vitreous.data.augmentation import Augmentation, ColourSettings, CropSettings
from vitreous.data.names import LayoutSettings
from vitreous.data.sources import DataSettings
from vitreous.data.transforms import Preprocessing
from vitreous.models import model_settings
from vitreous.recipes.recipe import Recipe
from vitreous.recipes.segment import camvid_segmenter
from vitreous.tasks.mask_loss import PointSettings
from vitreous.tasks.mask_queries import MaskQuerySettings, PixelSettings
from vitreous.tasks.segment import SegmentSettings
from vitreous.training.averages import AverageSettings
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import AdamWSettings
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.processors import IMAGENET_MEAN, IMAGENET_STD
from vitreous.weights.trained import Trained

# For pictures of about 300 px, whose masks have fewer places than the papers' points.
POINTS = PointSettings(number=4096)
MASK2FORMER = MaskQuerySettings(pixel=PixelSettings(depth=3), mlp_width=1024, decoder_depth=6, points=POINTS)
EOMT = MaskQuerySettings(decoder="eomt", points=POINTS)


def rendered_mask2former(
    start: str = "vitreous-xs", epochs: float | None = None, gpu: bool = False, px: int | None = None
) -> Recipe:
    """Shapes drawn from a seed, each object with its mask: Mask2Former on an encoder that ships.

    Command:  vitreous train rendered_mask2former
              vitreous train rendered_mask2former --gpu true
    Cost:     on a CPU with --epochs 4, 188 s on one thread; on a GPU not yet to its end (docs/results/segmentation.md)
    Score:    so trained AP of masks 30.8 %, AP50 43.4 % on 500 test scenes (commit c3dcf25); otherwise none yet
    Section:  Cheng et al. 2022, section 3; the recipe is ours. Masks have one place per 4 px of the model's input:
              even true masks at this resolution have an AP of 67 % at 64 px (CPU) and 99.9 % at 192 px (GPU)
    """
    card = Trained.load(start).card
    head = MaskQuerySettings(
        output="instances",
        queries=16,
        width=96,
        heads=4,
        mlp_width=192,
        decoder_depth=3,
        pixel=PixelSettings(mask_width=96, mlp_width=192, depth=1),
        points=PointSettings(number=256),
    )
    recipe = Recipe(
        name="rendered_mask2former",
        data=DataSettings(where="rendered:objects", layout=LayoutSettings(targets="instances")),
        model=replace(card.model, picture_px=(px or 64, px or 64)),
        start=start,
        objective=head,
        normalise=replace(card.preprocessing, crop="squash"),
        augmentation=Augmentation(crop=CropSettings(method="pad", pad_px=6)),
        optimizer=AdamWSettings(lr=1e-3, weight_decay=0.05, layer_decay=0.8),
        schedule=ScheduleSettings(warmup_fraction=0.05),
        average=AverageSettings(kind="ema", factor=0.99),
        training=TrainingSettings(epochs=epochs or 10.0, batch_size=16, evaluate_every_epochs=2, device="cpu"),
    )
    if not gpu:
        return recipe
    side = px or 192
    return replace(
        recipe,
        model=replace(card.model, picture_px=(side, side)),
        objective=replace(
            head,
            width=192,
            heads=8,
            mlp_width=768,
            decoder_depth=6,
            pixel=PixelSettings(mask_width=192, mlp_width=768, depth=2),
            points=PointSettings(number=1024),
        ),
        augmentation=Augmentation(crop=CropSettings(method="pad", pad_px=side // 10)),
        average=AverageSettings(kind="ema", factor=0.998),
        training=_on_a_gpu(epochs or 120.0, 32),
    )


def camvid_mask2former(start: str | None = "vitreous-s", epochs: float = 100.0) -> Recipe:
    """CamVid's street scenes, 11 classes at 320 x 240: Mask2Former on an encoder that ships.

    Command:  vitreous train camvid_mask2former
    Cost:     not measured yet
    Score:    not measured yet
    Section:  Cheng et al. 2022; pictures and budget of camvid_segmenter
    """
    return _as_segmenter(camvid_segmenter(start, epochs), "camvid_mask2former", MASK2FORMER)


def camvid_eomt(start: str | None = "vitreous-s", epochs: float = 100.0) -> Recipe:
    """CamVid's street scenes, 11 classes at 320 x 240: queries in the last blocks of an encoder that ships.

    Command:  vitreous train camvid_eomt
    Cost:     not measured yet
    Score:    not measured yet
    Section:  Kerssies et al. 2025; pictures and budget of camvid_segmenter
    """
    return _as_segmenter(camvid_segmenter(start, epochs), "camvid_eomt", EOMT)


def _as_segmenter(recipe: Recipe, name: str, objective: MaskQuerySettings) -> Recipe:
    """With another decoder, and gradients clipped as in both papers, since targets are matched again at every step."""
    return replace(recipe, name=name, objective=objective, training=replace(recipe.training, clip=1.0))


# ---- Pascal VOC 2012, 1,464 and 1,449 pictures with a class per pixel


def voc_segmenter(data: str, start: str = "vitreous-s", epochs: float = 100.0, px: int = 320) -> Recipe:
    """Pascal VOC 2012, 21 classes: Segmenter on an encoder that ships.

    Command:  vitreous train voc_segmenter --data voc_seg/     (tools/pack_masks.py makes the folder)
    Cost:     not measured yet
    Score:    not measured yet
    Section:  Strudel et al. 2021, section 3.2; the recipe is ours. Scores are on the val part
    """
    recipe = _on_voc("voc_segmenter", data, start, epochs, px=px)
    return replace(recipe, objective=SegmentSettings(depth=2, heads=8))


def voc_mask2former(
    data: str, start: str | None = "vitreous-s", model: str = "swin_t", epochs: float = 100.0, px: int = 320
) -> Recipe:
    """Pascal VOC 2012, 21 classes: Mask2Former on an encoder that ships, on any weights, or on a model from scratch.

    Command:  vitreous train voc_mask2former --data voc_seg/
              vitreous train voc_mask2former --data voc_seg/ --start none --model swin_t
    Cost:     not measured yet
    Score:    not measured yet
    Section:  Cheng et al. 2022; pictures and budget of voc_segmenter
    """
    return _as_segmenter(
        _on_voc("voc_mask2former", data, start, epochs, px=px, model=model), "voc_mask2former", MASK2FORMER
    )


def voc_eomt(data: str, start: str = "vitreous-s", epochs: float = 100.0, px: int = 320) -> Recipe:
    """Pascal VOC 2012, 21 classes: queries in the last blocks of an encoder that ships.

    Command:  vitreous train voc_eomt --data voc_seg/
    Cost:     not measured yet
    Score:    not measured yet
    Section:  Kerssies et al. 2025; pictures and budget of voc_segmenter
    """
    return _as_segmenter(_on_voc("voc_eomt", data, start, epochs, px=px), "voc_eomt", EOMT)


def _on_voc(name: str, data: str, start: str | None, epochs: float, *, px: int, model: str = "") -> Recipe:
    if start is None:
        network = model_settings(model, picture_px=px).regularised(stochastic_depth=0.1)
        normalise = Preprocessing(mean=IMAGENET_MEAN, std=IMAGENET_STD)
    else:
        card = Trained.load(start).card
        network = card.model.regularised(stochastic_depth=0.1).changed(picture_px=(px, px))
        normalise = card.preprocessing
    return Recipe(
        name=name,
        data=DataSettings(where=data, test_split="val", val_fraction=0.05, layout=LayoutSettings(targets="masks")),
        model=network,
        start=start,
        objective=EOMT,
        normalise=replace(normalise, crop="letterbox"),
        augmentation=Augmentation(
            crop=CropSettings(method="zoom", zoom=(0.5, 2.0)),
            colour=ColourSettings(brightness=0.3, contrast=0.3, saturation=0.3, hue=0.05),
        ),
        optimizer=AdamWSettings(lr=5e-4, weight_decay=0.05, layer_decay=0.8),
        schedule=ScheduleSettings(warmup_fraction=0.05),
        average=AverageSettings(kind="ema", factor=0.998),
        training=_on_a_gpu(epochs, 16),
    )


def _on_a_gpu(epochs: float, batch_size: int) -> TrainingSettings:
    return TrainingSettings(
        epochs=epochs,
        batch_size=batch_size,
        clip=1.0,
        precision="auto",
        compile="auto",
        evaluate_every_epochs=max(1.0, epochs / 10),
        workers=8,
    )
