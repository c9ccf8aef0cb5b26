"""Softmax attention of given queries, keys and values, in the way that is fastest on the device."""

import torch
import torch.nn.functional as F
from torch import Tensor

# Pairs of tokens per head up to which a CPU keeps all of them in memory.
MOST_PAIRS = 2**18


def attend(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None = None, *, causal: bool = False) -> Tensor:
    """q (B, heads, N, d), k and v (B, heads, M, d) -> (B, heads, N, d); `added` is added to the logits."""
    if causal or not _is_faster_in_steps(q, k):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=added, is_causal=causal)
    logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    logits = logits if added is None else logits + added
    out: Tensor = logits.softmax(dim=-1) @ v
    return out


def _is_faster_in_steps(q: Tensor, k: Tensor) -> bool:
    """torch's fused kernel for CPUs widens bfloat16 to float32; separate products use the instructions for bfloat16,
    and are twice as fast forward, 4 times and more backward (benchmarks/cpu_step.py)."""
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[-2] * k.shape[-2] <= MOST_PAIRS
