"""RandAugment (Cubuk et al. 2019) with torchvision's fourteen operations, for a batch at once.

Every picture draws its own operation. All are computed for the whole batch, in three groups that cost one pass
each (one affine warp, one blend, one table of levels), and the drawn one is chosen: fixed shapes, no branches.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous import keys as K
from vitreous.data import colour
from vitreous.platforms import widest

OPERATIONS = (
    "identity",
    *("shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
    *("brightness", "saturation", "contrast", "sharpness"),
    *("posterize", "solarize", "autocontrast", "equalize"),
)
TOP_LEVEL = 30  # magnitudes are levels 0 .. 30, as in torchvision's 31 bins
Chosen = Callable[[str], Tensor]  # name -> (B,) bool: which pictures drew that operation
_NUMBER = {name: number for number, name in enumerate(OPERATIONS)}


def draw(keys: Tensor, purpose: str, num_ops: int, magnitude: int, spread: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(B, num_ops) each, int64: the operation, its level 0 .. 30, and a sign of 1 or -1.

    spread: levels uniform in 0 .. magnitude, as TrivialAugment (Müller and Hutter 2021) draws them with 30.
    """
    operation = K.integers(keys, f"{purpose}.operation", num_ops, len(OPERATIONS))
    level = torch.full_like(operation, magnitude)
    if spread:
        level = K.integers(keys, f"{purpose}.level", num_ops, magnitude + 1)
    sign = 1 - 2 * K.integers(keys, f"{purpose}.sign", num_ops, 2)
    return operation, level, sign


def apply(
    images: Tensor, operation: Tensor, level: Tensor, sign: Tensor, fill: tuple[int, int, int] = (0, 0, 0)
) -> Tensor:
    """One operation for each picture; operation, level and sign are (B,), one column of what `draw` gives."""
    share = level.to(widest(level.device)) / TOP_LEVEL

    def chosen(name: str) -> Tensor:
        return operation == _NUMBER[name]

    warped = warp(images, *_geometry(chosen, share * sign, *images.shape[-2:]), fill=fill)
    blended = _blend(images, chosen, 1 + 0.9 * share * sign)
    looked_up = colour.look_up(images, _table(images, chosen, level))
    is_warp = (operation >= _NUMBER["shear_x"]) & (operation <= _NUMBER["rotate"])
    is_blend = (operation >= _NUMBER["brightness"]) & (operation <= _NUMBER["sharpness"])
    result = torch.where(is_blend[:, None, None, None], blended, looked_up)
    return torch.where(is_warp[:, None, None, None], warped, result)


# ---- Geometry


def _geometry(chosen: Chosen, amount: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The affine map from output to input pixels, about the centre: shear (B, 2), shift (B, 2), angle (B,).

    Amounts at the top level are torchvision's: shear 0.3, shift 150/331 of a side, 30 degrees.
    """

    def only(name: str, value: Tensor) -> Tensor:
        return torch.where(chosen(name), value, 0.0)

    shear = torch.stack([only("shear_x", 0.3 * amount), only("shear_y", 0.3 * amount)], dim=1)
    across = only("translate_x", (150 / 331 * width * amount).trunc())
    down = only("translate_y", (150 / 331 * height * amount).trunc())
    angle = only("rotate", math.radians(30) * amount)
    # Shears hold the upper left corner still, and so move the centre.
    shift = torch.stack([shear[:, 0] * (height / 2) - across, shear[:, 1] * (width / 2) - down], dim=1)
    return shear, shift, angle


def warp(images: Tensor, shear: Tensor, shift: Tensor, angle: Tensor, fill: tuple[int, int, int] = (0, 0, 0)) -> Tensor:
    """Nearest-neighbour affine warp. In float64 up to the grid, so that devices agree which pixel is nearest."""
    height, width = images.shape[-2:]
    wide = widest(images.device)
    x = (torch.arange(width, dtype=wide, device=images.device) - (width - 1) / 2)[None, None, :]
    y = (torch.arange(height, dtype=wide, device=images.device) - (height - 1) / 2)[None, :, None]
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    (shear_x, shear_y), (shift_x, shift_y) = (v[:, :, None, None].unbind(1) for v in (shear, shift))
    from_x = x * cos + y * (shear_x - sin) + shift_x
    from_y = x * (shear_y + sin) + y * cos + shift_y
    grid = torch.stack([from_x / (width / 2), from_y / (height / 2)], dim=-1).to(torch.float32)  # (B, H, W, 2)
    pixels = images.to(torch.float32)
    if not any(fill):
        return F.grid_sample(pixels, grid, mode="nearest", align_corners=False).to(torch.uint8)
    # What lies outside is sampled as 0; shifting the levels makes that 0 the colour to fill with.
    base = torch.cat([torch.full((1, 1, 1, 1), float(level), device=images.device) for level in fill], dim=1)
    return (F.grid_sample(pixels - base, grid, mode="nearest", align_corners=False) + base).to(torch.uint8)


# ---- Colour


def _blend(images: Tensor, chosen: Chosen, factor: Tensor) -> Tensor:
    grey = colour.grey(images)

    def pick(name: str, then: Tensor, otherwise: Tensor) -> Tensor:
        return torch.where(chosen(name)[:, None, None, None], then, otherwise)

    other = pick("saturation", grey, torch.zeros_like(grey))
    other = pick("contrast", grey.mean(dim=(1, 2, 3), keepdim=True), other)
    return colour.blend(images, pick("sharpness", colour.blurred(images), other), factor)


def _table(images: Tensor, chosen: Chosen, level: Tensor) -> Tensor:
    # Posterize keeps 8 bits at level 0 and 4 at the top; half a bit rounds to even, as torchvision's table does.
    bits = 8 - (level.to(widest(level.device)) / (TOP_LEVEL / 4)).round().to(torch.int64)
    tables = {
        "posterize": colour.posterize_table(images, bits),
        "solarize": colour.solarize_table(images, 255 - level * (255 / TOP_LEVEL)),
        "autocontrast": colour.autocontrast_table(images),
        "equalize": colour.equalize_table(images, chosen("equalize")),
    }
    table = colour.levels(images).to(torch.uint8)
    for name, candidate in tables.items():
        table = torch.where(chosen(name)[:, None, None], candidate, table)
    return table
