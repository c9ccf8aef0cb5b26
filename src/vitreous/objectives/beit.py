"""BEiT (Bao et al. 2021): blocks of patches are hidden, and their visual words predicted from the rest.

The words are those that a trained tokeniser sees in the whole picture. Only patch embeddings are replaced, before
positions are added, so the ViT does not change.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models.base import Encoder, Grid, TokenEncoder
from vitreous.models.tokeniser import Tokeniser
from vitreous.objectives.base import Objective
from vitreous.objectives.patches import check_ratio, plain_tokens
from vitreous.objectives.taught import TaughtSettings
from vitreous.objectives.tokeniser import perplexity, too_few_words
from vitreous.platforms import widest

BLOCKS = 10  # drawn per picture; the first few usually suffice


@dataclass(frozen=True, kw_only=True)
class BEiTSettings(TaughtSettings):
    mask_ratio: float = 0.4  # share of the patches that are masked; their number is rounded down
    least_block: int = 16  # patches in the smallest block, for a grid of 196; give fewer for a smaller grid
    aspect: float = 0.3  # least ratio of a block's height to its width; the largest is the inverse

    def build(self, encoder: Encoder, classes: tuple[str, ...], teacher: nn.Module) -> "BEiT":
        tokens = plain_tokens(encoder, "BEiT")
        cells = tokens.grid.cells
        check_ratio(self.mask_ratio)
        num = int(self.mask_ratio * cells)
        if not 0 < num < cells:
            raise UserError(
                f"mask_ratio is {self.mask_ratio}, which is {num} of {cells} patches: some must be masked, not all"
            )
        if not 1 <= self.least_block <= num:
            raise UserError(
                f"least_block is {self.least_block}, but {num} patches are masked in all: set it to 1 to {num}"
            )
        if not 0 < self.aspect <= 1:
            raise UserError(f"aspect is {self.aspect}: it must be above 0 and at most 1")
        return BEiT(tokens, teacher, _vocabulary(teacher, tokens), num, self)


def _vocabulary(teacher: nn.Module, encoder: TokenEncoder) -> int:
    """How many words the teacher knows; an error if it is no tokeniser, or its grid differs from the patches'."""
    if not isinstance(getattr(teacher, "model", teacher), Tokeniser):
        raise UserError(
            "BEiT learns from a tokeniser, and the teacher is another kind of model: train a tokeniser (recipe "
            "cifar10_tokeniser), and name its run with --teacher"
        )
    words = teacher(torch.zeros(1, encoder.channels, *encoder.picture_px)).maps[-1]
    grid = Grid(*words.shape[-2:])
    if grid != encoder.grid:
        raise UserError(
            f"the tokeniser sees a grid of {grid.h} x {grid.w} words and the ViT one of {encoder.grid.h} x "
            f"{encoder.grid.w} patches: choose --model.patch, or the tokeniser's stride and size, to make them equal"
        )
    return int(words.shape[1])


