"""Drafts of a segmenter for some data on some machine: from small pictures to large ones."""

import os
from dataclasses import replace

from vitreous import settings
from vitreous.data.augmentation import Augmentation, ColourSettings, CropSettings
from vitreous.data.check import DataReport
from vitreous.data.sources import DataSettings
from vitreous.data.transforms import Preprocessing
from vitreous.fitting.budget import Budget
from vitreous.fitting.course import COOLDOWN
from vitreous.fitting.plan import Choice
from vitreous.fitting.transfer import NONE
from vitreous.fitting.wishes import Hardware, Wishes
from vitreous.models import ModelSettings, ViTSettings
from vitreous.recipes.recipe import Recipe, batch_for, short_name
from vitreous.tasks.segment import SegmentSettings
from vitreous.training.averages import AverageSettings
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import AdamWSettings, MuonSettings, OptimizerSettings
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.shipped import shipped
from vitreous.weights.trained import Trained

SIDES = {"cpu": (96, 128, 192, 256), "cuda": (192, 256, 384, 512)}  # px of pictures of the same area, side by side
BATCH = {"cpu": 8, "cuda": 16}
SEEN = {"cpu": 12_000, "cuda": 100_000}  # pictures, where no time is given


def pixel_drafts(report: DataReport, data: DataSettings, hardware: Hardware, wishes: Wishes) -> list[Recipe]:
    """From small pictures to large ones; one where the size was given."""
    start = _start(wishes)
    model, normalise = _model(start, report)
    sizes = _sizes(report, model, hardware)
    drafted = [
        _draft(replace(model, picture_px=size), normalise, report, data=data, hardware=hardware, start=start)
        for size in sizes
    ]
    given = {name: text for name, text in wishes.changes.items() if not name.startswith("data.")}
    changed = [settings.changed(one, given) for one in drafted]
    return changed[:1] if wishes.gives("model.picture_px") else changed


def _start(wishes: Wishes) -> str | None:
    if wishes.start is not None:
        return None if wishes.start == NONE else wishes.start
    return None if wishes.gives_a_model or not shipped() else shipped()[-1]


def _model(start: str | None, report: DataReport) -> tuple[ModelSettings, Preprocessing]:
    """Small patches: what is smaller than one is hardly seen."""
    if start is not None:
        card = Trained.load(start).card
        return card.model, replace(card.preprocessing, crop="squash")
    model = ViTSettings(patch=8, width=192, depth=6, heads=6, pool="mean", num_prefix=0, positions="sincos")
    return model, Preprocessing(crop="squash", mean=report.mean, std=report.std)


def _sizes(report: DataReport, model: ModelSettings, hardware: Hardware) -> list[tuple[int, int]]:
    """In the proportions of the pictures, in whole cells, and never much larger than they are."""
    height, width, cell = report.heights[1], report.widths[1], model.cell_px
    own = (height * width) ** 0.5
    sides = [side for side in SIDES[hardware.kind] if side < 1.25 * own] or [SIDES[hardware.kind][0]]
    found = []
    for side in sides:
        scale = side / own
        whole = [max(2, round(px * scale / step)) * step for px, step in zip((height, width), cell, strict=True)]
        found.append((whole[0], whole[1]))
    return list(dict.fromkeys(found))


def _draft(
    model: ModelSettings,
    normalise: Preprocessing,
    report: DataReport,
    *,
    data: DataSettings,
    hardware: Hardware,
    start: str | None,
) -> Recipe:
    batch = batch_for(report.num_train, BATCH[hardware.kind])
    epochs = min(max(SEEN[hardware.kind] / report.num_train, 5.0), 200.0)
    steps = max(1, round(epochs * report.num_train / batch))
    optimizer: OptimizerSettings = MuonSettings(lr=2e-3, weight_decay=0.2, adam_lr=2e-3)
    if start is not None:
        optimizer = AdamWSettings(lr=5e-4, weight_decay=0.05, layer_decay=0.8)
    training = TrainingSettings(
        epochs=round(epochs, 4), batch_size=batch, log_every_steps=20, evaluate_every_epochs=round(epochs / 5, 4)
    )
    if hardware.kind == "cuda":
        training = replace(training, precision="bf16", workers=min(8, os.cpu_count() or 1))
    return Recipe(
        name=f"fit-{short_name(data.where)}",
        data=data,
        model=model,
        start=start,
        objective=SegmentSettings(depth=1),
        normalise=normalise,
        augmentation=Augmentation(
            crop=CropSettings(scale=(0.35, 1.0)), colour=ColourSettings(brightness=0.2, contrast=0.2, saturation=0.2)
        ),
        optimizer=optimizer,
        schedule=ScheduleSettings(warmup_fraction=0.1, decay="constant", cooldown_fraction=COOLDOWN),
        # An average over the last tenth or so.
        average=AverageSettings(kind="ema", factor=round(min(max(1 - 12 / steps, 0.9), 0.9999), 6)),
        training=training,
    )


def pixel_choices(
    recipe: Recipe, report: DataReport, hardware: Hardware, wishes: Wishes, kept: Budget | None
) -> tuple[Choice, ...]:
    def choice(what: str, value: str, why: str, *names: str) -> Choice:
        return Choice(what=what, value=value, why="as you asked" if wishes.gives(*names) else why)

    (height, width), training = recipe.model.picture_px, recipe.training
    steps = training.num_steps(max(1, report.num_train // training.batch_size))
    timed = "the usual number of passes" if kept is None else f"what fits into {kept.total_s:.0f} s"
    return (
        choice("task", "segmentation", f"the pictures have masks, of {len(report.classes)} classes"),
        choice("hardware", hardware.name, "what is here", "training.device"),
        choice("start", recipe.start or "random weights", "as you asked" if wishes.start else "ships with the package"),
        choice("model", recipe.model.name, "that of the weights it starts from" if recipe.start else "small", "model"),
        choice("decoder", getattr(recipe.objective, "decoder", ""), "a token per class among the patches", "objective"),
        choice("resolution", f"{width} x {height} px", "the largest that can be seen often enough", "model.picture_px"),
        choice(
            "length",
            f"{steps * training.batch_size / report.num_train:.1f} epochs, {steps:,} steps",
            timed,
            "training.epochs",
            "training.steps",
        ),
        choice("batch", f"{training.batch_size} pictures", "small sets need many steps", "training.batch_size"),
    )
