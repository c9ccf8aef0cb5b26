"""Next-pixel prediction (Chen et al. 2020, section 2.1): every pixel is predicted from those before it.

The words are the colours of a palette, which k-means finds in the training pictures before the first step.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models.base import Encoder
from vitreous.models.igpt import IGPT, nearest
from vitreous.objectives.base import Objective
from vitreous.objectives.checks import check_counts

MOST_PIXELS = 200_000  # for k-means: with more, the colours hardly change
CHUNK = 1 << 14  # colours compared with the palette at a time


@dataclass(frozen=True, kw_only=True)
class NextPixelSettings:
    palette_pixels: int = 16  # random pixels of each training picture to find the palette's colours in
    palette_rounds: int = 20  # iterations of k-means

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "NextPixel":
        if not isinstance(encoder, IGPT):
            raise UserError(
                f"next pixels are predicted by an IGPT, and a {type(encoder).__name__} does not read pixels one after "
                "the other: give --model.kind IGPT"
            )
        check_counts(self, "palette_pixels", "palette_rounds")
        return NextPixel(encoder, self.palette_pixels, self.palette_rounds)


class NextPixel(Objective):
    def __init__(self, encoder: IGPT, palette_pixels: int, palette_rounds: int) -> None:
        super().__init__()
        self.encoder: IGPT = encoder
        self.palette_pixels, self.palette_rounds = palette_pixels, palette_rounds

    def look(self, batches: Iterable[Batch]) -> None:
        # A model that starts from trained weights keeps its palette: its words mean those colours.
        if bool(self.encoder.has_palette):
            return
        drawn = [self._some_pixels(batch) for batch in batches]
        if not drawn:
            raise UserError("there are no training pictures to find the palette's colours in")
        pixels = torch.cat(drawn)
        pixels = pixels[K.epoch_order(0, 0, len(pixels))[:MOST_PIXELS]]
        self.encoder.palette.copy_(found_colours(pixels, len(self.encoder.palette), self.palette_rounds))
        self.encoder.has_palette.fill_(True)

    def _some_pixels(self, batch: Batch) -> Tensor:
        """(B * palette_pixels, C), on the CPU: there k-means sums in a fixed order, so all ranks find the same."""
        pixels = batch.images.flatten(2)  # (B, C, h*w)
        at = K.integers(batch.keys, "igpt.palette", self.palette_pixels, pixels.shape[2])
        chosen = pixels.gather(2, at[:, None].expand(-1, pixels.shape[1], -1))
        return chosen.transpose(1, 2).flatten(0, 1).cpu()

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        self.encoder.check(batch.images)
        words = self.encoder.read(batch.images)
        logits = self.encoder.logits(words).float()
        loss = F.cross_entropy(logits.flatten(0, 1), words.flatten())  # nats per pixel
        # For pictures in the palette's colours: not comparable with models of all 256 levels per channel.
        return {"loss": loss, "bits_per_dim": loss.detach() / (math.log(2) * self.encoder.channels)}


def found_colours(pixels: Tensor, num: int, rounds: int) -> Tensor:
    """(n, C) -> (num, C): k-means (Lloyd 1982), starting from a random choice among the distinct colours.

    A colour that no pixel is nearest to moves to one of the pixels that add most to the error. If there are fewer than
    `num` distinct colours, some are found twice, and the first of these is used.
    """
    colours, counts = torch.unique(pixels.double(), dim=0, return_counts=True)
    first = K.epoch_order(0, 1, len(colours))
    found: Tensor = colours[first[torch.arange(num) % len(colours)]]
    for _ in range(rounds):
        near = torch.cat([nearest(part, found) for part in colours.split(CHUNK)])
        mass = torch.zeros(num, dtype=torch.float64).index_add_(0, near, counts.double())
        total = torch.zeros_like(found).index_add_(0, near, colours * counts[:, None])
        errors = (colours - found[near]).square().sum(dim=1) * counts
        empty = (mass == 0).nonzero()[:, 0]
        worst = errors.argsort(descending=True, stable=True)
        found = total / mass.clamp_min(1)[:, None]
        found[empty] = colours[worst[torch.arange(len(empty)) % len(worst)]]
    return found
