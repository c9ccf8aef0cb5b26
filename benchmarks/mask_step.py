"""Mask2Former on Swin-T, ours against transformers', side by side in one process on one GPU.

    python benchmarks/mask_step.py --out docs/results/mask_step.json

Their model is saved by its own `save_pretrained` and read by us, so both have the same weights; first both are checked
to have as many parameters and, in float32 on the same pictures, masks and points, the same loss. Then each takes
training steps in turn (forward, matching, losses of all layers at 12,544 points, backward, fused AdamW; bf16), or
predicts in turn; the medians of the rounds are compared. Ours is the step of the real training loop, compiled, as one
CUDA graph; theirs is eager, and compiled by torch.compile as it stands. Theirs gets masks at a quarter of the pictures'
size, ours bits of every pixel, as its loader has them. What fails is reported in its place, and the rest goes on.
--tiny tries it out on any machine.
"""

import argparse
import copy
import gc
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from detr_step import VARIANTS, noted, timed
from one_step import step_on
from vitreous.batch import IGNORED, Batch
from vitreous.cli import one_line_errors
from vitreous.data.targets.instances import packed
from vitreous.models.flops import num_parameters
from vitreous.tasks.mask_loss import Points, query_losses
from vitreous.tasks.mask_queries import MaskQueries
from vitreous.tasks.mask_targets import ObjectMasks
from vitreous.training.environment import environment
from vitreous.training.graph import GraphedStep
from vitreous.weights.peers import imported
from vitreous.weights.trained import Trained

