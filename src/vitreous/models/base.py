"""What every encoder answers, and the one place where a transformer is cut open for the objectives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitreous.errors import UserError


class Grid(NamedTuple):
    """The patches of a picture, counted. Never guessed from a square root."""

    h: int
    w: int

    @property
    def cells(self) -> int:
        return self.h * self.w


@dataclass(frozen=True)
class Features:
    """What every encoder answers."""

    maps: tuple[Tensor, ...]  # one (B, D, H, W) per stage, finest first; never assume H == W
    prefix: Tensor | None  # (B, P, D): class, distillation, register tokens; None where there are none
    pooled: Tensor  # (B, D)


@dataclass(frozen=True)
class Encoded:
    """What the blocks of a transformer answer for a sequence of tokens."""

    tokens: Tensor  # (B, P + n, D): prefix first, final norm applied (unless it comes after pooling)
    num_prefix: int
    depths: dict[int, Tensor]  # outputs of the chosen blocks (1 = the first), before the final norm

    @property
    def prefix(self) -> Tensor:
        return self.tokens[:, : self.num_prefix]

    @property
    def patches(self) -> Tensor:
        return self.tokens[:, self.num_prefix :]


class Encoder(nn.Module):
    """Pictures in, Features out: ViT, hybrid, BiT ResNet, and what follows them."""

    width: int  # of `pooled`
    picture_px: tuple[int, int]  # (height, width) of the pictures it is built for
    channels: int  # of the pictures
    checkpointing: bool = False  # keep only block inputs for the backward pass, and compute the rest again

    def forward(self, images: Tensor) -> Features:
        self.check(images)
        return self.features(images)

    def features(self, images: Tensor) -> Features:
        """The answer itself. Small crops may come here directly (multi-crop): what depends on the size is then fitted
        to theirs in the graph, and learns from them too."""
        raise NotImplementedError

    def stages(self) -> list[nn.Module]:
        """Shallow to deep: layer-wise decay, checkpointing and sharding go by it. Together they hold every
        parameter that belongs to one depth; the rest (a final norm) counts as the deepest."""
        raise NotImplementedError

    def resize(self, picture_px: tuple[int, int], mode: str = "bilinear") -> None:
        """Prepare, in place, for pictures of another size. Whatever depends on the size is resized here and
        never inside the graph. A convolutional network has nothing to do."""
        self.picture_px = picture_px

    def missing(self) -> str | None:
        """What it still needs to have found in pictures (an objective's `look` does that), and how to come by it."""
        return None

    def check(self, images: Tensor) -> None:
        """One clear error for pictures of another shape than the encoder is built for."""
        if images.ndim != 4 or tuple(images.shape[1:]) != (self.channels, *self.picture_px):
            h, w = self.picture_px
            raise UserError(
                f"pictures of shape {tuple(images.shape)} for a model built for (B, {self.channels}, {h}, {w}): "
                "resize the pictures, or prepare the model with encoder.resize((height, width))"
            )


class TokenEncoder(Encoder):
    """A plain transformer, cut at the one place objectives need: between embedding and encoding.

    MAE drops tokens and BEiT replaces them there, with no flag inside the model.
    """

    grid: Grid
    num_prefix: int
    token_width: int  # of a token; `width` differs where the pooled answer is projected

    def embed(self, images: Tensor) -> tuple[Tensor, Grid]:
        """(B, C, H, W) -> (B, h*w, D) tokens before positions, in reading order, and their grid."""
        raise NotImplementedError

    def encode(self, tokens: Tensor, grid: Grid, at: Tensor | None = None, depths: Sequence[int] = ()) -> Encoded:
        """Add prefix tokens and positions, and run the blocks. Positions of another grid than the encoder's own are
        interpolated.

        at: (B, n) int64, the grid cell each token sits on, different for every sample; None: all, in order.
        depths: the blocks whose outputs are wanted besides the last (1 = the first).
        """
        raise NotImplementedError


def run(block: nn.Module, *inputs: Tensor | None, checkpointing: bool) -> Tensor:
    """A block's answer; with `checkpointing`, its inner activations are computed again on the way back."""
    if checkpointing and torch.is_grad_enabled():
        return checkpoint(block, *inputs, use_reentrant=False)  # type: ignore[no-any-return]
    return block(*inputs)  # type: ignore[no-any-return]
