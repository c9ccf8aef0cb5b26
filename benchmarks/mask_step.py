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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from one_step import Step, plain_step
from side_by_side import equal, noted, our_step, parser_of, prediction, read_back, report, there, timed
from vitreous.batch import IGNORED, Batch
from vitreous.cli import one_line_errors
from vitreous.data.targets.instances import packed
from vitreous.models import SwinSettings
from vitreous.tasks.mask_loss import Points, query_losses
from vitreous.tasks.mask_queries import MaskQueries, MaskQuerySettings
from vitreous.tasks.mask_targets import MaskTargets
from vitreous.weights.peers import imported

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
    if theirs is None:  # of the same sizes
        encoder = SwinSettings(picture_px=(px, px), width=96, depths=(2, 2, 6, 2), heads=(3, 6, 12, 24)).build()
        return MaskQuerySettings(output="instances").build(encoder, tuple(map(str, range(NUM_CLASSES))))
    task = read_back(theirs, px)
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


@dataclass(frozen=True)
class ObjectMasks(MaskTargets):
    """As the peer has them: one map per object, interpolated between its places."""

    masks: Tensor  # (B, M, h, w)

    def at(self, points: Tensor) -> Tensor:
        grid = (2 * points - 1)[:, :, None]  # (B, P, 1, 2)
        return F.grid_sample(self.masks.to(points.dtype), grid, align_corners=False)[..., 0]


def check_equal(ours: MaskQueries, theirs: Any, work: Work) -> dict[str, float]:
    """In float32."""
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
    used = sum(p.numel() for name, p in theirs.named_parameters() if not name.startswith(UNUSED))
    return equal(ours, used, (mine, other))


def their_step(model: Any, work: Work, compiled: bool) -> Step:
    images, labels = work.batch.images, {"mask_labels": work.masks, "class_labels": work.classes}
    return plain_step(model, lambda forward: forward(images, **labels).loss, images.device, compiled=compiled)


def compare(what: str, batch_size: int, px: int, *, options: argparse.Namespace, on: torch.device) -> dict[str, Any]:
    result: dict[str, Any] = {"model": "mask2former swin_t"}
    theirs = their_model(options.tiny).to(on) if there("transformers", result) else None
    ours, work = our_model(theirs, px).to(on), work_of(batch_size, px, on)
    if theirs is not None:
        with noted(result, "unequal"):
            result |= check_equal(ours, theirs, work_of(2, px, on))
    makers: dict[str, Callable[[], Step]]
    if what == "train":
        makers = {
            "ours": lambda: our_step(ours, work.batch, not options.eager),
            "theirs_eager": lambda: their_step(copy.deepcopy(theirs), work, False),
            "theirs_compiled": lambda: their_step(copy.deepcopy(theirs), work, True),
        }
    else:
        for one in filter(None, (ours, theirs)):
            one.eval()
        images, graph = work.batch.images, on.type == "cuda"
        makers = {
            "ours": lambda: prediction(ours.predict, images, compiled=not options.eager, graph=graph),
            "theirs_eager": lambda: prediction(theirs, images),
            "theirs_compiled": lambda: prediction(copy.deepcopy(theirs), images, compiled=True),
        }
    return result | timed(makers, options, on, theirs)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--train", nargs="*", type=int, default=[8], help="batch sizes")
    parser.add_argument("--predict", nargs="*", type=int, default=[8], help="batch sizes")
    parser.add_argument("--px", type=int, default=512)
    options = parser.parse_args()
    px = 64 if options.tiny else options.px
    cells = [
        {"what": what, "batch_size": min(2, size) if options.tiny else size, "px": px}
        for what in ("train", "predict")
        for size in getattr(options, what)
    ]
    report(cells, compare, options)


if __name__ == "__main__":
    with one_line_errors():
        main()
