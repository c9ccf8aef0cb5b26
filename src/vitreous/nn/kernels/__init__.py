"""What torch has no fused form of. Each kernel has a plain form, which is its meaning and runs everywhere; modules with
Triton code are imported where a CUDA tensor asks for them, so that nothing needs Triton before."""

from importlib.util import find_spec

import torch
from torch import Tensor

enabled = find_spec("triton") is not None  # a comparison may switch it off
# Which kernels replace what torch's compiler makes by itself, on a GPU. Each was proven right in Triton's interpreter;
# it is switched on here once it is measured to pay off (benchmarks/train_step.py --levers, detr_step.py).
PAY = {
    "gelu": False,  # nn/gelu: the exact GELU and its gradient with that of the bias
    "attention": False,  # nn/packed_attention: queries, keys and values are read and written in place
    "pointwise": False,  # nn/pointwise: a ResNet's 1x1 convolutions with what is around them, for predictions
    "adamw": False,  # training/one_pass: clip, AdamW, watch for NaN and average in one pass
}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def is_available() -> bool:
    """Whether Triton is installed: torch brings it on Linux with CUDA, and nowhere else."""
    return enabled


def serve(x: Tensor) -> bool:
    """Whether a kernel may take this tensor in place of the plain form. Models are exported on a CPU, so that exported
    graphs have the plain form. (Inside torch.compile, torch says of every graph that it is being exported.)"""
    return is_available() and x.is_cuda and x.dtype in DTYPES


def pays(name: str, x: Tensor) -> bool:
    """Whether a kernel of PAY may take this tensor, and is switched on."""
    return PAY[name] and serve(x) and computed_dtype(x) in DTYPES


def computed_dtype(x: Tensor) -> torch.dtype:
    """The type that torch's own products and convolutions take a tensor in: its own, or the one autocast asks for."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
