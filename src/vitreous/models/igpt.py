"""iGPT (Chen et al. 2020): a picture is a text of coloured pixels, and a GPT-2 reads it, each from those before it.

Norms without a mean or a bias and the sigmoid GELU are the released code's. As in GPT-2, a word that is read and a word
that is predicted share one vector; the released code has a second table for the latter.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.display.words import counted
from vitreous.errors import UserError
from vitreous.models.base import GENTLE, Encoder, EncoderSettings, Features, FineTuning, Grid, Output, run
from vitreous.models.layout import AttentionLayer, Layout, one_group
from vitreous.nn.attention import Attention
from vitreous.nn.blocks import Block, Mlp, depth_rates
from vitreous.nn.resizing import Resizing, resize_table
from vitreous.nn.tokens import LearnedPositions

EPSILON = 1e-5  # of the norms


class CausalAttention(Attention):
    """Each token looks at itself and at those before it."""

    def forward(self, x: Tensor, pairs: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        q, k, v = self._queries_keys_values(x)
        return self._together(F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def following(self, x: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
        """The same for tokens from place `start` on. The tables (B, heads, n, d) hold what came before them, and
        afterwards these as well."""
        q, k, v = self._queries_keys_values(x)
        stop = start + x.shape[1]
        keys[:, :, start:stop], values[:, :, start:stop] = k, v
        seen = torch.ones(x.shape[1], stop, dtype=torch.bool, device=x.device).tril(start)
        attended = F.scaled_dot_product_attention(q, keys[:, :, :stop], values[:, :, :stop], attn_mask=seen)
        return self._together(attended)

    def weights(
        self,
        x: Tensor,
        rows: Tensor | slice | None = None,
        pairs: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        q, k, _ = self._queries_keys_values(x)
        places = torch.arange(x.shape[1], device=x.device)
        asked = places if rows is None else places[rows]
        logits = q[:, :, asked] * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)  # (B, heads, r, N)
        logits = logits.masked_fill(places > asked[:, None], -math.inf)
        out: Tensor = logits.softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        return out

    def _together(self, heads: Tensor) -> Tensor:
        """(B, heads, N, d) -> (B, N, D)."""
        out: Tensor = self.dropout(self.project_out(heads.transpose(1, 2).flatten(2)))
        return out


class CausalBlock(Block):
    """The transformer's block with causal attention, and norms that divide by the root of the mean square."""

    def __init__(self, attention: CausalAttention, mlp: Mlp, stochastic_depth: float, depth: int) -> None:
        super().__init__(attention, mlp, stochastic_depth=stochastic_depth)
        for name in ("attention_norm", "mlp_norm"):
            self.register_module(name, nn.RMSNorm(attention.width, eps=EPSILON))
        # What is added to the residual stream starts smaller in a deeper network (Child et al. 2019, section 5.2).
        for layer in (attention.project_out, mlp.contract):
            layer.weight.detach().mul_((2 * depth) ** -0.5)

    def following(self, x: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
        assert isinstance(self.attention, CausalAttention)
        x = x + self.attention.following(self.attention_norm(x), keys, values, start)
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Memory:
    """Keys and values of all that was read so far, in every layer: who writes a picture reads nothing twice."""

    def __init__(self, layers: int, like: Tensor, shape: tuple[int, int, int, int]) -> None:
        self.keys, self.values = (like.new_empty(layers, *shape) for _ in range(2))  # (layers, B, heads, n, d)
        self.length = 0  # tokens


class IGPT(Encoder):
    """A token a pixel, in reading order. The place of a pixel holds the vector of the one before it, the first place a
    start token: the output for a place has seen all before it, and is asked what stands there.

    `palette` and the pixels that come in are normalised alike, so the model need not know how.
    """

    palette: Tensor  # (K, C): the colours that are the words
    has_palette: Tensor  # () bool: whether they were found in pictures

    def __init__(self, settings: "IGPTSettings") -> None:
        super().__init__()
        self.width, self.heads = settings.width, settings.heads
        self.outputs = (Output(settings.width, (1, 1)),)
        self.channels, self.picture_px = settings.channels, settings.picture_px
        self.feature_depth = settings.middle
        # Until an objective has looked at pictures: normalised pixels are nearly standard normal.
        self.register_buffer("palette", nn.init.normal_(torch.empty(settings.clusters, settings.channels)))
        self.register_buffer("has_palette", torch.zeros((), dtype=torch.bool))
        self.words = nn.Embedding(settings.clusters + 1, settings.width)  # the last one is the start token
        nn.init.normal_(self.words.weight, std=0.02)
        self.positions = LearnedPositions(0, settings.picture_px, settings.width)
        self.blocks = nn.ModuleList(settings.block(rate) for rate in settings.rates())
        self.norm = nn.RMSNorm(settings.width, eps=EPSILON)

    # ---- an encoder like any other

    def missing(self) -> str | None:
        if bool(self.has_palette):
            return None
        return (
            "an IGPT reads the colours of a palette, and this one has none yet: train one with --objective.kind "
            "NextPixel, which finds them, and begin with that run (--start)"
        )

    def features(self, images: Tensor) -> Features:
        grid = Grid(*images.shape[-2:])
        tokens = self._norm(self.feature_depth)(self.encode(self.read(images), grid, self.feature_depth))
        maps = tokens.transpose(1, 2).reshape(-1, self.width, *grid)
        return Features(maps=(maps,), prefix=None, pooled=tokens.mean(dim=1))

    def stages(self) -> list[nn.Module]:
        return [nn.ModuleList([self.words, self.positions]), *self.blocks]

    def attention_layers(self) -> list[AttentionLayer]:
        """Those that the features have gone through. What a place sees is the start token and the pixels before it."""
        grid = Grid(*self.picture_px)
        place = Layout(grid=grid, num_prefix=0, picture_px=self.picture_px, pitch_px=(1, 1), pool="mean")
        blocks = [cast(CausalBlock, block) for block in self.blocks[: self.feature_depth]]
        return [
            AttentionLayer(
                name=f"layer {number}",
                module=block.attention,
                heads=self.heads,
                looking=place,
                seen=dataclasses.replace(place, num_prefix=1),
                queries=one_group(place),
                keys=one_group(place),  # the start token is the first, and the last pixel is seen by none
                hidden=torch.ones(1, grid.cells, grid.cells, dtype=torch.bool).triu(1),
                positions=self.positions,
            )
            for number, block in enumerate(blocks, start=1)
        ]

    def resize(self, picture_px: tuple[int, int], mode: str = "bilinear") -> None:
        if mode not in get_args(Resizing):
            raise UserError(f"unknown resizing of positions {mode!r}: {', '.join(get_args(Resizing))}")
        self.positions.resize(picture_px, cast(Resizing, mode))
        self.picture_px = picture_px

    # ---- reading and predicting

    @torch.no_grad()
    def read(self, images: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, h*w) int64: the colour of the palette that is nearest to each pixel."""
        return nearest(images.flatten(2).transpose(1, 2), self.palette)

    def paint(self, words: Tensor, grid: Grid) -> Tensor:
        """The way back, up to what the palette lacks: (B, h*w) -> (B, C, h, w)."""
        return self.palette[words].transpose(1, 2).reshape(-1, self.channels, *grid)

    def encode(self, words: Tensor, grid: Grid, depth: int) -> Tensor:
        """(B, h*w) -> (B, h*w, D), the output of block `depth` (1 = the first), before any norm."""
        table = resize_table(self.positions(), 0, self.positions.grid, grid)
        x: Tensor = self.words(self._shifted(words)) + table
        for block in self.blocks[:depth]:
            x = run(block, x, checkpointing=self.checkpointing)
        return x

    def logits(self, words: Tensor) -> Tensor:
        """(B, h*w) -> (B, h*w, K): of every pixel, from those before it alone."""
        return self._predict(self.encode(words, Grid(*self.picture_px), len(self.blocks)))

    def memory(self, num: int) -> Memory:
        """An empty one for `num` pictures."""
        cells = Grid(*self.picture_px).cells
        shape = (num, self.heads, cells, self.width // self.heads)
        return Memory(len(self.blocks), self.words.weight, shape)

    @torch.no_grad()
    def next_logits(self, words: Tensor, memory: Memory) -> Tensor:
        """(B, m) words that follow those of the memory (none: the start token does) -> (B, K), of the next pixel."""
        start = memory.length
        if start == 0:
            words = torch.cat([self._start(words), words], dim=1)
        stop = start + words.shape[1]
        x = self.words(words) + self.positions()[start:stop]
        for block, keys, values in zip(self.blocks, memory.keys, memory.values, strict=True):
            assert isinstance(block, CausalBlock)
            x = block.following(x, keys, values, start)
        memory.length = stop
        return self._predict(x[:, -1])

    def _predict(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.words.weight[:-1])

    def _shifted(self, words: Tensor) -> Tensor:
        return torch.cat([self._start(words), words[:, :-1]], dim=1)

    def _start(self, words: Tensor) -> Tensor:
        return words.new_full((words.shape[0], 1), len(self.palette))

    def _norm(self, depth: int) -> nn.Module:
        """What the paper's features have gone through: the norm that the next layer begins with."""
        if depth == len(self.blocks):
            return self.norm
        block = self.blocks[depth]
        assert isinstance(block, CausalBlock)
        return block.attention_norm


def nearest(pixels: Tensor, palette: Tensor) -> Tensor:
    """(..., C) colours, (K, C) -> (...) int64. Not by a matrix product, which autocast would round."""
    pixels, palette = pixels.to(torch.promote_types(pixels.dtype, torch.float32)), palette.to(torch.float32)
    apart = [(pixels[..., c, None] - palette[:, c]).square() for c in range(palette.shape[1])]  # (..., K) each
    return sum(apart[1:], apart[0]).argmin(dim=-1)


@dataclass(frozen=True, kw_only=True)
class IGPTSettings(EncoderSettings):
    """A causal transformer over single pixels: iGPT-S by default."""

    family: ClassVar[str] = "iGPT"
    # A token a pixel: larger pictures cost too much.
    finetuning: ClassVar[FineTuning] = dataclasses.replace(GENTLE, enlarges=False)

    picture_px: tuple[int, int] = (32, 32)  # height and width of the pictures; every pixel is a token
    clusters: int = 512  # colours that pixels are rounded to
    width: int = 512  # of a token
    depth: int = 24  # blocks
    heads: int = 8  # of the attention
    feature_depth: int | None = None  # block whose output is returned (1 is the first); none: the middle one
    stochastic_depth: float = 0.0  # rate at the last block, growing linearly from 0

    @property
    def name(self) -> str:
        return f"iGPT of width {self.width}, depth {self.depth}, {counted(self.heads, 'head')}"

    def describe(self) -> str:
        size = f"{counted(self.depth, 'block')}, {counted(self.heads, 'head')}, {self.clusters} colours"
        return f"iGPT, width {self.width}, {size}"

    @property
    def middle(self) -> int:
        """Where the features are best, in the paper's experience (section 4.1)."""
        return max(1, self.depth // 2) if self.feature_depth is None else self.feature_depth

    def build(self) -> IGPT:
        if min(self.width, self.depth, self.heads, *self.picture_px) < 1 or self.width % self.heads:
            raise UserError(
                f"width {self.width}, depth {self.depth}, heads {self.heads}, picture_px {self.picture_px}: all must "
                "be at least 1, and the width a multiple of the heads"
            )
        if self.clusters < 2:
            raise UserError(f"clusters is {self.clusters}: pixels need at least 2 colours to differ in")
        if not 1 <= self.middle <= self.depth:
            raise UserError(f"feature_depth is {self.feature_depth}: this model has blocks 1 to {self.depth}")
        return IGPT(self)

    def rates(self) -> list[float]:
        return depth_rates(self.stochastic_depth, self.depth)

    def block(self, rate: float) -> CausalBlock:
        attention = CausalAttention(self.width, self.heads)
        return CausalBlock(attention, Mlp(self.width, 4 * self.width, gelu="quick"), rate, self.depth)
