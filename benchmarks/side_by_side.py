"""Ours and theirs in one process, in turn: what the comparisons with transformers' and open_clip's models share.

Both have the same weights, as many parameters, and in float32 the same loss. Then their training steps, or what they
predict, are timed in turn. Ours is the step of the real training loop as one CUDA graph; theirs is eager, and compiled
by torch.compile as it stands. What fails is reported in its place, and the rest goes on; where their library is not
installed, ours is measured alone.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from one_step import Step, seconds, step_on
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models.flops import num_parameters
from vitreous.objectives.base import Objective
from vitreous.tasks.base import Task
from vitreous.training.environment import environment
from vitreous.training.graph import GraphedStep
from vitreous.weights.peers import imported
from vitreous.weights.trained import Trained

VARIANTS = ("ours", "theirs_eager", "theirs_compiled")


def parser_of(about: str | None, variants: tuple[str, ...] = VARIANTS) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eager", action="store_true", help="compile nothing of ours")
    parser.add_argument("--variants", nargs="+", default=list(variants), choices=variants)
    parser.add_argument("--rounds", type=int, default=5, help="0: only fill the compiler's cache")
    parser.add_argument("--times", type=int, default=6, help="steps per round")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--out", type=Path)
    return parser


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


# ---- the same on both sides


def there(library: str, result: dict[str, Any]) -> bool:
    """Whether their library is installed; where it is not, the result has a line that says so."""
    try:
        imported(library)
    except UserError as error:
        result["without theirs"] = str(error)
        return False
    return True


def read_back(theirs: Any, px: int) -> Task:
    """Their model as their own `save_pretrained` leaves it, read by us."""
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return Trained.load(folder, picture_px=px).task()


def equal(ours: nn.Module, their_count: int, losses: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Raises where parameters or losses differ."""
    counts, (mine, other) = (num_parameters(ours), their_count), map(float, losses)
    assert counts[0] == counts[1], counts
    assert abs(mine - other) < 1e-3 * abs(other), (mine, other)
    return {"parameters": counts[0], "our_loss": mine, "their_loss": other}


# ---- what is timed


def our_step(objective: Objective, batch: Batch, compiled: bool) -> Step:
    step = step_on(objective, batch, compiled)
    return GraphedStep(step) if batch.images.is_cuda else step


def prediction(predict: Callable[..., Any], *inputs: Any, compiled: bool = False, graph: bool = False) -> Step:
    predict = torch.compile(predict, dynamic=False) if compiled else predict
    found: list[Any] = []

    def run() -> None:
        with torch.no_grad(), torch.autocast(inputs[0].device.type, dtype=torch.bfloat16):
            found[:] = [predict(*inputs)]

    return GraphedStep(run) if graph else run


def ready(makers: Mapping[str, Callable[[], Step]], errors: dict[str, str], on: torch.device) -> dict[str, Step]:
    """Those that can be made: compiled, warm, captured."""
    steps: dict[str, Step] = {}
    for name, make in makers.items():
        with noted(errors, name):
            step = make()
            seconds(step, 6, on)
            steps[name] = step
        print(f"  {name}: {errors.get(name, 'ready')}", flush=True)
    return steps


def timed(
    makers: dict[str, Callable[[], Step]], options: argparse.Namespace, on: torch.device, theirs: Any
) -> dict[str, Any]:
    """Milliseconds of each, the median of rounds in turn; the line of its error for what fails; and how many times as
    fast as the faster of theirs ours are."""
    errors: dict[str, str] = {}
    chosen = [name for name in makers if name in options.variants and (theirs or name.startswith("ours"))]
    steps = ready({name: makers[name] for name in chosen}, errors, on)
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name in list(steps):
            with noted(errors, name):
                found[name].append(seconds(steps[name], options.times, on))
            if name in errors:
                del steps[name]
    ms = {name: round(1000 * statistics.median(found[name]), 3) for name in steps if found[name]}
    others = [value for name, value in ms.items() if name.startswith("theirs")]
    ratios = {name: round(min(others) / ms[name], 3) for name in ms if others and name.startswith("ours")}
    peak = {"peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1)} if on.type == "cuda" else {}
    # Ratios above 1: ours is faster.
    return {"ready": sorted(steps), "ms": ms, "errors": errors, "ratio_to_the_faster": ratios, **peak}


@contextmanager
def noted(errors: dict[str, Any], name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        errors[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def report(
    cells: list[dict[str, Any]], compare: Callable[..., dict[str, Any]], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Compares cell by cell; each is printed, and all are written, as it is done. Exits with 1 if nothing ran."""
    results: list[dict[str, Any]] = []
    for cell in cells:
        torch.compiler.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        found = dict(cell)
        with noted(found, "failed"):
            found |= compare(**cell, options=options, on=device())
        results.append(found)
        print(json.dumps(found), flush=True)
        if options.out:
            document = {"environment": environment(), "results": results}
            options.out.write_text(json.dumps(document, indent=2) + "\n")
    if not any(found.get("ready") for found in results):
        sys.exit(1)
    return results
