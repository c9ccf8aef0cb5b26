"""Exported models: how fast they are beside timm and torch, and how near to the model they came from.

    python benchmarks/export.py --out docs/results/export.json
    python benchmarks/export.py --runs runs/cifar10 runs/imagenette --out docs/results/export.json
    python benchmarks/export.py --model swin_t --out export-swin_t.json

Speed: a ViT-S/16, or the model that is named, with random weights, one picture of 224 px at a time, in one process, all
in turn, so that whatever else the machine does slows all alike. `times` is the median over the rounds of timm's eager
fp32 divided by each. "As predict takes it": levels of 0 to 255 go in, and a CPU that is made for bfloat16 computes in
it. "timm, onnxruntime int8" is what one gets off the shelf: torch.onnx.export, then quantize_dynamic.

Agreement, of each run: the certificates of tensors in and pictures in, on 200 pictures of its test part; and the
accuracy of int8 on all of that part.
"""

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vitreous.cli import one_line_errors
from vitreous.data.transforms import Preprocessing
from vitreous.export.job import export
from vitreous.export.runtime import ExportedPredictor, open_session
from vitreous.models import model_settings
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.tasks import ClassifySettings
from vitreous.training.environment import environment
from vitreous.weights.card import Card
from vitreous.weights.peers import imported
from vitreous.weights.trained import Trained

BASE = "timm, eager fp32"
TIMM = {  # its name of each model
    "vit_s16": "vit_small_patch16_224",
    "swin_t": "swin_tiny_patch4_window7_224",
    "convnext_t": "convnext_tiny",
    "pvt_v2_b2": "pvt_v2_b2",
}


def random_model(name: str) -> Trained:
    """Every weight counts: what starts at zero does not."""
    torch.manual_seed(0)
    model, task, classes = model_settings(name), ClassifySettings(), tuple(str(i) for i in range(1000))
    built = task.build(model.build(), classes)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    card = Card(model=model, task=task, classes=classes, preprocessing=Preprocessing(size_px=model.picture_px))
    return Trained(card, built.state_dict(), "random")


def off_the_shelf(model: torch.nn.Module, folder: Path) -> Path:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    plain, rounded = folder / "timm.onnx", folder / "timm-int8.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.zeros(1, 3, 224, 224),), plain, dynamo=True, verbose=False)
        written = onnx.load(plain)
        del written.graph.value_info[:]  # the exporter's and the quantiser's shapes of one value differ
        onnx.save(written, plain)
        quantize_dynamic(plain, rounded, per_channel=True, weight_type=QuantType.QInt8)
    return rounded


def contenders(name: str, folder: Path, threads: int) -> dict[str, Callable[[], Any]]:
    theirs = imported("timm").create_model(TIMM[name]).eval()
    trained = random_model(name)
    trained.save(folder / "random")
    ours = trained.task()
    images = torch.randn(1, 3, 224, 224)
    array, levels = images.numpy(), torch.randint(256, images.shape, dtype=torch.uint8)
    predicting = TorchPredictor(trained)
    found: dict[str, Callable[[], Any]] = {
        BASE: lambda: theirs(images),
        "ours, eager fp32": lambda: ours.predict(images).logits,
        "ours, as predict takes it": lambda: predicting.predict(levels),
    }
    for precision in ("fp32", "int8"):
        path = folder / f"{precision}.onnx"
        export(folder / "random", precision=precision, input="tensors", num_checks=1, out=path)
        predictor = ExportedPredictor(path, threads)
        found[f"ours, onnx {precision}"] = lambda predictor=predictor: predictor.run(array)
    session = open_session(off_the_shelf(theirs, folder), threads)
    given = session.get_inputs()[0].name
    found["timm, onnxruntime int8"] = lambda: session.run(None, {given: array})
    return found


PAUSE_S = 0.3  # a library's threads wait for more work by turning in circles, and would take the next one's time
PASSES = 3  # timed together


@torch.inference_mode()
def measure_speed(name: str, rounds: int, threads: int, cpu_time: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        runs = contenders(name, Path(folder), threads)
    clock = time.thread_time if cpu_time else time.perf_counter
    times: dict[str, list[float]] = {contender: [] for contender in runs}
    for number in range(rounds + 1):
        for contender, run in runs.items():
            time.sleep(PAUSE_S)
            run()  # the one before left its own weights in the cache
            start = clock()
            for _ in range(PASSES):
                run()
            if number:  # the first round warms up
                times[contender].append(1000 * (clock() - start) / PASSES)
    result = {}
    for contender, found in times.items():
        ratios = [base / one for base, one in zip(times[BASE], found, strict=True)]
        result[contender] = {
            "median_ms": round(statistics.median(found), 1),
            "least_ms": round(min(found), 1),
            "times": round(statistics.median(ratios), 2),
            "times_of_least": round(min(times[BASE]) / min(found), 2),
        }
        print(f"{contender:24} {statistics.median(found):7.1f} ms   {statistics.median(ratios):.2f} x", flush=True)
    about = {
        "model": name,
        "threads": threads,
        "clock": "processor time" if cpu_time else "wall",
        "rounds": rounds,
        "batch": 1,
    }
    return about | {"contenders": result}


def measure_agreement(run: str, check: str | None) -> dict[str, Any]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, num, options in (
            ("tensors fp32", 200, {"input": "tensors"}),
            ("pictures fp32", 200, {"input": "pictures"}),
            ("pictures int8", 100_000, {"input": "pictures", "precision": "int8"}),
        ):
            done = export(run, **options, check=check, num_checks=num, out=Path(folder) / "model.onnx")
            found[name] = done.certificate["agreement"]
            print(f"{run}, {name}: {json.dumps(found[name])}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="*", default=[], metavar="RUN", help="trained models to check")
    parser.add_argument("--check", metavar="DATA", help="labelled pictures, in place of the runs' own test parts")
    parser.add_argument("--model", choices=TIMM, default="vit_s16", help="of the speed test")
    parser.add_argument("--rounds", type=int, default=40, help="of the speed test; 0 leaves it out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--cpu-time", action="store_true", help="one thread's processor time, for a machine that others use"
    )
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    threads = 1 if words.cpu_time else words.threads
    torch.set_num_threads(threads)
    result: dict[str, Any] = {"environment": environment()}
    if words.rounds:
        result["speed"] = measure_speed(words.model, words.rounds, threads, words.cpu_time)
    if words.runs:
        result["agreement"] = {Path(run).name: measure_agreement(run, words.check) for run in words.runs}
    if words.out:
        words.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
