#!/usr/bin/env python3
"""Whether two checkouts compute the same numbers: 30 steps of every objective and task, bit for bit.

    python tools/same_numbers.py OLD NEW [--only simclr,mae]

Every run takes place in a process of its own with one thread, on embedded pictures, with the sources of one checkout.
Its losses, step by step, and the final weights must be equal to the last bit. Moving code must not move numbers; where
a change of numbers is meant, this shows which objectives it reaches.

Only what both checkouts know is used: recipes by name, and fields of settings by their own names, in whatever part of
the settings they are kept.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS = 30
SMALL = {"picture_px": (28, 28), "patch": 7, "width": 32, "depth": 2, "heads": 2}
FEW_CROPS = {"local_crops": "2", "picture_px": "28"}
# Name -> recipe, its parameters, and fields to change anywhere in the settings.
RUNS: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "classify": ("fashion_vit", {}, {}),
    "sigmoid": ("fashion_vit", {}, {"objective.loss": "sigmoid", "objective.label_smoothing": 0.0}),
    "mixed": ("cifar10_vit", {}, {}),
    "hybrid": ("cifar10_hybrid", {}, {"model.patch": 1}),
    "resnet": ("cifar10_resnet", {}, {"model.depths": (1, 1), "model.base_width": 16}),
    "simclr": ("cifar10_simclr", {}, {}),
    "mocov3": ("cifar10_mocov3", {}, {}),
    "byol": ("cifar10_byol", {}, {}),
    "dino": ("cifar10_dino", FEW_CROPS, {"objective.prototypes": 64}),
    "swav": ("cifar10_swav", FEW_CROPS, {"objective.prototypes": 32}),
    "masked": ("cifar10_masked", {}, {}),
    "mae": ("cifar10_mae", {}, {}),
    "igpt": ("cifar10_igpt", {"picture_px": "14"}, {"model.picture_px": (14, 14)}),
    "tokeniser": ("cifar10_tokeniser", {}, {"model.picture_px": (28, 28)}),
    "deit": ("cifar10_deit", {"teacher": "TEACHER"}, {}),
    "matching": ("cifar10_matching", {"teacher": "TEACHER"}, {}),
    "beit": ("cifar10_beit", {"teacher": "TOKENISER"}, {"model.patch": 4}),
}
TEACHERS = {"TEACHER": "classify", "TOKENISER": "tokeniser"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", help="names of runs, by commas: " + ", ".join(RUNS))
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(RUNS)
    differing = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            old, new = (_recorded(tree.resolve(), name, Path(folder) / side) for side, tree in _sides(options))
            if old == new and "failed" not in old:
                print(f"{name}: {len(new['losses'])} losses and {new['tensors']} tensors are equal", flush=True)
            else:
                differing.append(name)
                print(f"{name}: DIFFERS, {_difference(old, new)}", flush=True)
    if differing:
        sys.exit(f"{len(differing)} of {len(names)} runs differ: {', '.join(differing)}")


def _sides(options: argparse.Namespace) -> list[tuple[str, Path]]:
    return [("old", options.old), ("new", options.new)]


def _recorded(tree: Path, name: str, folder: Path) -> dict[str, Any]:
    """What a run of this name leaves, with the sources of this checkout; teachers are trained first, once."""
    for teacher in (TEACHERS[word] for word in RUNS[name][1].values() if word in TEACHERS):
        if not (folder / teacher).is_dir():
            _recorded(tree, teacher, folder)
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, __file__, "--child", name, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    if ended.returncode:
        return {"failed": ended.stderr.strip().splitlines()[-1:], "losses": [], "tensors": 0}
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    for side, found in (("old", old), ("new", new)):
        if "failed" in found:
            return f"{side} failed: {found['failed']}"
    for step, (one, other) in enumerate(zip(old["losses"], new["losses"], strict=False), start=1):
        if one != other:
            return f"from step {step}: {one} and {other}"
    return "the losses are equal, the weights are not"


# ---- In the process of a run


def _child(name: str, folder: Path) -> None:
    import safetensors.torch

    import vitreous
    from vitreous.recipes import find_recipe

    recipe_name, parameters, changes = RUNS[name]
    given = {key: str(folder / TEACHERS[value]) if value in TEACHERS else value for key, value in parameters.items()}
    recipe = find_recipe(recipe_name, given)
    small = {f"model.{field}": value for field, value in SMALL.items()}
    training = {"steps": STEPS, "batch_size": 32, "precision": "fp32", "compile": False, "cuda_graph": False}
    training |= {"log_every_steps": 1, "workers": 0, "device": "cpu"}
    data = {"where": "fashion", "train_limit": 160, "val_fraction": 0.25}
    wanted = small | {f"training.{field}": value for field, value in training.items()}
    wanted |= {f"data.{field}": value for field, value in data.items()} | changes
    for path, value in wanted.items():
        part, field = path.split(".")
        changed, found = _with_field(getattr(recipe, part), field, value)
        if found:
            recipe = dataclasses.replace(recipe, **{part: changed})
        elif path not in small:
            raise SystemExit(f"{recipe_name} has no field {path}")
    run = folder / name
    vitreous.train(recipe, run, read_test=False)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    weights = safetensors.torch.load_file(next((run / "model").glob("*.safetensors")))
    digest = hashlib.sha256()
    for key in sorted(weights):
        digest.update(f"{key} {tuple(weights[key].shape)} {weights[key].dtype}".encode())
        digest.update(weights[key].contiguous().numpy().tobytes())
    losses = [row["loss"] for row in rows if "loss" in row]
    print(json.dumps({"losses": losses, "tensors": len(weights), "sha256": digest.hexdigest()}))


def _with_field(settings: Any, field: str, value: Any) -> tuple[Any, bool]:
    """The settings with a field of this name changed, in whatever part it is; and whether there is one."""
    names = [one.name for one in dataclasses.fields(settings)]
    if field in names:
        return dataclasses.replace(settings, **{field: value}), True
    for name in names:
        part = getattr(settings, name)
        if dataclasses.is_dataclass(part):
            changed, found = _with_field(part, field, value)
            if found:
                return dataclasses.replace(settings, **{name: changed}), True
    return settings, False


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
