"""Few-shot regression, ours against scikit-learn's ridge, side by side in one process.

    python benchmarks/fewshot.py --out docs/results/fewshot.json

Ours is the whole protocol: centring, one decomposition, the penalty chosen out of fifteen by leaving out each picture
once, the fit, and the answers to as many test pictures. scikit-learn's Ridge makes one fit with the penalty that ours
has chosen; RidgeCV chooses it among the same by leaving one out. Both are checked to answer alike.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import Ridge, RidgeCV

from vitreous.cli import one_line_errors
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.probes import RIDGE_PENALTIES, few_shot_fit
from vitreous.training.environment import environment


def made(num: int, width: int, num_classes: int, seed: int) -> FeatureSet:
    """Overlapping classes, with directions of very different sizes, as features have them."""
    centres = torch.randn(num_classes, width, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % num_classes
    values = (0.15 * centres[labels] + torch.randn(num, width, generator=generator)) * torch.logspace(0, -2, width)
    return FeatureSet(values, labels, torch.arange(num))


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = run()
    return time.perf_counter() - began, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    train, test = (made(options.pictures, options.width, options.classes, seed) for seed in (1, 2))
    values, unseen = train.values.double().numpy(), test.values.double().numpy()
    targets = 2 * F.one_hot(train.labels, options.classes).double().numpy() - 1
    scale = float(np.square(values - values.mean(axis=0)).sum(axis=1).mean())

    def ours() -> tuple[torch.Tensor, float]:
        classify, penalty = few_shot_fit(train, options.classes)
        return classify(test.values), penalty

    _, (answers, penalty) = timed(ours)  # once to warm up
    grid = [share * scale for share in RIDGE_PENALTIES]
    runs: dict[str, Callable[[], Any]] = {
        "ours_s": ours,
        "ridge_s": lambda: Ridge(alpha=penalty * scale).fit(values, targets).predict(unseen),
        "ridge_cv_s": lambda: RidgeCV(alphas=grid).fit(values, targets).predict(unseen),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, run in runs.items():
            took, found = timed(run)
            seconds[name].append(took)
            if name == "ridge_s":
                difference = float(np.abs(found - answers.numpy()).max())
                assert difference < 1e-6, difference
    medians = {name: round(statistics.median(took), 3) for name, took in seconds.items()}
    result = {
        "pictures": options.pictures,
        "width": options.width,
        "classes": options.classes,
        "threads": torch.get_num_threads(),
        "penalty": penalty,
        "accuracy": float((answers.argmax(dim=1) == test.labels).double().mean()),
        "largest_difference": difference,
        **medians,
        "ours_over_ridge": round(medians["ours_s"] / medians["ridge_s"], 2),
        "ours_over_ridge_cv": round(medians["ours_s"] / medians["ridge_cv_s"], 2),
    }
    line = json.dumps(result)
    print(line)
    if options.out:
        options.out.write_text(json.dumps({"environment": environment(), **result}) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
