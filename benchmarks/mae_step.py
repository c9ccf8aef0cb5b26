"""A training step of a masked autoencoder against a supervised one of the same encoder, in one process on one GPU.

    python benchmarks/mae_step.py --out docs/results/mae_step.json

ViT-L/16 at 224 px; the autoencoder sees a quarter of the patches and has the paper's decoder, 8 blocks of width 512.
Both take the step of the real training loop, as one CUDA graph, in turn (forward, backward, fused AdamW, gradient norm,
watch for NaN; bf16, torch.compile) on the same pictures, and the medians of the rounds are compared. The ratio should
be at most 0.45; beside it stands the ratio of the FLOPs, which is what could be reached. --tiny tries it out on any
machine.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

import torch

from one_step import seconds, step_of
from vitreous.cli import one_line_errors
from vitreous.models import ViTSettings, model_settings
from vitreous.models.flops import TRAINING_FACTOR, flops
from vitreous.objectives import mae
from vitreous.objectives.mae import MAESettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.environment import environment

AT_MOST = 0.45
TINY = ViTSettings(picture_px=(64, 64), patch=8, width=64, depth=4, heads=2, positions="sincos")


def compare(
    name: str, model: ViTSettings, settings: MAESettings, *, batch_size: int, compiled: bool, rounds: int, times: int
) -> dict[str, object]:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    supervised = ClassifySettings().build(model.build(), tuple(map(str, range(1000)))).to(device)
    masked = settings.build(model.build(), ()).to(device)
    work = {"supervised": flops(supervised.encoder), "mae": mae.flops(model, settings)}
    images = torch.randn(batch_size, 3, *model.picture_px, device=device)
    labels = torch.randint(1000, (batch_size,), device=device)
    objectives = {"supervised": supervised, "mae": masked}
    steps = {
        who: step_of(objective, images, labels, compiled, device.type == "cuda")
        for who, objective in objectives.items()
    }
    result: dict[str, object] = {
        "model": name,
        "batch_size": batch_size,
        "compiled": compiled,
        "kept": f"{masked.num_kept} of {masked.encoder.grid.cells}",
        "flop_ratio": round(work["mae"] / work["supervised"], 4),
    }
    for step in steps.values():
        seconds(step, 5, device)  # compilation, warm-up and capture
    if not rounds:
        return result
    found: dict[str, list[float]] = {who: [] for who in steps}
    for _ in range(rounds):
        for who, step in steps.items():
            found[who].append(seconds(step, times, device))
    medians = {who: statistics.median(values) for who, values in found.items()}
    for who, median in medians.items():
        result[f"{who}_ms"] = round(1000 * median, 2)
        result[f"{who}_tflops"] = round(TRAINING_FACTOR * work[who] * batch_size / median / 1e12, 1)
    ratio = medians["mae"] / medians["supervised"]
    return result | {"ratio": round(ratio, 4), "at_most": AT_MOST, "holds": ratio <= AT_MOST}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", default=["vit_l16"], help="plain ViTs; vit_b16 pays more for the decoder"
    )
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--rounds", type=int, default=5, help="0: only fill the compiler's cache")
    parser.add_argument("--times", type=int, default=6, help="steps a round")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the script")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = []
    for name in ["tiny"] if options.tiny else options.models:
        model, settings = TINY, MAESettings(decoder_depth=1, decoder_width=32, decoder_heads=2)
        if not options.tiny:
            named = model_settings(name)
            assert isinstance(named, ViTSettings), f"{name} is no ViT"
            model, settings = replace(named, positions="sincos"), MAESettings()
        results.append(
            compare(
                name,
                model,
                settings,
                batch_size=options.batch_size,
                compiled=not options.eager,
                rounds=options.rounds,
                times=options.times,
            )
        )
        print(json.dumps(results[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps({"environment": environment(), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
