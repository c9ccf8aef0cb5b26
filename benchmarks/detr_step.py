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
import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import side_by_side
from one_step import Step, plain_step
from side_by_side import equal, noted, our_step, parser_of, prediction, read_back, report, there, timed
from vitreous.batch import Batch
from vitreous.cli import one_line_errors
from vitreous.models import ResNetV1Settings
from vitreous.nn import kernels
from vitreous.nn.folded import folded
from vitreous.tasks.detect import DetectSettings
from vitreous.tasks.detect_queries import DetectByQueries
from vitreous.weights.peers import imported

VARIANTS = ("ours_fused", "ours_tuned", *side_by_side.VARIANTS)
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


def our_model(theirs: Any, px: int, kind: str) -> DetectByQueries:
    if theirs is None:  # of the same sizes
        encoder = ResNetV1Settings(picture_px=(px, px), learned_norms=False, frozen_levels=2).build()
        sizes = {"queries": 300} if kind == "deformable" else {"queries": 100, "mlp_width": 2048, "decoder": "detr"}
        task = DetectSettings(refine=False, **sizes).build(encoder, tuple(map(str, range(NUM_CLASSES))))
    else:
        task = read_back(theirs, px)
    assert isinstance(task, DetectByQueries)
    return task


def check_equal(ours: DetectByQueries, theirs: Any, work: Work, kind: str) -> dict[str, float]:
    """In float32, without dropout."""
    theirs.config.auxiliary_loss = kind == "deformable"
    auxiliary = float(theirs.config.auxiliary_loss)
    some = Work(_first(work.batch), work.labels[:2], work.mask[:2])
    kept, ours.weights = ours.weights, replace(ours.weights, auxiliary=auxiliary)
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
        mine = ours.eval()(some.batch, torch.zeros((), device=some.mask.device))["loss"]
        other = theirs.eval()(some.batch.images, some.mask, labels=some.labels).loss
    ours.weights, theirs.config.auxiliary_loss = kept, True
    ours.train(), theirs.train()
    return equal(ours, sum(p.numel() for p in theirs.parameters()), (mine, other))


def _first(batch: Batch) -> Batch:
    return batch.parts(len(batch) // 2)[0]


# ---- what is timed


def their_step(model: Any, work: Work, compiled: bool) -> Step:
    images = work.batch.images
    return plain_step(
        model, lambda forward: forward(images, work.mask, labels=work.labels).loss, images.device, compiled=compiled
    )


def our_prediction(
    model: DetectByQueries, work: Work, compiled: bool, *, levers: tuple[str, ...] = (), tuned: bool = False
) -> Step:
    """levers: kernels that are not switched on by themselves. tuned: cuDNN tries out what it has for a convolution."""
    model = folded(model, torch.bfloat16)
    predict = torch.compile(model.predict, dynamic=False) if compiled else model.predict

    def with_levers(images: Tensor, extent: Tensor) -> Any:
        with (
            patch.dict(kernels.PAY, dict.fromkeys(levers, True)),
            torch.backends.cudnn.flags(enabled=True, benchmark=tuned, allow_tf32=True),
        ):
            return predict(images, extent)

    return prediction(with_levers, work.batch.images, work.batch.extent, graph=work.mask.is_cuda)


def compare(
    model: str, what: str, batch_size: int, px: int, *, options: argparse.Namespace, on: torch.device
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    theirs = their_model(model, options.tiny).to(on) if there("transformers", result) else None
    ours, work = our_model(theirs, px, model).to(on), work_of(batch_size, px, on)
    if theirs is not None:
        with noted(result, "unequal"):
            result |= check_equal(ours, theirs, work_of(2, px, on), model)
    compiled, fused = not options.eager, ("pointwise",)
    makers: dict[str, Callable[[], Step]]
    if what == "train":
        makers = {
            "ours": lambda: our_step(ours, work.batch, compiled),
            "theirs_eager": lambda: their_step(copy.deepcopy(theirs), work, False),
            "theirs_compiled": lambda: their_step(copy.deepcopy(theirs), work, True),
        }
    else:
        for one in filter(None, (ours, theirs)):
            one.eval()
        inputs = (work.batch.images, work.mask)
        makers = {
            "ours": lambda: our_prediction(ours, work, compiled),
            "ours_fused": lambda: our_prediction(ours, work, compiled, levers=fused),
            "ours_tuned": lambda: our_prediction(ours, work, compiled, levers=fused, tuned=True),
            "theirs_eager": lambda: prediction(theirs, *inputs),
            "theirs_compiled": lambda: prediction(copy.deepcopy(theirs), *inputs, compiled=True),
        }
    return result | timed(makers, options, on, theirs)


def main() -> None:
    parser = parser_of(__doc__, VARIANTS)
    parser.add_argument("--models", nargs="+", default=["detr", "deformable"], choices=["detr", "deformable"])
    parser.add_argument("--train", nargs="*", type=int, default=[8, 32], help="batch sizes")
    parser.add_argument("--predict", nargs="*", type=int, default=[1, 32], help="batch sizes")
    parser.add_argument("--px", type=int, default=640)
    options = parser.parse_args()
    px = 128 if options.tiny else options.px
    cells = [
        {"model": model, "what": what, "batch_size": min(2, size) if options.tiny else size, "px": px}
        for model in options.models
        for what in ("train", "predict")
        for size in getattr(options, what)
    ]
    report(cells, compare, options)


if __name__ == "__main__":
    with one_line_errors():
        main()
