"""Rows of tensors, saved by some ranks and read by others. (Of real ranks: training/test_training_ranks.)"""

import torch

from vitreous.nn.shards import Piece, Pieces, fitted, total_norm, whole


def test_pieces_make_a_whole():
    """Rows, as ranks have them, of which one may have none; or cut along any axis."""
    full = torch.arange(30.0).view(10, 3)
    pieces = Pieces(
        {
            "rows": [
                Piece([4, 0], full[4:8]),
                Piece([0, 0], full[:4]),
                Piece([8, 0], full[8:]),
                Piece([10, 0], full[10:]),
            ],
            "blocks": [Piece([0, 0], full[:, :2]), Piece([0, 2], full[:7, 2:]), Piece([7, 2], full[7:, 2:])],
            "short": [Piece([0, 0], full[:4]), Piece([5, 0], full[5:])],
            "number": [Piece([], torch.tensor(2.0))],
        }
    )
    assert torch.equal(pieces["rows"], full) and torch.equal(pieces["blocks"], full)
    assert pieces["number"] == 2
    assert [pieces.fills(name, full.shape) for name in ("rows", "blocks", "short")] == [True, True, False]
    assert pieces.fills("number", torch.Size([]))
    assert not pieces.fills("rows", torch.Size([5, 6]))


def test_what_every_rank_has_whole_passes_through():
    named = {"a": torch.ones(2, 2), "b": torch.tensor(3.0)}
    assert whole(named) == named
    assert fitted(named, named) == named
    assert total_norm(list(named.values())) == 13**0.5
