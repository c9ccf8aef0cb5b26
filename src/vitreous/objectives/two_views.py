"""Two views of every picture, as SimCLR, MoCo v3 and BYOL need them."""

import torch
from torch import Tensor

from vitreous.batch import Batch
from vitreous.errors import UserError


def two_views(batch: Batch, who: str) -> Tensor:
    """(2 B, C, h, w): the first view of every picture, then the second, so that the encoder runs once."""
    sizes = [f"{view.shape[-2]} x {view.shape[-1]}" for view in batch.views]
    if len(sizes) != 2 or sizes[0] != sizes[1]:
        raise UserError(
            f"{who} compares two views of the same size, but gets {', '.join(sizes)}: add one view of the model's own "
            "size to the augmentation (more_views)"
        )
    return torch.cat(batch.views)