NUM_CLASSES, SLOTS = 80, 20  # objects per picture at most
STAGES = {"out_features": ["stage1", "stage2", "stage3", "stage4"], "model_type": "swin", "drop_path_rate": 0.0}
SWIN = STAGES | {"embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24], "window_size": 7}
TINY_SWIN = STAGES | {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "window_size": 2}
TINY = {"feature_size": 32, "hidden_dim": 32, "mask_feature_size": 32, "encoder_layers": 1, "decoder_layers": 3}
TINY |= {"num_queries": 30, "train_num_points": 64}
UNUSED = "model.pixel_level_module.encoder.swin.layernorm."  # saved by them, and never used


@dataclass(frozen=True)
class Work:
    """One input, as both sides want it."""

    batch: Batch
    maps: Tensor  # (B, SLOTS, px / 4, px / 4): of all objects, and of those that are there
    masks: list[Tensor]
    classes: list[Tensor]


def work_of(batch_size: int, px: int, device: torch.device) -> Work:
    """Random pictures with 1 to SLOTS discs each."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(batch_size, 3, px, px, generator=draw)
    counts = torch.randint(1, SLOTS // 2, (batch_size,), generator=draw)
    counts[-1] = SLOTS
    middles = torch.rand(batch_size, SLOTS, 2, 1, 1, generator=draw)
    radii = 0.05 + 0.2 * torch.rand(batch_size, SLOTS, 1, 1, generator=draw)

    def discs(side: int) -> Tensor:
        """(B, SLOTS, side, side)"""
        places = (torch.arange(side) + 0.5) / side
        y, x = places[:, None], places[None, :]
        return (y - middles[:, :, 0]) ** 2 + (x - middles[:, :, 1]) ** 2 < radii**2

    classes = torch.randint(NUM_CLASSES, (batch_size, SLOTS), generator=draw)
    classes = torch.where(torch.arange(SLOTS) < counts[:, None], classes, IGNORED)
    bits = torch.from_numpy(np.stack([packed(list(one), (px, px)) for one in discs(px).numpy()]))
    targets = {"masks": bits, "classes": classes, "crowd": torch.zeros_like(classes, dtype=torch.bool)}
    ids = torch.arange(batch_size)
    batch = Batch((images,), targets, ids, 7919 * ids + 1).to(device)
    maps = discs(px // 4).float().to(device)
    return Work(
        batch,
        maps,
        [maps[i, :n] for i, n in enumerate(counts.tolist())],
        [batch.targets["classes"][i, :n] for i, n in enumerate(counts.tolist())],
    )


def their_model(tiny: bool) -> Any:
    library = imported("transformers")
    config = library.Mask2FormerConfig(
        backbone_config=TINY_SWIN if tiny else SWIN, num_labels=NUM_CLASSES, **(TINY if tiny else {})
    )
    torch.manual_seed(0)
    return library.Mask2FormerForUniversalSegmentation(config)


def our_model(theirs: Any, px: int) -> MaskQueries:
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        task = Trained.load(folder, picture_px=px).task()
    assert isinstance(task, MaskQueries)
    task.settings = replace(task.settings, output="instances")  # what the files do not tell
    return task


def inner(points: Points, px: int) -> Points:
    """None nearer to the border than the middles of the outermost places: there, theirs has masks fade into nothing."""
    half = 2 / px
    names = ("matching", "candidates", "anywhere")
    return replace(points, **{name: getattr(points, name).clamp(half, 1 - half) for name in names})


@contextmanager
def dealt(points: Points, counts: Tensor) -> Iterator[None]:
    """Inside, what they draw by torch.rand are the points that ours drew, the same for each mask of a picture."""
    rand, turn = torch.rand, 0

    def deal(*shape: Any, **options: Any) -> Tensor:
        nonlocal turn
        if not shape or not isinstance(shape[0], int) or len(shape) != 3:
            return rand(*shape, **options)
        if shape[0] == 1:  # a picture's turn to be matched
            turn += 1
            return points.matching[(turn - 1) % len(counts)][None]
        pool = (points.candidates, points.anywhere)
        (chosen,) = (each for each in pool if each.shape[1] == shape[1])
        return chosen.repeat_interleave(counts, dim=0)

    torch.rand = deal  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.rand = rand


def check_equal(ours: MaskQueries, theirs: Any, work: Work) -> dict[str, float]:
    """In float32."""
    theirs_count = sum(p.numel() for name, p in theirs.named_parameters() if not name.startswith(UNUSED))
    counts = [num_parameters(ours), theirs_count]
    assert counts[0] == counts[1], counts
    points = inner(Points.drawn(work.batch.keys, ours.settings.points), work.batch.images.shape[-1])
    numbers = torch.tensor([len(one) for one in work.classes], device=work.batch.keys.device)
    flags = torch.backends.cudnn.flags(allow_tf32=False)
    with torch.no_grad(), flags, dealt(points, numbers):
        other = theirs.eval()(work.batch.images, mask_labels=work.masks, class_labels=work.classes).loss
        said = ours.eval().decoded(work.batch.images)
        classes = work.batch.targets["classes"]
        targets = ObjectMasks(classes.clamp(min=0), classes != IGNORED, work.maps)
        mine = query_losses(said, targets, points, ours.settings.weights)["loss"]
    ours.train(), theirs.train()
    assert abs(float(mine - other)) < 1e-3 * abs(float(other)), (float(mine), float(other))
    return {"parameters": counts[0], "our_loss": float(mine), "their_loss": float(other)}


# ---- what is timed


def our_step(model: MaskQueries, work: Work, compiled: bool, graph: bool) -> Callable[[], None]:
    step = step_on(model, work.batch, compiled)
    return GraphedStep(step) if graph else step


def their_step(model: Any, work: Work, compiled: bool) -> Callable[[], None]:
    """As their users would write it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    forward = torch.compile(model, dynamic=False) if compiled else model
    images = work.batch.images

    def step() -> None:
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            loss = forward(images, mask_labels=work.masks, class_labels=work.classes).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def our_prediction(model: MaskQueries, work: Work, compiled: bool, graph: bool) -> Callable[[], None]:
    predict = torch.compile(model.predict, dynamic=False) if compiled else model.predict
    images = work.batch.images
    found: list[Any] = []

    def run() -> None:
        with torch.no_grad(), torch.autocast(images.device.type, dtype=torch.bfloat16):
            found[:] = [predict(images)]

    return GraphedStep(run) if graph else run


def their_prediction(model: Any, work: Work, compiled: bool) -> Callable[[], None]:
    forward = torch.compile(model, dynamic=False) if compiled else model
    images = work.batch.images

    def run() -> None:
        with torch.no_grad(), torch.autocast(images.device.type, dtype=torch.bfloat16):
            forward(images)

    return run


def compare(what: str, batch_size: int, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    px = 64 if options.tiny else options.px
    result: dict[str, Any] = {"model": "mask2former swin_t", "what": what, "batch_size": batch_size, "px": px}
    theirs = their_model(options.tiny).to(device)
    ours, work = our_model(theirs, px).to(device), work_of(batch_size, px, device)
    with noted(result, "unequal"):
        result |= check_equal(ours, theirs, work_of(2, px, device))
    graph, eager = device.type == "cuda", options.eager
    makers: dict[str, Callable[[], Callable[[], None]]]
    if what == "train":
        makers = {
            "ours": lambda: our_step(ours, work, not eager, graph),
            "theirs_eager": lambda: their_step(copy.deepcopy(theirs), work, False),
            "theirs_compiled": lambda: their_step(copy.deepcopy(theirs), work, True),
        }
    else:
        ours.eval(), theirs.eval()
        makers = {
            "ours": lambda: our_prediction(ours, work, not eager, graph),
            "theirs_eager": lambda: their_prediction(theirs, work, False),
            "theirs_compiled": lambda: their_prediction(copy.deepcopy(theirs), work, True),
        }
    wanted = {name: make for name, make in makers.items() if name in options.variants}
    found = timed(wanted, options.rounds, options.times, device)
    ms = found["ms"]
    others = [value for name, value in ms.items() if name.startswith("theirs")]
    if "ours" in ms and others:
        found["ratio_to_the_faster"] = round(min(others) / ms["ours"], 3)  # above 1: ours is faster
    if device.type == "cuda":
        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
    return result | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", nargs="*", type=int, default=[8], help="batch sizes")
    parser.add_argument("--predict", nargs="*", type=int, default=[8], help="batch sizes")
    parser.add_argument("--px", type=int, default=512)
    parser.add_argument("--eager", action="store_true", help="compile nothing of ours")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=6, help="steps per round")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    results: list[dict[str, Any]] = []
    for what, sizes in (("train", options.train), ("predict", options.predict)):
        for batch_size in sizes:
            found: dict[str, Any] = {"what": what, "batch_size": batch_size}
            with noted(found, "failed"):
                found = compare(what, batch_size, options, device)
            results.append(found)
            print(json.dumps(found), flush=True)
            if options.out:
                document = {"environment": environment(), "results": results}
                options.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
