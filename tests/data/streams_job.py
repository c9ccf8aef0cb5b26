"""What each of several processes runs, and one alone: a few steps on shards, and which of them it opened for that.

python streams_job.py DATA OUT
"""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import vitreous
from vitreous.data.order import OrderSettings
from vitreous.data.sources import DataSettings
from vitreous.models import ViTSettings
from vitreous.recipes.fashion import fashion_vit
from vitreous.training.devices import World

STEPS = 30  # two epochs of 120 pictures


def recipe(data):
    given = fashion_vit()
    training = {"steps": STEPS, "batch_size": 8, "log_every_steps": 1, "evaluate_every_epochs": 0.0, "workers": 0}
    order = OrderSettings(streams=4, run=5, window=10)
    return replace(
        given,
        data=DataSettings(where=str(data), val_fraction=0.0, test_fraction=0.0, order=order),
        model=ViTSettings(picture_px=(8, 8), patch=4, width=8, depth=1, heads=2),
        training=replace(given.training, **training, device="cpu", precision="fp32", compile=False),
    )


def main(data, out):
    opened = Counter()
    splits = recipe(data).data.build()

    def watch(event, arguments):
        if event == "open" and str(arguments[0]).endswith(".tar"):
            opened[Path(arguments[0]).name] += 1

    sys.addaudithook(watch)
    vitreous.train(recipe(data), out, read_test=False, open_data=lambda _: splits)
    (out / f"opened-{World.join('cpu').rank}.json").write_text(json.dumps(opened))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
