"""DETR-R50 and Deformable DETR-R50, ours against transformers', side by side in one process on one GPU.

    python benchmarks/detr_step.py --out docs/results/detr_step.json

Their model is saved by its own `save_pretrained` and read by us, so both have the same weights; first both are checked
to have as many parameters and, in float32 on the same pictures and boxes, the same loss. Then each takes training steps
in turn (forward, matching, loss with auxiliary losses, backward, fused AdamW; bf16), or predicts in turn; the medians
of the rounds are compared. Ours is the step of the real training loop, compiled, as one CUDA graph; theirs is eager,
and compiled by torch.compile as it stands. Of predictions, "ours_fused" has the 1x1 convolutions of nn/pointwise, too,
and in "ours_tuned" cuDNN tries out its kernels besides, which makes the last bits a matter of that moment's clock.
What fails is reported in its place, and the rest goes on. --tiny tries it out on any machine.

transformers' DetrModel computes another function with `auxiliary_loss` than without (it norms the queries between the
decoder's layers), so its loss is compared without, and its step is timed with.
"""

import argparse
import contextlib
import copy
import gc
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from one_step import seconds, step_on
from vitreous.batch import Batch
from vitreous.cli import one_line_errors
from vitreous.models.flops import num_parameters
from vitreous.nn import kernels
from vitreous.nn.folded import folded
from vitreous.tasks.detect import Detect
from vitreous.training.environment import environment
from vitreous.training.graph import GraphedStep
from vitreous.weights.peers import imported
from vitreous.weights.trained import Trained

VARIANTS = ("ours", "ours_fused", "ours_tuned", "theirs_eager", "theirs_compiled")
NUM_CLASSES, SLOTS = 91, 30  # boxes per picture at most
TINY = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "num_queries": 10}
TINY |= {f"{side}_{what}": 4 for side in ("encoder", "decoder") for what in ("attention_heads", "ffn_dim")}


@dataclass(frozen=True)
class Work:
    """One input, as both sides want it."""

    batch: Batch
    labels: list[dict[str, Tensor]]
    mask: Tensor


