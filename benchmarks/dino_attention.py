"""Does the class token look at the object? DINO's attention as a mask, beside that of other models and of chance.

    python benchmarks/dino_attention.py runs/cifar10_dino runs/cifar10_tuned --figures figures --out attention.json

For every picture and head, the fewest patches of the last layer that hold 60 % of the attention make a mask (Caron et
al. 2021, section 4.2.2). Its overlap with the object is the area of both together over that of either. Three
numbers a model: the mean over all heads, that of the heads' mean map, and that of the best head of each picture, which
the paper shows; more heads find a better best one by chance alone, so `chance` has the same number of heads.

Objects: Oxford-IIIT Pets with its trimaps, from the folder that VITREOUS_DATA names (border pixels count for neither
side); or --data rendered:size, sprites on a plain ground, which need no file. The rows that are not models:
`random weights` (the first run's model before training), `chance` (a random order of patches), `centre` (the nearer to
the middle, the more), `everything` (the whole picture as the mask). Pets stand in the middle: `centre` is the one to
beat.
"""

import argparse
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitreous import keys as K
from vitreous.cli import one_line_errors
from vitreous.data.images import read_picture
from vitreous.data.rendered import open_rendered
from vitreous.display import figures
from vitreous.errors import UserError
from vitreous.inspection.attention import attention
from vitreous.inspection.figures import attention_figure, heads_figure
from vitreous.models.base import Encoder
from vitreous.training.environment import environment
from vitreous.weights.trained import Trained

SHARE = 0.6  # of the attention that falls on patches
BATCH = 64
IN_FIGURE = 6  # pictures
PET, BORDER = 1, 3  # of a trimap; 2 is the background


def pictures_and_masks(data: str, num: int) -> tuple[list[np.ndarray], Tensor, Tensor]:
    """Pictures (H, W, 3), where their objects are (N, H, W), and which pixels count (N, H, W)."""
    if data.startswith("rendered:"):
        source = open_rendered(data.removeprefix("rendered:"))["test"]
        pictures = [source.read(index) for index in range(min(num, len(source)))]
        objects = torch.stack([torch.from_numpy(picture.min(axis=2) > 125) for picture in pictures])
        return pictures, objects, torch.ones_like(objects)
    if "VITREOUS_DATA" not in os.environ:
        raise UserError("VITREOUS_DATA is not set: it names the folder with oxford_pets/; or give --data rendered:size")
    path = Path(os.environ["VITREOUS_DATA"]) / "oxford_pets" / "test.parquet"
    if not path.is_file():
        raise UserError(f"{path}: no such file, and VITREOUS_DATA names its folder; or give --data rendered:size")
    rows = pq.read_table(path)
    # Evenly from the whole file, which is sorted by nothing in particular.
    chosen = rows.take(torch.linspace(0, len(rows) - 1, min(num, len(rows))).long().tolist()).to_pylist()
    pictures = [read_picture(row["image"]["bytes"]) for row in chosen]
    trimaps = [np.array(Image.open(io.BytesIO(row["trimap"]["bytes"]))) for row in chosen]
    trimap = torch.from_numpy(np.stack(trimaps))
    return pictures, trimap == PET, trimap != BORDER


def most_looked_at(maps: Tensor, share: float = SHARE) -> Tensor:
    """(..., h, w) -> bool: the fewest places that together have that share of the whole."""
    flat = maps.flatten(-2)
    values, order = flat.sort(dim=-1, descending=True)
    before = values.cumsum(-1) - values
    kept = before < share * flat.sum(-1, keepdim=True)
    return torch.zeros_like(kept).scatter(-1, order, kept).view(maps.shape)


def overlap(masks: Tensor, objects: Tensor, counts: Tensor) -> Tensor:
    """(N, heads, h, w) masks of patches and (N, H, W) objects -> (N, heads): both over either."""
    large = F.interpolate(masks.float(), size=objects.shape[-2:], mode="nearest").bool() & counts[:, None]
    seen = (objects & counts)[:, None]
    return (large & seen).sum((-2, -1)) / (large | seen).sum((-2, -1)).clamp(min=1)


