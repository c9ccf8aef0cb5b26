"""The transformer's block: pre-norm attention and MLP, with dropout, stochastic depth and LayerScale as parts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import keys as K
from vitreous.nn.attention import Attention
from vitreous.nn.gelu import dense_gelu
from vitreous.nn.relative import BiasTable

Gelu = Literal["erf", "tanh", "quick"]


class Draws:
    """The random decisions inside a network (stochastic depth), drawn from the samples' keys: the same for any number
    of ranks and of parts of a batch. The training loop sets the batch with `of`; otherwise the layers draw from torch's
    generator."""

    def __init__(self, network: nn.Module) -> None:
        self.layers = [part for part in network.modules() if isinstance(part, StochasticDepth) and part.rate > 0]
        self.rates = torch.tensor([layer.rate for layer in self.layers])[:, None, None]
        self.scales = torch.tensor([1 / (1 - layer.rate) for layer in self.layers])[:, None, None]

    @contextmanager
    def of(self, keys: Tensor, num_views: int) -> Iterator[None]:
        """Inside, the forward and backward passes (which may recompute) see the views of these samples, one view of all
        samples after the other. Passes of different sizes each count from the first view."""
        for layer, factors in zip(self.layers, self._factors(keys, num_views), strict=True):
            layer.factors = factors
        try:
            yield
        finally:
            for layer in self.layers:
                layer.factors = None

    def _factors(self, keys: Tensor, num_views: int) -> list[Tensor]:
        """For every layer, (views x B,)."""
        if not self.layers:
            return []
        if self.rates.device != keys.device:
            self.rates, self.scales = self.rates.to(keys.device), self.scales.to(keys.device)
        drawn = K.uniform(keys, "stochastic depth", len(self.layers) * num_views)
        drawn = drawn.T.reshape(len(self.layers), num_views, len(keys))
        return list(((drawn >= self.rates) * self.scales).flatten(1).unbind())


class StochasticDepth(nn.Module):
    """Drops a residual branch for a random part of the samples, and scales up the others.

    The draw is a tensor operation: the host reads nothing back, so it can be part of a CUDA graph.
    """

    # One factor per sample, set by Draws: a tensor, so that layers of all rates are compiled as one.
    factors: Tensor | None = None

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training:
            return branch
        factors = self.factors
        if factors is None:
            if self.rate == 0:
                return branch
            factors = (torch.rand(branch.shape[0], device=branch.device) >= self.rate) / (1 - self.rate)
        factors = factors[: branch.shape[0]].to(branch.dtype)
        return branch * factors.view(-1, *(1,) * (branch.ndim - 1))

    def extra_repr(self) -> str:
        return f"{self.rate:g}"


def depth_rates(highest: float, depth: int) -> list[float]:
    """Rates of stochastic depth: linear from 0 at the first block to `highest` at the last (Huang et al. 2016)."""
    return [highest * i / max(depth - 1, 1) for i in range(depth)]


def small_weights(module: nn.Module, std: float = 0.02) -> None:
    """Initialises every dense layer, convolution and table of biases of a module from a narrow normal, and biases to
    zero, as in Swin, PVT and ConvNeXt."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            nn.init.trunc_normal_(part.weight, std=std)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, BiasTable):
            nn.init.trunc_normal_(part.table, std=std)


def shared_projection(width: int, out: int) -> nn.Linear:
    """Into a space that pictures share with texts, as in CLIP."""
    projection = nn.Linear(width, out, bias=False)
    nn.init.normal_(projection.weight, std=width**-0.5)
    return projection


class QuickGelu(nn.Module):
    """x * sigmoid(1.702 x), OpenAI CLIP's approximation of GELU."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


def gelu_kind(gelu: Gelu) -> nn.Module:
    return QuickGelu() if gelu == "quick" else nn.GELU(approximate="none" if gelu == "erf" else "tanh")


class Mlp(nn.Module):
    """Two dense layers with a GELU between them, dropout after each (paper, section 3.1 and appendix B.1)."""

    def __init__(self, width: int, mlp_width: int, gelu: Gelu = "erf", dropout: float = 0.0) -> None:
        super().__init__()
        self.expand = nn.Linear(width, mlp_width)
        self.gelu, self.is_exact = gelu_kind(gelu), gelu == "erf"
        self.contract = nn.Linear(mlp_width, width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        for layer in (self.expand, self.contract):  # as in the released code
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        hidden = dense_gelu(self.expand, x) if self.is_exact else self.gelu(self.expand(x))
        out: Tensor = self.dropout(self.contract(self.dropout(hidden)))
        return out


class SwiGlu(nn.Module):
    """silu(gate) * value, then a dense layer (Shazeer 2020). Gate and value come from one product, the gate first."""

    def __init__(self, width: int, mlp_width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.expand = nn.Linear(width, 2 * mlp_width)
        self.contract = nn.Linear(mlp_width, width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        for kernel in (*self.expand.weight.detach().chunk(2), self.contract.weight):
            nn.init.xavier_uniform_(kernel)
        for layer in (self.expand, self.contract):
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.expand(x).chunk(2, dim=-1)
        out: Tensor = self.dropout(self.contract(self.dropout(F.silu(gate) * value)))
        return out


class LayerScale(nn.Module):
    """One learned factor per channel of a residual branch (Touvron et al. 2021, CaiT)."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((width,), start))

    def forward(self, branch: Tensor) -> Tensor:
        return branch * self.factor.to(branch.dtype)


class Repeated(nn.Module):
    """A part that a network has many of, called one after the other. Until it is called, its weights may be sharded
    over ranks (training/ranks)."""


class Block(Repeated):
    """x + attention(norm(x)), then x + mlp(norm(x)) (paper, equations 2 and 3)."""

    def __init__(
        self,
        attention: Attention,
        mlp: nn.Module,
        norm_epsilon: float = 1e-6,
        layer_scale: float | None = None,
        stochastic_depth: float = 0.0,
    ) -> None:
        super().__init__()
        width = attention.width
        self.attention_norm = nn.LayerNorm(width, eps=norm_epsilon)
        self.attention = attention
        self.attention_scale = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.mlp_norm = nn.LayerNorm(width, eps=norm_epsilon)
        self.mlp = mlp
        self.mlp_scale = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.attention_depth, self.mlp_depth = StochasticDepth(stochastic_depth), StochasticDepth(stochastic_depth)

    def forward(self, x: Tensor, pairs: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        x = x + self.attention_depth(self.attention_scale(self.attention(self.attention_norm(x), pairs, bias)))
        out: Tensor = x + self.mlp_depth(self.mlp_scale(self.mlp(self.mlp_norm(x))))
        return out
