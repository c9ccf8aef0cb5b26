"""Maps laid on the picture they belong to (paper, Figure 6)."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Pixels = NDArray[np.uint8]  # (H, W, 3)


def upsampled(maps: Tensor, picture_px: tuple[int, int]) -> Tensor:
    """(..., h, w) -> (..., H, W), bilinear between the centres of patches."""
    flat = maps.reshape(-1, 1, *maps.shape[-2:]).float()
    large = F.interpolate(flat, size=picture_px, mode="bilinear", align_corners=False)
    return large.reshape(*maps.shape[:-2], *picture_px)


def brightness(maps: Tensor, *, stretch: bool = False) -> Tensor:
    """(..., h, w) scaled so that the highest place of each is 1. Zero stays zero; with `stretch` the lowest place
    becomes zero, which shows differences that are small beside the mean."""
    lowest, highest = (pick(maps, dim=(-2, -1), keepdim=True) for pick in (torch.amin, torch.amax))
    maps, highest = (maps - lowest, highest - lowest) if stretch else (maps, highest)
    return maps / highest.masked_fill(highest == 0, 1)


def overlay(picture: Pixels, attention_map: Tensor, *, stretch: bool = False) -> Pixels:
    """The picture, as bright in each place as the attention that falls on it: (H, W, 3) times (h, w)."""
    height, width = picture.shape[:2]
    share = brightness(upsampled(attention_map, (height, width)), stretch=stretch).cpu().numpy()
    shaded: Pixels = np.rint(picture * share[:, :, None]).astype(np.uint8)
    return shaded


def lit(picture: Pixels, attention_map: Tensor) -> Pixels:
    """The picture half as bright where attention is even, and fully where twice as much falls or more: what is nearly
    even looks even, and pictures can be compared."""
    height, width = picture.shape[:2]
    share = (upsampled(attention_map, (height, width)) / (2 * attention_map.float().mean())).clamp(max=1).cpu().numpy()
    shaded: Pixels = np.rint(picture * share[:, :, None]).astype(np.uint8)
    return shaded


def scale(attention_map: Tensor) -> str:
    """A bright place need not be a decisive one: an even look at n patches gives each the same."""
    highest, even = float(attention_map.max()), float(attention_map.mean())
    return f"at most {100 * highest:.1f} % on a patch, evenly {100 * even:.1f} %"


def side_by_side(picture: Pixels, attention_map: Tensor, *, stretch: bool = False) -> Pixels:
    """(H, 2 W, 3): the picture, and beside it what is looked at."""
    return np.concatenate([picture, overlay(picture, attention_map, stretch=stretch)], axis=1)
