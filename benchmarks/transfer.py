"""What a start is worth: frozen features of encoders on sets they have not seen, at several picture sizes.

    python benchmarks/transfer.py --starts s=runs/vitreous-s/phase2/model random=vitreous-s-random --out transfer.json

A linear layer (logistic regression) and ten pictures per class (least squares, five draws), fitted on a part of each
set's training pictures and scored on the held-out rest: that is how every choice is made. With --test the test part is
scored too, once, for every size. --draw makes the figure of a file that is there already.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from vitreous.cli import one_line_errors
from vitreous.data.base import Source
from vitreous.data.loader import EvalLoader
from vitreous.data.sources import DataSettings
from vitreous.data.splits import Splits
from vitreous.display import figures
from vitreous.evaluation.features import FeatureSet, pooled_features
from vitreous.evaluation.probes import few_shot, linear_probe
from vitreous.models.base import Encoder
from vitreous.studies.grid import DecodedOnce
from vitreous.training.environment import environment
from vitreous.weights.trained import Trained

SETS = {
    "imagenette224": DataSettings(where="imagenette224", val_fraction=0.2, test_split="val"),
    "oxford_pets": DataSettings(where="oxford_pets", val_fraction=0.25),
    "cifar10": DataSettings(where="cifar10", train_limit=8000),
    "fashion": DataSettings(where="fashion"),
}
SHOWN = (
    "vitreous-s",
    "vitreous-xs",
    "hybrid (the teacher of ours)",
    "distilled from the hybrid",
    "SimCLR, then labels, short",
    "labels, short",
    "SimCLR, short",
    "DINO, short",
    "MAE, short",
)  # starts, in the figure
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", nargs="+", default=[], help="NAME=WEIGHTS")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--px", nargs="+", type=int, default=[64, 96, 128])
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.draw:
        figures.save(comparison(json.loads(options.out.read_text())["chosen_on_val"]), options.out.with_suffix(""))
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows: list[dict[str, Any]] = []
    open_data = DecodedOnce()
    for name in options.sets:
        splits = open_data(SETS[name])
        for start in options.starts:
            title, where = start.split("=", maxsplit=1)
            for px in options.px:
                rows.append({"start": title, "set": name, "px": px} | scores(where, px, splits, options.test, device))
                print(json.dumps(rows[-1]), flush=True)
                document = {"environment": environment(), "rows": rows}
                options.out.write_text(json.dumps(document, indent=1) + "\n")


def scores(where: str, px: int, splits: Splits, test: bool, device: str) -> dict[str, Any]:
    began = time.monotonic()
    trained = Trained.load(where)
    encoder = trained.encoder(replace(trained.card.model, picture_px=(px, px)))
    preprocessing = replace(trained.card.preprocessing, size_px=(px, px), crop="squash")

    def features(source: Source) -> FeatureSet:
        return features_of(encoder, EvalLoader(source, preprocessing, 256, device, workers=8), device)

    assert splits.val is not None and splits.test is not None
    train = features(splits.train)
    found: dict[str, Any] = {}
    for part, source in {"val": splits.val, "test": splits.test if test else None}.items():
        if source is not None:
            unseen = features(source)
            found[f"{part}_linear"] = round(100 * linear_probe(train, unseen, PENALTIES).accuracy.value, 2)
            found[f"{part}_ten_shot"] = round(100 * few_shot(train, unseen, (10,))[0].mean, 2)
    return found | {"seconds": round(time.monotonic() - began, 1)}


def features_of(encoder: Encoder, batches: EvalLoader, device: str) -> FeatureSet:
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        return pooled_features(encoder, batches, device).to(device)


@figures.drawing
def comparison(rows: list[dict[str, Any]]) -> Figure:
    """A panel per set: the accuracy of a linear layer against the size of the pictures, a line per start."""
    rows = [row for row in rows if row["start"] in SHOWN]
    sets, starts = list(dict.fromkeys(row["set"] for row in rows)), SHOWN
    drawn = figures.figure(9.6, 3.4)
    for ax, name in zip(drawn.subplots(1, len(sets)), sets, strict=True):
        for number, start in enumerate(starts):
            points = [(row["px"], row["val_linear"]) for row in rows if (row["set"], row["start"]) == (name, start)]
            style = "-" if start.startswith("vitreous") else "--"
            colour = figures.SERIES[number % len(figures.SERIES)]
            marker = "o" if number < len(figures.SERIES) else "s"  # where colours come round again
            ax.plot(*zip(*sorted(points), strict=True), style, marker=marker, color=colour, label=start)
        ax.set(title=name, xlabel="picture size, px", xticks=sorted({row["px"] for row in rows}))
    drawn.axes[0].set_ylabel("linear layer on frozen features, %")
    drawn.legend(*drawn.axes[-1].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return drawn


if __name__ == "__main__":
    with one_line_errors():
        main()
