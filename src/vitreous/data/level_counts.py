"""How often each level occurs in each channel of a picture: on a GPU counted for those pictures alone that need it."""

from importlib.util import find_spec

import torch
from torch import Tensor

LEVELS = 256
HAS_TRITON = find_spec("triton") is not None  # asked here: a compiler cannot look into it


def level_counts(images: Tensor, wanted: Tensor | None = None) -> Tensor:
    """(B, C, H, W) uint8 -> (B, C, 256) int64; of pictures that are not `wanted` (B,), anything."""
    if images.is_cuda and HAS_TRITON:
        everything = torch.ones_like(images[:, 0, 0, 0], dtype=torch.bool)
        found: Tensor = level_counts_fused(images, everything if wanted is None else wanted)
        return found.to(torch.int64)
    flat = images.flatten(2).to(torch.int64)
    counts = torch.zeros(*images.shape[:2], LEVELS, dtype=torch.int64, device=images.device)
    return counts.scatter_add(2, flat, torch.ones_like(flat))


# The same in Triton. By torch's scatter_add every pixel is an atomic addition of its own, most of a picture's to few
# places; and one picture in fourteen is to be equalized.


@torch.library.custom_op("vitreous::level_counts", mutates_args=(), device_types="cuda")
def level_counts_fused(images: Tensor, wanted: Tensor) -> Tensor:
    """(B, C, 256) int32"""
    from vitreous.data.level_counts_triton import counted

    return counted(images.contiguous(), wanted)


@level_counts_fused.register_fake
def _(images: Tensor, wanted: Tensor) -> Tensor:
    return images.new_empty((*images.shape[:2], LEVELS), dtype=torch.int32)
