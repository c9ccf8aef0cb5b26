"""CIFAR-10 from scratch: several recipes and seeds, one after the other in one process.

    python benchmarks/cifar10.py --recipes cifar10_vit cifar10_hybrid --seeds 3 --out docs/results/cifar10.json

Reported runs train on all 50,000 training pictures and read the test set once, at the end. With --choose, a tenth of
train is held out and scored instead, and the test set stays unread: that is how every setting here was chosen.
Further settings go to every recipe: --optimizer.lr 0.002. With --finetune-px 48 each run is fine-tuned at that size.

What is worth trying has names (EXPERIMENTS, in the order in which to try it; --list shows them): some settings of a
recipe, or several stages, of which the last is scored.

    python benchmarks/cifar10.py --choose --experiments vit vit-48 --scale 0.3 --runs runs/tried --out tried.json

--scale shortens every stage alike. With --runs the same command again goes on where it ended, and with --seconds N it
saves and stops after so long (exit code 143). Several such programs may share a GPU, each with an --out of its own.
"""

import argparse
import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitreous.cli import dotted, one_line_errors
from vitreous.jobs.data import OpenData
from vitreous.jobs.train import train
from vitreous.models.flops import training_flops
from vitreous.models.shapes import shapes_only
from vitreous.recipes import Recipe, find_recipe
from vitreous.recipes.cifar10 import cifar10_finetune
from vitreous.studies.grid import DecodedOnce
from vitreous.training.environment import environment


@dataclass(frozen=True)
class Experiment:
    why: str  # and what it is expected to gain, in points, before anything is measured
    stages: tuple[tuple[str, dict[str, str]], ...]  # recipe, settings; RUN-0 stands for the folder of the first stage


def end(px: int, epochs: int, *, light: bool = False) -> tuple[str, dict[str, str]]:
    """The last epochs of a run whose first stage ended at 0.15 of its rate: larger pictures, or milder augmentation."""
    words = {
        "start": "RUN-0",
        "start_head": "true",
        "picture_px": str(px),
        "epochs": str(epochs),
        "optimizer.kind": "Muon",
        "optimizer.lr": "0.0003",
        "optimizer.adam_lr": "0.00015",
        "optimizer.weight_decay": "0.5",
        "schedule.decay": "linear",
        "schedule.warmup_fraction": "0",
    }
    if light:
        words |= {"augmentation.mix.probability": "0", "augmentation.warp.magnitude": "5"}
    return "cifar10_finetune", words


UNFINISHED = {"schedule.final_fraction": "0.15"}
LARGE = {
    "model.width": "384",
    "model.depth": "6",
    "model.stem.widths": "96,192,384",
    "model.stem.residuals": "2,2,2",
    "model.heads": "12",
    "model.stochastic_depth": "0.2",
}
SOFT = {
    "objective.kind": "Distill",
    "objective.distillation": "soft",
    "objective.weight": "0.8",
    "objective.temperature": "2",
    "objective.student.head": "linear",
    "objective.student.label_smoothing": "0.1",
    "teacher": "RUN-0",
}


def one(recipe: str, why: str, **settings: str) -> Experiment:
    return Experiment(why, ((recipe, {name.replace("__", "."): text for name, text in settings.items()}),))


