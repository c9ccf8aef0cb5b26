"""Rows of tensors, saved by some ranks and read by others. (Of real ranks: training/test_training_ranks.)"""

import torch

from vitreous.nn.shards import Pieces, fitted, rows, total_norm, whole


def test_rows_across_pieces():
    full = torch.arange(30.0).view(10, 3)
    pieces = Pieces([{"a": full[:4], "b": torch.tensor(2.0)}, {"a": full[4:8]}, {"a": full[8:]}])
    assert list(pieces) == ["a", "b"]
    assert len(pieces) == 2
    assert pieces.shape("a") == (10, 3)
    assert pieces.shape("b") == ()
    assert torch.equal(pieces["a"], full)
    assert pieces["b"] == 2
    for first in range(11):
        for end in range(first, 11):
            assert torch.equal(pieces.rows("a", first, end), full[first:end])


def test_what_every_rank_has_whole_passes_through():
    named = {"a": torch.ones(2, 2), "b": torch.tensor(3.0)}
    assert whole(named) == named
    assert [rows(tensor) for tensor in named.values()] == [(0, 2), (0, 1)]
    assert fitted(named, named) == named
    assert total_norm(list(named.values())) == 13**0.5
