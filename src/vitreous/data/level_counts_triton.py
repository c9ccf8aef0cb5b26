"""Counts of levels in Triton: a program for each part of each channel, which ends at once where nobody wants it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # pixels a program


def counted(images: Tensor, wanted: Tensor) -> Tensor:
    """(B, C, H, W) uint8, contiguous; (B,) bool -> (B, C, 256) int32, 0 where it is not wanted."""
    num, channels, height, width = images.shape
    counts = torch.zeros(num, channels, 256, dtype=torch.int32, device=images.device)
    grid = (num * channels, triton.cdiv(height * width, BLOCK))
    count[grid](images, wanted.view(torch.uint8), counts, channels, height * width, BLOCK=BLOCK)
    return counts


@triton.jit
def count(images_at, wanted_at, counts_at, channels, pixels, BLOCK: tl.constexpr):
    channel = tl.program_id(0).to(tl.int64)
    if tl.load(wanted_at + channel // channels) != 0:
        first = tl.program_id(1) * BLOCK
        place = first + tl.arange(0, BLOCK)
        levels = tl.load(images_at + channel * pixels + place, mask=place < pixels, other=0).to(tl.int32)
        found = tl.histogram(levels, 256)
        level = tl.arange(0, 256)
        beyond = tl.maximum(first + BLOCK - pixels, 0)  # places after the last pixel count as level 0
        found -= tl.where(level == 0, beyond, 0)
        tl.atomic_add(counts_at + channel * 256 + level, found, mask=found > 0, sem="relaxed")
