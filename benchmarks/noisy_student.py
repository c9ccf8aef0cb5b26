"""Few labels and many pictures: training on the labels alone, SimCLR first, and Noisy Student, at equal steps.

    python benchmarks/noisy_student.py --set cifar10 --runs runs/noisy --out docs/results/noisy_student_cifar10.json
    python benchmarks/noisy_student.py --set tiny_imagenet --runs runs/tiny --out docs/results/noisy_student_tiny.json

CIFAR-10 with 4,000 labels, Tiny ImageNet with a tenth; the other training pictures are shown without their labels. One
ViT, one recipe, and every run has the same number of steps (--steps):

    labels         on the labels alone; it is the first teacher, too
    labels-long    on the labels alone, as long as teacher and three students together
    simclr         SimCLR on all pictures without labels, then the labels
    rounds         teacher, and as many students as --rounds says, one row each
    simclr-rounds  the same, with SimCLR and then the labels as the teacher; students start from SimCLR's encoder
    all-labels     on the labels of all pictures: what there is to reach

The test set is read once per row. With --choose, a tenth of train is held out and scored instead, and test stays
unread: that is how settings are chosen (--confidence, --ratio, --labels, and fields of the recipe: --model.dropout 0).
The table is written after every row; the same command again goes on where it ended. With --seconds N it saves and stops
after so long (exit code 143). Several rows may run side by side on one GPU, each with --rows and an --out of its own.
"""

import argparse
import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitreous.cli import dotted, one_line_errors
from vitreous.data.joined import read_joined
from vitreous.jobs.selftrain import selftrain
from vitreous.jobs.train import train
from vitreous.recipes import Recipe, find_recipe
from vitreous.storage import atomic
from vitreous.studies.grid import DecodedOnce
from vitreous.teaching.pseudo import PseudoSettings
from vitreous.teaching.sets import Sets
from vitreous.training.environment import environment

RECIPES = {"cifar10": "cifar10_noisy_student", "tiny_imagenet": "tiny_imagenet_noisy_student"}
ROWS = ("labels", "simclr", "rounds", "simclr-rounds", "labels-long", "all-labels")