class BEiT(Objective):
    """Cross-entropy between the word that a linear head predicts and the tokeniser's, at masked patches only."""

    encoder: TokenEncoder

    def __init__(
        self, encoder: TokenEncoder, teacher: nn.Module, vocabulary: int, num: int, settings: BEiTSettings
    ) -> None:
        super().__init__()
        self.encoder, self.teacher, self.num, self.settings = encoder, teacher, num, settings
        self.vocabulary = vocabulary
        self.mask_token = nn.Parameter(nn.init.trunc_normal_(torch.empty(encoder.token_width), std=0.02))
        self.head = nn.Linear(encoder.token_width, vocabulary)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        codes = self.teacher(batch.images).maps[-1].flatten(2).argmax(dim=1)  # (B, h*w)
        masked = draw_blocks(
            batch.keys, self.encoder.grid, self.num, least=self.settings.least_block, aspect=self.settings.aspect
        )
        loss, right = self.losses(batch.images, masked, codes.gather(1, masked))
        return {"loss": loss, "accuracy": right, "words": perplexity(codes, self.vocabulary)}

    def losses(self, images: Tensor, masked: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and the share of correct words, for the cells `masked` (B, n) and their words (B, n)."""
        tokens, grid = self.encoder.embed(images)
        hidden = torch.zeros(tokens.shape[:2], dtype=torch.bool, device=tokens.device).scatter_(1, masked, True)
        tokens = torch.where(hidden[..., None], self.mask_token.to(tokens.dtype), tokens)
        patches = self.encoder.encode(tokens, grid).patches
        at = masked[..., None].expand(-1, -1, patches.shape[2])
        logits = self.head(patches.gather(1, at)).float().flatten(0, 1)  # (B n, V)
        right = (logits.argmax(dim=1) == wanted.flatten()).float().mean()
        return F.cross_entropy(logits, wanted.flatten()), right

    def concern(self, numbers: Mapping[str, float]) -> str | None:
        return too_few_words(
            numbers, "a tokeniser that had collapsed itself: look at `words` in its run, and train it again"
        )


def draw_blocks(keys: Tensor, grid: Grid, num: int, *, least: int, aspect: float) -> Tensor:
    """(B, num) int64: the masked cells of every picture, in blocks (Bao et al. 2021, section 2.3, algorithm 1).

    As in the paper, a block has between `least` patches and as many as are still missing, and blocks are added until
    there are enough. What differs: exactly `num` cells are masked, so that shapes are fixed; the last block is cut off
    when reading it from a random corner has found enough cells. The aspect is drawn on a logarithmic scale, as in the
    authors' code, and only from ratios that fit the grid (theirs draws again). And there are at most ten blocks; if
    they are not enough, cells outside them are taken from that corner, too.
    """
    draws = K.uniform(keys, "blocks", 4 * BLOCKS + 2).to(widest(keys.device))
    cells = torch.arange(grid.cells, device=keys.device)
    first = torch.full((len(keys), grid.cells), BLOCKS, device=keys.device)  # the block that first covers a cell
    for index in range(BLOCKS):
        missing = num - (first < BLOCKS).sum(dim=1)
        box = _block(draws[:, 4 * index : 4 * index + 4], missing, grid, least=least, aspect=aspect)
        first = torch.where(_inside(box, cells, grid) & (first == BLOCKS), index, first)
    row, column = cells // grid.w, cells % grid.w
    row = torch.where(draws[:, -1:] < 0.5, row, grid.h - 1 - row)
    column = torch.where(draws[:, -2:-1] < 0.5, column, grid.w - 1 - column)
    return ((first * grid.h + row) * grid.w + column).argsort(dim=1)[:, :num]


def _block(draws: Tensor, missing: Tensor, grid: Grid, *, least: int, aspect: float) -> Tensor:
    """(B, 4) int64: top, left, height and width of one block per picture, from four numbers in [0, 1) each."""
    area = least + draws[:, 0] * (missing - least).clamp(min=0)
    # height = sqrt(area * ratio) fits where ratio <= h^2 / area, and the width where ratio >= area / w^2
    low = (area / grid.w**2).clamp(min=aspect).log()
    high = (grid.h**2 / area).clamp(max=1 / aspect).log()
    ratio = (low + draws[:, 1] * (high - low)).exp()
    tall = (area * ratio).sqrt().round().clamp(1, grid.h)
    wide = (area / ratio).sqrt().round().clamp(1, grid.w)
    top, left = (draws[:, 2] * (grid.h - tall + 1)).floor(), (draws[:, 3] * (grid.w - wide + 1)).floor()
    return torch.stack([top, left, tall, wide], dim=1).to(torch.int64)


def _inside(box: Tensor, cells: Tensor, grid: Grid) -> Tensor:
    """(B, h*w) bool: the cells of each block."""
    top, left, tall, wide = box[:, :, None].unbind(1)
    row, column = cells // grid.w, cells % grid.w
    return (row >= top) & (row < top + tall) & (column >= left) & (column < left + wide)
