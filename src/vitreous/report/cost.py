"""What it cost, and what a prediction costs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitreous.display.words import counted
from vitreous.fitting.costs import Costs
from vitreous.fitting.fitted import Fitted
from vitreous.models.flops import flops, training_flops
from vitreous.models.shapes import shapes_only
from vitreous.report.html import Html, facts, paragraph, table, tag, together
from vitreous.report.words import large, seconds
from vitreous.weights.card import Card

STAGES = {
    "data": "reading and checking",
    "first": "the first model",
    "plan": "planning",
    "train": "training",
    "evaluate": "evaluation",
    "inspect": "looking inside",
}


def section(result: Fitted[Any]) -> Html:
    recipe, results = result.recipe, result.results
    seen = results["steps"] * recipe.training.batch_size
    with shapes_only():
        kept, trained = recipe.model.build(), result.plan.recipe.model.build()
    rows = [(STAGES.get(stage, stage), seconds(value)) for stage, value in result.timings.items()]
    height, width = recipe.model.picture_px
    return together(
        facts(
            [
                ("parameters", f"{num_parameters(result.card):,}"),
                ("FLOPs per picture", f"{large(flops(kept))}FLOPs at {width} x {height} px, forward, head apart"),
                ("FLOPs in training", _work(training_flops(trained), seen)),
                *_speed(seen, results["wall_s"]),
                (
                    "one prediction",
                    f"{1000 * result.costs.picture_s:.1f} ms on the CPU, from a picture to a prediction",
                ),
                ("model on disk", f"{large(_model_bytes(result.out / 'model'))}B"),
                ("peak memory", _memory(result.costs)),
            ]
        ),
        tag.h3("Time by stage"),
        table(("stage", "time"), [*rows, (tag.b("total"), tag.b(seconds(sum(result.timings.values()))))], numbers=(1,)),
        paragraph(
            f"This call resumed an earlier run: training took {seconds(results['wall_s'])} in all.",
            class_="note",
        )
        if result.timings["train"] < 0.9 * results["wall_s"]
        else None,
    )


def num_parameters(card: Card) -> int:
    """Of the model that was kept, which need not be the one that was trained."""
    assert card.task is not None
    with shapes_only():
        task = card.task.build(card.model.build(), card.classes)
    return sum(weight.numel() for weight in task.parameters())


def _work(per_picture: float, seen: int) -> str:
    if not seen:
        return "none: nothing was trained"
    return f"{large(per_picture * seen)}FLOPs for {counted(seen, 'picture')} seen"


def _speed(seen: int, wall_s: float) -> Iterator[tuple[str, str]]:
    if seen:
        yield "training speed", f"{seen / wall_s:,.0f} pictures/s, validations included"


def _model_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _memory(costs: Costs) -> str:
    on_device = "" if costs.peak_gpu_bytes is None else f", and {large(costs.peak_gpu_bytes)}B on the GPU"
    of_process = "unknown" if costs.peak_bytes is None else f"{large(costs.peak_bytes)}B of this process"
    return f"{of_process}{on_device}"
