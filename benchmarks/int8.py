"""Which layers may int8 round? Chosen on a held-out part of train; then test is read, once, for the one chosen.

    VITREOUS_DATA=... python benchmarks/int8.py --folder runs/int8 --out docs/results/int8.json

Small plain ViTs are trained, on CIFAR-10 and on Imagenette, one of them with a class token; `--brief` trains them
hardly at all, to see that the script works. Each is written in fp32 and in every variant of int8, and
answers, one picture at a time, the pictures that were carved from train before it was trained. `error` is the root
mean square of what int8 changes of the logits, as a share of their spread; `changed` counts other answers than fp32's.

The rule, set down before any test picture was read: of the variants that round all layers of all blocks, the one with
the least error, as the geometric mean over the runs. "and of the blocks, the MLP's second layer" is no candidate: it
says what rounding less would give. Where the choice is what `vitreous export --int8` writes, the file that it writes is
held against torch on all test pictures; where it is not, the script says so and leaves test alone.
"""

import argparse
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import TensorProto

from vitreous.cli import one_line_errors
from vitreous.data.augmentation import Augmentation, CropSettings
from vitreous.data.base import Source
from vitreous.data.sources import DataSettings
from vitreous.data.transforms import Preprocessing
from vitreous.export.graph import Graph, Value
from vitreous.export.job import export
from vitreous.export.parts import write_task
from vitreous.export.runtime import open_session
from vitreous.jobs.data import data_of
from vitreous.jobs.train import train
from vitreous.models import ViTSettings
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.averages import AverageSettings
from vitreous.training.environment import environment
from vitreous.training.loop import TrainingSettings
from vitreous.training.optim import MuonSettings
from vitreous.training.schedule import ScheduleSettings
from vitreous.weights.trained import Trained

Array = NDArray[np.float32]

LIMIT_POINTS = 0.5  # of top-1, that int8 may cost
VARIANTS = {
    "all rounded": set[str](),
    "first exact": {"first"},
    "last exact": {"last"},
    "first and last exact": {"first", "last"},
    "and of the blocks, the MLP's second layer": {"first", "last", "contract"},
}
CANDIDATES = tuple(VARIANTS)[:4]
WRITTEN = "first and last exact"  # what `vitreous export --int8` does


# ---- the runs


def recipes(steps: int | None) -> list[Recipe]:
    cifar = DataSettings(where="cifar10", val_fraction=0.1)
    # Imagenette's own val is what is reported on, so the part for choices is carved from train, as for CIFAR-10.
    imagenette = DataSettings(where="imagenette224", test_split="val", val_fraction=0.2, shrink_px=96)
    shift, crop = (
        Augmentation(crop=CropSettings(method="pad", pad_px=2, padding="reflect")),
        Augmentation(crop=CropSettings(scale=(0.35, 1.0))),
    )
    small = ViTSettings(picture_px=(32, 32), patch=8, width=96, depth=6, heads=4, pool="mean", num_prefix=0)
    large = replace(small, picture_px=(64, 64), patch=16)
    found = [
        _recipe("cifar10_mean", cifar, small, shift, 8.0),
        _recipe("imagenette_mean", imagenette, large, crop, 30.0),
        _recipe("imagenette_token", imagenette, replace(large, pool="class", num_prefix=1), crop, 30.0),
    ]
    return [replace(recipe, training=replace(recipe.training, steps=steps)) for recipe in found]


def _recipe(name: str, data: DataSettings, model: ViTSettings, augmentation: Augmentation, epochs: float) -> Recipe:
    return Recipe(
        name=name,
        data=data,
        model=model,
        objective=ClassifySettings(label_smoothing=0.1),
        normalise=Preprocessing(crop="squash"),
        augmentation=augmentation,
        optimizer=MuonSettings(lr=2e-3, weight_decay=0.2, adam_lr=2e-3),
        schedule=ScheduleSettings(warmup_fraction=0.05),
        average=AverageSettings(kind="ema", factor=0.99),
        training=TrainingSettings(epochs=epochs, batch_size=128, evaluate_every_epochs=0, device="cpu"),
    )


# ---- the variants


class Variant(Graph):
    """A graph in int8 that leaves other layers exact than the usual one does."""

    def __init__(self, exact: set[str]) -> None:
        super().__init__("int8")
        self.exact, self.num_written = exact, 0

    def linear(self, x: str, weight: Array, bias: Array | None, exact: bool = False) -> str:
        outputs, inputs = weight.shape
        kind = "last" if exact else "contract" if inputs > outputs else "between"
        if self.num_written == 0:
            kind = "first"  # the patch embedding
        self.num_written += 1
        return super().linear(x, weight, bias, exact=kind in self.exact)


