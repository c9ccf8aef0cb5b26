"""From files to the GPU: how much of what a step can do on pictures that are there already is left with real input.

    python benchmarks/pipeline.py --out docs/results/pipeline.json

Every model takes the step of the real training loop (bf16, compiled, one CUDA graph, fused AdamW, norm, watch for NaN):

synthetic      on one normalised batch that stays: nothing is read, copied or augmented
augmented      on one batch of uint8 that stays on the device: what `prepare` costs
memory, N      pictures are decoded already, N readers cut them
files, N       JPEG files, N readers read, decode and cut them

and `synthetic` once more at the end, since whatever else changed meanwhile changes that, too. `waiting` is the share of
the time in which the host waited for readers, `prepare_ms` is `prepare` alone, `read_images_s` N readers alone.
Augmentation: `plain` is a random-resized crop and a flip; `strong` is DeiT's: RandAugment, erasing, Mixup and CutMix.
The pictures are made here (500 x 375 px, 50 kB each, as photographs are), or those of --data FOLDER. `--tiny` tries it
out on any machine.
"""

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from one_step import SameBatch
from vitreous.batch import Batch
from vitreous.cli import one_line_errors
from vitreous.data.augmentation import Augmentation, EraseSettings, MixSettings, WarpSettings
from vitreous.data.base import Source
from vitreous.data.loader import TrainLoader
from vitreous.data.memory import InMemory
from vitreous.data.sources import DataSettings
from vitreous.data.transforms import Preprocessing
from vitreous.models import model_settings
from vitreous.objectives.base import Objective
from vitreous.objectives.mae import MAESettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.averages import AverageSettings
from vitreous.training.devices import World
from vitreous.training.environment import environment
from vitreous.training.loop import Loop, TrainingData, TrainingSettings
from vitreous.training.optim import AdamWSettings
from vitreous.training.schedule import ScheduleSettings

AUGMENTATIONS = {
    "plain": Augmentation(),
    "strong": Augmentation(
        warp=WarpSettings(ops=2, magnitude=9),
        erase=EraseSettings(probability=0.25, fill="noise"),
        mix=MixSettings(mixup=0.8, cutmix=1.0),
    ),
}
SIZES = ((375, 500), (500, 375))  # of made pictures, in turn: those of one size would live on the device


