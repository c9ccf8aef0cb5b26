"""What objectives that hide patches share: checks, patches of pictures, and tokens by their cells."""

from torch import Tensor

from vitreous.errors import UserError
from vitreous.models.base import Encoder, Grid, TokenEncoder


def plain_tokens(encoder: Encoder, what: str) -> TokenEncoder:
    """The encoder, if its tokens are patches of the picture; an error if tokens see neighbouring patches."""
    if not isinstance(encoder, TokenEncoder) or encoder.tokens_overlap:
        raise UserError(
            f"{what} hides patches of the picture, so it needs a plain ViT, without a "
            "convolutional stem; SimMIM takes other families, too"
        )
    return encoder


def check_ratio(ratio: float) -> None:
    """To call before the ratio becomes a number of patches: a NaN cannot be rounded."""
    if not 0 <= ratio <= 1:
        raise UserError(f"mask_ratio is {ratio}: it is a share of the patches, between 0 and 1")


def patch_px(encoder: TokenEncoder) -> tuple[int, int]:
    """Height and width of a patch."""
    return encoder.picture_px[0] // encoder.grid.h, encoder.picture_px[1] // encoder.grid.w


def cut(images: Tensor, grid: Grid) -> Tensor:
    """(B, C, H, W) -> (B, h*w, C * ph * pw): the patches in reading order."""
    B, C, H, W = images.shape
    patches = images.reshape(B, C, grid.h, H // grid.h, grid.w, W // grid.w).permute(0, 2, 4, 1, 3, 5)
    return patches.reshape(B, grid.cells, -1)


def pasted(patches: Tensor, grid: Grid, patch: tuple[int, int]) -> Tensor:
    """(B, h*w, C * ph * pw) -> (B, C, H, W): the inverse of `cut`."""
    (ph, pw), B = patch, len(patches)
    maps = patches.reshape(B, grid.h, grid.w, -1, ph, pw).permute(0, 3, 1, 4, 2, 5)  # (B, C, h, ph, w, pw)
    return maps.reshape(B, -1, grid.h * ph, grid.w * pw)


def of_cells(tokens: Tensor, cells: Tensor) -> Tensor:
    """(B, N, D) and (B, n) -> (B, n, D): each picture's tokens at its cells."""
    return tokens.gather(1, _wide(cells, tokens.shape[-1]))


def on_cells(tokens: Tensor, cells: Tensor, others: Tensor) -> Tensor:
    """`tokens` (B, N, D) with `others` (B, n, D) in place of those at the cells (B, n)."""
    return tokens.scatter(1, _wide(cells, tokens.shape[-1]), others)


def _wide(cells: Tensor, width: int) -> Tensor:
    return cells[..., None].expand(-1, -1, width)
