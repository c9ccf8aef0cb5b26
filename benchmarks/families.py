"""CIFAR-10 from scratch, family beside family: each trains for the FLOPs of cifar10_vit, with its recipe's settings.

    python benchmarks/families.py --seeds 3 --at-once 3 --out docs/results/families.jsonl

Each run is a process of its own, --at-once of them on one GPU, and leaves one line of JSON as it ends; then a table of
all lines is printed. Runs whose line is there are not run again, and one that was stopped goes on from its checkpoint.
--epochs-scale 0.1 trains everything for a tenth of the FLOPs; after --minutes no further run is started.

Reported runs train on all 50,000 training pictures and read the test set once, at the end. With --validation a tenth of
train is held out and scored instead, and test stays unread: that is for choosing. Further settings go to every family
(--optimizer.lr 0.002), or to one (--swin.optimizer.lr 0.004).
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitreous.cli import dotted, one_line_errors
from vitreous.errors import UserError
from vitreous.jobs.train import train
from vitreous.recipes import Recipe, find_recipe
from vitreous.studies.models import size_of
from vitreous.studies.study import spread
from vitreous.terminal import table
from vitreous.training.environment import environment

FAMILIES = ("vit", "hybrid", "resnet", "swin", "convnext", "pvt")
PICTURES = 50_000  # of train: what an epoch is, whether some are held out or not


def recipe_of(family: str, seed: int, options: argparse.Namespace, changes: dict[str, str]) -> Recipe:
    """The family's recipe, as long as the budget lasts."""
    own = {name.removeprefix(f"{family}."): text for name, text in changes_of(family, changes).items()}
    recipe = find_recipe(f"cifar10_{family}", own)
    steps = round(options.epochs_scale * budget() / (size_of(recipe.model)[1] * recipe.training.batch_size))
    return replace(
        recipe,
        data=replace(recipe.data, val_fraction=0.1 if options.validation else 0.0),
        training=replace(recipe.training, steps=max(1, steps), seed=seed),
    )