def make_pictures(folder: Path, num: int) -> None:
    """JPEGs with structure at all scales, so that they take as many bytes as photographs."""
    generator = np.random.default_rng(0)
    for number in range(num):
        size = SIZES[number % 2]
        levels = np.zeros((*size, 3))
        for cells, height in ((3, 90), (12, 50), (48, 25), (200, 12)):
            noise = generator.normal(0, height, (cells * 3 // 4, cells, 3)).clip(-127, 127) + 128
            grown = Image.fromarray(noise.astype(np.uint8)).resize(size[::-1], Image.Resampling.BICUBIC)
            levels += np.asarray(grown, dtype=np.float64) - 128
        path = folder / f"class{number % 10}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((levels + 128).clip(0, 255).astype(np.uint8)).save(path, quality=90)


class Staying:
    """A loader whose first inputs come again and again."""

    waited_s = 0.0

    def __init__(self, loader: TrainLoader) -> None:
        self.steps_per_epoch, self.prepare = loader.steps_per_epoch, loader.prepare
        with closing(loader.inputs(0, 1)) as found:
            self.first = tuple(tensor.clone() for tensor in next(found))

    def inputs(self, start: int, stop: int) -> Iterator[tuple[Tensor, ...]]:
        return iter([self.first] * (stop - start))


class Cell:
    """A model with an augmentation."""

    def __init__(self, model: str, augmentation: str, source: Source, options: argparse.Namespace) -> None:
        self.options, self.world, self.source = options, World.join("auto"), source
        self.views = [AUGMENTATIONS[augmentation].build(Preprocessing(size_px=options.size_px))]
        torch.manual_seed(0)
        small = {"width": 32, "depth": 2, "heads": 2, "mlp_width": 64, "patch": 8} if options.tiny else {}
        name = f"vit_{model.removeprefix('mae_')}" if model.startswith("mae_") else model
        encoder = replace_size(name, options.size_px, small, is_mae=model.startswith("mae_"))
        task = MAESettings() if model.startswith("mae_") else ClassifySettings()
        if options.tiny and isinstance(task, MAESettings):
            task = replace(task, decoder_depth=1, decoder_width=32, decoder_heads=2)
        self.objective: Objective = task.build(encoder.build(), source.classes).to(self.world.device)

    def loader(self, source: Source, workers: int) -> TrainLoader:
        return TrainLoader(
            source,
            self.views,
            batch_size=self.options.batch_size,
            seed=0,
            device=self.world.device,
            workers=workers,
        )

    def loop(self, data: TrainingData) -> Loop:
        settings = TrainingSettings(
            batch_size=self.options.batch_size, precision="auto", compile="auto", clip=None, steps=10**6
        )
        return Loop(
            self.objective,
            data,
            optimizer=AdamWSettings(lr=1e-5, weight_decay=0.05).build(self.objective),
            schedule=ScheduleSettings(decay="constant"),
            average=AverageSettings().build(self.objective),
            settings=settings,
            world=self.world,
        )

    def wait(self) -> None:
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()

    def measured(self, data: TrainingData, workers: int = 0) -> dict[str, float]:
        """Steps with this input, after as many as readers hold ready."""
        loop, first = self.loop(data), 2 * workers + 8
        if isinstance(data, SameBatch):
            loop.prepare = data.prepare
        inputs = loop.data.inputs(0, first + self.options.steps)
        for _ in range(first):
            loop.run_step(*next(inputs))
        self.wait()
        began, waited = time.perf_counter(), data.waited_s
        for found in inputs:
            loop.run_step(*found)
        self.wait()
        seconds = time.perf_counter() - began
        del loop, inputs
        clear()
        rate = self.options.steps * self.options.batch_size / seconds
        facts = {"images_s": round(rate, 1), "step_ms": round(1000 * seconds / self.options.steps, 3)}
        return facts | {"waiting": round((data.waited_s - waited) / seconds, 4)}

    def prepare_ms(self, data: Staying) -> float:
        prepare = torch.compile(data.prepare, dynamic=False) if self.world.device.type == "cuda" else data.prepare
        for _ in range(4):
            prepare(*data.first)
        self.wait()
        began, times = time.perf_counter(), self.options.steps
        for _ in range(times):
            prepare(*data.first)
        self.wait()
        return round(1000 * (time.perf_counter() - began) / times, 3)

    def read_images_s(self, loader: TrainLoader, workers: int) -> float:
        first, steps = 2 * workers + 2, max(4 * workers, 8)
        with closing(loader.inputs(0, first + steps)) as inputs:
            for _ in range(first):
                next(inputs)
            began = time.perf_counter()
            for _ in inputs:
                pass
            self.wait()
        return round(steps * self.options.batch_size / (time.perf_counter() - began), 1)


def replace_size(name: str, size_px: tuple[int, int], small: dict[str, Any], is_mae: bool) -> Any:
    found = replace(model_settings(name), picture_px=size_px, **{"positions": "sincos"} if is_mae else {})
    return found.changed(**small)


def clear() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def results(model: str, augmentation: str, sources: dict[str, Source], options: argparse.Namespace) -> dict[str, Any]:
    cell = Cell(model, augmentation, sources["files"], options)
    staying = Staying(cell.loader(sources["files"], workers=0))
    batch: Batch = staying.prepare(*staying.first)
    found: dict[str, Any] = {"model": model, "augmentation": augmentation, "batch_size": options.batch_size}
    found |= {"prepare_ms": cell.prepare_ms(staying), "kinds": {"synthetic": cell.measured(SameBatch(batch))}}
    found["kinds"]["augmented"] = cell.measured(staying)
    for what, source in sources.items():
        for workers in options.workers:
            kind = f"{what}, {workers}"
            found["kinds"][kind] = cell.measured(cell.loader(source, workers), workers)
            if augmentation == options.augmentations[0] and model == options.models[0]:
                alone = cell.read_images_s(cell.loader(source, workers), workers)
                found["kinds"][kind]["read_images_s"] = alone
    found["kinds"]["synthetic again"] = cell.measured(SameBatch(batch))
    bare = max(found["kinds"][kind]["images_s"] for kind in ("synthetic", "synthetic again"))
    for facts in found["kinds"].values():
        facts["of_synthetic"] = round(facts["images_s"] / bare, 4)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vit_b16", "vit_l16", "mae_b16"], help="mae_NAME: a MAE")
    parser.add_argument("--augmentations", nargs="+", default=list(AUGMENTATIONS), choices=list(AUGMENTATIONS))
    parser.add_argument("--workers", nargs="+", type=int, default=[8, 15])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=120, help="measured, per kind of input")
    parser.add_argument("--pictures", type=int, default=4096, help="to be made")
    parser.add_argument("--data", help="a folder of pictures in folders by class")
    parser.add_argument("--tiny", action="store_true", help="tiny models and few pictures, to try the script")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.size_px = (32, 32) if options.tiny else (224, 224)
    if options.tiny:
        options.batch_size, options.steps, options.pictures = 8, 4, 32
    report: dict[str, Any] = {"environment": environment(), "results": []}
    with tempfile.TemporaryDirectory() as made:
        if options.data is None:
            make_pictures(Path(made), options.pictures)
        unsplit = DataSettings(where=options.data or made, val_fraction=0, test_fraction=0, keep_gb=0)
        files = unsplit.build().train
        report["bytes_a_picture"] = bytes_of(files)
        sources = {"memory": InMemory(files), "files": files}
        for model in options.models:
            for augmentation in options.augmentations:
                report["results"].append(results(model, augmentation, sources, options))
                print(json.dumps(report["results"][-1]), flush=True)
                if options.out:
                    options.out.write_text(json.dumps(report, indent=2) + "\n")
                torch.compiler.reset()


def bytes_of(source: Source) -> int:
    chosen = range(0, len(source), max(1, len(source) // 64))
    return round(float(np.mean([Path(source.where(index)).stat().st_size for index in chosen])))


if __name__ == "__main__":
    with one_line_errors():
        main()
