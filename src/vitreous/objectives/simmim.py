"""SimMIM (Xie et al. 2022): squares of the picture are replaced by mask tokens, and one linear layer predicts them.

The mask tokens stay in the grid, so windows, reductions and convolutions see a whole grid: it suits pyramids, while MAE
needs a plain ViT. The squares are blanked in the picture too: where patches overlap (a hybrid, PVT v2), those beside a
square would otherwise see its edge.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models.base import Encoder, Grid, PatchEncoder
from vitreous.objectives.base import Objective
from vitreous.objectives.patches import check_ratio, cut, of_cells, pasted


@dataclass(frozen=True, kw_only=True)
class SimMIMSettings:
    mask_ratio: float = 0.6  # share of the squares that are hidden; their number is rounded up
    mask_px: int = 32  # side of a square, in pixels: whole patches; the paper's for pictures of 192 px (Table 1)

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "SimMIM":
        if not isinstance(encoder, PatchEncoder):
            raise UserError(
                f"SimMIM puts mask tokens in place of patches, and {type(encoder).__name__} has none: choose a ViT, "
                "a hybrid, Swin, PVT or ConvNeXt"
            )
        check_ratio(self.mask_ratio)
        self._check_squares(encoder)
        squares = self.squares(encoder)
        if not 1 <= self.num_hidden(squares) < squares.cells:
            raise UserError(
                f"mask_ratio is {self.mask_ratio}, which hides {self.num_hidden(squares)} of {squares.cells} squares: "
                "at least one must be hidden and one seen"
            )
        return SimMIM(encoder, squares, self.num_hidden(squares))

    def squares(self, encoder: Encoder) -> Grid:
        return Grid(encoder.picture_px[0] // self.mask_px, encoder.picture_px[1] // self.mask_px)

    def num_hidden(self, squares: Grid) -> int:
        return math.ceil(self.mask_ratio * squares.cells)

    def _check_squares(self, encoder: Encoder) -> None:
        (h, w), patch, stride = encoder.picture_px, encoder.outputs[0].stride, encoder.outputs[-1].stride
        if self.mask_px < 1 or any(self.mask_px % px for px in patch):
            raise UserError(
                f"mask_px is {self.mask_px}: a square must be whole patches, here of {patch[0]} x {patch[1]} px"
            )
        if h % self.mask_px or w % self.mask_px:
            raise UserError(
                f"mask_px is {self.mask_px}, and such squares do not fill a picture of {h} x {w} px: choose another "
                "--objective.mask_px, or another --model.picture_px"
            )
        if h % stride[0] or w % stride[1]:
            raise UserError(
                f"the last map has one position per {stride[0]} x {stride[1]} px, which do not fill a picture of {h} x "
                f"{w} px: choose another --model.picture_px"
            )


class SimMIM(Objective):
    """The mean distance (L1) between hidden pixels and the predictions of a linear layer on the last map."""

    def __init__(self, encoder: PatchEncoder, squares: Grid, num_hidden: int) -> None:
        super().__init__()
        self.encoder: PatchEncoder = encoder
        self.squares, self.num_hidden = squares, num_hidden
        self.mask_token = nn.Parameter(nn.init.trunc_normal_(torch.empty(encoder.token_width), std=0.02))
        last = encoder.outputs[-1]
        self.head = nn.Linear(last.width, encoder.channels * last.stride[0] * last.stride[1])
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        self.encoder.check(batch.images)
        hidden = self.draw(batch.keys)
        painted = self.painted(batch.images, hidden)
        found, expected = (of_cells(cut(each, self.squares).float(), hidden) for each in (painted, batch.images))
        return {"loss": F.l1_loss(found, expected)}

    def draw(self, keys: Tensor) -> Tensor:
        """(B, n) int64: the hidden squares."""
        return K.orderings(keys, "simmim.squares", self.squares.cells)[:, : self.num_hidden]

    def painted(self, images: Tensor, hidden: Tensor) -> Tensor:
        """(B, C, H, W): the whole pictures, predicted from what is not hidden."""
        blanked = images.masked_fill(self._over(hidden, Grid(*self.encoder.picture_px))[:, None], 0.0)
        tokens, grid = self.encoder.embed(blanked)
        behind = self._over(hidden, grid).flatten(1)  # (B, h*w)
        tokens = torch.where(behind[..., None], self.mask_token.to(tokens.dtype), tokens)
        last = self.encoder.features_of(tokens, grid).maps[-1]  # (B, D, h', w')
        values = self.head(last.flatten(2).transpose(1, 2))
        return pasted(values, Grid(*last.shape[-2:]), self.encoder.outputs[-1].stride)

    def _over(self, hidden: Tensor, grid: Grid) -> Tensor:
        """(B, n) squares -> (B, h, w) bool: the cells of a finer grid that lie in one."""
        drawn = torch.zeros(len(hidden), self.squares.cells, dtype=torch.bool, device=hidden.device)
        drawn = drawn.scatter(1, hidden, True).view(-1, self.squares.h, 1, self.squares.w, 1)
        places = (grid.h // self.squares.h, self.squares.w, grid.w // self.squares.w)  # of a square, down and right
        return drawn.expand(-1, -1, *places).reshape(-1, *grid)

    @torch.no_grad()
    def reconstruction(self, images: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) pictures with the hidden squares predicted, and (B, 1, H, W), 1 where a pixel was seen."""
        hidden = self.draw(keys)
        over = self._over(hidden, Grid(*self.encoder.picture_px))[:, None]
        whole = torch.where(over, self.painted(images, hidden).float(), images.float())
        return whole, 1.0 - over.float()
