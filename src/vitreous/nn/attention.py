"""Multi-head self-attention: one fused kernel on the way forward, a second method for looking inside."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

AttentionBias = Literal["all", "none"]


class RelativePositions(nn.Module):
    """Embeddings of 1-D offsets that meet the query; the products are added to the logits (paper, D.4).

    One table a layer, shared by the heads. A token's place in the sequence counts the prefix tokens first,
    then the grid cells in reading order, so a token keeps its offsets when others are dropped.
    """

    def __init__(self, length: int, head_width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(2 * length - 1, head_width))
        nn.init.normal_(self.table, std=0.02)

    @property
    def length(self) -> int:
        """How many places the sequence has."""
        return (len(self.table) + 1) // 2

    def offsets(self, places: Tensor) -> Tensor:
        """(..., n) places in the sequence -> (..., n, n) rows of the table, query first."""
        return places[..., :, None] - places[..., None, :] + (self.length - 1)

    def forward(self, queries: Tensor, offsets: Tensor) -> Tensor:
        """(B, heads, r, d) queries, (r, n) or (B, r, n) offsets -> (B, heads, r, n), scaled like the logits."""
        products = (queries * queries.shape[-1] ** -0.5) @ self.table.to(queries.dtype).T  # (B, heads, r, 2N-1)
        index = offsets.unsqueeze(-3).expand(*queries.shape[:3], offsets.shape[-1])
        bias: Tensor = products.gather(-1, index)
        return bias


class Attention(nn.Module):
    """Self-attention (paper, appendix A) with queries, keys and values from one matrix product."""

    def __init__(
        self,
        width: int,
        heads: int,
        bias: AttentionBias = "all",  # BEiT's missing key bias would be a third kind
        dropout: float = 0.0,  # after the output projection; the paper has none on the weights
        relative: RelativePositions | None = None,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.width, self.heads = width, heads
        self.project_in = nn.Linear(width, 3 * width, bias=bias == "all")
        self.project_out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.relative = relative
        # As the released code: each of the three kernels is Xavier-uniform on its own, biases are zero.
        for part in self.project_in.weight.detach().chunk(3):
            nn.init.xavier_uniform_(part)
        nn.init.xavier_uniform_(self.project_out.weight)
        nn.init.zeros_(self.project_out.bias)
        if self.project_in.bias is not None:
            nn.init.zeros_(self.project_in.bias)

    def _queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, N, _ = x.shape
        qkv = self.project_in(x).view(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)  # (B, heads, N, d) each, views
        return q, k, v

    def forward(self, x: Tensor, offsets: Tensor | None = None) -> Tensor:
        """(B, N, D) -> (B, N, D); `offsets` where the part for relative positions is there."""
        q, k, v = self._queries_keys_values(x)
        bias = None if self.relative is None or offsets is None else self.relative(q, offsets)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x.transpose(1, 2).flatten(2)  # (B, N, D)
        out: Tensor = self.dropout(self.project_out(x))
        return out

    def weights(self, x: Tensor, rows: Tensor | slice | None = None, offsets: Tensor | None = None) -> Tensor:
        """(B, heads, r, N): the softmax rows of the queries asked for (all by default). For inspection only."""
        q, k, _ = self._queries_keys_values(x)
        rows = slice(None) if rows is None else rows
        q = q[:, :, rows]
        logits: Tensor = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        if self.relative is not None and offsets is not None:
            logits = logits + self.relative(q, offsets[..., rows, :])
        return logits.softmax(dim=-1)
