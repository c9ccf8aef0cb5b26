"""Patch embeddings for another patch size (Beyer et al. 2023, FlexiViT, section 3.4)."""

import torch
import torch.nn.functional as F
from torch import Tensor


def resize_patches(weight: Tensor, channels: int, patch: tuple[int, int], new_patch: tuple[int, int]) -> Tensor:
    """(D, C*p*q) -> (D, C*p'*q'): a patch that is resized, bilinearly, keeps its token as nearly as can be.

    With B the matrix that resizes a patch, the new weights solve B' w' = w in the sense of least squares; where
    patches grow, exactly.
    """
    if patch == new_patch:
        return weight
    pixels = patch[0] * patch[1]
    basis = torch.eye(pixels, dtype=torch.float64).view(pixels, 1, *patch)
    resized = F.interpolate(basis, new_patch, mode="bilinear", align_corners=False)  # (p*q, 1, p', q')
    solve = torch.linalg.pinv(resized.flatten(1))  # (p'*q', p*q)
    kernels = weight.cpu().double().view(len(weight), channels, pixels)
    new: Tensor = (kernels @ solve.T).flatten(1)
    return new.to(weight.device, weight.dtype)
