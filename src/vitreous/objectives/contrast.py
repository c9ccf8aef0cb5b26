"""Comparing all samples of a batch with each other, across all ranks; the losses between pictures and texts.

Row i of the pictures belongs to row i of the texts. Each rank compares its own rows with those of all ranks, so that
the mean over ranks is the loss of the whole batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vitreous.nn.gather import gather, world


def softmax_contrast(pictures: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    """CLIP's (Radford et al. 2021, figure 3): which of all texts belongs to a picture, and which of all pictures to a
    text. pictures, texts: (B, D) of length 1; scale: 0-d factor on the similarities."""
    rank, _ = world()
    partner = rank * len(pictures) + torch.arange(len(pictures), device=pictures.device)
    of_pictures = F.cross_entropy(scale * products(pictures, gather(texts)), partner)
    of_texts = F.cross_entropy(scale * products(texts, gather(pictures)), partner)
    return (of_pictures + of_texts) / 2


def sigmoid_contrast(pictures: Tensor, texts: Tensor, scale: Tensor, bias: Tensor, chunk: int = 1024) -> Tensor:
    """SigLIP's (Zhai et al. 2023, algorithm 1): for every pair separately, whether it belongs together; summed over all
    texts, averaged over pictures.

    Logits are computed for `chunk` texts at a time, and again in the backward pass, so that memory grows with the
    batch, not with its square."""
    rank, _ = world()
    everybodys, first = gather(texts), rank * len(pictures)
    total = torch.zeros((), device=pictures.device)
    for start in range(0, len(everybodys), chunk):
        part = everybodys[start : start + chunk]
        if len(everybodys) <= chunk or not torch.is_grad_enabled():
            total = total + _pairs_loss(pictures, part, scale, bias, start - first)
        else:
            total = total + checkpoint(
                _pairs_loss, pictures, part, scale, bias, start - first, use_reentrant=False, preserve_rng_state=False
            )
    return total / len(pictures)


def _pairs_loss(pictures: Tensor, texts: Tensor, scale: Tensor, bias: Tensor, offset: int) -> Tensor:
    """The sum over all pairs; text j belongs to picture j + offset."""
    logits = scale * products(pictures, texts) + bias
    rows, columns = (torch.arange(len(one), device=logits.device) for one in (pictures, texts))
    belong = rows[:, None] == columns + offset
    return -F.logsigmoid(torch.where(belong, logits, -logits)).sum()


def products(rows: Tensor, columns: Tensor) -> Tensor:
    """(N, D) and (M, D) -> (N, M), in float32 even under autocast: a temperature magnifies small differences."""
    with torch.autocast(rows.device.type, enabled=False):
        return rows @ columns.T
