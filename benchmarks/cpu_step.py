"""A training step on a CPU, ours against a plain loop with timm's model and AdamW, in turn in one process.

    python benchmarks/cpu_step.py --out docs/results/cpu_step.json
    VITREOUS_DATA=... python benchmarks/cpu_step.py --models --curve --out curve.json   # the loss curves alone

Both have equal parameters and, on the same weights and pictures, the same loss in float32: that is checked first. Then
each takes steps in turn. Ours is the step of the real loop as `fit` runs it (precision auto, AdamW, clipping, the watch
for NaN); theirs is what one writes first: forward, backward, AdamW, in float32. "timm, autocast" is the same with
torch.autocast to bfloat16 around the forward pass.

--curve trains a small ViT on Imagenette at 64 px in float32 and in bfloat16, from the same weights and in the same
order, with several seeds: bfloat16 should move the losses less than another seed does.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from one_step import loop_on
from vitreous import create_model, platforms
from vitreous.batch import Batch
from vitreous.cli import one_line_errors
from vitreous.data.sources import DataSettings
from vitreous.fitting.threads import settled
from vitreous.jobs.train import train
from vitreous.models import ViTSettings
from vitreous.recipes.fashion import fashion_vit
from vitreous.training.environment import environment
from vitreous.training.run import RunDirectory
from vitreous.weights import formats
from vitreous.weights.formats import Given
from vitreous.weights.peers import imported
from vitreous.weights.timm import Timm

timm = imported("timm")
CLASSES = 10
# Name, timm's name, pictures per step. The last is what fits on CPUs are like: a small model, small pictures.
PAIRS = {
    "vit_s16": ("vit_small_patch16_224", {}, 8),
    "vit_ti16": ("vit_tiny_patch16_224", {}, 16),
    "vit_ti8, 64 px": ("vit_tiny_patch16_224", {"img_size": 64, "patch_size": 8}, 32),
}


def pair(name: str) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """Ours and theirs with the same weights, and what they learn from."""
    torch.manual_seed(0)
    called, options, batch_size = PAIRS[name]
    theirs = timm.create_model(called, num_classes=CLASSES, **options)
    nn.init.normal_(theirs.head.weight, std=0.02)
    side = options.get("img_size", 224)
    ours = create_model(name.partition(",")[0], num_classes=CLASSES, picture_px=(side, side))
    _, weights, report = formats.read(Given(theirs.state_dict(), {}, called), Timm())
    assert report.is_exact, report.mismatch()
    ours.load_state_dict(weights)
    return ours, theirs, torch.randn(batch_size, 3, side, side), torch.randint(CLASSES, (batch_size,))


def check_equal(ours: Any, theirs: nn.Module, images: Tensor, labels: Tensor) -> dict[str, float]:
    counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert counts[0] == counts[1], counts
    with torch.no_grad():
        losses = [float(F.cross_entropy(logits, labels)) for logits in (ours.predict(images).logits, theirs(images))]
    assert abs(losses[0] - losses[1]) < 1e-4, losses
    return {"parameters": counts[0], "our_loss": losses[0], "their_loss": losses[1]}


def plain_step(model: nn.Module, images: Tensor, labels: Tensor, half: bool) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compare(name: str, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    ours, theirs, images, labels = pair(name)
    same = check_equal(ours, theirs, images, labels)
    ids = torch.arange(len(images))
    batch = Batch(views=(images,), targets={"label": labels}, ids=ids, keys=ids)
    steps = {
        "timm": plain_step(theirs, images, labels, half=False),
        "timm, autocast": plain_step(pair(name)[1], images, labels, half=True),
        "ours, fp32": loop_on(pair(name)[0], batch, False, "fp32").step,
        "ours": loop_on(ours, batch, False, "auto").step,
    }
    seconds: dict[str, list[float]] = {who: [] for who in steps}
    for number in range(rounds + 1):
        for who, step in steps.items():
            began = clock()
            step()
            if number:  # the first warms up
                seconds[who].append(clock() - began)
    found = {
        who: {
            "ms": round(1000 * statistics.median(taken), 1),
            "times": round(statistics.median(t / one for t, one in zip(seconds["timm"], taken, strict=True)), 2),
        }
        for who, taken in seconds.items()
    }
    return {"model": name, "batch_size": len(images), **same, "steps": found}


def curves(seeds: int, steps: int) -> dict[str, Any]:
    """The logged losses of runs that differ in precision alone, and of runs that differ in their seed alone."""
    plain = fashion_vit()
    losses: dict[str, list[list[float]]] = {"fp32": [], "bf16": []}
    for seed in range(seeds):
        for precision, found in losses.items():
            recipe = replace(
                plain,
                data=DataSettings(where="imagenette224", test_split="val", val_fraction=0.02, shrink_px=96),
                model=ViTSettings(picture_px=(64, 64), patch=8, width=128, depth=6, heads=4, pool="mean", num_prefix=0),
                training=replace(
                    plain.training, steps=steps, batch_size=64, precision=precision, log_every_steps=10, seed=seed
                ),
            )
            with tempfile.TemporaryDirectory() as out:
                train(recipe, Path(out) / "run", read_test=False)
                rows = RunDirectory(Path(out) / "run").rows()
            found.append([row["loss"] for row in rows if "loss" in row])
    exact, half = (torch.tensor(losses[precision]) for precision in ("fp32", "bf16"))
    last = slice(exact.shape[1] // 2, None)
    return {
        "steps": steps,
        "seeds": seeds,
        "losses": losses,
        "mean_loss_of_the_second_half": {"fp32": float(exact[:, last].mean()), "bf16": float(half[:, last].mean())},
        "by_precision": float((half - exact).abs().mean()),  # of one logged loss
        "by_seed": float((exact - exact.roll(1, 0)).abs().mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(PAIRS), choices=list(PAIRS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, help="default: as many as are fastest now, as fit decides")
    parser.add_argument("--cpu-time", action="store_true", help="one thread's processor time, on a busy machine")
    parser.add_argument("--curve", action="store_true", help="the loss curves, too")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.cpu_time or options.threads:
        torch.set_num_threads(1 if options.cpu_time else options.threads)
    else:
        settled()
    clock = time.process_time if options.cpu_time else time.perf_counter
    result: dict[str, Any] = {
        "environment": environment(),
        "threads": torch.get_num_threads(),
        "clock": "processor time" if options.cpu_time else "wall",
        "has_bfloat16": platforms.cpu_has_bfloat16(),
        "speed": [],
    }
    for name in options.models:
        found = compare(name, options.rounds, clock)
        result["speed"].append(found)
        for who, taken in found["steps"].items():
            print(f"{name:16} {who:16} {taken['ms']:8.1f} ms   {taken['times']:.2f} x", flush=True)
    if options.curve:
        result["curves"] = found = curves(options.seeds, options.steps)
        print({name: value for name, value in found.items() if name != "losses"})
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
