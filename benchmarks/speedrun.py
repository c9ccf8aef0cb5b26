"""Seconds from the first step to 90, 94, 95 and 96 % on CIFAR-10, for a plain ViT on one GPU.

    python benchmarks/speedrun.py --choose --epochs 15 30 45 60 90 --out tried.json
    python benchmarks/speedrun.py --epochs 20 60 110 200 --seeds 3 --out docs/results/speedrun.json

How it is measured. Speed runs usually read the test set after every epoch and stop at the first good one: that chooses
the length on the test set, and the luck of one epoch counts. Here each length is a run of its own, whose rate falls to
0 at its end. Which lengths are enough is chosen with --choose, on 5,000 held-out training pictures; a
reported run has that length from the start, trains on all 50,000, and reads the test set once, when the clock stands
still. A target counts as reached by a length whose mean over the seeds has reached it.

What is counted: every step from the first to the last, with the order of samples, augmentation, averages of weights,
and waiting for the GPU. What is not, and is given beside: reading and decoding the pictures and bringing them to the
GPU, and compiling, which happens in a few steps on a state that is thrown away; then the run starts afresh, on weights
that its seed drew. Evaluation is not counted. Further settings go to the recipe: --training.batch_size 512. The table
is written after every run; the same command again goes on with what is missing.
"""

import argparse
import json
import statistics
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous import keys
from vitreous.cli import dotted, one_line_errors
from vitreous.data.splits import Splits
from vitreous.evaluation.score import score
from vitreous.jobs.build import build_loader, build_loop, build_objective, eval_batches
from vitreous.recipes import Recipe, find_recipe
from vitreous.storage import atomic
from vitreous.studies.grid import DecodedOnce
from vitreous.tasks.base import Task
from vitreous.training.devices import World, autocast
from vitreous.training.environment import environment
from vitreous.training.graph import WARM_UP_STEPS
from vitreous.training.loop import Loop

TARGETS = (0.90, 0.94, 0.95, 0.96)


class Runner:
    """One length: compiled once, run with any seed."""

    def __init__(self, recipe: Recipe, splits: Splits) -> None:
        self.recipe, self.splits = recipe, splits
        self.world = World.join(recipe.training.device)
        began = self._now()
        objective = build_objective(recipe, splits.train.classes)
        self.loop: Loop = build_loop(recipe, splits, objective, self.world)
        self.fresh = {name: copied(tensors) for name, tensors in self._state().items()}
        with closing(self.loop.data.inputs(0, WARM_UP_STEPS + 2)) as inputs:  # type: ignore[type-var]
            for some in inputs:
                self.loop.run_step(*some)
        self.warm_up_s = self._now() - began
        self.parameters = sum(p.numel() for p in objective.parameters())

    def _now(self) -> float:
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)
        return time.perf_counter()

    def _state(self) -> dict[str, dict[str, Tensor]]:
        loop = self.loop
        return {
            "objective": loop.objective.state_dict(),
            "optimizer": loop.optimizer.state(),
            "average": loop.average.state(),
            "steps": {"done": loop.step_count, "bad": loop.first_bad_step},
        }

    def _restart(self, seed: int) -> Recipe:
        """As if nothing had been trained: all state as it was, in place, and the weights of this seed."""
        recipe = replace(self.recipe, training=replace(self.recipe.training, seed=seed))
        weights = build_objective(recipe, self.splits.train.classes).to(self.world.device).state_dict()
        state, fresh = self._state(), {**self.fresh, "objective": weights}
        averaged = {name: weights.get(name, value) for name, value in fresh["average"].items()}
        for part, tensors in state.items():
            for name, tensor in tensors.items():
                tensor.copy_((averaged if part == "average" else fresh[part])[name])
        return recipe

    def run(self, seed: int, part: str) -> dict[str, Any]:
        recipe, loop = self._restart(seed), self.loop
        data = build_loader(recipe, self.splits.train, self.world)
        began = self._now()
        with closing(data.inputs(0, loop.num_steps)) as inputs:
            for step, some in enumerate(inputs, start=1):
                torch.manual_seed(keys.step_seed(seed, step, 0))
                loop.run_step(*some)
        seconds = self._now() - began
        scores = self._scores(part)
        pictures = loop.num_steps * recipe.training.batch_size
        return {
            "epochs": recipe.training.epochs,
            "seed": seed,
            "steps": loop.num_steps,
            "seconds": round(seconds, 3),
            "accuracy": scores["accuracy"],
            "log_loss": scores["log_loss"],
            "pictures_s": round(pictures / seconds),
            "warm_up_s": round(self.warm_up_s, 1),
            "parameters": self.parameters,
        }

    def _scores(self, part: str) -> dict[str, float]:
        """Of the averaged weights, read once."""
        source, loop = getattr(self.splits, part), self.loop
        task = loop.objective.task
        assert isinstance(task, Task)
        loop.objective.eval()
        with loop.average.swapped(), torch.no_grad(), autocast(self.world.device, self.recipe.training.precision):
            found = score(task, eval_batches(source, self.recipe, self.world))
        loop.objective.train()
        return found


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every length, the means; and the shortest that reaches each target."""
    lengths = []
    for epochs in sorted({run["epochs"] for run in runs}):
        some = [run for run in runs if run["epochs"] == epochs]
        accuracy = statistics.mean(run["accuracy"] for run in some)
        lengths.append(
            {
                "epochs": epochs,
                "seeds": len(some),
                "seconds": round(statistics.mean(run["seconds"] for run in some), 2),
                "accuracy": round(accuracy, 5),
                "reaches": [target for target in TARGETS if accuracy >= target],
            }
        )
    return lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar10_vit")
    parser.add_argument("--epochs", nargs="+", type=float, required=True, help="lengths, a run of each")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--choose", action="store_true", help="score on held-out training pictures; leave test unread")
    parser.add_argument("--out", type=Path, required=True)
    options, rest = parser.parse_known_args()
    torch.set_float32_matmul_precision("high")
    part, open_data = "val" if options.choose else "test", DecodedOnce()
    runs: list[dict[str, Any]] = json.loads(options.out.read_text())["runs"] if options.out.is_file() else []
    for epochs in options.epochs:
        recipe = find_recipe(options.recipe, dotted(rest) | {"epochs": f"{epochs:g}"})
        recipe = replace(recipe, data=replace(recipe.data, val_fraction=0.1 if options.choose else 0.0))
        missing = set(range(options.seeds)) - {run["seed"] for run in runs if run["epochs"] == epochs}
        runner = Runner(recipe, open_data(recipe.data)) if missing else None
        for seed in sorted(missing):
            assert runner is not None
            runs.append(runner.run(seed, part))
            last = runs[-1]
            print(
                f"{epochs:g} epochs, seed {seed}: {last['accuracy']:.2%} of {part} after {last['seconds']:.1f} s "
                f"({last['pictures_s']:,} pictures/s; compiled and warm after {last['warm_up_s']:.0f} s)",
                flush=True,
            )
            document = {"environment": environment(), "recipe": options.recipe, "settings": dotted(rest)}
            atomic.write_json(document | {"scored_on": part, "lengths": summary(runs), "runs": runs}, options.out)
    for row in summary(runs):
        reached = ", ".join(f"{target:.0%}" for target in row["reaches"]) or "no target"
        mean = f"{row['seconds']:.1f} s, {row['accuracy']:.2%} (mean of {row['seeds']})"
        print(f"{row['epochs']:g} epochs: {mean}: {reached}")


if __name__ == "__main__":
    with one_line_errors():
        main()
