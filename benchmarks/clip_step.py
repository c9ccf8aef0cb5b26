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

from detr_step import noted, timed
from one_step import step_on
from vitreous.batch import Batch
from vitreous.cli import one_line_errors
from vitreous.models.flops import num_parameters
from vitreous.tasks.image_text import ImageText
from vitreous.training.environment import environment
from vitreous.training.graph import GraphedStep
from vitreous.weights.peers import imported
from vitreous.weights.trained import Trained

VARIANTS = ("ours", "theirs_eager", "theirs_compiled")
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


def their_model(tiny: bool) -> tuple[Any, dict[str, Any]]:
    library = imported("open_clip", "open_clip.model")
    width, vision, text = TINY if tiny else B32
    torch.manual_seed(0)
    model = library.CLIP(width, library.CLIPVisionCfg(**vision), library.CLIPTextCfg(**text))
    return model, {"model_cfg": {"embed_dim": width, "vision_cfg": vision, "text_cfg": text}, "preprocess_cfg": {}}


def our_model(theirs: Any, config: dict[str, Any]) -> ImageText:
    with tempfile.TemporaryDirectory() as folder:
        save_file(theirs.state_dict(), Path(folder) / "model.safetensors")
        (Path(folder) / "open_clip_config.json").write_text(json.dumps(config))
        task = Trained.load(folder).task()
    assert isinstance(task, ImageText)
    return task


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
    counts = [num_parameters(ours), sum(p.numel() for p in theirs.parameters())]
    assert counts[0] == counts[1], counts
    loss = imported("open_clip", "open_clip.loss").ClipLoss()
    with torch.no_grad():
        mine = ours.eval()(_batch(images, cut(ids)), torch.zeros((), device=images.device))["loss"]
        other = loss(*theirs.eval()(images, ids))
    ours.train(), theirs.train()
    assert abs(float(mine - other)) < 1e-3 * abs(float(other)), (float(mine), float(other))
    return {"parameters": counts[0], "our_loss": float(mine), "their_loss": float(other)}


def _batch(images: Tensor, ids: Tensor) -> Batch:
    places = torch.arange(len(images), device=images.device)
    targets = {"captions": ids[:, None].to(torch.int32), "num_captions": torch.ones_like(places)}
    return Batch((images,), targets, places, places)


# ---- what is timed


def our_step(model: ImageText, images: Tensor, ids: Tensor, compiled: bool, graph: bool) -> Callable[[], None]:
    step = step_on(model, _batch(images, cut(ids)), compiled)
    return GraphedStep(step) if graph else step


def their_step(model: Any, images: Tensor, ids: Tensor, compiled: bool) -> Callable[[], None]:
    """As open_clip's own training does it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    forward = torch.compile(model, dynamic=False) if compiled else model
    loss = imported("open_clip", "open_clip.loss").ClipLoss(cache_labels=True)

    def step() -> None:
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            total = loss(*forward(images, ids))
        total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))

    return step


def embedding(embed: Callable[[Tensor], Tensor], ids: Tensor, compiled: bool, graph: bool) -> Callable[[], None]:
    embed = torch.compile(embed, dynamic=False) if compiled else embed
    found: list[Tensor] = []

    def run() -> None:
        with torch.no_grad(), torch.autocast(ids.device.type, dtype=torch.bfloat16):
            found[:] = [embed(ids)]

    return GraphedStep(run) if graph else run


def compare(what: str, kind: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    torch.compiler.reset()
    theirs, config = their_model(options.tiny)
    theirs, ours = theirs.to(device), our_model(theirs, config).to(device)
    text, px = config["model_cfg"]["text_cfg"], config["model_cfg"]["vision_cfg"]["image_size"]
    images = torch.randn(options.batch, 3, px, px, device=device)
    ids, graph = rows(kind, options.batch, text, device), device.type == "cuda"
    result: dict[str, Any] = {"what": what, "texts": kind, "batch_size": options.batch, "tokens": cut(ids).shape[1]}
    with noted(result, "unequal"):
        result |= check_equal(ours, theirs, images[:8], ids[:8])
    if what == "train":
        makers = {
            "ours": lambda: our_step(ours, images, ids, not options.eager, graph),
            "theirs_eager": lambda: their_step(copy.deepcopy(theirs), images, ids, False),
            "theirs_compiled": lambda: their_step(copy.deepcopy(theirs), images, ids, True),
        }
    else:
        ours.eval(), theirs.eval()
        makers = {
            "ours": lambda: embedding(ours.embed_texts, cut(ids), not options.eager, graph),
            "theirs_eager": lambda: embedding(lambda x: theirs.encode_text(x, normalize=True), ids, False, False),
            "theirs_compiled": lambda: embedding(lambda x: theirs.encode_text(x, normalize=True), ids, True, False),
        }
    wanted = {name: make for name, make in makers.items() if name in options.variants}
    found = timed(wanted, options.rounds, options.times, device)
    ms = found["ms"]
    found["per_second"] = {name: round(1000 * options.batch / value) for name, value in ms.items()}
    others = [value for name, value in ms.items() if name.startswith("theirs")]
    if "ours" in ms and others:
        ratio = min(others) / ms["ours"]  # above 1: ours is faster
        found |= {"ratio_to_the_faster": round(ratio, 3), "wished": WISHED[what], "holds": ratio >= WISHED[what]}
    if graph:
        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
        torch.cuda.empty_cache()
    return result | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", default=["train", "texts"], choices=["train", "texts"])
    parser.add_argument("--texts", nargs="+", default=["captions", "full"], choices=["captions", "full"])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--eager", action="store_true", help="compile nothing of ours")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=6, help="steps per round")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the script")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    results: list[dict[str, Any]] = []
    for what in options.what:
        for kind in options.texts:
            found: dict[str, Any] = {"what": what, "texts": kind}
            with noted(found, "failed"):
                found = compare(what, kind, options, device)
            results.append(found)
            print(json.dumps(found), flush=True)
            if options.out:
                document = {"environment": environment(), "results": results}
                options.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
