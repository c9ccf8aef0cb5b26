"""What it cost, and what an answer costs."""

import resource
import statistics
import sys
import time
from pathlib import Path

import torch

from vitreous.fitting.fit import FitResult
from vitreous.models.flops import flops, training_flops
from vitreous.models.shapes import shapes_only
from vitreous.prediction.predictor import Predictor
from vitreous.report.html import Html, facts, paragraph, table, tag, together
from vitreous.report.words import counted, large, seconds

STAGES = {
    "data": "reading and checking",
    "plan": "planning",
    "train": "training",
    "evaluate": "evaluation",
    "inspect": "looking inside",
}
TIMED = 5  # answers, of which the median counts


def section(result: FitResult) -> Html:
    recipe, results = result.plan.recipe, result.results
    seen = results["steps"] * recipe.training.batch_size
    with shapes_only():
        encoder = recipe.model.build()
    rows = [(STAGES.get(stage, stage), seconds(value)) for stage, value in result.timings.items()]
    height, width = recipe.model.picture_px
    return together(
        facts(
            [
                ("parameters", f"{results['parameters']:,}"),
                ("FLOPs of a picture", f"{large(flops(encoder))}FLOPs at {width} x {height} px, forward, head apart"),
                (
                    "FLOPs of training",
                    f"{large(training_flops(encoder) * seen)}FLOPs for {counted(seen, 'picture')} seen",
                ),
                ("pace of training", f"{seen / results['wall_s']:,.0f} pictures/s, validations included"),
                ("one answer", f"{1000 * _answer_s(result):.1f} ms on the CPU, from pixels to probabilities"),
                ("model on disk", f"{large(_model_bytes(result.out / 'model'))}B"),
                ("peak memory", _peak_memory()),
            ]
        ),
        tag.h3("Time by stage"),
        table(("stage", "time"), [*rows, (tag.b("all"), tag.b(seconds(sum(result.timings.values()))))], numbers=(1,)),
        paragraph(
            f"This call went on with a run that had begun before: training took {seconds(results['wall_s'])} in all.",
            class_="note",
        )
        if result.timings["train"] < 0.9 * results["wall_s"]
        else None,
    )


def _answer_s(result: FitResult) -> float:
    test = result.splits.test
    assert test is not None
    predictor, pixels = Predictor.load(result.out), test.read(int(result.test.ids[0]))
    predictor(pixels)
    times = []
    for _ in range(TIMED):
        began = time.perf_counter()
        predictor(pixels)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _model_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _peak_memory() -> str:
    unit = 1 if sys.platform == "darwin" else 1024
    peak = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    on_device = f", and {large(torch.cuda.max_memory_allocated())}B on the GPU" if torch.cuda.is_available() else ""
    return f"{large(peak)}B of this process{on_device}"