def scores(maps: Tensor, objects: Tensor, counts: Tensor) -> dict[str, float]:
    """maps: (N, heads, h, w)."""
    heads = overlap(most_looked_at(maps), objects, counts)
    mean = overlap(most_looked_at(maps.mean(dim=1, keepdim=True)), objects, counts)
    found = {"all heads": heads.mean(), "mean map": mean.mean(), "best head": heads.amax(dim=1).mean()}
    return {name: round(100 * float(value), 2) for name, value in found.items()}


def looked_at(encoder: Encoder, images: Tensor) -> Tensor:
    """(N, heads, h, w): what is pooled looks at these patches in the last layer, as shares of what falls on patches."""
    maps = [attention(encoder, part, layers=[-1]).maps(-1)[:, :, 0] for part in torch.split(images, BATCH)]
    found = torch.cat(maps).float().cpu()
    return found / found.sum((-2, -1), keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="the runs or weights to look into, the first one DINO's")
    parser.add_argument("--data", default="pets", help="pets, or rendered:TASK")
    parser.add_argument("--num", type=int, default=592, help="pictures")
    parser.add_argument("--picture_px", type=int, help="show them larger than the model was trained for")
    parser.add_argument("--figures", type=Path, help="a folder for what each head looks at")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.num < 1:
        raise UserError(f"--num is {options.num}: it must be at least 1")
    if options.out:  # now, and not after all the work
        options.out.parent.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pictures, objects, counts = pictures_and_masks(options.data, options.num)
    results: dict[str, dict[str, float]] = {}
    shape = None
    for number, run in enumerate(options.runs):
        trained = Trained.load(run, picture_px=options.picture_px)
        # The whole picture, so that the patches lie where the mask has them.
        preprocessing = replace(trained.card.preprocessing, crop="squash")
        resized = torch.stack([preprocessing.resized(picture) for picture in pictures])
        images = preprocessing.normalised(resized).to(device)
        maps = looked_at(trained.encoder().to(device), images)
        results[run] = scores(maps, objects, counts)
        print(run, json.dumps(results[run]), flush=True)
        if options.figures:
            options.figures.mkdir(parents=True, exist_ok=True)
            few = slice(IN_FIGURE)
            shown = [picture.permute(1, 2, 0).numpy() for picture in resized[few]]
            name = f"{Path(run).name}-{options.data.replace(':', '-')}"
            figures.save(heads_figure(shown, maps[few], title=f"{run}, last layer"), options.figures / f"{name}-heads")
            figures.save(attention_figure(shown, maps[few].mean(1), title=run), options.figures / f"{name}-mean")
        if number == 0:
            shape = maps.shape
            torch.manual_seed(0)
            fresh = replace(trained.card.model, picture_px=preprocessing.size_px).build().to(device)
            results["random weights"] = scores(looked_at(fresh, images), objects, counts)
    assert shape is not None
    num, heads, h, w = shape
    drawn = K.uniform(K.sample_keys(0, 0, torch.arange(num)), "chance", heads * h * w).view(shape)
    down, right = ((torch.arange(side) + 0.5) / side - 0.5 for side in (h, w))
    near = 1 / (0.05 + down[:, None].square() + right[None].square())
    results["chance"] = scores(drawn, objects, counts)
    results["centre"] = scores(near.expand(num, 1, h, w), objects, counts)
    results["everything"] = scores(torch.ones(num, 1, 1, 1), objects, counts)
    for name in ("random weights", "chance", "centre", "everything"):
        print(name, json.dumps(results[name]), flush=True)
    if options.out:
        about = {"data": options.data, "pictures": len(pictures), "grid": [h, w], "heads": heads, "share": SHARE}
        text = json.dumps({"environment": environment(), **about, "overlap_percent": results}, indent=2)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    with one_line_errors():
        main()