def work_of(batch_size: int, px: int, device: torch.device) -> Work:
    """Random pictures, most of them narrower than the canvas, with 1 to SLOTS boxes; one in eight has none."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(batch_size, 3, px, px, generator=draw)
    extent = torch.stack(
        [torch.full((batch_size,), px), torch.randint(px * 5 // 8, px + 1, (batch_size,), generator=draw)]
    )
    extent = extent.T.contiguous()
    counts = torch.randint(1, SLOTS // 2, (batch_size,), generator=draw)
    counts[::8] = 0
    counts[-1] = SLOTS
    first = torch.rand(batch_size, SLOTS, 2, generator=draw) * 0.7
    last = first + 0.05 + torch.rand(batch_size, SLOTS, 2, generator=draw) * 0.25
    shares = torch.cat([first, last], dim=-1)
    classes = torch.randint(NUM_CLASSES, (batch_size, SLOTS), generator=draw)
    classes = torch.where(torch.arange(SLOTS) < counts[:, None], classes, -1)
    boxes = shares * extent.flip(1).repeat(1, 2)[:, None]
    crowd = torch.zeros(batch_size, SLOTS, dtype=torch.bool)
    ids = torch.arange(batch_size)
    targets = {"boxes": boxes, "classes": classes, "crowd": crowd}
    batch = Batch((images,), targets, ids, ids, extent=extent).to(device)
    centred = torch.cat([(first + last) / 2, last - first], dim=-1)
    labels = [
        {"class_labels": classes[i, :n].to(device), "boxes": centred[i, :n].to(device)}
        for i, n in enumerate(counts.tolist())
    ]
    mask = (torch.arange(px) < extent[:, 1, None])[:, None].expand(-1, px, -1).long()
    return Work(batch, labels, mask.to(device))


def their_model(kind: str, tiny: bool) -> Any:
    library = imported("transformers")
    maps = [2, 3, 4] if kind == "deformable" else [4]
    backbone = {"model_type": "timm_backbone", "backbone": "resnet18" if tiny else "resnet50", "num_channels": 3}
    backbone |= {"features_only": True, "use_pretrained_backbone": False, "out_indices": maps}
    name = "DeformableDetr" if kind == "deformable" else "Detr"
    config = getattr(library, f"{name}Config")(
        backbone_config=backbone, num_labels=NUM_CLASSES, auxiliary_loss=True, **(TINY if tiny else {})
    )
    torch.manual_seed(0)
    return getattr(library, f"{name}ForObjectDetection")(config)


def our_model(theirs: Any, px: int) -> Detect:
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        task = Trained.load(folder, picture_px=px).task()
    assert isinstance(task, Detect)
    return task


def check_equal(ours: Detect, theirs: Any, work: Work, kind: str) -> dict[str, float]:
    """In float32, without dropout."""
    counts = [num_parameters(ours), sum(p.numel() for p in theirs.parameters())]
    assert counts[0] == counts[1], counts
    theirs.config.auxiliary_loss = kind == "deformable"
    auxiliary = float(theirs.config.auxiliary_loss)
    settings = replace(ours.settings, weights=replace(ours.settings.weights, auxiliary=auxiliary))
    some = Work(_first(work.batch), work.labels[:2], work.mask[:2])
    kept, ours.settings = ours.settings, settings
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
        mine = ours.eval()(some.batch, torch.zeros((), device=some.mask.device))["loss"]
        other = theirs.eval()(some.batch.images, some.mask, labels=some.labels).loss
    ours.settings, theirs.config.auxiliary_loss = kept, True
    ours.train(), theirs.train()
    assert abs(float(mine - other)) < 1e-3 * abs(float(other)), (float(mine), float(other))
    return {"parameters": counts[0], "our_loss": float(mine), "their_loss": float(other)}


def _first(batch: Batch) -> Batch:
    return batch.parts(len(batch) // 2)[0]


# ---- what is timed


def our_step(model: Detect, work: Work, compiled: bool, graph: bool) -> Callable[[], None]:
    step = step_on(model, work.batch, compiled)
    return GraphedStep(step) if graph else step


def their_step(model: Any, work: Work, compiled: bool) -> Callable[[], None]:
    """As their users would write it."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.1, fused=True)
    forward = torch.compile(model, dynamic=False) if compiled else model
    images = work.batch.images

    def step() -> None:
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            loss = forward(images, work.mask, labels=work.labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def our_prediction(
    model: Detect, work: Work, compiled: bool, graph: bool, *, levers: tuple[str, ...] = (), tuned: bool = False
) -> Callable[[], None]:
    """levers: kernels that are not switched on by themselves. tuned: cuDNN tries out what it has for a convolution."""
    model = folded(model, torch.bfloat16)
    predict = torch.compile(model.predict, dynamic=False) if compiled else model.predict
    images, extent = work.batch.images, work.batch.extent
    found: list[Any] = []

    def run() -> None:
        with (
            torch.no_grad(),
            torch.autocast(images.device.type, dtype=torch.bfloat16),
            patch.dict(kernels.PAY, dict.fromkeys(levers, True)),
            torch.backends.cudnn.flags(enabled=True, benchmark=tuned, allow_tf32=True),
        ):
            found[:] = [predict(images, extent)]

    return GraphedStep(run) if graph else run


def their_prediction(model: Any, work: Work, compiled: bool) -> Callable[[], None]:
    forward = torch.compile(model, dynamic=False) if compiled else model

    def run() -> None:
        with torch.no_grad(), torch.autocast(work.mask.device.type, dtype=torch.bfloat16):
            forward(work.batch.images, work.mask)

    return run


def timed(
    makers: dict[str, Callable[[], Callable[[], None]]], rounds: int, times: int, device: torch.device
) -> dict[str, Any]:
    """Seconds of each, the median of rounds in turn; the line of its error for what fails."""
    steps: dict[str, Callable[[], None]] = {}
    errors: dict[str, str] = {}
    for name, make in makers.items():
        with noted(errors, name):
            step = make()
            seconds(step, 6, device)  # compilation, warm-up, capture
            steps[name] = step
        print(f"  {name}: {errors.get(name, 'ready')}", flush=True)
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name in list(steps):
            with noted(errors, name):
                found[name].append(seconds(steps[name], times, device))
            if name in errors:
                del steps[name]
    medians = {name: statistics.median(found[name]) for name in steps if found[name]}
    return {"ms": {name: round(1000 * value, 3) for name, value in medians.items()}, "errors": errors}


@contextlib.contextmanager
def noted(errors: dict[str, str], name: str) -> Any:
    try:
        yield
    except Exception as error:
        errors[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def compare(kind: str, what: str, batch_size: int, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    px = 128 if options.tiny else options.px
    result: dict[str, Any] = {"model": kind, "what": what, "batch_size": batch_size, "px": px}
    theirs = their_model(kind, options.tiny).to(device)
    ours, work = our_model(theirs, px).to(device), work_of(batch_size, px, device)
    with noted(result, "unequal"):
        result |= check_equal(ours, theirs, work_of(2, px, device), kind)
    graph = device.type == "cuda"
    fused = ("pointwise",)
    if what == "train":
        makers = {
            "ours": lambda: our_step(ours, work, not options.eager, graph),
            "theirs_eager": lambda: their_step(copy.deepcopy(theirs), work, False),
            "theirs_compiled": lambda: their_step(copy.deepcopy(theirs), work, True),
        }
    else:
        ours.eval(), theirs.eval()
        makers = {
            "ours": lambda: our_prediction(ours, work, not options.eager, graph),
            "ours_fused": lambda: our_prediction(ours, work, not options.eager, graph, levers=fused),
            "ours_tuned": lambda: our_prediction(ours, work, not options.eager, graph, levers=fused, tuned=True),
            "theirs_eager": lambda: their_prediction(theirs, work, False),
            "theirs_compiled": lambda: their_prediction(copy.deepcopy(theirs), work, True),
        }
    wanted = {name: make for name, make in makers.items() if name in options.variants}
    found = timed(wanted, options.rounds, options.times, device)
    ms = found["ms"]
    others = [value for name, value in ms.items() if name.startswith("theirs")]
    # Above 1: ours is faster.
    found["ratio_to_the_faster"] = {
        name: round(min(others) / value, 3) for name, value in ms.items() if others and name.startswith("ours")
    }
    if device.type == "cuda":
        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
    return result | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["detr", "deformable"], choices=["detr", "deformable"])
    parser.add_argument("--train", nargs="*", type=int, default=[8, 32], help="batch sizes")
    parser.add_argument("--predict", nargs="*", type=int, default=[1, 32], help="batch sizes")
    parser.add_argument("--px", type=int, default=640)
    parser.add_argument("--eager", action="store_true", help="compile nothing of ours")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=6, help="steps per round")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    results: list[dict[str, Any]] = []
    for kind in options.models:
        for what, sizes in (("train", options.train), ("predict", options.predict)):
            for batch_size in sizes:
                found: dict[str, Any] = {"model": kind, "what": what, "batch_size": batch_size}
                with noted(found, "failed"):
                    found = compare(kind, what, batch_size, options, device)
                results.append(found)
                print(json.dumps(found), flush=True)
                if options.out:
                    document = {"environment": environment(), "results": results}
                    options.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
