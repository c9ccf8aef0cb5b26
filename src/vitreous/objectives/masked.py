"""Masked patch prediction, the ViT paper's own self-supervision (Dosovitskiy et al. 2021, section 4.6, B.1.2).

Half of the patch embeddings are corrupted before positions are added: of these, 80 % become a learned mask token, 10 %
the embedding of another patch, and 10 % stay as they are. Every corrupted patch, including those that stay, is
predicted from its own token.

What the paper leaves open is decided here. The number of patches of each kind is exact, not drawn, so that shapes are
fixed. The other patch is any other of the same picture, corrupted or not. The head is one linear layer on the last
tokens. Of the 8 bits of a level, the upper three count.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models.base import Encoder, Grid, TokenEncoder
from vitreous.objectives.base import Objective
from vitreous.objectives.patches import check_ratio, cut, of_cells, on_cells, patch_px, plain_tokens

Channels = tuple[float, float, float]

COLOURS = 512  # 3 bits per channel
DOWNSIZED = 4  # the downsized patch has 4 x 4 places
MASK_SHARE, SWAP_SHARE = 0.8, 0.1  # of the corrupted patches


@dataclass(frozen=True, kw_only=True)
class MaskedSettings:
    target: Literal["mean", "downsized", "pixels"] = "mean"  # mean colour, colours of 4 x 4 places, or all pixels (L2)
    mask_ratio: float = 0.5  # share of the patches that are corrupted; the paper also tried 0.15
    # Colours are computed from levels, but an objective sees normalised pictures. `Masked.look` checks both on data.
    mean: Channels = (0.5, 0.5, 0.5)  # what was subtracted from each channel, as in normalise.mean
    std: Channels = (0.5, 0.5, 0.5)  # what each channel was divided by, as in normalise.std

    def build(self, encoder: Encoder, classes: tuple[str, ...]) -> "Masked":
        tokens = plain_tokens(encoder, "masked patch prediction")
        cells = tokens.grid.cells
        check_ratio(self.mask_ratio)
        num = round(self.mask_ratio * cells)
        if not 1 <= num <= cells or cells < 2:
            raise UserError(
                f"mask_ratio is {self.mask_ratio}, which is {num} of {cells} patches: at least one must be corrupted, "
                "out of at least two"
            )
        patch = patch_px(tokens)
        if self.target == "downsized" and (patch[0] % DOWNSIZED or patch[1] % DOWNSIZED):
            raise UserError(
                f"a patch of {patch[0]} x {patch[1]} px cannot be cut into 4 x 4 equal parts: set target to mean or "
                "pixels"
            )
        if tokens.channels != 3:
            raise UserError(
                f"masked patch prediction predicts colours, but the pictures have {tokens.channels} channels"
            )
        if min(self.std) <= 0:
            raise UserError(f"std is {self.std}: all values must be above 0")
        return Masked(tokens, self)


class Masked(Objective):
    """A TokenEncoder, a mask token, and a head that is discarded."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: TokenEncoder, settings: MaskedSettings) -> None:
        super().__init__()
        self.encoder: TokenEncoder = encoder
        self.target = settings.target
        self.num_corrupted = round(settings.mask_ratio * encoder.grid.cells)
        self.num_masked, self.num_swapped = (round(share * self.num_corrupted) for share in (MASK_SHARE, SWAP_SHARE))
        self.mask_token = nn.Parameter(torch.zeros(encoder.token_width))
        nn.init.normal_(self.mask_token, std=0.02)
        ph, pw = patch_px(encoder)
        outputs = {"mean": COLOURS, "downsized": DOWNSIZED**2 * COLOURS, "pixels": 3 * ph * pw}
        self.head = nn.Linear(encoder.token_width, outputs[settings.target])
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        # Facts about the data, not weights: not saved, and real tensors even if the weights are meta.
        for name, values in (("mean", settings.mean), ("std", settings.std)):
            self.register_buffer(name, torch.tensor(values, device="cpu")[:, None, None], persistent=False)

    def look(self, batches: Iterable[Batch]) -> None:
        """Checks mean and std: only those of the pictures turn them back into 256 levels."""
        for batch in batches:
            exact = self._exact_levels(batch.images)
            if not bool(((exact - exact.round()).abs() < 0.05).all() & (exact > -0.5).all() & (exact < 255.5).all()):
                raise UserError(
                    "objective.mean and objective.std do not turn the pictures back into levels from 0 to 255: set "
                    "them to normalise.mean and normalise.std"
                )
            return

    def forward(self, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        self.encoder.check(batch.images)
        tokens, grid = self.encoder.embed(batch.images)
        corrupted, sources = self.draw(batch.keys)
        encoded = self.encoder.encode(self.corrupted(tokens, corrupted, sources), grid)
        predicted = self.head(of_cells(encoded.patches, corrupted)).float()  # (B, n, outputs)
        wanted = of_cells(self.targets(batch.images, grid), corrupted)  # (B, n, places or values)
        if self.target == "pixels":
            return {"loss": F.mse_loss(predicted, wanted)}
        return {"loss": F.cross_entropy(predicted.reshape(-1, COLOURS), wanted.flatten())}

    def draw(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The corrupted cells (B, n): first the masked, then the swapped, then those that stay; and for each swapped
        cell, the one (B, s) whose embedding it gets."""
        cells = self.encoder.grid.cells
        corrupted = K.orderings(keys, "masked.cells", cells)[:, : self.num_corrupted]
        swapped = corrupted[:, self.num_masked : self.num_masked + self.num_swapped]
        steps = 1 + K.integers(keys, "masked.others", self.num_swapped, cells - 1)  # never all the way round
        return corrupted, (swapped + steps) % cells

    def corrupted(self, tokens: Tensor, corrupted: Tensor, sources: Tensor) -> Tensor:
        """The embeddings (B, N, D) as the blocks see them."""
        B, _, D = tokens.shape
        masked, swapped, _ = corrupted.tensor_split((self.num_masked, self.num_masked + self.num_swapped), dim=1)
        mask = self.mask_token.to(tokens.dtype).expand(B, self.num_masked, D)
        return on_cells(on_cells(tokens, swapped, of_cells(tokens, sources)), masked, mask)

    @torch.no_grad()
    def targets(self, images: Tensor, grid: Grid) -> Tensor:
        """(B, N, 1) or (B, N, 16) colours, or (B, N, values) normalised pixels."""
        if self.target == "pixels":
            return cut(images, grid).float()
        places = 1 if self.target == "mean" else DOWNSIZED
        # Integers again: their sums are exact, so that no colour depends on how a device rounds.
        levels = self._exact_levels(images.float()).round()
        B, h, w = len(images), grid.h * places, grid.w * places
        means = cut(levels, Grid(h, w)).view(B, h, w, 3, -1).mean(dim=-1)
        bits = (means / 32).floor().clamp(0, 7).long()
        colours = bits[..., 0] * 64 + bits[..., 1] * 8 + bits[..., 2]  # (B, h, w)
        return cut(colours[:, None], grid)

    def _exact_levels(self, images: Tensor) -> Tensor:
        """Normalised pictures back on the scale from 0 to 255."""
        return (images * self.std + self.mean) * 255
