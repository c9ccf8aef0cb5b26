"""Detection with DETR (Carion et al. 2020) and Deformable DETR (Zhu et al. 2021): drawn pictures, Pascal VOC, COCO."""

from dataclasses import replace

from vitreous.data.augmentation import Augmentation, ColourSettings, CropSettings
from vitreous.data.names import LayoutSettings
from vitreous.data.sources import DataSettings, open_sources
from vitreous.errors import UserError
from vitreous.models import ModelSettings, ResNetV1Settings, model_settings
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.detect import DetectSettings
from vitreous.tasks.detect_loss import CostSettings, LossSettings
from vitreous.training.averages import AverageSettings
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import AdamWSettings
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.card import Card
from vitreous.weights.detr import FROZEN_LEVELS, PREPROCESSING
from vitreous.weights.trained import Trained

# Learns in minutes: from boxes that are proposed, with hints (Li et al. 2022), a loss by quality (Zhang et al. 2021).
QUICK = DetectSettings(dropout=0.0, two_stage=True, weights=LossSettings(hints=1.0, quality=True))
VOC = replace(QUICK, queries=150, encoder_depth=2, decoder_depth=4, levels=3, finest=1)


def rendered_detr(start: str = "vitreous-xs", epochs: float | None = None, gpu: bool = False) -> Recipe:
    """Shapes drawn from a seed, with boxes, at 64 px: Deformable DETR in two stages on an encoder that ships.

    Command:  vitreous train rendered_detr
              vitreous train rendered_detr --gpu true
    Cost:     about 200 s of CPU time on one thread per 300 steps; with --gpu true 161 s on an H200
    Score:    AP 52.2 %, AP50 69.7 % on val after 300 steps (--epochs 2.4, one seed); with the focal loss and without
              hints 21.9 % then. On its 500 test pictures after all 10 epochs 74.5 %, after 25 87.8 %,
              with --gpu true (120 epochs at 128 px) 99.1 %
    Section:  Zhu et al. 2021, sections 4 and A.4; the recipe is ours. A ViT mixes its patches already, so on the CPU
              the detector has no encoder of its own
    """
    card = Trained.load(start).card
    head = replace(QUICK, queries=20, width=96, heads=4, mlp_width=192, encoder_depth=0, decoder_depth=3, levels=2)
    recipe = Recipe(
        name="rendered_detr",
        data=DataSettings(where="rendered:objects"),
        model=replace(card.model, picture_px=(64, 64)),
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
    training = TrainingSettings(
        epochs=epochs or 120.0,
        batch_size=32,
        precision="auto",  # not compiled, which would take as long as all steps
        evaluate_every_epochs=40,
    )
    # Twice as large, the size the encoder knows: boxes are more precise.
    return replace(
        recipe,
        model=replace(card.model, picture_px=(128, 128)),
        objective=replace(head, width=128, heads=8, mlp_width=512, encoder_depth=1, levels=3),
        augmentation=Augmentation(crop=CropSettings(method="pad", pad_px=12)),
        average=AverageSettings(kind="ema", factor=0.998),
        training=training,
    )


def voc_deformable(
    data: str, start: str = "vitreous-s", px: int = 320, epochs: float = 50.0, batch_size: int = 32
) -> Recipe:
    """Pascal VOC with Deformable DETR in two stages on an encoder that ships, for minutes of a large GPU.

    Command:  vitreous train voc_deformable --data voc_boxes/     (tools/pack_boxes.py makes the folder)
    Cost:     not measured yet
    Score:    not measured yet
    Section:  Zhu et al. 2021; the recipe is ours. Patches of 8 px are fine enough, so the pyramid begins there
    """
    card = Trained.load(start).card
    return Recipe(
        name="voc_deformable",
        data=DataSettings(where=data, val_fraction=0.05, layout=LayoutSettings(targets="boxes")),
        model=replace(card.model, picture_px=(px, px)),
        start=start,
        objective=VOC,
        normalise=replace(card.preprocessing, crop="letterbox"),
        augmentation=Augmentation(
            crop=CropSettings(method="zoom", zoom=(0.5, 1.5)),
            colour=ColourSettings(brightness=0.3, contrast=0.3, saturation=0.3),
        ),
        optimizer=AdamWSettings(lr=5e-4, weight_decay=0.05, layer_decay=0.8),
        schedule=ScheduleSettings(warmup_fraction=0.03, decay="constant", cooldown_fraction=0.5),
        average=AverageSettings(kind="ema", factor=0.9995),
        training=TrainingSettings(
            epochs=epochs,
            batch_size=batch_size,
            clip=0.5,
            precision="auto",
            compile="auto",
            evaluate_every_epochs=10,
            workers=14,
        ),
    )


def coco_detr(start: str, data: str, model: str = "resnet50", px: int = 800, epochs: float = 300.0) -> Recipe:
    """COCO with DETR, by the paper's settings: its 300 epochs, on a canvas of one size.

    Command:  vitreous train coco_detr --start torchvision_resnet50/ --data COCO/
    Cost:     3 days on 16 V100 (the paper's); never run by us
    Score:    AP 40.6 % after 300 epochs (the paper's); never run by us
    Section:  Carion et al. 2020, sections 4 and A.4. Pictures are scaled by 0.6 to 1.25 onto one canvas; the paper
              resizes the shorter side to 480 to 800 px and crops at random
    """
    detr = DetectSettings(
        decoder="detr",
        queries=100,
        mlp_width=2048,
        refine=False,
        cost=CostSettings(classes=1.0),
        weights=LossSettings(classes=1.0),
    )
    recipe = _on_coco("coco_detr", start, data, _encoder(model, px), detr)
    training = replace(recipe.training, epochs=epochs, batch_size=64)
    return replace(recipe, schedule=_dropping(1 / 3), training=training)


def coco_deformable_detr(
    start: str,
    data: str,
    *,
    model: str = "resnet50",
    px: int = 800,
    epochs: float = 50.0,
    refine: bool = True,
    two_stage: bool = False,
) -> Recipe:
    """COCO with Deformable DETR, by the paper's settings; boxes are refined from layer to layer.

    Command:  vitreous train coco_deformable_detr --start torchvision_resnet50/ --data COCO/
    Cost:     325 GPU hours on V100 (the paper's, without refinement); never run by us
    Score:    AP 45.4 %, with two stages 46.2 % (the paper's); never run by us
    Section:  Zhu et al. 2021, section 5 and appendix A. Pictures as in coco_detr; attention's offsets learn at the rate
              of the rest, not at a tenth
    """
    head = DetectSettings(queries=300, refine=refine, two_stage=two_stage)
    recipe = _on_coco("coco_deformable_detr", start, data, _encoder(model, px), head)
    optimizer = AdamWSettings(lr=2e-4, weight_decay=1e-4, encoder_rate=0.1)
    training = replace(recipe.training, epochs=epochs, batch_size=32)
    return replace(recipe, optimizer=optimizer, schedule=_dropping(0.2), training=training)


def _encoder(model: str, px: int) -> ModelSettings:
    found = model_settings(model, picture_px=(px, px))
    if isinstance(found, ResNetV1Settings):
        return found.changed(learned_norms=False, frozen_levels=FROZEN_LEVELS)
    return found


def _on_coco(name: str, start: str, data: str, encoder: ModelSettings, head: DetectSettings) -> Recipe:
    return Recipe(
        name=name,
        data=DataSettings(where=data),
        model=encoder,
        start=start,
        objective=head,
        normalise=PREPROCESSING,
        augmentation=Augmentation(crop=CropSettings(method="zoom", zoom=(0.6, 1.25))),
        optimizer=AdamWSettings(lr=1e-4, weight_decay=1e-4, encoder_rate=0.1),
        training=TrainingSettings(clip=0.1, precision="auto", compile="auto", evaluate_every_epochs=10, workers=16),
    )


def _dropping(share: float) -> ScheduleSettings:
    """Drops to a tenth for the last share of the run."""
    return ScheduleSettings(decay="drop", cooldown_fraction=share, final_fraction=0.1)


# ---- fine-tuning on pictures with objects


def has_objects(data: str) -> bool:
    """Whether the pictures have them; False if they cannot be opened: training on them will report why."""
    try:
        return any(source.targets.task == "detect" for source in open_sources(data).values())
    except UserError:
        return False


def for_objects(recipe: Recipe, card: Card) -> Recipe:
    """A recipe that fine-tunes, with a decoder instead of a head: one as in the weights it starts from, or that of
    `voc_deformable`. It learns from the start, since its classes may be others."""
    finds = card.task is not None and card.task.task_kind in ("detect", "instances")
    has_shapes = card.task is not None and card.task.task_kind == "instances"
    task = card.task if finds and card.task is not None else replace(VOC, finest=2)
    return replace(
        recipe,
        data=replace(recipe.data, layout=LayoutSettings(targets="instances" if has_shapes else "boxes")),
        objective=task,
        normalise=replace(recipe.normalise, crop="letterbox"),
        augmentation=Augmentation(
            crop=CropSettings(method="zoom", zoom=(0.7, 1.4)),
            colour=ColourSettings(brightness=0.2, contrast=0.2, saturation=0.2),
        ),
        optimizer=AdamWSettings(lr=5e-4, weight_decay=0.05, layer_decay=0.8),
        training=replace(recipe.training, batch_size=16),
    )