class Table:
    def __init__(self, options: argparse.Namespace, changes: dict[str, str]) -> None:
        self.options, self.changes, self.open_data = options, changes, DecodedOnce()
        self.part = "val" if options.choose else "test"
        self.pseudo = PseudoSettings(labels=options.labels, confidence=options.confidence, ratio=options.ratio)
        self.rows: dict[str, Any] = {}
        if options.out.is_file():
            self.rows = json.loads(options.out.read_text())["rows"]

    def note(self, name: str, results: dict[str, Any], **more: Any) -> None:
        if name in self.rows:
            return
        scores = results[self.part]
        self.rows[name] = {
            "accuracy": scores["accuracy"],
            "log_loss": scores["log_loss"],
            "steps": results["steps"],
            "train_s": results["train_s"],
            "parameters": results["parameters"],
        } | more
        document = {
            "environment": environment(),
            "scored_on": self.part,
            "recipe": RECIPES[self.options.set],
            "settings": self.changes | {"pseudo": vars(self.pseudo)},
            "rows": self.rows,
        }
        atomic.write_json(document, self.options.out)
        print(f"{name}: {scores['accuracy']:.2%} of {self.part}, {results['train_s']:.0f} s", flush=True)

    # ---- recipes

    def recipe(self, **changes: str) -> Recipe:
        """Of the labels alone."""
        given = {"training.seed": str(self.options.seed), **self.changes, **changes}
        if self.options.steps is not None:
            given.setdefault("steps", str(self.options.steps))
        found = find_recipe(RECIPES[self.options.set], given)
        return replace(found, data=replace(found.data, val_fraction=0.1 if self.options.choose else 0.0))

    def simclr(self) -> Recipe:
        """On the pictures of all of train, with the same encoder, but for the noise that SimCLR does without."""
        own, few = find_recipe("cifar10_simclr", {}), self.recipe()
        steps = self.options.simclr_steps or few.training.steps
        return replace(
            own,
            data=replace(few.data, train_limit=None, train_fraction=1.0, need_labels=True),
            model=replace(few.model, dropout=0.0, stochastic_depth=0.0),
            normalise=few.normalise,
            training=replace(
                own.training,
                steps=steps,
                batch_size=min(own.training.batch_size, 2 * few.training.batch_size),
                seed=few.training.seed,
                device=few.training.device,
            ),
        )

    def after_simclr(self, recipe: Recipe) -> Recipe:
        optimizer = replace(recipe.optimizer, layer_decay=0.75)
        return replace(recipe, start=str(self.options.runs / "simclr"), optimizer=optimizer)

    # ---- rows

    def run(self, recipe: Recipe, name: str) -> dict[str, Any]:
        read_test = not self.options.choose and recipe.name != "cifar10_simclr"
        return train(recipe, self.options.runs / name, read_test=read_test, open_data=self.open_data)

    def labels(self) -> None:
        self.note("labels", self.run(self.recipe(), "teacher"))

    def labels_long(self) -> None:
        recipe = self.recipe()
        assert recipe.training.steps is not None
        longer = replace(recipe, training=replace(recipe.training, steps=4 * recipe.training.steps))
        self.note("labels-long", self.run(longer, "labels-long"))

    def all_labels(self) -> None:
        recipe = self.recipe()
        data = replace(recipe.data, train_limit=None, train_fraction=1.0)
        self.note("all-labels", self.run(replace(recipe, data=data), "all-labels"))

    def simclr_first(self) -> None:
        first = self.run(self.simclr(), "simclr")
        results = self.run(self.after_simclr(self.recipe()), "simclr-labels")
        self.note("simclr", results, simclr_steps=first["steps"], simclr_s=first["train_s"])

    def rounds(self) -> None:
        self.labels()
        self.taught("rounds", self.recipe(), self.options.runs / "teacher")

    def simclr_rounds(self) -> None:
        self.simclr_first()
        self.taught("simclr-rounds", self.after_simclr(self.recipe()), self.options.runs / "simclr-labels")

    def taught(self, name: str, recipe: Recipe, teacher: Path) -> None:
        out = self.options.runs / name
        sets = Sets.opened(recipe.data, None, self.open_data)

        def told(run: str, results: dict[str, Any]) -> None:
            number = run.rpartition("-")[2]
            _, taken, probabilities = read_joined(out / f"labels-{number}")
            right = probabilities.argmax(axis=1) == sets.rest.labels[taken]
            self.note(
                f"{name} {number}", results, named=len(taken), of=len(sets.rest), named_rightly=float(right.mean())
            )

        selftrain(
            recipe,
            out,
            teacher=str(teacher),
            rounds=self.options.rounds,
            pseudo=self.pseudo,
            read_test=not self.options.choose,
            open_data=self.open_data,
            told=told,
        )

    def fill(self) -> None:
        filled = {
            "labels": self.labels,
            "simclr": self.simclr_first,
            "rounds": self.rounds,
            "simclr-rounds": self.simclr_rounds,
            "labels-long": self.labels_long,
            "all-labels": self.all_labels,
        }
        for name in self.options.rows:
            filled[name]()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=RECIPES, default="cifar10")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS, metavar="ROW")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of every run (default: the recipe's)")
    parser.add_argument("--simclr-steps", type=int, help="of SimCLR (default: as many)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--labels", choices=("soft", "hard"), default="soft")
    parser.add_argument("--confidence", type=float, default=0.3)
    parser.add_argument("--ratio", type=float, default=3.0)
    parser.add_argument("--choose", action="store_true", help="score on held-out training pictures; leave test unread")
    parser.add_argument("--seconds", type=float, help="save and stop after so long")
    parser.add_argument("--runs", type=Path, required=True, help="where the runs lie")
    parser.add_argument("--out", type=Path, required=True)
    options, rest = parser.parse_known_args()
    if options.seconds is not None:
        stop = threading.Timer(options.seconds, os.kill, (os.getpid(), signal.SIGTERM))
        stop.daemon = True
        stop.start()
    torch.set_float32_matmul_precision("high")
    Table(options, dotted(rest)).fill()


if __name__ == "__main__":
    with one_line_errors():
        main()
