"""Half a picture, and what a model of pixels makes of the rest (Chen et al. 2020, Figure 1)."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from vitreous import keys as K
from vitreous.display.figures import drawing, figure
from vitreous.errors import UserError
from vitreous.inspection.pictures import Pixels
from vitreous.models.base import Grid
from vitreous.models.igpt import IGPT
from vitreous.platforms import widest


@torch.no_grad()
def complete(
    model: IGPT,
    images: Tensor,
    keys: Tensor,
    *,
    keep_rows: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> Tensor:
    """(B, C, h, w) normalised pictures -> the same, their rows from `keep_rows` (none: half of them) on drawn by the
    model in its own colours.

    keys: (B,) int64, a function of which every draw is (keys.py). temperature: below 1 what is likely becomes likelier.
    top_k: draw among so many colours only, the likeliest.
    """
    model.check(images)
    grid = Grid(*images.shape[-2:])
    keep_rows = grid.h // 2 if keep_rows is None else keep_rows
    if not 0 <= keep_rows < grid.h:
        raise UserError(f"keep_rows is {keep_rows}: of {grid.h} rows, 0 to {grid.h - 1} can be kept")
    if temperature <= 0 or (top_k is not None and top_k < 1):
        raise UserError(f"temperature {temperature}, top_k {top_k}: give more than 0, and at least 1")
    given = keep_rows * grid.w
    words = model.read(images)  # (B, h*w)
    chances = K.uniform(keys, "igpt.pixels", grid.cells)
    memory = model.memory(len(images))
    new = words[:, :given]
    for place in range(given, grid.cells):
        logits = model.next_logits(new, memory).float() / temperature
        words[:, place] = drawn(logits, chances[:, place], top_k)
        new = words[:, place : place + 1]
    painted = model.paint(words, grid).to(images.dtype)
    return torch.cat([images[:, :, :keep_rows], painted[:, :, keep_rows:]], dim=2)


def drawn(logits: Tensor, chances: Tensor, top_k: int | None = None) -> Tensor:
    """(B, K) logits and (B,) numbers from 0 to 1 -> (B,): the one whose share of the probabilities, laid end to end,
    the number falls into."""
    if top_k is not None and top_k < logits.shape[1]:
        logits = logits.masked_fill(logits < logits.topk(top_k, dim=1).values[:, -1:], -torch.inf)
    wide = widest(logits.device)
    ends = logits.to(wide).softmax(dim=1).cumsum(dim=1)
    # By the last end and not by 1: sums are rounded, and what has no probability must not be drawn.
    return torch.searchsorted(ends, chances.to(wide)[:, None] * ends[:, -1:], right=True)[:, 0]


def as_pixels(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> list[Pixels]:
    """Normalised pictures (B, 3, h, w) as they were: `mean` and `std` are those of the model's preprocessing."""
    shift, scale = (images.new_tensor(values)[:, None, None] for values in (mean, std))
    levels = ((images * scale + shift) * 255).round().clamp(0, 255).byte()
    return list(levels.permute(0, 2, 3, 1).cpu().numpy())


@drawing
def completions_figure(
    pictures: Sequence[Pixels], samples: Sequence[Sequence[Pixels]], keep_rows: int, title: str = ""
) -> Figure:
    """A row a picture: what was given, some samples of the rest, and the picture itself. samples: one row of them for
    every picture."""
    columns = ["given", *(f"sample {i + 1}" for i in range(len(samples[0]))), "picture"]
    height, width = pictures[0].shape[:2]
    inch = min(0.95, 9.0 / len(columns))
    drawn_figure = figure(inch * len(columns), inch * height / width * len(pictures) + (0.55 if title else 0.3))
    axes = drawn_figure.subplots(len(pictures), len(columns), squeeze=False)
    for row, picture, of_picture in zip(axes, pictures, samples, strict=True):
        seen = np.dstack([picture, np.full((height, width), 255, np.uint8)])
        seen[keep_rows:, :, 3] = 0  # nothing, whatever the page's colour
        for ax, shown in zip(row, (seen, *of_picture, picture), strict=True):
            ax.imshow(shown, interpolation="nearest")
            ax.axis("off")
    for ax, name in zip(axes[0], columns, strict=True):
        ax.set_title(name, fontsize="small")
    if title:
        drawn_figure.suptitle(title, fontsize="medium", parse_math=False)
    return drawn_figure
