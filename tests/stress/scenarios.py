"""What is interrupted: commands on tiny pictures, what must be the same of each whether it was interrupted or not, and
what must be whole at any moment."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from boxes import write_boxes
from captions import draw_captions, shrunk_words
from stress import warm
from vitreous import settings
from vitreous.data.augmentation import MixSettings
from vitreous.models import ViTSettings
from vitreous.recipes.distill import cifar10_deit
from vitreous.recipes.fashion import fashion_vit
from vitreous.recipes.masked import cifar10_mae
from vitreous.recipes.multicrop import cifar10_dino
from vitreous.recipes.recipe import Recipe
from vitreous.recipes.segment import rendered_segmenter
from vitreous.recipes.words import rendered_clip
from vitreous.storage import atomic
from vitreous.tasks.segment import SegmentSettings
from vitreous.training.averages import AverageSettings
from vitreous.training.loop import MemorySettings
from vitreous.training.optim import AdamWSettings
from vitreous.weights import own

SIDE = 28
STEPS, STEPS_PER_EPOCH = 20, 5
TIMES = {"train_s", "wall_s", "environment", "device", "commit"}  # what of a result depends on when and where


# ---- what commands start from: made once, whole or not at all


def once(path: Path, make: Callable[[Path], object]) -> Path:
    if not path.exists():
        with atomic.placed(path) as new:
            make(new)
    return path


def pictures(shared: Path) -> Path:
    """Noise of two tints."""

    def make(root: Path) -> None:
        generator = np.random.default_rng(0)
        for split, number in (("train", 40), ("val", 8), ("test", 8)):
            for label, name in enumerate(("dark", "light")):
                (root / split / name).mkdir(parents=True)
                for index in range(number // 2):
                    pixels = generator.integers(0, 128, (SIDE, SIDE, 3)) + 100 * label
                    Image.fromarray(pixels.astype(np.uint8)).save(root / split / name / f"{index}.png")

    return once(shared / "pictures", make)


def model(shared: Path) -> Path:
    """A trained classifier."""

    def make(new: Path) -> None:
        words = ["train", str(recipe_file(shared, "supervised")), "--training.checkpoint_every_s", "100"]
        warm.run([*words, "--out", str(new)], shared / "said" / "model")

    return once(shared / "model", make)


# ---- recipes


def small(recipe: Recipe, where: Path, **training: Any) -> Recipe:
    options: dict[str, Any] = {"steps": STEPS, "batch_size": 8, "log_every_steps": 3, "evaluate_every_epochs": 2.0}
    options |= {"checkpoint_every_s": 0.02, "workers": 0, "device": "cpu"}
    options |= {"precision": "fp32", "compile": False, "cuda_graph": False}
    return replace(
        recipe,
        data=replace(recipe.data, where=str(where)),
        model=ViTSettings(picture_px=(SIDE, SIDE), patch=7, width=16, depth=2, heads=2, stochastic_depth=0.2),
        optimizer=AdamWSettings(lr=1e-3),
        training=replace(recipe.training, **(options | training)),
    )


def supervised(shared: Path) -> Recipe:
    recipe = small(fashion_vit(), pictures(shared))
    return replace(
        recipe,
        model=replace(recipe.model, dropout=0.1),
        augmentation=replace(recipe.augmentation, mix=MixSettings(mixup=0.8)),
        average=AverageSettings(kind="ema", factor=0.9),
    )


def read_by_workers(shared: Path) -> Recipe:
    recipe = supervised(shared)
    return replace(
        recipe, data=replace(recipe.data, keep_gb=0.0), training=replace(recipe.training, workers=2, steps=12)
    )


def sharded(shared: Path) -> Recipe:
    """A share of every weight on each rank."""
    recipe = supervised(shared)
    return replace(recipe, training=replace(recipe.training, memory=MemorySettings(shard=True)))


def longer(shared: Path) -> Recipe:
    """Long enough to be met in the middle: nine tenths are still to come when the others look for it."""
    recipe = supervised(shared)
    return replace(recipe, training=replace(recipe.training, steps=200, checkpoint_every_s=0.1))


def longer_read(shared: Path) -> Recipe:
    recipe = read_by_workers(shared)
    return replace(recipe, training=replace(recipe.training, steps=200, checkpoint_every_s=0.1))


def mae(shared: Path) -> Recipe:
    recipe = small(cifar10_mae(), pictures(shared))
    objective = replace(recipe.objective, decoder_width=16, decoder_heads=2, decoder_depth=1)  # type: ignore[call-arg]
    return replace(recipe, model=replace(recipe.model, stochastic_depth=0.0), objective=objective)


def dino(shared: Path) -> Recipe:
    recipe = small(cifar10_dino(local_crops=2, picture_px=SIDE), pictures(shared), steps=15)
    objective = replace(recipe.objective, prototypes=32, hidden=32, bottleneck=16)  # type: ignore[call-arg]
    return replace(recipe, objective=objective)


def segmentation(shared: Path) -> Recipe:
    boxes = once(shared / "boxes", lambda new: write_boxes(new, 40))
    recipe = small(rendered_segmenter(start=None), boxes, steps=15)
    return replace(
        recipe, data=replace(recipe.data, val_fraction=0.2), objective=SegmentSettings(decoder="linear", heads=2)
    )


def towers(shared: Path) -> Recipe:
    """Of pictures and words, whose tokenizer is learned from the captions."""
    table = once(shared / "captions", lambda new: draw_captions(new, (("train", 40), ("val", 8)))) / "captions.csv"
    recipe = shrunk_words(rendered_clip(), table)
    training = replace(recipe.training, steps=12, batch_size=8, checkpoint_every_s=0.02, log_every_steps=3)
    return replace(recipe, training=replace(training, device="cpu"))


def student(shared: Path) -> Recipe:
    recipe = small(cifar10_deit(teacher=str(model(shared))), pictures(shared))
    return replace(recipe, model=replace(recipe.model, num_prefix=2))


_TRAINED = (supervised, sharded, read_by_workers, longer, longer_read, mae, dino, segmentation, towers, student)
RECIPES: dict[str, Callable[[Path], Recipe]] = {one.__name__: one for one in _TRAINED}


def recipe_file(shared: Path, name: str) -> Path:
    return once(shared / f"{name}.json", lambda new: settings.save(RECIPES[name](shared), new))


# ---- commands


@dataclass(frozen=True)
class Scenario:
    """A command, whose results are all in the folder OUT."""

    words: Callable[[Path, Path], list[str]]  # shared, OUT
    outcome: Callable[[Path], dict[str, Any]]  # of OUT: what does not depend on how often it was interrupted


def train_words(name: str) -> Callable[[Path, Path], list[str]]:
    return lambda shared, out: ["train", str(recipe_file(shared, name)), "--quiet", "--out", str(out)]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_below(out: Path, pattern: str) -> dict[str, str]:
    return {str(path.relative_to(out)): digest(path) for path in sorted(out.rglob(pattern))}


def timeless(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: timeless(value) for name, value in document.items() if name not in TIMES}
    return [timeless(one) for one in document] if isinstance(document, list) else document


def run_outcome(out: Path) -> dict[str, Any]:
    return {
        "losses": (out / "metrics.jsonl").read_text().splitlines(),
        "weights": files_below(out / "model", "model.*"),
        "results": timeless(json.loads((out / "results.json").read_text())),
    }


def fit_outcome(out: Path) -> dict[str, Any]:
    assert (out / "report.html").is_file()
    kept = ("model", "trained", "pixels", "predictions")
    return {
        "losses": (out / "metrics.jsonl").read_text().splitlines(),
        "weights": {name: files_below(out / name, "*.safetensors") for name in kept},
    }


def study_outcome(out: Path) -> dict[str, Any]:
    cells = sorted(out.rglob("cell.json"))
    return {
        "cells": {cell.parent.name: timeless(json.loads(cell.read_text())) for cell in cells},
        "weights": files_below(out, "*.safetensors"),
        "figures": sorted(path.name for path in out.glob("*.png")),
    }


def export_outcome(out: Path) -> dict[str, Any]:
    certificate = json.loads((out / "model.onnx.certificate.json").read_text())
    return {"files": files_below(out, "*.onnx"), "result": certificate["result"]}


def bulk_words(verb: str, flag: list[str], inside: str = "") -> Callable[[Path, Path], list[str]]:
    """Of all pictures, below the `inside` of them."""
    common = [*("--part", "16", "--batch", "8", "--device", "cpu", "--quiet")]
    return lambda shared, out: [
        *(verb, *flag, str(model(shared)), str(pictures(shared) / inside), *common, "--out", str(out / "rows"))
    ]


QUICK_FIT = [
    *("--from", "none", "--model.width", "16", "--model.depth", "1", "--model.heads", "2"),
    *("--training.steps", "12", "--training.checkpoint_every_s", "0.02"),
]
QUICK_STUDY = [
    *("--picture_px", "14", "--patch", "7", "--steps", "3", "--batch_size", "8", "--seeds", "1", "--rates", "0.001"),
    *("--base", "vit-t"),
]

SCENARIOS = {
    **{name: Scenario(train_words(name), run_outcome) for name in RECIPES if name != "student"},
    "fit": Scenario(
        lambda shared, out: ["fit", str(pictures(shared)), *QUICK_FIT, "--quiet", "--out", str(out)], fit_outcome
    ),
    "teach": Scenario(
        lambda shared, out: ["teach", str(recipe_file(shared, "student")), "--quiet", "--out", str(out)],
        lambda out: files_below(out, "*.safetensors") | files_below(out, "answers.json"),
    ),
    "study": Scenario(
        lambda shared, out: ["study", "head", str(pictures(shared)), *QUICK_STUDY, "--quiet", "--out", str(out)],
        study_outcome,
    ),
    "convert": Scenario(
        lambda shared, out: ["convert", str(model(shared)), str(out / "converted")],
        lambda out: files_below(out, "*.*"),
    ),
    "export": Scenario(
        lambda shared, out: ["export", str(model(shared)), "--quiet", "--out", str(out / "model.onnx")],
        export_outcome,
    ),
    "embed": Scenario(bulk_words("embed", []), lambda out: files_below(out / "rows", "*.*")),
    "index": Scenario(bulk_words("index", ["--model"]), lambda out: files_below(out / "rows", "*.*")),
}


def reference(shared: Path, name: str, ranks: int = 1) -> tuple[dict[str, Any], float]:
    """What an uninterrupted process, or several that train together, leave; and how many seconds it takes."""
    scenario, where = SCENARIOS[name], shared / "reference" / (name if ranks == 1 else f"{name}-{ranks}")

    def make(new: Path) -> None:
        commands = warm.together(scenario.words(shared, new / "out"), new / "said", ranks)
        ended = [command.wait() for command in commands]
        assert all(one.code == 0 for one in ended), ended
        (new / "seconds").write_text(str(ended[0].seconds))

    once(where, make)
    return scenario.outcome(where / "out"), float((where / "seconds").read_text())


# ---- at any moment


def half_written(out: Path) -> list[str]:
    """Whatever looks whole and is not: a folder of ours whose manifest is missing or wrong, a JSON file cut short."""
    found = []
    for path in sorted(out.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(out).parts):
            continue  # under names that nobody reads
        if path.is_dir() and any(path.glob("*.safetensors")):
            if wrong := own.verify_folder(path):
                found.append(wrong)
        elif path.suffix == ".json":
            try:
                json.loads(path.read_text())
            except ValueError as error:
                found.append(f"{path}: {error}")
    return found
