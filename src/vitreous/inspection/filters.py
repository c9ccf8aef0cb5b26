"""The first principal components of the filters that embed a patch (paper, Figure 7 left)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.inspection.layout import plain

NUM_COMPONENTS = 28  # as the paper shows


@dataclass(frozen=True, kw_only=True)
class FilterComponents:
    filters: Tensor  # (k, C, ph, pw), each of length 1, the one that explains most first
    explained: Tensor  # (k,) shares of the filters' variance

    @property
    def pictures(self) -> Tensor:
        """(k, ph, pw, 3) in 0..1: zero is mid-grey, and each component fills its range."""
        largest = self.filters.abs().amax(dim=(1, 2, 3), keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        pictures = (0.5 + 0.5 * self.filters / largest).permute(0, 2, 3, 1)
        return pictures.expand(*pictures.shape[:3], 3)


def filter_components(encoder: nn.Module, num: int = NUM_COMPONENTS) -> FilterComponents:
    """The filters of the first layer are the samples, the colours of the pixels they read the variables.

    A component's sign has no meaning; here its largest value is positive. Fewer than `num` where there are no more.
    """
    filters = plain(encoder).first_filters().detach()
    channels, *sides = filters.shape[1:]
    if channels not in (1, 3):
        raise UserError(f"filters over {channels} channels cannot be shown as colours: 1 or 3 can")
    weight = filters.flatten(1).cpu().double()  # (D, C * ph * pw)
    _, sizes, components = torch.linalg.svd(weight - weight.mean(dim=0), full_matrices=False)
    components, variances = components[:num], sizes.square()
    signs = components.gather(1, components.abs().argmax(dim=1, keepdim=True)).sign()
    found = (components * signs).reshape(-1, channels, *sides)
    return FilterComponents(filters=found.float(), explained=(variances / variances.sum())[:num].float())
