"""Layout: how the tokens of a transformer lie on the picture, so that nobody has to guess it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.models.base import Grid
from vitreous.models.vit import ViT

Token = int | tuple[int, int] | None  # a prefix token (0: class), a patch (row, column), or None: what is pooled


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A sequence of prefix tokens, then patches in reading order."""

    grid: Grid
    num_prefix: int  # class, distillation and register tokens
    picture_px: tuple[int, int]  # (height, width)
    pitch_px: tuple[int, int]  # between the centres of neighbouring patches, down and right, in pixels of the picture
    pool: Literal["class", "mean"]  # what the model's answer is made of: the first prefix token, or all patches

    @property
    def num_tokens(self) -> int:
        return self.num_prefix + self.grid.cells

    @property
    def patch_rows(self) -> range:
        return range(self.num_prefix, self.num_tokens)

    def rows(self, token: Token) -> range:
        """Where a token stands in the sequence. None: what is pooled, the class token or all patches."""
        if token is None:
            return range(1) if self.pool == "class" else self.patch_rows
        row = self._patch_row(*token) if isinstance(token, tuple) else self._prefix_row(token)
        return range(row, row + 1)

    def _prefix_row(self, number: int) -> int:
        if not 0 <= number < self.num_prefix:
            has = f"0 to {self.num_prefix - 1}" if self.num_prefix else "none at all"
            raise UserError(f"no prefix token {number}: this model has {has}. Name a patch as (row, column)")
        return number

    def _patch_row(self, row: int, column: int) -> int:
        if not (0 <= row < self.grid.h and 0 <= column < self.grid.w):
            raise UserError(
                f"no patch ({row}, {column}): rows go from 0 to {self.grid.h - 1}, columns from 0 to {self.grid.w - 1}"
            )
        return self.num_prefix + row * self.grid.w + column

    def as_map(self, values: Tensor) -> Tensor:
        """(..., N), a value a token -> (..., h, w), those of the patches."""
        return values[..., self.num_prefix :].reshape(*values.shape[:-1], *self.grid)

    def centres_px(self) -> Tensor:
        """(n, 2): where the centres of the patches lie in the picture, down and right."""
        places = [(torch.arange(num) + 0.5) * pitch for num, pitch in zip(self.grid, self.pitch_px, strict=True)]
        return torch.cartesian_prod(*places)


def transformer(encoder: nn.Module) -> ViT:
    """The encoder itself, also where it was handed over compiled; an error for what has no attention."""
    found = find_transformer(encoder)
    if found is None:
        kind = type(getattr(encoder, "_orig_mod", encoder)).__name__
        raise UserError(f"a {kind} has no attention over patches to look at: inspect a ViT or a hybrid instead")
    return found


def find_transformer(encoder: nn.Module) -> ViT | None:
    """The same, and None for what has no attention over all patches."""
    plain = getattr(encoder, "_orig_mod", encoder)
    return plain if isinstance(plain, ViT) else None


def layout(encoder: nn.Module) -> Layout:
    vit = transformer(encoder)
    stride = 1 if vit.stem.trunk is None else vit.stem.trunk.stride
    down, right = vit.stem.patches.patch
    return Layout(
        grid=vit.grid,
        num_prefix=vit.num_prefix,
        picture_px=vit.picture_px,
        pitch_px=(down * stride, right * stride),
        pool=vit.pool,
    )
