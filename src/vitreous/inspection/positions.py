"""What a model has learned about places: similarity of position embeddings (paper, Figure 7 centre, and D.4)."""

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.inspection.attention import numbered_layers
from vitreous.inspection.layout import transformer
from vitreous.nn.relative import BiasTable, RelativePositions
from vitreous.nn.tokens import Positions


def position_similarity(encoder: nn.Module, layer: int = 1) -> Tensor:
    """(h, w, h, w): cosine similarity of the position embeddings of every two patches, as the table now is.

    `layer` matters only where every layer has a table of its own. Models whose positions are not added to tokens
    raise a UserError that says what they have instead.
    """
    vit = transformer(encoder)
    tables = vit.positions.tables
    if not len(tables):
        raise UserError(_why_none(encoder))
    (number,) = numbered_layers(encoder, [layer])
    table = tables[min(number, len(tables)) - 1]
    assert isinstance(table, Positions)
    cells = F.normalize(table().detach().cpu().double()[table.num_prefix :], dim=1)
    return (cells @ cells.T).float().reshape(*vit.grid, *vit.grid)


def offset_biases(encoder: nn.Module, layer: int = 1) -> Tensor:
    """(heads, 2h - 1, 2w - 1): what a table of biases adds to the logits by the place of the patch that is seen, as
    seen from the one that looks, which stands in the middle (BEiT). `layer` matters only where each has its own."""
    vit = transformer(encoder)
    (number,) = numbered_layers(encoder, [layer])
    table = vit.positions.bias_table or vit.blocks[number - 1].attention.bias_table  # type: ignore[union-attr]
    if not isinstance(table, BiasTable):
        raise UserError("this model has no table of biases: position_similarity is for models with absolute positions")
    h, w = table.grid
    biases = table.table.detach().float().cpu()[: table.num_offsets].T.reshape(-1, 2 * h - 1, 2 * w - 1)
    return biases.flip(1, 2)  # the table counts from the seen to the one that looks


def has_biases(encoder: nn.Module) -> bool:
    """Whether `offset_biases` has something to show in place of `position_similarity`."""
    vit = transformer(encoder)
    return vit.positions.bias_table is not None or vit.blocks[0].attention.bias_table is not None  # type: ignore[union-attr]


def _why_none(encoder: nn.Module) -> str:
    if has_biases(encoder):
        return "this model has no position embeddings but a bias for every offset: see offset_biases"
    relative = transformer(encoder).blocks[0].attention.relative  # type: ignore[union-attr]
    if isinstance(relative, RelativePositions):
        return (
            "this model's positions are embeddings of offsets that meet each query: what they add depends on the "
            "picture, so there is no similarity of places to show"
        )
    return "this model has no positions: it cannot tell its patches apart by their place"
