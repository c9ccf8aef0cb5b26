"""CLIP ViT-B/32, ours against open_clip's, side by side in one process on one GPU.

    python benchmarks/clip_step.py --out docs/results/clip_step.json

Their model is saved as open_clip saves one and read by us, so both have the same weights; first both are checked to
have as many parameters and, in float32 on the same pictures and texts, the same loss. Then each takes training steps
in turn (both towers, the contrast over the batch, backward, fused AdamW, the scale kept below 100; bf16), or embeds
texts in turn; the medians of the rounds are compared. Ours is the step of the real training loop, compiled, as one CUDA
graph; theirs is eager, and compiled by torch.compile as it stands.

Texts are of two kinds: `captions` have 8 to 22 tokens, as those of Flickr8k and COCO have, in rows of 77, of which ours
leaves out what is padding in all of them; `full` rows leave nothing out. --tiny tries it out on any machine.

open_clip is pure Python: where nothing can be installed, carry it along in a folder on PYTHONPATH:

    pip install --no-deps --target carried open_clip_torch==3.3.0 ftfy==6.3.1 wcwidth==0.9.4

(it also imports torchvision, timm, regex, tqdm and huggingface_hub, which come with timm and transformers).
"""

import argparse
import copy
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from one_step import Step, plain_step
from side_by_side import equal, noted, our_step, parser_of, prediction, report, there, timed
from vitreous.batch import Batch
from vitreous.cli import one_line_errors
from vitreous.models import ViTSettings
from vitreous.models.text import TextSettings
from vitreous.models.vit import EndSettings
from vitreous.tasks.image_text import ImageText, ImageTextSettings
from vitreous.weights.peers import imported
from vitreous.weights.trained import Trained

