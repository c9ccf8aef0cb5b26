"""EoMT (Kerssies et al. 2025): queries join the patches of a plain ViT in its last blocks, and that is the decoder.

In training, a query at first attends only to the patches of its own mask; this is given up block by block, so that a
trained model is a ViT with some more tokens.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import keys as K
from vitreous.nn.bilinear import resized_maps
from vitreous.nn.pyramid import ChannelNorm
from vitreous.nn.query_masks import QueryMasks, inside

POWER = 0.9  # exponent of the annealing


class Upscale(nn.Module):
    """Doubles the rows and columns of a map."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enlarge = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.smooth = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.norm = ChannelNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.smooth(F.gelu(self.enlarge(x))))
        return out


class Eomt(nn.Module):
    """The queries, and the heads that read them and the patches."""

    def __init__(self, width: int, num_classes: int, queries: int, blocks: int, upscales: int) -> None:
        super().__init__()
        self.blocks = blocks
        self.queries = nn.Parameter(torch.randn(queries, width))
        self.upscale = nn.Sequential(*(Upscale(width) for _ in range(upscales)))
        self.classes = nn.Linear(width, num_classes + 1)
        self.masks = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )

    def joined(self, tokens: Tensor) -> Tensor:
        """(B, N, D) -> (B, N + Q, D)"""
        queries = self.queries.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        return torch.cat([tokens, queries], dim=1)

    def says(self, tokens: Tensor, num_prefix: int, grid: tuple[int, int]) -> QueryMasks:
        """The predictions of one layer. tokens: (B, P + h * w + Q, D), normed."""
        patches, queries = torch.split(tokens[:, num_prefix:], [grid[0] * grid[1], len(self.queries)], dim=1)
        embeddings = self.masks(queries)
        pixels = self.upscale(patches.transpose(1, 2).reshape(patches.shape[0], -1, *grid)).to(embeddings.dtype)
        return QueryMasks(self.classes(queries)[None], embeddings[None], pixels[None])

    def looks(self, said: QueryMasks, num_prefix: int, grid: tuple[int, int], free: Tensor) -> Tensor:
        """(B, 1, N, N): the bias on attention's logits by which queries attend only to the patches of their masks, and
        all other tokens to everything. free: (B, Q) bool, the queries that attend to everything."""
        seen = inside(said.embeddings[0], resized_maps(said.pixels[0].detach(), grid)) | free[..., None]
        bias = torch.zeros_like(seen, dtype=said.embeddings.dtype).masked_fill(~seen, -torch.inf)  # (B, Q, h * w)
        num_queries, num_patches = bias.shape[1:]
        return F.pad(bias, (num_prefix, num_queries, num_prefix + num_patches, 0))[:, None]


def joined_layers(said: list[QueryMasks]) -> QueryMasks:
    return QueryMasks(*(torch.cat(parts) for parts in zip(*said, strict=True)))


def masked_share(progress: Tensor, block: int, blocks: int) -> Tensor:
    """0-d, from 1 to 0: the share of queries that a block confines to their masks. Blocks give it up one after another,
    the first block first, between the beginning and the end of the run."""
    span = 1 / (blocks + 2)
    done = (progress / span - (block + 1)).clamp(0, 1)
    return (1 - done) ** POWER


def freed(keys: Tensor, progress: Tensor, block: int, blocks: int, num_queries: int) -> Tensor:
    """(B, Q) bool: the queries that attend to everything, drawn for each sample."""
    return K.uniform(keys, f"mask annealing: block {block}", num_queries) >= masked_share(progress, block, blocks)
