"""Where the time of a training step goes: the kernels of some steps of a recipe, by the time they take.

    python benchmarks/step_profile.py cifar10_vit cifar10_simclr --out step_profile.json

The step is the one of the real training loop, pictures in, weights out, as one CUDA graph where the recipe asks for it.
`busy` is the share of the wall clock in which a kernel ran: far below 1, the step waits for launches; near 1, look at
the largest kernels. Further settings go to every recipe: --training.batch_size 1024. On a CPU operators are listed.
"""

import argparse
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from vitreous.cli import dotted, one_line_errors
from vitreous.jobs.build import build_loop, build_objective
from vitreous.jobs.data import OpenData
from vitreous.recipes import Recipe, find_recipe
from vitreous.studies.grid import DecodedOnce
from vitreous.terminal import table
from vitreous.training.devices import World
from vitreous.training.environment import environment
from vitreous.training.graph import WARM_UP_STEPS

STEPS = 20  # that are profiled
SHOWN = 25  # kernels


def profiled(recipe: Recipe, open_data: OpenData) -> dict[str, Any]:
    world, splits = World.join(recipe.training.device), open_data(recipe.data)
    objective = build_objective(recipe, splits.train.classes).to(world.device)
    loop = build_loop(recipe, splits, objective, world)
    on_gpu = world.device.type == "cuda"

    def wait() -> float:
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    num_first = WARM_UP_STEPS + 5
    with closing(loop.data.inputs(0, num_first + 2 * STEPS)) as inputs:  # type: ignore[type-var]
        steps = iter(inputs)
        for _ in range(num_first):
            loop.run_step(*next(steps))
        began = wait()
        for _ in range(STEPS):
            loop.run_step(*next(steps))
        step_ms = 1000 * (wait() - began) / STEPS
        with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as found:
            for _ in range(STEPS):
                loop.run_step(*next(steps))
            wait()
    kernels = [
        (event.key, event.count / STEPS, (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1000)
        for event in found.key_averages()
    ]
    kernels = sorted(((name, count, ms / STEPS) for name, count, ms in kernels), key=lambda kernel: -kernel[2])
    return {
        "recipe": recipe.name,
        "batch_size": recipe.training.batch_size,
        "step_ms": round(step_ms, 3),
        "pictures_s": round(1000 * recipe.training.batch_size / step_ms),
        "busy": round(sum(ms for *_, ms in kernels) / step_ms, 3),
        "kernels_a_step": round(sum(count for _, count, _ in kernels)),
        "kernels": [{"name": name, "a_step": count, "ms": round(ms, 4)} for name, count, ms in kernels if ms > 1e-3],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--out", type=Path)
    options, rest = parser.parse_known_args()
    torch.set_float32_matmul_precision("high")
    open_data, rows = DecodedOnce(), []
    for name in options.recipes:
        row = profiled(find_recipe(name, dotted(rest)), open_data)
        rows.append(row)
        print(
            f"{row['recipe']}, batch {row['batch_size']}: {row['step_ms']} ms per step, "
            f"{row['pictures_s']:,} pictures/s, {row['kernels_a_step']:,} kernels, busy {row['busy']:.0%}"
        )
        shown = [(f"{one['ms']:.3f}", f"{one['a_step']:g}", one["name"][:90]) for one in row["kernels"][:SHOWN]]
        print(table(shown, ("ms per step", "times", "kernel")), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps({"environment": environment(), "recipes": rows}, indent=1) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
