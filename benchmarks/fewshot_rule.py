"""By what should the few-shot penalty be chosen? Rules compared on training pictures alone.

    python benchmarks/fewshot_rule.py --out docs/results/fewshot_rule.json

Features are those of random convolutions (Coates and Ng 2012): no trained model is favoured. Of each set's training
part one half gives the few pictures, the other half judges; the test part is not opened. Every rule sees what least
squares says of each of the few pictures when it is left out.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.cli import one_line_errors
from vitreous.data.sources import DataSettings
from vitreous.evaluation.calibration import fit_temperature
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.metrics import log_losses
from vitreous.evaluation.probes import RIDGE_PENALTIES
from vitreous.evaluation.ridge import LeastSquares
from vitreous.training.environment import environment

NUM_EACH = 4000  # pictures that are drawn from, and as many that judge
SHOTS = (5, 10, 25)


def random_features(pictures: Tensor, width: int = 512) -> Tensor:
    """(N, 3, H, W) uint8 -> (N, 4 width): random kernels of 6 x 6, a rectifier, means over quarters."""
    made = torch.Generator().manual_seed(0)
    kernels = torch.randn(width, 3, 6, 6, generator=made)
    kernels = kernels - kernels.mean(dim=(1, 2, 3), keepdim=True)
    found = []
    for part in pictures.split(256):
        maps = F.relu(F.conv2d(part.float() / 255 - 0.5, kernels, stride=2))
        found.append(F.adaptive_avg_pool2d(maps, 2).flatten(1))
    return torch.cat(found)


def squared_error(said: Tensor, labels: Tensor) -> float:
    targets = 2 * F.one_hot(labels, said.shape[1]).double() - 1
    return float((said - targets).square().mean())


def mistakes(said: Tensor, labels: Tensor) -> float:
    return float((said.argmax(dim=1) != labels).double().mean())


def log_loss(said: Tensor, labels: Tensor) -> float:
    names = tuple(map(str, range(said.shape[1])))
    found = LabelledLogits(said / said.std().clamp(min=1e-12), labels, torch.arange(len(labels)), names)
    return float(log_losses(found, fit_temperature(found)).mean())


RULES: dict[str, Callable[[Tensor, Tensor], float]] = {
    "log-loss at its best temperature": log_loss,
    "squared error": squared_error,
    "mistakes": mistakes,
}


def compare(name: str, seeds: int) -> list[dict[str, object]]:
    train = DataSettings(where=name, train_limit=2 * NUM_EACH).build().train
    assert train.pictures is not None
    values = random_features(torch.from_numpy(train.pictures).permute(0, 3, 1, 2))
    labels = torch.from_numpy(train.labels).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    drawn, judged = order[: len(order) // 2], order[len(order) // 2 :]
    rows = []
    for shots in SHOTS:
        found: dict[str, list[float]] = {rule: [] for rule in (*RULES, "best penalty, known afterwards")}
        for seed in range(seeds):
            mixed = drawn[torch.randperm(len(drawn), generator=torch.Generator().manual_seed(1 + seed))]
            few = torch.cat([mixed[labels[mixed] == label][:shots] for label in range(len(train.classes))])
            problem = LeastSquares(values[few], 2 * F.one_hot(labels[few], len(train.classes)).double() - 1)
            scale = problem.scale or 1.0
            accuracies = {}
            for penalty in RIDGE_PENALTIES:
                said = problem.fit(penalty * scale)(values[judged])
                accuracies[penalty] = float((said.argmax(dim=1) == labels[judged]).double().mean())
            for rule, judge in RULES.items():
                losses = {p: judge(problem.left_out(p * scale), labels[few]) for p in RIDGE_PENALTIES}
                found[rule].append(accuracies[min(losses, key=lambda penalty: losses[penalty])])
            found["best penalty, known afterwards"].append(max(accuracies.values()))
        row = {rule: round(100 * statistics.fmean(each), 2) for rule, each in found.items()}
        rows.append({"data": name, "shots": shots, "accuracy": row})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["fashion", "cifar10"])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [row for name in options.data for row in compare(name, options.seeds)]
    if options.out:
        options.out.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
