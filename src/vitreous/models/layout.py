"""Where tokens lie on the picture, and which of them look at which: what an encoder says of its attention, so that
inspection code does not have to know its family."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.models.base import Grid
from vitreous.nn.relative import BiasTable, RelativePositions
from vitreous.nn.tokens import Positions


class Box(NamedTuple):
    """A part of a picture, in px."""

    top: float
    left: float
    bottom: float
    right: float


Token = int | tuple[int, int] | None  # a prefix token (0: class), a patch (row, column), or None: what is pooled


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A sequence of prefix tokens, then patches in reading order."""

    grid: Grid
    num_prefix: int  # class, distillation and register tokens
    picture_px: tuple[int, int]  # (height, width)
    pitch_px: tuple[float, float]  # between the centres of neighbouring patches, down and right, in px of the picture
    pool: Literal["class", "mean"]  # what the model's prediction is made of: the first prefix token, or all patches

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

    @property
    def covered(self) -> tuple[float, float]:
        """The share of the picture's height and width that the patches cover: over 1 where it was padded to whole ones,
        below where the rest at the edge was left out."""
        down, right = (
            num * pitch / side for num, pitch, side in zip(self.grid, self.pitch_px, self.picture_px, strict=True)
        )
        return down, right

    def centres_px(self) -> Tensor:
        """(n, 2): where the centres of the patches lie in the picture, down and right."""
        places = [(torch.arange(num) + 0.5) * pitch for num, pitch in zip(self.grid, self.pitch_px, strict=True)]
        return torch.cartesian_prod(*places)

    def box_px(self, patches: Tensor) -> Box:
        """What these patches, counted in reading order, cover of the picture."""
        rows, columns = patches // self.grid.w, patches % self.grid.w
        ends = [
            (float(each.min()) * pitch, min(float(each.max() + 1) * pitch, float(side)))
            for each, pitch, side in zip((rows, columns), self.pitch_px, self.picture_px, strict=True)
        ]
        (top, bottom), (left, right) = ends
        return Box(top, left, bottom, right)

    def patch_at(self, down_px: float, right_px: float) -> tuple[int, int]:
        """The patch that lies at a place of the picture, or the nearest one."""
        row, column = (
            min(max(int(place // pitch), 0), num - 1)
            for place, pitch, num in zip((down_px, right_px), self.pitch_px, self.grid, strict=True)
        )
        return row, column


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionLayer:
    """One layer's attention: its queries and keys, and where they are on the picture.

    `module.weights(x, rows, *others)`, of the inputs of `module.forward`, returns (B, groups * heads, rows, k): tokens
    look inside their group alone (a window), and in most models there is one group of all. `queries` and `keys` say
    which tokens a group's rows and columns are, counted as in the layouts; -1 is padding, which is not of the picture.
    """

    name: str  # "layer 3", "stage 2, block 1"
    module: nn.Module
    heads: int
    looking: Layout  # of the queries
    seen: Layout  # of the keys
    queries: Tensor  # (groups, q) int64
    keys: Tensor  # (groups, k) int64
    hidden: Tensor | None = None  # (groups, q, k) bool: pairs of a group that cannot see each other
    grouped: str = ""  # what a group is, in words: "windows of 7 x 7, shifted"; empty where all are one
    positions: Positions | None = None  # the table that is added to its tokens
    biases: BiasTable | None = None  # what is added to its logits by offset
    relative: RelativePositions | None = None  # embeddings of offsets that meet its queries

    @property
    def is_whole(self) -> bool:
        """Whether every token may look at every token: only such layers can be multiplied, one by the next."""
        return len(self.queries) == 1 and self.looking == self.seen

    def seen_from(self, token: int) -> Tensor:
        """The tokens that a token can look at, without padding."""
        group, row = torch.nonzero(self.queries == token)[0].tolist()
        can = self.keys[group] >= 0
        can = can if self.hidden is None else can & ~self.hidden[group, row]
        return self.keys[group][can]

    @property
    def num_weights(self) -> int:
        """Of one picture, in all heads."""
        return self.heads * self.queries.numel() * self.keys.shape[1]


def one_group(layout: Layout) -> Tensor:
    """(1, N): all tokens, in order."""
    return torch.arange(layout.num_tokens)[None]