def logits_of(graph: Graph, trained: Trained, tensors: Array) -> Array:
    """One picture at a time: int8 takes the scale of a layer's input from the whole batch."""
    answer = write_task(trained.task(), graph, "tensors")
    given = ("tensors", TensorProto.FLOAT, ("batch", 3, *trained.card.preprocessing.size_px))
    model = graph.model([given], {"logits": Value(answer, (len(trained.card.classes),))})
    session = open_session(model.SerializeToString(), threads=torch.get_num_threads())
    return np.concatenate([session.run(None, {"tensors": one[None]})[0] for one in tensors])


def seen(trained: Trained, source: Source) -> tuple[Array, NDArray[np.int64]]:
    predictor = TorchPredictor(trained)
    tensors = [predictor.inputs(source.read(place)).numpy() for place in range(len(source))]
    return np.concatenate(tensors), np.asarray(source.labels, np.int64)


def compare(run: Path) -> dict[str, Any]:
    data = data_of(run)
    assert data is not None
    held_out = data.build().val
    assert held_out is not None
    trained = Trained.load(run)
    tensors, labels = seen(trained, held_out)
    exact = logits_of(Graph(), trained, tensors)
    with torch.inference_mode():
        eager = trained.task().predict(torch.from_numpy(tensors)).logits.numpy()
    assert np.abs(exact - eager).max() < 1e-3, "fp32 itself is off: nothing to compare with"
    found = {}
    for name, layers in VARIANTS.items():
        logits = logits_of(Variant(layers), trained, tensors)
        found[name] = {
            "top1": _percent(logits.argmax(axis=1) == labels),
            "changed": int((logits.argmax(axis=1) != exact.argmax(axis=1)).sum()),
            "error": round(float(np.sqrt(np.square(logits - exact).mean()) / exact.std()), 5),
        }
        print(f"{run.name:18} {name:42} {json.dumps(found[name])}", flush=True)
    usual = logits_of(Graph("int8"), trained, tensors)
    assert np.array_equal(usual, logits_of(Variant(VARIANTS[WRITTEN]), trained, tensors)), "WRITTEN is out of date"
    return {"pictures": len(labels), "fp32_top1": _percent(exact.argmax(axis=1) == labels), "variants": found}


def _percent(right: NDArray[np.bool_]) -> float:
    return round(100 * float(right.mean()), 2)


# ---- the choice, and the one look at test


def choose(held_out: dict[str, Any]) -> tuple[str, dict[str, float]]:
    errors = {
        name: math.exp(sum(math.log(run["variants"][name]["error"]) for run in held_out.values()) / len(held_out))
        for name in VARIANTS
    }
    return min(CANDIDATES, key=lambda name: errors[name]), {name: round(value, 5) for name, value in errors.items()}


def read_test(run: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model.onnx"
        near = export(run, precision="int8", num_checks=1_000_000, out=out).certificate["agreement"]
    exact, rounded = 100 * near["accuracy_eager"], 100 * near["accuracy_exported"]
    return {
        "pictures": near["pictures"],
        "fp32_top1": round(exact, 2),
        "int8_top1": round(rounded, 2),
        "difference_points": round(rounded - exact, 2),
        "changed": round((1 - near["top1_agreement"]) * near["pictures"]),
        "holds": rounded >= exact - LIMIT_POINTS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/int8"), help="the runs; finished ones are kept")
    parser.add_argument("--brief", action="store_true", help="ten steps per run, and test is not read")
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    result: dict[str, Any] = {"environment": environment(), "runs": {}, "held_out": {}}
    for recipe in recipes(10 if words.brief else None):
        run = words.folder / recipe.name
        about = train(recipe, run, read_test=False)
        result["runs"][recipe.name] = {name: about[name] for name in ("parameters", "steps", "train_s")}
        result["held_out"][recipe.name] = compare(run)
    result["chosen"], result["errors"] = choose(result["held_out"])
    print(f"chosen: {result['chosen']}  {json.dumps(result['errors'])}", flush=True)
    if result["chosen"] != WRITTEN:
        print(f"export writes {WRITTEN!r}: change it first; test stays unread")
    elif not words.brief:
        result["test"] = {name: read_test(words.folder / name) for name in result["runs"]}
        for name, facts in result["test"].items():
            print(f"{name:18} {json.dumps(facts)}", flush=True)
    if words.out:
        words.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
