"""Pooling by attention: one learned query attends to all tokens (Lee et al. 2019; MAP in SigLIP and Scaling ViT)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AttentionPool(nn.Module):
    """(B, N, D) -> (B, D): attention, then a residual MLP after a norm."""

    def __init__(self, width: int, heads: int, mlp: nn.Module, norm_epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Parameter(torch.empty(1, width))
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.norm, self.mlp = nn.LayerNorm(width, eps=norm_epsilon), mlp
        nn.init.xavier_uniform_(self.query)
        for part in self.project_in.weight.detach().chunk(3):
            nn.init.xavier_uniform_(part)
        nn.init.xavier_uniform_(self.project_out.weight)
        for layer in (self.project_in, self.project_out):
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        weight, bias = self.project_in.weight, self.project_in.bias
        query = F.linear(self.query.to(x.dtype), weight[:width], bias[:width]).expand(len(x), 1, width)
        keys, values = F.linear(x, weight[width:], bias[width:]).chunk(2, dim=-1)
        q, k, v = (self._heads_apart(one) for one in (query, keys, values))
        found = F.scaled_dot_product_attention(q, k, v)
        pooled = self.project_out(found.transpose(1, 2).flatten(1))  # (B, D)
        out: Tensor = pooled + self.mlp(self.norm(pooled))
        return out

    def _heads_apart(self, x: Tensor) -> Tensor:
        """(B, n, D) -> (B, heads, n, d)."""
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)
