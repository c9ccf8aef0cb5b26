"""Softmax attention of given queries, keys and values, in the way that is fastest on the device, and sound."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

# Pairs of tokens per head up to which a CPU keeps all of them in memory.
MOST_PAIRS = 2**18
# Logits under a mask up to which a GPU keeps all of them in memory: 128 MiB in bfloat16.
MOST_MASKED = 2**26
# torch's kernels that are right under any mask. Since torch 2.11, Hopper GPUs prefer cuDNN's, whose backward pass gives
# the queries NaN where the number of keys leaves 64 when divided by 128 and all of a query's logits are far below 0
# (github.com/pytorch/pytorch/issues/196678): Mask2Former's queries get there after some thousand steps.
SOUND = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
    """q (B, heads, N, d), k and v (B, heads, M, d) -> (B, heads, N, d).

    mask: bool, the keys that a query may attend to, or floats that are added to the logits; a shape that expands to
    (B, heads, N, M)."""
    if not causal and (_is_faster_in_steps(q, k) or _is_sounder_in_steps(q, k, mask)):
        return _in_steps(q, k, v, mask)
    if _is_unsound(q, mask):
        with sdpa_kernel(SOUND):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


def _in_steps(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    out: Tensor = logits.softmax(dim=-1) @ v
    return out


def _is_faster_in_steps(q: Tensor, k: Tensor) -> bool:
    """torch's fused kernel for CPUs widens bfloat16 to float32; separate products use the instructions for bfloat16,
    and are twice as fast forward, 4 times and more backward (benchmarks/cpu_step.py)."""
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[-2] * k.shape[-2] <= MOST_PAIRS


def _is_sounder_in_steps(q: Tensor, k: Tensor, mask: Tensor | None) -> bool:
    """Of the kernels that are right under a mask, the fused one adds gradients in an order that nobody chose."""
    return _is_unsound(q, mask) and q.numel() // q.shape[-1] * k.shape[-2] <= MOST_MASKED


def _is_unsound(q: Tensor, mask: Tensor | None) -> bool:
    """Whether torch may choose cuDNN's kernel for training under a mask. It never does if the mask has a gradient."""
    return q.is_cuda and q.requires_grad and mask is not None and not mask.requires_grad
