"""Multi-head self-attention: a fused kernel for the forward pass, a second method for looking inside."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.nn import packed_attention
from vitreous.nn.attend import attend
from vitreous.nn.fp8 import multiplied
from vitreous.nn.relative import BiasTable, PairPositions, RelativePositions

AttentionBias = Literal["all", "none", "no-key"]


class Attention(nn.Module):
    """Self-attention (paper, appendix A) with queries, keys and values from one matrix product."""

    def __init__(
        self,
        width: int,
        heads: int,
        bias: AttentionBias = "all",  # no-key: queries and values have one, keys have none (BEiT)
        dropout: float = 0.0,  # after the output projection; the paper has none on the weights
        *,
        relative: RelativePositions | None = None,
        bias_table: BiasTable | None = None,
        causal: bool = False,  # a token sees itself and those before it
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.width, self.heads, self.causal = width, heads, causal
        self.project_in = nn.Linear(width, 3 * width, bias=bias == "all")
        self.project_out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.query_bias = nn.Parameter(torch.zeros(width)) if bias == "no-key" else None
        self.value_bias = nn.Parameter(torch.zeros(width)) if bias == "no-key" else None
        self.relative, self.bias_table = relative, bias_table
        # As in the released code: each of the three kernels is Xavier-uniform by itself, biases are zero.
        for part in self.project_in.weight.detach().chunk(3):
            nn.init.xavier_uniform_(part)
        nn.init.xavier_uniform_(self.project_out.weight)
        nn.init.zeros_(self.project_out.bias)
        if self.project_in.bias is not None:
            nn.init.zeros_(self.project_in.bias)

    @property
    def pair_positions(self) -> PairPositions | None:
        """The layer's own relative positions, of either kind."""
        return self.bias_table if self.relative is None else self.relative

    def _queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, N, _ = x.shape
        if self.query_bias is None or self.value_bias is None:
            projected = self.project_in(x)
        else:
            bias = torch.cat([self.query_bias, torch.zeros_like(self.query_bias), self.value_bias])
            projected = F.linear(x, self.project_in.weight, bias)
        qkv = projected.view(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)  # (B, heads, N, d) each, views
        return q, k, v

    def _added(self, queries: Tensor, pairs: Tensor | None, bias: Tensor | None) -> Tensor | None:
        """What the layer's own relative positions and the caller add to the logits."""
        own = self.pair_positions
        given = None if bias is None else bias.to(queries.dtype)
        if pairs is None or own is None:
            return given
        found: Tensor = own(queries, pairs)
        return found if given is None else found + given

    def forward(self, x: Tensor, pairs: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """(B, N, D) -> (B, N, D).

        pairs: (N, N) or (B, N, N), for each pair of tokens its row in the layer's own table of relative positions.
        bias: (B or 1, heads or 1, N, N), added to the logits: a table that layers share, or a mask of -inf.
        """
        given = self.project_in.bias
        if given is not None and self._is_plain(pairs, bias) and packed_attention.serves(x, self.width // self.heads):
            # As in nn/gelu: the product adds the bias, and attention's backward pass gives the bias its gradient.
            packed = multiplied(self.project_in, x, given.detach())
            attended: Tensor = self.dropout(self.project_out(packed_attention.attend(packed, given, self.heads)[0]))
            return attended
        q, k, v = self._queries_keys_values(x)
        x = attend(q, k, v, self._added(q, pairs, bias), causal=self.causal)
        x = x.transpose(1, 2).flatten(2)  # (B, N, D)
        out: Tensor = self.dropout(self.project_out(x))
        return out

    def _is_plain(self, pairs: Tensor | None, bias: Tensor | None) -> bool:
        """Whether nothing is added to the logits, and every token sees all others."""
        return bias is None and not self.causal and (pairs is None or self.pair_positions is None)

    def weights(
        self,
        x: Tensor,
        rows: Tensor | slice | None = None,
        pairs: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """(B, heads, r, N): the softmax rows of these queries (default: all). For inspection only."""
        rows = slice(None) if rows is None else rows
        weight_q, weight_k, _ = self.project_in.weight.chunk(3)
        bias_q = self.query_bias if self.project_in.bias is None else self.project_in.bias.chunk(3)[0]
        q = self._heads_apart(F.linear(x[:, rows], weight_q, bias_q))  # (B, heads, r, d)
        scaled = q * q.shape[-1] ** -0.5
        # The bias of the keys adds the same to all logits of a row, which softmax ignores: it is left out.
        if q.shape[2] < q.shape[3]:
            # q (W x) = (q W) x: for few rows it is cheaper to transform the queries than to compute all keys.
            backwards = scaled.transpose(0, 1).flatten(1, 2) @ weight_k.view(self.heads, -1, self.width)
            backwards = backwards.view(self.heads, len(x), -1, self.width).transpose(0, 1)  # (B, heads, r, D)
            logits = (backwards.flatten(1, 2) @ x.transpose(1, 2)).view(*q.shape[:3], -1)
        else:
            logits = scaled @ self._heads_apart(F.linear(x, weight_k)).transpose(-2, -1)
        pairs, bias = (None if one is None else one[..., rows, :] for one in (pairs, bias))
        added = self._added(q, pairs, bias)
        logits = logits if added is None else logits + added
        if self.causal:
            places = torch.arange(x.shape[1], device=x.device)
            logits = logits.masked_fill(places > places[rows, None], float("-inf"))
        out: Tensor = logits.softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        return out

    def _heads_apart(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, heads, N, d)."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