EXPERIMENTS = {
    # Plain ViTs of at most 6.5 M parameters, 200 epochs in all: 95.5 % so far.
    "vit": one("cifar10_vit", "as it is"),
    "vit-48": one("cifar10_vit", "144 tokens for 64; ten epochs of them gave 0.5: +0.7", model__picture_px="48,48"),
    "vit-end-48": Experiment(
        "the same in the last quarter only, at 1.35 times the cost: +0.6",
        (("cifar10_vit", UNFINISHED | {"epochs": "150"}), end(48, 50)),
    ),
    "vit-end": Experiment(
        "milder augmentation at the end, when pictures should look like those of the test: +0.2",
        (("cifar10_vit", UNFINISHED | {"epochs": "180"}), end(32, 20, light=True)),
    ),
    "vit-2px": one("cifar10_vit", "256 tokens, four times the cost: +0.9", model__patch="2"),
    "vit-layers": one(
        "cifar10_vit",
        "learned positions in every layer: a point in the study of positions, at 2,500 steps: +0.2",
        model__positions="learned-2d",
        model__ends__positions_where="every-layer",
    ),
    "vit-depth-0.2": one("cifar10_vit", "more of what regularises: 0 to +0.2", model__stochastic_depth="0.2"),
    "vit-smooth-0": one("cifar10_vit", "mixing smooths already: 0 to +0.1", objective__label_smoothing="0"),
    "vit-mix-0.8": one("cifar10_vit", "200 epochs bear more: -0.1 to +0.2", augmentation__mix__probability="0.8"),
    "vit-mix-0.4": one("cifar10_vit", "or less: -0.2 to +0.1", augmentation__mix__probability="0.4"),
    "vit-average": one("cifar10_vit", "an average over 5,000 steps, not 1,000: 0 to +0.1", average__factor="0.9998"),
    "vit-rate": one("cifar10_vit", "0.003 for 0.002: -0.2 to +0.2", optimizer__lr="0.003"),
    "vit-decay": one("cifar10_vit", "0.3 for 0.5: -0.2 to +0.1", optimizer__weight_decay="0.3"),
    "vit-deep": one(
        "cifar10_vit", "14 blocks of width 192: -0.2 to +0.3", model__depth="14", model__width="192", model__heads="6"
    ),
    "vit-registers": one("cifar10_vit", "four registers: 0 to +0.1", model__num_registers="4"),
    # Hybrids, 150 epochs in all: 96.6 % so far.
    "hybrid": one("cifar10_hybrid", "as it is"),
    "hybrid-40": one("cifar10_hybrid", "100 tokens, 1.6 times the cost: +0.2", model__picture_px="40,40"),
    "hybrid-fine": one("cifar10_hybrid", "256 tokens, about four times the cost: +0.4", model__stem__strides="1,1,2"),
    "hybrid-end": Experiment(
        "milder augmentation at the end: +0.2",
        (("cifar10_hybrid", UNFINISHED | {"epochs": "130"}), end(32, 20, light=True)),
    ),
    "hybrid-end-48": Experiment(
        "144 tokens in the last fifth: +0.3", (("cifar10_hybrid", UNFINISHED | {"epochs": "120"}), end(48, 30))
    ),
    "hybrid-stem": one("cifar10_hybrid", "two residual units per stage: +0.1", model__stem__residuals="2,2,2"),
    "hybrid-depth-0.2": one("cifar10_hybrid", "more of what regularises: 0 to +0.2", model__stochastic_depth="0.2"),
    # Anything within 30 minutes of an H200.
    "large": Experiment(
        "a hybrid of 15 M parameters, twice as long, the end at 48 px: 97.3",
        (("cifar10_hybrid", LARGE | UNFINISHED | {"epochs": "270"}), end(48, 30)),
    ),
    "fine-300": one("cifar10_hybrid", "256 tokens, 300 epochs: 97.3", model__stem__strides="1,1,2", epochs="300"),
    "taught": Experiment(
        "the plain ViT, taught by the hybrid and the labels: 96.5",
        (("cifar10_hybrid", {}), ("cifar10_vit", SOFT)),
    ),
    "taught-48": Experiment(
        "the same, with 144 tokens: 97.0",
        (("cifar10_hybrid", {}), ("cifar10_vit", SOFT | {"model.picture_px": "48,48"})),
    ),
    # DeiT's own predictions.
    "deit": Experiment(
        "a distillation token that learns the hybrid's decisions",
        (("cifar10_hybrid", {}), ("cifar10_deit", {"teacher": "RUN-0"})),
    ),
    "deit-resnet": Experiment(
        "the same, of the ResNet's", (("cifar10_resnet", {}), ("cifar10_deit", {"teacher": "RUN-0"}))
    ),
    # Beside MAE's 96.2: the same model and fine-tuning from random weights.
    "scratch-220": one("cifar10_tuned", "94.4 after 111 epochs", epochs="220"),
}


def stages(name: str, folder: Path, changes: dict[str, str], scale: float) -> Iterator[tuple[Path, Recipe]]:
    """Each with the folder of its run; a stage is built when the one before has ended."""
    for number, (recipe, settings) in enumerate(EXPERIMENTS[name].stages):
        given = {key: text.replace("RUN-0", str(folder / "0")) for key, text in settings.items()}
        found = find_recipe(recipe, given | changes)
        epochs = round(scale * found.training.epochs, 2)
        yield folder / str(number), replace(found, training=replace(found.training, epochs=epochs))