def budget() -> float:
    """FLOPs of training by cifar10_vit: 2.5e16."""
    recipe = find_recipe("cifar10_vit", {})
    steps = round(recipe.training.epochs * (PICTURES // recipe.training.batch_size))
    return float(size_of(recipe.model)[1]) * steps * recipe.training.batch_size


def cell_name(family: str, seed: int, options: argparse.Namespace, changes: dict[str, str]) -> str:
    """Of a run's folder, and what tells its line from others."""
    changed = "".join(f",{name}={text}" for name, text in sorted(changes_of(family, changes).items()))
    part = "validation" if options.validation else "test"
    return f"{family}-{part}-x{options.epochs_scale:g}-seed{seed}{changed}".replace("/", "_")


def changes_of(family: str, changes: dict[str, str]) -> dict[str, str]:
    """Those for all families, and then those for this one alone."""
    first = {name: name.partition(".")[0] for name in changes}
    common = {name: text for name, text in changes.items() if first[name] not in FAMILIES}
    return common | {name: text for name, text in changes.items() if first[name] == family}


def run(family: str, seed: int, options: argparse.Namespace, changes: dict[str, str]) -> dict[str, Any]:
    torch.set_float32_matmul_precision("high")
    began, recipe = time.monotonic(), recipe_of(family, seed, options, changes)
    name = cell_name(family, seed, options, changes)
    results = train(recipe, options.runs / name, read_test=not options.validation)
    parameters, flops = size_of(recipe.model)
    pictures = results["steps"] * recipe.training.batch_size
    scored = results["val" if options.validation else "test"]
    where = environment()
    return {
        "run": name,
        "family": recipe.model.family,
        "model": recipe.model.describe(),
        "seed": seed,
        "scored_on": "validation" if options.validation else "test",
        "accuracy": scored["accuracy"],
        "log_loss": scored["log_loss"],
        "scored_pictures": scored["pictures"],
        "parameters": parameters,
        "flops_per_picture": flops // 3,  # of a forward pass
        "training_flops": flops * pictures,
        "steps": results["steps"],
        "epochs": round(pictures / PICTURES, 2),
        "train_s": results["train_s"],
        "whole_s": round(time.monotonic() - began, 1),  # data and compiling included; of this process alone
        "pictures_s": round(pictures / results["train_s"]),
        "at_once": options.at_once,
        "commit": where["commit"],
        "uncommitted_changes": where["uncommitted_changes"],
        "hardware": where["gpus"][0] if where["gpus"] else where["cpu"],
        "torch": torch.__version__,
        "changes": changes_of(family, changes),
    }


def append(row: dict[str, Any], out: Path) -> None:
    """In one write, so that lines of several processes do not mix."""
    out.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, (json.dumps(row) + "\n").encode())
    finally:
        os.close(file)


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []


def in_own_process(family: str, seed: int, options: argparse.Namespace, changes: dict[str, str]) -> bool:
    """This file again for one run; what it prints goes beside the run's folder."""
    name = cell_name(family, seed, options, changes)
    options.runs.mkdir(parents=True, exist_ok=True)
    log = options.runs / f"{name}.log"
    with log.open("w") as file:
        command = [sys.executable, __file__, *sys.argv[1:], "--one", family, str(seed)]
        worked = subprocess.run(command, check=False, stdout=file, stderr=subprocess.STDOUT).returncode == 0
    told = next((told_of(row) for row in lines(options.out) if row["run"] == name), None)
    print(told if worked and told else f"{name} failed: the end of {log} says why", flush=True)
    return worked


def told_of(row: dict[str, Any]) -> str:
    return (
        f"{row['run']}: {row['accuracy']:.2%}  {row['epochs']:g} epochs, {row['training_flops']:.3g} FLOP in "
        f"{row['train_s']:.0f} s, {row['pictures_s']:,} pictures/s"
    )


def all_lines(rows: list[dict[str, Any]]) -> str:
    """A line for every family and setting: means over the seeds."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["run"].replace(f"-seed{row['seed']}", ""), []).append(row)
    told = [
        (
            name,
            f"{some[0]['parameters'] / 1e6:.1f} M",
            f"{some[0]['flops_per_picture'] / 1e9:.2f}",
            f"{some[0]['epochs']:g}",
            f"{some[0]['training_flops']:.3g}",
            spread([row["accuracy"] for row in some]),
            f"{statistics.fmean(row['train_s'] for row in some):.0f}",
        )
        for name, some in groups.items()
    ]
    return table(told, ("run", "parameters", "GFLOP a picture", "epochs", "FLOP", "accuracy", "seconds"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs-scale", type=float, default=1.0, help="share of cifar10_vit's FLOPs that all get")
    parser.add_argument(
        "--validation", action="store_true", help="score on held-out training pictures, leave test unread"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no further run after so many")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side on the device")
    parser.add_argument("--runs", type=Path, default=Path("runs/families"))
    parser.add_argument("--out", type=Path, required=True, help="a file of lines of JSON")
    parser.add_argument("--one", nargs=2, metavar=("FAMILY", "SEED"), help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    changes = dotted(rest)
    if options.one:
        append(run(options.one[0], int(options.one[1]), options, changes), options.out)
        return
    if not options.epochs_scale > 0 or min(options.seeds, options.at_once) < 1:
        raise UserError("--epochs-scale must be above 0, --seeds and --at-once at least 1")
    ends = time.monotonic() + 60 * options.minutes
    done = {row["run"] for row in lines(options.out)}
    cells = [
        (family, seed)
        for seed in range(options.first_seed, options.first_seed + options.seeds)  # all families once, soon
        for family in options.families
        if cell_name(family, seed, options, changes) not in done
    ]
    for family, seed in cells:
        recipe_of(family, seed, options, changes)  # says what is wrong before anything runs
    with ThreadPoolExecutor(options.at_once) as pool:
        # One that is out of time is no failure: the same command goes on with it.
        worked = list(pool.map(lambda cell: time.monotonic() > ends or in_own_process(*cell, options, changes), cells))
    print(all_lines(lines(options.out)))
    if not all(worked):
        sys.exit(1)


if __name__ == "__main__":
    with one_line_errors():
        main()
