"""The learning rate of the studies' quick form, chosen on held-out training pictures; the test set stays unread.

python benchmarks/quick_rate.py --out docs/results/quick_rate.json
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from vitreous.cli import one_line_errors
from vitreous.jobs.train import train
from vitreous.storage import atomic
from vitreous.studies.grid import DecodedOnce
from vitreous.studies.models import study_model
from vitreous.studies.study import Study
from vitreous.training.environment import environment

RATES = (2e-3, 5e-3, 1e-2, 2e-2, 4e-2)
MODELS = ("vit-t", "hybrid-t", "resnet-t")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    open_data = DecodedOnce()
    accuracies: dict[str, dict[str, float]] = {}
    for rate in RATES:
        study = Study.quick(rate=rate, val_fraction=0.1)
        for name in MODELS:
            found = []
            for seed in range(options.seeds):
                model = study_model(name, study.picture_px, study.patch).settings
                with tempfile.TemporaryDirectory() as folder:
                    recipe = study.recipe(name, model, seed)
                    found.append(train(recipe, folder, read_test=False, open_data=open_data)["val"]["accuracy"])
            accuracies.setdefault(name, {})[f"{rate:g}"] = statistics.fmean(found)
            print(f"{name} {rate:g}: {statistics.fmean(found):.2%}", flush=True)
    atomic.write_json({"environment": environment(), "held_out_accuracies": accuracies}, options.out)


if __name__ == "__main__":
    with one_line_errors():
        main()