def run(recipe: Recipe, folder: Path, choose: bool, open_data: OpenData) -> dict[str, Any]:
    recipe = replace(recipe, data=replace(recipe.data, val_fraction=0.1 if choose else 0.0))
    results = train(recipe, folder, read_test=not choose, open_data=open_data)
    with shapes_only():
        per_picture = training_flops(recipe.model.build())
    pictures = results["steps"] * recipe.training.batch_size
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return results | {
        "seed": recipe.training.seed,
        "epochs": recipe.training.epochs,
        "picture_px": recipe.model.picture_px,
        "training_flops": per_picture * pictures,
        "pictures_s": round(pictures / results["train_s"]),
        "curve": [[line["epoch"], line["loss"]] for line in lines if "loss" in line][:: max(1, len(lines) // 40)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=[])
    parser.add_argument("--experiments", nargs="+", default=[], choices=EXPERIMENTS, metavar="NAME")
    parser.add_argument("--list", action="store_true", help="the experiments, and what is expected of them")
    parser.add_argument("--scale", type=float, default=1.0, help="of the epochs of an experiment's stages")
    parser.add_argument("--runs", type=Path, help="a folder where the experiments' runs stay, to go on with")
    parser.add_argument("--seconds", type=float, help="save and stop after so long")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--choose", action="store_true", help="score on held-out training pictures; leave test unread")
    parser.add_argument("--finetune-px", type=int)
    parser.add_argument("--keep", type=Path, help="a folder where each run leaves its model")
    parser.add_argument("--out", type=Path)
    options, rest = parser.parse_known_args()
    if options.list:
        print("\n".join(f"{name:18} {found.why}" for name, found in EXPERIMENTS.items()))
        return
    if options.out is None or not (options.recipes or options.experiments):
        parser.error("name --recipes or --experiments, and --out")
    if options.seconds is not None:
        stop = threading.Timer(options.seconds, os.kill, (os.getpid(), signal.SIGTERM))
        stop.daemon = True
        stop.start()
    torch.set_float32_matmul_precision("high")
    open_data = DecodedOnce()
    rows: list[dict[str, Any]] = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name in options.experiments:
            changes = dotted(rest) | {"training.seed": str(seed)}
            with tempfile.TemporaryDirectory() as temporary:
                folder = (options.runs or Path(temporary)) / f"{name}_{seed}"
                done = [
                    run(recipe, at, options.choose, open_data)
                    for at, recipe in stages(name, folder, changes, options.scale)
                ]
            total = {key: sum(row[key] for row in done) for key in ("train_s", "epochs", "training_flops")}
            rows.append(done[-1] | {"experiment": name, "scale": options.scale, "given": changes, "all_stages": total})
            report(rows, options.out)
        for name in options.recipes:
            recipe = find_recipe(name, dotted(rest) | {"training.seed": str(seed)})
            with tempfile.TemporaryDirectory() as folder:
                rows.append(run(recipe, Path(folder) / "run", options.choose, open_data))
                report(rows, options.out)
                if options.keep:
                    shutil.copytree(Path(folder) / "run" / "model", options.keep / f"{name}_{seed}")
                if options.finetune_px:
                    tuned = cifar10_finetune(str(Path(folder) / "run"), options.finetune_px)
                    tuned = replace(tuned, data=recipe.data, training=replace(tuned.training, seed=seed))
                    rows.append(
                        run(tuned, Path(folder) / "finetune", options.choose, open_data) | {"started_from": name}
                    )
                    report(rows, options.out)


def report(rows: list[dict[str, Any]], out: Path) -> None:
    last = rows[-1]
    part = last.get("test") or last["val"]
    print(
        f"{last.get('experiment', last['recipe'])} seed {last['seed']}: {part['accuracy']:.2%}  "
        f"log-loss {part['log_loss']:.4f}  "
        f"{last['parameters']:,} parameters  {last['train_s']:.0f} s  {last['pictures_s']:,} pictures/s",
        flush=True,
    )
    out.write_text(json.dumps({"environment": environment(), "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
