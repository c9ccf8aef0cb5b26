"""What `vitreous fit` makes of few labels, with and without a folder of unlabelled pictures.

    python benchmarks/few_labels.py --set imagenette224 --minutes 4 --folder runs/few --out docs/results/few_labels.json

Folders are made from a set that VITREOUS_DATA names: some training pictures of every class with their labels, all test
pictures, and the other training pictures without labels. Fits with and without these take turns, each a process of its
own, as a user would start it; the test pictures are read once per fit. A seed decides which pictures have labels. Other
programs on the machine leave a fit less to do in its minutes: `cpu_s` is its processor time, and `load` the machine's
load before and after. `named_rightly` is the share of the labels learned from that the teacher got right. A row that
is there is not run again.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous.cli import one_line_errors
from vitreous.data.base import Source
from vitreous.data.joined import is_joined, read_joined
from vitreous.data.sources import DataSettings
from vitreous.data.splits import limited
from vitreous.storage import atomic
from vitreous.training.environment import environment

SMALL_PX = 64  # larger pictures are stored as JPEG
TEST = {"imagenette224": "val"}  # the split to report on, where it has another name


def folders(name: str, per_class: int, seed: int, folder: Path) -> None:
    """labelled/train and labelled/test, by class; unlabelled, and in truth.json what is in each of these."""
    if (folder / "truth.json").is_file():
        return
    splits = DataSettings(where=name, val_fraction=0.0, test_fraction=0.0, test_split=TEST.get(name, "test")).build()
    train, test = splits.train, splits.test
    assert test is not None
    chosen = limited(train.labels, per_class * len(train.classes), seed)
    rest = np.setdiff1d(np.arange(len(train)), chosen)
    for index in chosen.tolist():
        write(train, index, folder / "labelled/train" / train.described(index))
    for index in range(len(test)):
        write(test, index, folder / "labelled/test" / test.described(index))
    for index in rest.tolist():
        write(train, index, folder / "unlabelled")
    atomic.write_json({f"{index:06}": train.described(index) for index in rest.tolist()}, folder / "truth.json")


def write(source: Source, index: int, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(source.read(index))
    kind = "jpg" if max(picture.size) > SMALL_PX else "png"
    picture.save(folder / f"{index:06}.{kind}", quality=95)


def fitted(folder: Path, unlabelled: bool, minutes: float) -> dict[str, Any]:
    run = folder / ("with" if unlabelled else "without")
    command = [sys.executable, "-m", "vitreous", "fit", str(folder / "labelled"), "--minutes", str(minutes)]
    command += ["--out", str(run), "--quiet", *(["--unlabelled", str(folder / "unlabelled")] if unlabelled else [])]
    began, used, load = time.monotonic(), cpu_s(), os.getloadavg()[0]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = {
        "seconds": round(time.monotonic() - began, 1),
        "cpu_s": round(cpu_s() - used, 1),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    for part, names in (("plan", ("first_models", "candidates")), ("results", ("steps", "test_scored"))):
        document = json.loads((run / f"{part}.json").read_text())
        found |= {name: document[name] for name in names}
    found["test"] = json.loads((run / "evaluation.json").read_text())["scores"]["top1"]
    return found | {"lesson": lesson(run, folder)} if unlabelled else found


def cpu_s() -> float:
    """Processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def lesson(run: Path, folder: Path) -> dict[str, Any]:
    """What the student learned from, and how much of it was right."""
    found = json.loads((run / "student.json").read_text())
    told = {name: found[name] for name in ("pictures", "shown", "leaked", "teacher", "by_class", "why_not")}
    if not is_joined(run / "named"):
        return told
    about, taken, probabilities = read_joined(run / "named")
    truth = json.loads((folder / "truth.json").read_text())
    rest = DataSettings(where=str(folder / "unlabelled"), need_labels=False, val_fraction=0, test_fraction=0, keep_gb=0)
    unlabelled = rest.build().train
    actual = [truth[Path(unlabelled.where(index)).stem] for index in taken.tolist()]
    right = np.array(about.classes)[probabilities.argmax(axis=1)] == np.array(actual)
    return told | {"named": len(taken), "named_rightly": round(float(right.mean()), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="imagenette224")
    parser.add_argument("--per-class", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--folder", type=Path, required=True, help="of the pictures and the runs")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = json.loads(options.out.read_text())["rows"] if options.out.is_file() else {}
    for seed in options.seeds:
        folder = options.folder / f"{options.set}-{options.per_class}-{seed}"
        folders(options.set, options.per_class, seed, folder)
        for unlabelled in (False, True):
            name = f"{folder.name}, {options.minutes:g} minutes, {'with' if unlabelled else 'without'}"
            if name not in rows:
                rows[name] = fitted(folder, unlabelled, options.minutes)
                atomic.write_json({"environment": environment(), "rows": rows}, options.out)
            print(f"{name}: {rows[name]['test']['value']:.1%}", flush=True)


if __name__ == "__main__":
    with one_line_errors():
        main()
