"""Whether something slow came back: hot paths compared with stored bounds.

    make bench-check                                     # all that this machine can measure
    python benchmarks/bench_check.py --only order crop   # some of it
    python benchmarks/bench_check.py --set               # measured anew, and stored

Two kinds of numbers, neither of which minds a busy machine much. *Ratios*: the processor time on one thread of what a
path is compared with, divided by its own, in turn in one process; they have to stay above a bound. *Instructions* that
a path takes per call, counted by `perf stat` where the processor lets itself be asked, else by valgrind's callgrind,
else not at all, and the table says so; they have to stay below. Both bounds, and what was measured when they were set,
are in benchmarks/bounds.json. What is about bfloat16 is left out on CPUs that are not made for it.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous import create_model, platforms
from vitreous.cli import one_line_errors
from vitreous.terminal import table
from vitreous.training.environment import environment
from vitreous.weights.peers import imported

BOUNDS = Path(__file__).with_name("bounds.json")
KEPT, GROWN = 0.75, 1.1  # of a measured ratio, what has to be left; of instructions, how many there may be
Paths = tuple[Callable[[], Any], Callable[[], Any]]  # the path, and what it is compared with


# ---- ratios


def attention() -> Paths:
    """Forwards and backwards in bfloat16, beside torch's fused kernel."""
    from vitreous.nn.attend import attend

    given = torch.randn(3, 4, 6, 197, 64).bfloat16().requires_grad_()

    def both(way: Callable[..., torch.Tensor]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(way(*given.unbind()).sum(), given)

    return both(attend), both(torch.nn.functional.scaled_dot_product_attention)


def prediction() -> Paths:
    """Of one picture by ViT-Ti/16, beside timm's in float32."""
    from vitreous.nn.half import half_where_native

    theirs = imported("timm").create_model("vit_tiny_patch16_224").eval()
    ours, images = create_model("vit_ti16", num_classes=1000).eval(), torch.randn(1, 3, 224, 224)

    def predicted() -> Any:
        with torch.inference_mode(), half_where_native(images.device):
            return ours.predict(images)

    return predicted, torch.inference_mode()(lambda: theirs(images))


def training() -> Paths:
    """A step of ViT-Ti/8 at 64 px as `fit` takes it, beside timm's in float32 with AdamW."""
    from cpu_step import pair, plain_step
    from one_step import loop_on
    from vitreous.batch import Batch

    ours, theirs, images, labels = (one if isinstance(one, torch.nn.Module) else one[:8] for one in pair(SMALL))
    ids = torch.arange(len(images))
    batch = Batch(views=(images,), targets={"label": labels}, ids=ids, keys=ids)
    return loop_on(ours, batch, False, "auto").step, plain_step(theirs, images, labels, half=False)


SMALL = "vit_ti8, 64 px"


def crop() -> Paths:
    """From JPEG files to random crops of 224 px, beside torchvision's on Pillow."""
    from files import Ours, theirs

    data = [_file(seed) for seed in range(8)]
    ours, other = Ours(len(data)), theirs(imported("torchvision", "torchvision.transforms").ToTensor())
    return lambda: ours(data), lambda: other(data)


def order() -> Paths:
    """Samples and keys of 64 steps drawn together, beside one by one."""
    from vitreous.data.order import OrderSettings

    found = OrderSettings().build(50_000, 256, 0, 1, None)
    found(0)  # the epoch is listed
    return lambda: list(found.steps(0, 64)), lambda: [found(step) for step in range(64)]


RATIOS: dict[str, Callable[[], Paths]] = {
    path.__name__: path for path in (attention, prediction, training, crop, order)
}
NEED_BFLOAT16 = {"attention", "prediction", "training"}


def ratio(paths: Paths, rounds: int) -> float:
    """How many times as fast the path is."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for path, found in zip(paths, taken, strict=True):
            began = time.process_time()
            path()
            if number:  # the first warms up
                found.append(time.process_time() - began)
    return statistics.median(other / one for one, other in zip(*taken, strict=True))


def _file(seed: int) -> bytes:
    """Coarse shapes with some grain: about as many bytes as a photograph."""
    from files import as_file

    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (12, 16, 3)).repeat(20, 0).repeat(20, 1)
    return as_file((coarse + generator.normal(0, 12, coarse.shape)).clip(0, 255).astype(np.uint8))


# ---- instructions

# Paths that know no torch, which valgrind would take minutes to start, and how often each is called on top of once: the
# difference is what it takes alone, and has to be large beside that of two starts of Python, some million.
COUNTED_PATHS = {"decode": 40, "header": 1000, "objects": 40, "polygons": 100, "placement": 10_000}
COUNTED = """
import gc, sys
from pathlib import Path
import numpy as np
from vitreous.data.images import read_picture, read_shape
from vitreous.data.placement import placed
from vitreous.data.polygons import polygons
from vitreous.prediction.boxes import surest
from vitreous.prediction.predictor import sizes_of

gc.disable()
file, repeated, times = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
data = file.read_bytes()
scores = np.random.default_rng(0).random((1, 300, 80)).astype(np.float32)
mask = np.add.outer(np.arange(64) ** 2, np.arange(64) ** 2) < 3000
paths = {
    "decode": lambda: read_picture(data),
    "header": lambda: read_shape(file),
    "objects": lambda: surest(scores),
    "polygons": lambda: polygons(mask),
    "placement": lambda: placed((224, 224), "centre", 0.875, (375, 500)),
}
for name, path in paths.items():
    for _ in range(1 + times * (name == repeated)):
        path()
"""


def counter() -> str | None:
    """What counts instructions here."""
    if shutil.which("perf"):
        asked = ["perf", "stat", "-x,", "-e", "instructions:u", "true"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        if re.search(r"^\d+,", found.stderr, re.MULTILINE):
            return "perf"
    return "valgrind" if shutil.which("valgrind") else None


def counted(how: str, code: Path, file: Path, repeated: str, times: int = 0) -> int:
    """Instructions of a whole process."""
    command = [sys.executable, str(code), str(file), repeated, str(times)]
    perf = ["perf", "stat", "-x,", "-e", "instructions:u"]
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    environ = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [*(perf if how == "perf" else valgrind), *command], capture_output=True, text=True, env=environ, check=True
    )
    pattern = r"^(\d+),[^,]*,instructions" if how == "perf" else r"Collected : (\d+)"
    (number,) = re.findall(pattern, done.stderr, re.MULTILINE)
    return int(number)


def instructions(how: str, names: list[str]) -> dict[str, int]:
    """Of one call of each path."""
    with tempfile.TemporaryDirectory() as folder:
        code, file = Path(folder) / "paths.py", Path(folder) / "photo.jpg"
        code.write_text(COUNTED)
        file.write_bytes(_file(0))
        once = counted(how, code, file, "")
        times = {name: COUNTED_PATHS[name] for name in names}
        return {name: round((counted(how, code, file, name, num) - once) / num) for name, num in times.items()}


# ---- the table


def measured(only: list[str], rounds: int) -> tuple[dict[str, dict[str, float]], list[tuple[str, str]]]:
    """By kind and name; and what is left out, with the reason."""
    found: dict[str, dict[str, float]] = {"ratios": {}, "instructions": {}}
    left_out: list[tuple[str, str]] = []
    for name, path in RATIOS.items():
        if only and name not in only:
            continue
        if name in NEED_BFLOAT16 and not platforms.cpu_has_bfloat16():
            left_out.append((name, "this CPU is not made for bfloat16"))
            continue
        torch.manual_seed(0)
        found["ratios"][name] = round(ratio(path(), rounds), 2)
    names = [name for name in COUNTED_PATHS if not only or name in only]
    how = counter()
    if names and how is None:
        left_out += [(name, "neither perf nor valgrind counts instructions here") for name in names]
    elif names and how is not None:
        found["instructions"] |= instructions(how, names)
    return found, left_out


def stored(found: dict[str, dict[str, float]], before: dict[str, Any]) -> dict[str, Any]:
    ratios = {name: {"measured": one, "at_least": round(KEPT * one, 2)} for name, one in found["ratios"].items()}
    counts = {name: {"measured": one, "at_most": round(GROWN * one)} for name, one in found["instructions"].items()}
    about = {key: environment()[key] for key in ("commit", "cpu", "versions")}
    return {
        "measured_on": about,
        "ratios": {**before.get("ratios", {}), **ratios},
        "instructions": {**before.get("instructions", {}), **counts},
    }


def compared(found: dict[str, dict[str, float]], bounds: dict[str, Any]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Rows, and the names of paths that are too slow."""
    rows, slow = [], []
    for name, value in found["ratios"].items():
        bound = bounds["ratios"][name]["at_least"]
        is_slow = value < bound
        rows.append((name, f"{value:.2f} x", f"at least {bound:.2f} x", "too slow" if is_slow else "holds"))
        slow += [name] * is_slow
    for name, value in found["instructions"].items():
        bound = bounds["instructions"][name]["at_most"]
        is_slow = value > bound
        rows.append((name, f"{value:,}", f"at most {bound:,}", "too slow" if is_slow else "holds"))
        slow += [name] * is_slow
    return rows, slow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], choices=[*RATIOS, *COUNTED_PATHS])
    parser.add_argument("--rounds", type=int, default=15, help="of the ratios")
    parser.add_argument("--set", action="store_true", help="store what is measured, with bounds around it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, left_out = measured(options.only, options.rounds)
    bounds = json.loads(BOUNDS.read_text()) if BOUNDS.is_file() else {}
    if options.set:
        BOUNDS.write_text(json.dumps(stored(found, bounds), indent=2) + "\n")
        bounds = json.loads(BOUNDS.read_text())
    rows, slow = compared(found, bounds)
    rows += [(name, "-", why, "left out") for name, why in left_out]
    print(table(rows, ("path", "measured", "bound", "")))
    if slow:
        sys.exit(f"bench-check: slower than the bounds of {BOUNDS.name} allow: {', '.join(slow)}")


if __name__ == "__main__":
    with one_line_errors():
        main()
