"""Attention rollout (Abnar and Zuidema 2020): what a token sees of the picture through all layers (paper, Figure 6)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.inspection.attention import Seen, evaluating, reading
from vitreous.inspection.layout import attention_layers, layout, plain
from vitreous.models.layout import Token


def rollout(
    encoder: nn.Module,
    images: Tensor,
    token: Token = None,
    *,
    residual: bool = True,
    layers: Sequence[int] | None = None,
) -> Tensor:
    """(B, N): a token's row of the product of all layers' attention, averaged over heads. It sums to 1.

    `layout(encoder).as_map` makes a map of it. residual: each layer is (A + I) / 2, since half of what leaves a layer
    came past its attention; without, the plain product. token: see `Layout.rows`; None is what is pooled, which in
    models that pool all patches gives the mean of their rows.
    """
    check_rolls(encoder)
    place, product = layout(encoder), Product(residual)

    def read(seen: Seen) -> None:
        product.add(torch.cat([block[:, 0].mean(dim=1) for _, block in seen.row_blocks()], dim=1))

    with evaluating(encoder), torch.no_grad(), reading(encoder, read, layers):
        plain(encoder).forward(images)
    rows = place.rows(token)
    assert product.value is not None
    return product.value[:, rows.start : rows.stop].mean(dim=1)


def can_roll(encoder: nn.Module) -> bool:
    """Whether all layers look from the same tokens at the same tokens, so that their matrices can be multiplied."""
    layers = attention_layers(encoder)
    return all(layer.is_whole and layer.looking == layers[0].looking for layer in layers)


def check_rolls(encoder: nn.Module) -> None:
    if not can_roll(encoder):
        raise UserError(
            "a rollout multiplies layers that look from all patches at the same patches, and this model's do not: look "
            "at one layer instead (raw)"
        )


class Product:
    """(..., N, N): the running product of the layers' matrices, the first layer rightmost, as they are applied."""

    def __init__(self, residual: bool) -> None:
        self.residual = residual
        self.value: Tensor | None = None

    def add(self, matrix: Tensor) -> None:
        if self.residual:
            matrix = (matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)) / 2
        with torch.autocast(matrix.device.type, enabled=False):  # a product of many: half precision would drift
            self.value = matrix if self.value is None else matrix @ self.value
