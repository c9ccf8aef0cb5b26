"""Learning without labels, side by side: one ViT (SimMIM: a Swin), CIFAR-10, equal seconds of pre-training each.

    python benchmarks/unlabelled.py --seconds 120 --runs runs/unlabelled --out docs/results/unlabelled.json

Every method trains for about that long on nine tenths of train (the time of some first steps, alone on the GPU, decides
how many there are; compiling is not counted). Then its frozen features are probed, and it is fine-tuned, alike for all.
With --choose, all of that is scored on the held-out tenth and the test set stays unread: that is how settings are
chosen. Otherwise the test set is read once a method and column, at its end. `scratch` is the fine-tuning alone, of
random weights; `scratch-longer` gets the seconds of pre-training on top. The same command again goes on where it ended.

Several methods fit onto one GPU side by side, which is sooner done. Then the pace of each is taken first (of several
such processes, one at a time takes times):

    python benchmarks/unlabelled.py --pace --runs runs/unlabelled --out docs/results/unlabelled.json
    python benchmarks/unlabelled.py --methods mae dino --runs runs/unlabelled --out docs/results/unlabelled.json &
    python benchmarks/unlabelled.py --methods simclr byol --runs runs/unlabelled --out docs/results/unlabelled.json &

Further settings go to every recipe (--optimizer.lr 0.002), those of data and training to fine-tuning too; those of
fine-tuning alone begin with `tuned` (--tuned.optimizer.layer_decay 0.9).

Methods that learn from a trained model need it among the runs: `beit` the tokeniser, `deit` a run of cifar10_resnet;
both are trained first, in seconds of their own that are reported beside (--methods tokeniser resnet).
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitreous.cli import dotted, one_line_errors
from vitreous.display import figures
from vitreous.fitting.budget import measured
from vitreous.jobs.build import build_loop, build_objective
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.train import train
from vitreous.objectives.base import Objective
from vitreous.recipes import Recipe, find_recipe
from vitreous.storage import atomic, locks
from vitreous.studies.grid import DecodedOnce
from vitreous.training.devices import World
from vitreous.training.environment import environment


@dataclass(frozen=True)
class Method:
    title: str
    recipe: str
    teacher: str | None = None  # the method that it learns from
    labels: bool = False  # it learns from labels, and so has answers of its own


METHODS = {
    "masked": Method("masked patches", "cifar10_masked"),
    "mae": Method("MAE", "cifar10_mae"),
    "tokeniser": Method("tokeniser", "cifar10_tokeniser"),
    "simmim": Method("SimMIM, of a Swin", "cifar10_simmim"),
    "beit": Method("BEiT", "cifar10_beit", teacher="tokeniser"),
    "dino": Method("DINO", "cifar10_dino"),
    "simclr": Method("SimCLR", "cifar10_simclr"),
    "mocov3": Method("MoCo v3", "cifar10_mocov3"),
    "byol": Method("BYOL", "cifar10_byol"),
    "swav": Method("SwAV", "cifar10_swav"),
    "igpt": Method("iGPT", "cifar10_igpt"),
    "resnet": Method("ResNet", "cifar10_resnet", labels=True),
    "deit": Method("DeiT (with labels)", "cifar10_deit", teacher="resnet", labels=True),
}
TUNED = "tuned."  # of settings for fine-tuning alone
TEACHERS = ("tokeniser", "resnet")
COLUMNS = {"knn": "k-NN", "linear": "linear probe", "ten_shot": "10 a class", "finetuned": "fine-tuned"}
ALL = ("scratch", "scratch-longer", *(name for name in METHODS if name not in TEACHERS))


class Table:
    """A row a method, in a file beside its run that is written after every number; the table collects them."""

    def __init__(self, options: argparse.Namespace, changes: dict[str, str]) -> None:
        self.options = options
        self.changes = {name: text for name, text in changes.items() if not name.startswith(TUNED)}
        self.tuned = {name.removeprefix(TUNED): text for name, text in changes.items() if name.startswith(TUNED)}
        self.open_data = DecodedOnce()
        self.part = "val" if options.choose else "test"
        options.runs.mkdir(parents=True, exist_ok=True)

    def row(self, method: str) -> dict[str, Any]:
        path = self.options.runs / f"{method}.json"
        return json.loads(path.read_text()) if path.is_file() else {}

    def note(self, method: str, **numbers: Any) -> None:
        atomic.write_json(self.row(method) | numbers, self.options.runs / f"{method}.json")
        rows = {name: row for name in (*ALL, *TEACHERS) if (row := self.row(name))}
        document = {"environment": environment(), "scored_on": self.part, "methods": rows}
        atomic.write_json(document, self.options.out)
        figures.save(table_figure(rows, self.part), self.options.out.with_suffix(""))
        shown = {name: value for name, value in numbers.items() if not isinstance(value, list | dict)}
        print(f"{method}: " + "  ".join(f"{name} {value}" for name, value in shown.items()), flush=True)

    def has(self, method: str, number: str) -> bool:
        return number in self.row(method)

    # ---- one method

    def pace(self, method: str) -> float:
        """Seconds a step. Measured once: methods that train side by side then have the steps they would have alone."""
        if not self.has(method, "step_s"):
            recipe = self.recipe(method) if method in METHODS else self.tuning(method)
            data = self.open_data(recipe.data)
            alone = in_turn(self.options.runs / "pace.lock")
            found = measured(recipe, data, seconds=self.options.measure_s, alone=alone)
            self.note(method, step_s=found.step_s)
        return float(self.row(method)["step_s"])

    def recipe(self, method: str) -> Recipe:
        wanted = dict(self.changes)
        if (teacher := METHODS[method].teacher) is not None:
            wanted["teacher"] = str(self.options.runs / teacher)
        recipe = find_recipe(METHODS[method].recipe, wanted)
        return replace(recipe, data=replace(recipe.data, val_fraction=0.1))

    def fill(self, method: str) -> None:
        if method in METHODS:
            teacher = METHODS[method].teacher
            if teacher is not None:
                self.pretrain(teacher)
            self.pretrain(method)
            if method not in TEACHERS:
                self.probe(method)
        if method not in TEACHERS:
            self.finetune(method)

    def pretrain(self, method: str) -> None:
        run = self.options.runs / method
        if self.has(method, "pretrain_s"):
            return
        recipe, pace = self.recipe(method), self.pace(method)
        recipe = replace(recipe, training=replace(recipe.training, steps=max(20, round(self.options.seconds / pace))))
        read_test = METHODS[method].labels and not self.options.choose
        results = train(recipe, run, read_test=read_test, open_data=self.open_data)
        steps, batch = results["steps"], recipe.training.batch_size
        per_picture = flops_a_picture(recipe, self.open_data)
        self.note(
            method,
            pretrain_s=results["train_s"],  # longer than its steps alone, where others shared the GPU
            alone_s=round(steps * pace, 1),
            steps=steps,
            epochs=round(steps * batch / len(self.open_data(recipe.data).train), 1),
            parameters=results["parameters"],
            training_flops=per_picture * steps * batch,
            curve=losses(run),
            **({"own": results[self.part]["accuracy"]} if METHODS[method].labels else {}),
        )

    def probe(self, method: str) -> None:
        if self.has(method, "knn"):
            return
        began = time.monotonic()
        (found,) = evaluate(
            self.options.runs / method,
            split=self.part,
            probes=("knn", "linear", "fewshot"),
            open_data=self.open_data,
        ).probes
        assert found.linear is not None
        ten = next(one for one in found.few_shot if one.shots == 10)
        self.note(
            method,
            knn=found.knn[0].accuracy.value,
            linear=found.linear.accuracy.value,
            linear_penalty=found.linear.penalty,
            ten_shot=ten.mean,
            ten_shot_spread=ten.spread,
            probe_s=round(time.monotonic() - began, 1),
        )

    def tuning(self, method: str) -> Recipe:
        given = {name: text for name, text in self.changes.items() if name.startswith(("data.", "training."))}
        given |= {"epochs": str(self.options.finetune_epochs)} | self.tuned
        if not method.startswith("scratch"):
            given["start"] = str(self.options.runs / method)
        recipe = find_recipe("cifar10_tuned", given)
        # What is scored on test may learn from all of train.
        return replace(recipe, data=replace(recipe.data, val_fraction=0.1 if self.options.choose else 0.0))

    def finetune(self, method: str) -> None:
        if self.has(method, "finetuned") or not self.options.finetune_epochs:
            return
        recipe = self.tuning(method)
        if method == "scratch-longer":
            own = recipe.training.num_steps(len(self.open_data(recipe.data).train) // recipe.training.batch_size)
            longer = own + round(self.options.seconds / self.pace(method))
            recipe = replace(recipe, training=replace(recipe.training, steps=longer))
        results = train(
            recipe, self.options.runs / "tuned" / method, read_test=not self.options.choose, open_data=self.open_data
        )
        self.note(
            method,
            finetuned=results[self.part]["accuracy"],
            finetune_s=results["train_s"],
            finetune_steps=results["steps"],
        )


@contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """One process at a time; the others wait."""
    while (lock := locks.take(path)) is None:
        time.sleep(0.05)
    with lock:
        yield


def flops_a_picture(recipe: Recipe, open_data: Callable[..., Any]) -> float:
    """Of a training step: counted, forward and backward, teachers and decoders included. A multiply-add counts 2."""
    few = replace(recipe, training=replace(recipe.training, batch_size=8, compile=False, cuda_graph=False))
    splits, world = open_data(recipe.data), World(rank=0, size=1, device=torch.device("cpu"))
    objective: Objective = build_objective(few, splits.train.classes)
    batch = next(iter(build_loop(few, splits, objective, world).data.batches(0, 1)))  # type: ignore[attr-defined]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        objective(batch, torch.tensor(0.5))["loss"].backward()
    return counter.get_total_flops() / 8


@figures.drawing
def table_figure(rows: dict[str, dict[str, Any]], part: str) -> Figure:
    """A panel a column of the table, a line a method, the best on top (by linear probe; without one by fine-tuning)."""
    shown = [name for name in ALL if any(column in rows.get(name, {}) for column in COLUMNS)]
    titles = {name: method.title for name, method in METHODS.items()}
    titles |= {"scratch": "from scratch", "scratch-longer": "scratch, as long"}
    shown.sort(key=lambda name: (rows[name].get("linear", 0.0), rows[name].get("finetuned", 0.0)))
    # What is alike for all need not be said.
    if differ(rows, shown, "alone_s"):
        titles |= {name: f"{titles[name]}, {rows[name]['alone_s']:.0f} s" for name in shown if "alone_s" in rows[name]}
    tell_steps = differ(rows, shown, "finetune_steps")
    drawn = figures.figure(2.2 * len(COLUMNS) + 1.0, 0.9 + 0.24 * len(shown))
    axes = drawn.subplots(1, len(COLUMNS), sharey=True)
    for ax, (column, title), colour in zip(axes, COLUMNS.items(), figures.SERIES, strict=False):
        for place, name in enumerate(shown):
            if (value := rows[name].get(column)) is not None:
                ax.plot(value, place, "o", color=colour, markersize=6)
                steps = f" ({rows[name]['finetune_steps']:,} steps)" if tell_steps and column == "finetuned" else ""
                label = f"{100 * value:.1f}{steps}"
                ax.annotate(label, (value, place), (6, -3), textcoords="offset points", fontsize="small")
        ax.set(title=title, yticks=range(len(shown)), yticklabels=[titles[name] for name in shown])
        ax.margins(x=0.35, y=0.6 / max(1, len(shown)))
        ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    drawn.supxlabel(f"accuracy on CIFAR-10's {part} part", fontsize="medium")
    return drawn


def differ(rows: dict[str, dict[str, Any]], shown: list[str], number: str) -> bool:
    return len({rows[name][number] for name in shown if not name.startswith("scratch") and number in rows[name]}) > 1


def losses(run: Path) -> list[list[float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [[line["epoch"], line["loss"]] for line in lines if "loss" in line][:: max(1, len(lines) // 40)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(ALL), choices=[*ALL, *TEACHERS], metavar="METHOD")
    parser.add_argument("--seconds", type=float, default=120.0, help="of pre-training, for every method")
    parser.add_argument("--measure-s", type=float, default=3.0, help="of first steps, to see how long one takes")
    parser.add_argument("--finetune-epochs", type=float, default=30.0, help="0: no fine-tuning")
    parser.add_argument("--pace", action="store_true", help="only measure how long a step of each method takes")
    parser.add_argument("--choose", action="store_true", help="score on held-out training pictures; leave test unread")
    parser.add_argument("--runs", type=Path, required=True, help="where the runs lie")
    parser.add_argument("--out", type=Path, required=True)
    options, rest = parser.parse_known_args()
    torch.set_float32_matmul_precision("high")
    table = Table(options, dotted(rest))
    for method in options.methods:
        if not options.pace:
            table.fill(method)
        elif method != "scratch":  # whose length is given in epochs
            table.pace(method)


if __name__ == "__main__":
    with one_line_errors():
        main()
