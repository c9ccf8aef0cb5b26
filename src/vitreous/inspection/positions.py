"""What a model has learned about places: similarity of position embeddings (paper, Figure 7 centre, and D.4)."""

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import UserError
from vitreous.inspection.layout import numbered, plain
from vitreous.nn.tokens import Positions

MOST_PLACES = 16 * 16  # of a table that is shown, where there is a choice: each is compared to all


def position_similarity(encoder: nn.Module, layer: int | None = None) -> Tensor:
    """(h, w, h, w): cosine similarity of the position embeddings of every two patches, as the table now is.

    layer: whose table (1 is the first), where they differ; none: the first that is not too large to be shown. Models
    whose positions are not added to tokens raise a UserError that says what they have instead.
    """
    table = _table(encoder, layer)
    cells = F.normalize(table().detach().cpu().double()[table.num_prefix :], dim=1)
    return (cells @ cells.T).float().reshape(*table.grid, *table.grid)


def are_learned(encoder: nn.Module) -> bool:
    """Whether the positions whose similarity is shown were learned, or are sines and cosines."""
    return any(True for _ in _table(encoder).parameters())


def _table(encoder: nn.Module, layer: int | None = None) -> Positions:
    layers = plain(encoder).attention_layers()
    with_tables = [one for one in layers if one.positions is not None]
    if not with_tables:
        raise UserError(_why_none(encoder))
    if layer is None:
        small = [one for one in with_tables if one.looking.grid.cells <= MOST_PLACES]
        chosen = (small or with_tables[-1:])[0]
    else:
        chosen = layers[numbered(layer, len(layers)) - 1]
    assert chosen.positions is not None  # a model that has tables has one for every layer
    return chosen.positions


def offset_biases(encoder: nn.Module, layer: int = 1) -> Tensor:
    """(heads, 2h - 1, 2w - 1): what a table of biases adds to the logits by the place of the patch that is seen, as
    seen from the one that looks, which stands in the middle (BEiT, Swin). `layer` matters only where each has its
    own."""
    layers = plain(encoder).attention_layers()
    table = layers[numbered(layer, len(layers)) - 1].biases if layers else None
    if table is None:
        raise UserError("this model has no table of biases: position_similarity is for models with absolute positions")
    h, w = table.grid
    biases = table.table.detach().float().cpu()[: table.num_offsets].T.reshape(-1, 2 * h - 1, 2 * w - 1)
    return biases.flip(1, 2)  # the table counts from the seen to the one that looks


def has_biases(encoder: nn.Module) -> bool:
    """Whether `offset_biases` has something to show in place of `position_similarity`."""
    return any(layer.biases is not None for layer in plain(encoder).attention_layers())


def _why_none(encoder: nn.Module) -> str:
    layers = plain(encoder).attention_layers()
    if has_biases(encoder):
        return (
            "this model has no position embeddings but biases by offset, which vitreous inspect draws (offset_biases)"
        )
    if any(layer.relative is not None for layer in layers):
        return (
            "this model's positions are embeddings of offsets that meet each query: what they add depends on the "
            "picture, so there is no similarity of places to show"
        )
    if any(isinstance(part, nn.Conv2d) and part.kernel_size != part.stride for part in encoder.modules()):
        return "this model has no position embeddings: its convolutions mix neighbours, and so know their places"
    return "this model has no positions: it cannot tell its patches apart by their place"
