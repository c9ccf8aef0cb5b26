"""The masked autoencoder (He et al. 2021): most patches are dropped, and a light decoder reconstructs them.

The encoder never sees the dropped patches, so a step costs a fraction of a supervised one. The decoder gets the encoded
patches, a mask token on every dropped cell, and its own positions. It is discarded after training.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models.base import Encoded, Encoder, Grid, TokenEncoder, run
from vitreous.models.shapes import shapes_only
from vitreous.models.vit import ViTSettings
from vitreous.nn.attention import Attention
from vitreous.nn.blocks import Block, Mlp
from vitreous.nn.tokens import SineCosinePositions, position_rows
from vitreous.objectives.base import Objective
from vitreous.objectives.patches import check_ratio, cut, of_cells, on_cells, pasted, patch_px, plain_tokens

EPSILON = 1e-6  # added to a patch's variance, which is 0 for a uniform patch


@dataclass(frozen=True, kw_only=True)
class MAESettings:
    mask_ratio: float = 0.75  # share of the patches that the encoder does not see
    decoder_depth: int = 8  # blocks of the decoder
    decoder_width: int = 512  # width of the decoder's tokens
    decoder_heads: int = 16  # attention heads of the decoder
    normalise: bool = True  # predict each patch normalised by its own mean and variance (section 4.1, Table 1d)

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "MAE":
        tokens = plain_tokens(encoder, "a masked autoencoder")
        cells = tokens.grid.cells
        check_ratio(self.mask_ratio)
        if not 1 <= self._num_kept(cells) < cells:
            raise UserError(
                f"mask_ratio is {self.mask_ratio}, which keeps {self._num_kept(cells)} of {cells} patches: "
                "at least one must be kept and one hidden"
            )
        depth, width, heads = self.decoder_depth, self.decoder_width, self.decoder_heads
        if min(depth, width, heads) < 1 or width % heads or width % 4:
            raise UserError(
                f"decoder_depth {depth}, decoder_width {width}, decoder_heads {heads}: all must be at least 1, and the "
                "width a multiple of the heads and of 4"
            )
        ph, pw = patch_px(tokens)
        decoder = Decoder(tokens, depth=depth, width=width, heads=heads, values=tokens.channels * ph * pw)
        return MAE(tokens, decoder, self._num_kept(cells), self.normalise)

    def _num_kept(self, cells: int) -> int:
        return round((1 - self.mask_ratio) * cells)


class Decoder(nn.Module):
    """Encoded patches and their cells -> the values of the patches on all other cells."""

    def __init__(self, encoder: TokenEncoder, *, depth: int, width: int, heads: int, values: int) -> None:
        super().__init__()
        self.embed = nn.Linear(encoder.token_width, width)
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.positions = SineCosinePositions(encoder.num_prefix, encoder.grid, width)
        self.blocks = nn.ModuleList(Block(Attention(width, heads), Mlp(width, 4 * width)) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.predict = nn.Linear(width, values)
        nn.init.normal_(self.mask_token, std=0.02)
        for layer in (self.embed, self.predict):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, encoded: Encoded, cells: Tensor, checkpointing: bool = False) -> Tensor:
        """cells: (B, N), first the k that were encoded -> (B, N - k, values) of the others.

        The tokens stay in this order, with the positions of their cells: attention does not depend on the order, and
        nothing has to be moved, forward or backward.
        """
        seen = self.embed(encoded.tokens)  # (B, P + k, D), the prefix first
        num_seen = encoded.patches.shape[1]
        empty = self.mask_token.to(seen.dtype).expand(len(cells), cells.shape[1] - num_seen, -1)
        x = torch.cat([seen, empty], dim=1)  # (B, P + N, D)
        x = x + position_rows(self.positions(), encoded.num_prefix, 0, cells).to(x.dtype)
        for block in self.blocks:
            x = run(block, x, checkpointing=checkpointing)
        # Only dropped patches are predicted: the rest has no part in the loss.
        out: Tensor = self.predict(self.norm(x[:, encoded.num_prefix + num_seen :]))
        return out


class MAE(Objective):
    """Nearly all of the work is the encoder's, on the few patches that are kept."""

    def __init__(self, encoder: TokenEncoder, decoder: Decoder, num_kept: int, normalise: bool) -> None:
        super().__init__()
        self.encoder: TokenEncoder = encoder
        self.decoder = decoder
        self.num_kept, self.normalise = num_kept, normalise

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        self.encoder.check(batch.images)
        kept, dropped = self.draw(batch.keys)
        patches = cut(batch.images, self.encoder.grid)
        predicted = self.predicted(patches, kept, dropped).float()
        return {"loss": F.mse_loss(predicted, self.targets(of_cells(patches, dropped)))}

    def draw(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(B, k) kept cells and (B, N - k) dropped ones."""
        kept, dropped = K.orderings(keys, "mae.cells", self.encoder.grid.cells).tensor_split((self.num_kept,), dim=1)
        return kept, dropped

    def predicted(self, patches: Tensor, kept: Tensor, dropped: Tensor) -> Tensor:
        """The dropped patches (B, N - k, values), predicted from the kept ones of `patches` (B, N, values)."""
        # Patches are embedded separately, so the kept ones may lie side by side in a picture one patch high.
        tokens, _ = self.encoder.embed(pasted(of_cells(patches, kept), Grid(1, self.num_kept), patch_px(self.encoder)))
        encoded = self.encoder.encode(tokens, self.encoder.grid, at=kept)
        out: Tensor = self.decoder(encoded, torch.cat([kept, dropped], dim=1), self.encoder.checkpointing)
        return out

    @torch.no_grad()
    def targets(self, patches: Tensor) -> Tensor:
        """What to predict of patches (B, n, values)."""
        if not self.normalise:
            return patches.float()
        mean, deviation = _statistics(patches)
        return (patches.float() - mean) / deviation

    @torch.no_grad()
    def reconstruction(self, images: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) pictures with the dropped patches predicted, and (B, 1, H, W), 1 where a patch was kept.

        If targets are normalised, a predicted patch gets the mean and variance of the true one: the model does not
        predict these.
        """
        kept, dropped = self.draw(keys)
        grid, (ph, pw) = self.encoder.grid, patch_px(self.encoder)
        patches = cut(images.float(), grid)
        painted = self.predicted(patches, kept, dropped).float()
        if self.normalise:
            mean, deviation = _statistics(of_cells(patches, dropped))
            painted = painted * deviation + mean
        seen = torch.ones_like(patches[..., : ph * pw])
        seen = on_cells(seen, dropped, torch.zeros_like(painted[..., : ph * pw]))
        return pasted(on_cells(patches, dropped, painted), grid, (ph, pw)), pasted(seen, grid, (ph, pw))


def _statistics(patches: Tensor) -> tuple[Tensor, Tensor]:
    """(B, n, 1) each: a patch's mean and standard deviation over all its values, from the unbiased variance."""
    variance, mean = torch.var_mean(patches.float(), dim=-1, keepdim=True)
    return mean, (variance + EPSILON).sqrt()


def flops(model: ViTSettings, settings: MAESettings) -> int:
    """FLOPs of one picture's forward pass: the encoder on kept patches, the decoder on all. Nothing is computed."""
    with shapes_only():
        objective = settings.build(model.build(), ())
        key = torch.zeros(1, dtype=torch.int64)
        batch = Batch(views=(torch.empty(1, model.channels, *model.picture_px),), targets={}, ids=key, keys=key)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        objective(batch, torch.zeros((), device="meta"))
    return int(counter.get_total_flops())
