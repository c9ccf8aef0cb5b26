"""What a start is worth: frozen features of encoders on sets they have not seen, at several picture sizes.

    python benchmarks/transfer.py --starts s=runs/vitreous-s/phase2/model random=vitreous-s-random --out transfer.json

A linear layer (logistic regression) and ten pictures per class (least squares, five draws), fitted on a part of each
set's training pictures and scored on the held-out rest: that is how every choice is made. With --test the test part is
scored too, once, for every size.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitreous.cli import one_line_errors
from vitreous.data.loader import EvalLoader
from vitreous.data.sources import DataSettings, Source, Splits
from vitreous.evaluation.features import FeatureSet, pooled_features
from vitreous.evaluation.probes import few_shot, linear_probe
from vitreous.models.base import Encoder
from vitreous.studies.grid import DecodedOnce
from vitreous.trained import Trained
from vitreous.training.environment import environment

SETS = {
    "imagenette224": DataSettings(where="imagenette224", val_fraction=0.2, test_split="val"),
    "oxford_pets": DataSettings(where="oxford_pets", val_fraction=0.25),
    "cifar10": DataSettings(where="cifar10", train_limit=8000),
    "fashion": DataSettings(where="fashion"),
}
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", nargs="+", required=True, help="NAME=WEIGHTS")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--px", nargs="+", type=int, default=[64, 96, 128])
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
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


if __name__ == "__main__":
    with one_line_errors():
        main()
