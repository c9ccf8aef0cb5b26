"""The text tower: a transformer over token ids, as CLIP's (Radford et al. 2021) or SigLIP's (Zhai et al. 2023)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vitreous.display.words import counted
from vitreous.errors import UserError
from vitreous.models.base import run
from vitreous.nn.attention import Attention
from vitreous.nn.blocks import Block, Gelu, Mlp

TextAttention = Literal["causal", "both"]
TextPool = Literal["end", "last"]


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """CLIP's text transformer beside its ViT-B, by default."""

    vocabulary: int = 49_408  # number of tokens
    context: int = 77  # tokens per text; longer texts are cut off
    width: int = 512  # of a token
    depth: int = 12  # blocks
    heads: int = 8  # of the attention
    mlp_width: int | None = None  # of the hidden layers; none: four times the width
    gelu: Gelu = "erf"  # exact, the tanh approximation (SigLIP), or the sigmoid one (OpenAI)
    norm_epsilon: float = 1e-5  # of the layer norms
    attention: TextAttention = "causal"  # a token sees those before it (CLIP), or all in both directions (SigLIP)
    pool: TextPool = "end"  # the token that ends the text (CLIP), or the last one of the row, whatever it is (SigLIP)
    end: int = 49_407  # the token that ends a text
    projection_bias: bool = False  # whether the projection to the shared space has a bias (SigLIP)

    def build(self, out: int) -> "TextTransformer":
        """`out`: width of the space that texts and pictures share."""
        numbers = (self.vocabulary, self.context, self.width, self.depth, self.heads, self.mlp_width or 1, out)
        if min(numbers) < 1 or self.width % self.heads:
            raise UserError(
                f"a text tower of width {self.width}, depth {self.depth}, {self.heads} heads, {self.vocabulary} tokens "
                f"and {self.context} places: all must be at least 1, and the width a multiple of the heads"
            )
        if not self.norm_epsilon > 0:
            raise UserError(f"norm_epsilon is {self.norm_epsilon}: it must be above 0")
        return TextTransformer(self, out)

    @property
    def may_be_cut(self) -> bool:
        """Whether what follows the end of all texts may be left out: nothing that is pooled has seen it."""
        return self.attention == "causal" and self.pool == "end"

    def describe(self) -> str:
        size = f"width {self.width}, {counted(self.depth, 'block')}, {counted(self.heads, 'head')}"
        return f"text transformer, {size}, {self.context} tokens"


class TextTransformer(nn.Module):
    def __init__(self, settings: TextSettings, out: int) -> None:
        super().__init__()
        width, mlp_width = settings.width, settings.mlp_width or 4 * settings.width
        self.settings = settings
        self.tokens = nn.Embedding(settings.vocabulary, width)
        self.positions = nn.Parameter(torch.empty(settings.context, width))
        self.blocks = nn.ModuleList(
            Block(
                Attention(width, settings.heads, causal=settings.attention == "causal"),
                Mlp(width, mlp_width, settings.gelu),
                settings.norm_epsilon,
            )
            for _ in range(settings.depth)
        )
        self.norm = nn.LayerNorm(width, eps=settings.norm_epsilon)
        self.projection = nn.Linear(width, out, bias=settings.projection_bias)
        self._begin()

    def _begin(self) -> None:
        """As CLIP's released code: the deeper the tower, the less a block adds at first."""
        width, depth = self.settings.width, self.settings.depth
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions, std=0.01)
        inward, outward = width**-0.5, (2 * depth * width) ** -0.5
        for name, weight in self.blocks.named_parameters():
            part = name.split(".", 1)[1]
            std = {
                "attention.project_in.weight": inward,
                "attention.project_out.weight": outward,
                "mlp.expand.weight": (2 * width) ** -0.5,
                "mlp.contract.weight": outward,
            }.get(part)
            if std is not None:
                nn.init.normal_(weight, std=std)
        nn.init.normal_(self.projection.weight, std=inward)
        if self.projection.bias is not None:
            nn.init.zeros_(self.projection.bias)

    def forward(self, ids: Tensor, checkpointing: bool = False) -> Tensor:
        """(B, L) -> (B, out); L is the context, or less where what is missing would be padding alone."""
        length = ids.shape[1]
        if length > self.settings.context or (length < self.settings.context and not self.settings.may_be_cut):
            raise UserError(f"rows of {length} tokens for a text tower that reads {self.settings.context}")
        x = self.tokens(ids) + self.positions[:length]
        if torch.is_autocast_enabled(x.device.type):  # a table is none of the operations that it changes
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for block in self.blocks:
            x = run(block, x, checkpointing=checkpointing)
        # A norm and a projection look at each token by itself: those that are not pooled need neither.
        projected: Tensor = self.projection(self.norm(self._pooled(x, ids)))
        return projected

    def _pooled(self, x: Tensor, ids: Tensor) -> Tensor:
        if self.settings.pool == "last":
            return x[:, -1]
        ends = (ids == self.settings.end).int().argmax(dim=1)  # the first, where what pads is the same token
        return x[torch.arange(len(ids), device=x.device), ends]