WISHED = {"train": 1.2, "texts": 0.9}  # how many times as fast ours should be as the faster of theirs
B32 = (
    512,
    {"image_size": 224, "layers": 12, "width": 768, "patch_size": 32},
    {"context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 12},
)
TINY = (
    16,
    {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
    {"context_length": 77, "vocab_size": 100, "width": 32, "heads": 2, "layers": 1},
)


Sizes = tuple[int, dict[str, int], dict[str, int]]


def their_model(sizes: Sizes) -> Any:
    library = imported("open_clip", "open_clip.model")
    width, vision, text = sizes
    torch.manual_seed(0)
    return library.CLIP(width, library.CLIPVisionCfg(**vision), library.CLIPTextCfg(**text))


def our_model(theirs: Any, sizes: Sizes) -> ImageText:
    width, vision, text = sizes
    if theirs is None:
        return own_model(width, vision, text)
    config = {"model_cfg": {"embed_dim": width, "vision_cfg": vision, "text_cfg": text}, "preprocess_cfg": {}}
    with tempfile.TemporaryDirectory() as folder:
        save_file(theirs.state_dict(), Path(folder) / "model.safetensors")
        (Path(folder) / "open_clip_config.json").write_text(json.dumps(config))
        task = Trained.load(folder).task()
    assert isinstance(task, ImageText)
    return task


def own_model(width: int, vision: dict[str, int], text: dict[str, int]) -> ImageText:
    """Of the same sizes."""
    encoder = ViTSettings(
        picture_px=(vision["image_size"],) * 2,
        patch=vision["patch_size"],
        width=vision["width"],
        depth=vision["layers"],
        heads=vision["width"] // 64,
        ends=EndSettings(patch_bias=False, pre_norm=True, pool_norm="after", projection=width),
    )
    words = TextSettings(
        vocabulary=text["vocab_size"],
        width=text["width"],
        depth=text["layers"],
        heads=text["heads"],
        end=text["vocab_size"] - 1,
    )
    return ImageTextSettings(width=None, text=words).build(encoder.build(), ())


def rows(kind: str, num: int, text: dict[str, int], device: torch.device) -> Tensor:
    """(num, 77): a start, words, an end, and padding."""
    draw, length, end = torch.Generator().manual_seed(0), text["context_length"], text["vocab_size"] - 1
    ids = torch.randint(1, end - 1, (num, length), generator=draw)
    ids[:, 0] = end - 1
    ends = torch.randint(9, 23, (num, 1), generator=draw) if kind == "captions" else torch.full((num, 1), length - 1)
    places = torch.arange(length)
    return ids.masked_fill(places == ends, end).masked_fill(places > ends, 0).to(device)


def cut(ids: Tensor) -> Tensor:
    """As captions are kept for a causal tower: without what is padding in all rows, in eights."""
    length = int(ids.any(dim=0).nonzero().max()) + 2
    return ids[:, : min(ids.shape[1], -(-length // 8) * 8)].contiguous()


def check_equal(ours: ImageText, theirs: Any, images: Tensor, ids: Tensor) -> dict[str, float]:
    loss = imported("open_clip", "open_clip.loss").ClipLoss()
    with torch.no_grad():
        mine = ours.eval()(_batch(images, cut(ids)), torch.zeros((), device=images.device))["loss"]
        other = loss(*theirs.eval()(images, ids))
    ours.train(), theirs.train()
    return equal(ours, sum(p.numel() for p in theirs.parameters()), (mine, other))


def _batch(images: Tensor, ids: Tensor) -> Batch:
    places = torch.arange(len(images), device=images.device)
    targets = {"captions": ids[:, None].to(torch.int32), "num_captions": torch.ones_like(places)}
    return Batch((images,), targets, places, places)


# ---- what is timed


def their_step(model: Any, images: Tensor, ids: Tensor, compiled: bool) -> Step:
    """As open_clip's own training does it."""
    loss = imported("open_clip", "open_clip.loss").ClipLoss(cache_labels=True)

    @torch.no_grad()
    def keep_scale() -> None:
        model.logit_scale.clamp_(0, math.log(100))

    return plain_step(
        model, lambda forward: loss(*forward(images, ids)), images.device, compiled=compiled, after=keep_scale
    )


def compare(what: str, texts: str, batch_size: int, *, options: argparse.Namespace, on: torch.device) -> dict[str, Any]:
    result: dict[str, Any] = {}
    sizes: Sizes = TINY if options.tiny else B32
    theirs = their_model(sizes).to(on) if there("open_clip", result) else None
    ours, (_, vision, text) = our_model(theirs, sizes).to(on), sizes
    images = torch.randn(batch_size, 3, vision["image_size"], vision["image_size"], device=on)
    ids = rows(texts, batch_size, text, on)
    result["tokens"] = cut(ids).shape[1]
    if theirs is not None:
        with noted(result, "unequal"):
            result |= check_equal(ours, theirs, images[:8], ids[:8])
    makers: dict[str, Callable[[], Step]]
    if what == "train":
        makers = {
            "ours": lambda: our_step(ours, _batch(images, cut(ids)), not options.eager),
            "theirs_eager": lambda: their_step(copy.deepcopy(theirs), images, ids, False),
            "theirs_compiled": lambda: their_step(copy.deepcopy(theirs), images, ids, True),
        }
    else:
        for one in filter(None, (ours, theirs)):
            one.eval()

        def embedded(x: Tensor) -> Tensor:
            found: Tensor = theirs.encode_text(x, normalize=True)
            return found

        graph = on.type == "cuda"
        makers = {
            "ours": lambda: prediction(ours.embed_texts, cut(ids), compiled=not options.eager, graph=graph),
            "theirs_eager": lambda: prediction(embedded, ids),
            "theirs_compiled": lambda: prediction(embedded, ids, compiled=True),
        }
    result |= timed(makers, options, on, theirs)
    result["per_second"] = {name: round(1000 * batch_size / ms) for name, ms in result["ms"].items()}
    ratio = result["ratio_to_the_faster"].get("ours")
    return result | ({} if ratio is None else {"wished": WISHED[what], "holds": ratio >= WISHED[what]})


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--what", nargs="+", default=["train", "texts"], choices=["train", "texts"])
    parser.add_argument("--texts", nargs="+", default=["captions", "full"], choices=["captions", "full"])
    parser.add_argument("--batch", type=int, default=1024)
    options = parser.parse_args()
    size = min(8, options.batch) if options.tiny else options.batch
    cells = [{"what": what, "texts": kind, "batch_size": size} for what in options.what for kind in options.texts]
    report(cells, compare, options)


if __name__ == "__main__":
    with one_line_errors():
        main()
