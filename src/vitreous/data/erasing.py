"""Random erasing (Zhong et al. 2017): a box of each picture is replaced by the mean colour or by noise."""

import math

import torch
from torch import Tensor

from vitreous import keys as K
from vitreous.platforms import widest

ATTEMPTS = 10


def inside(boxes: Tensor, height: int, width: int) -> Tensor:
    """(B, 1, height, width) bool: the pixels of each box (B, 4) (top, left, height, width)."""
    top, left, tall, wide = boxes[:, :, None].unbind(1)
    row, column = torch.arange(height, device=boxes.device), torch.arange(width, device=boxes.device)
    rows = (row >= top) & (row < top + tall)  # (B, height)
    columns = (column >= left) & (column < left + wide)  # (B, width)
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def draw(
    keys: Tensor,
    purpose: str,
    size: tuple[int, int],
    *,
    probability: float,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    """(B, 4) int64 boxes; one of no area where nothing is erased. ratio: height to width, as torchvision has it."""
    height, width = size
    draws = K.uniform(keys, purpose, 2 * ATTEMPTS + 3).to(widest(keys.device))
    area = height * width * (scale[0] + (scale[1] - scale[0]) * draws[:, :ATTEMPTS])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + (high - low) * draws[:, ATTEMPTS : 2 * ATTEMPTS]).exp()
    tall, wide = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (tall < height) & (wide < width)
    first = (fits.cumsum(1) == 0).sum(1, keepdim=True)  # (B, 1): ATTEMPTS where none fits
    nothing = torch.zeros_like(tall[:, :1])
    tall, wide = (torch.cat([side, nothing], dim=1).gather(1, first) for side in (tall, wide))
    corner = draws[:, -3:-1] * torch.cat([height - tall + 1, width - wide + 1], dim=1)
    boxes = torch.cat([corner.floor(), tall, wide], dim=1).to(torch.int64)
    return torch.where(draws[:, -1:] < probability, boxes, 0)


def noise(keys: Tensor, purpose: str, size: tuple[int, int]) -> Tensor:
    """(B, 3, h, w) standard normal: what a normalised picture's pixels look like on average."""
    return K.normal(keys, purpose, 3 * size[0] * size[1]).view(-1, 3, *size)


def erase(images: Tensor, boxes: Tensor, fill: Tensor | float = 0.0) -> Tensor:
    """images: (B, 3, h, w) normalised, so that 0 is the mean colour."""
    return torch.where(inside(boxes, *images.shape[-2:]), fill, images)
