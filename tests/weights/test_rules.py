import pytest
import torch

from vitreous.errors import UserError
from vitreous.weights import rules as r

RULES = [
    *r.layer("norm", "ln"),
    r.joined("qkv", ["q", "k", "v"]),
    r.transposed("dense", "kernel"),
    r.reshaped("patches", "conv", (2, 12), (2, 3, 2, 2)),
    r.computed("ids", lambda: torch.arange(3)),
    r.carried("mask_token"),
]


def theirs():
    torch.manual_seed(0)
    return {
        "ln.weight": torch.randn(4),
        "ln.bias": torch.randn(4),
        **{name: torch.randn(2, 4) for name in "qkv"},
        "kernel": torch.randn(4, 5),
        "conv": torch.randn(2, 3, 2, 2),
        "ids": torch.arange(3),
        "mask_token": torch.randn(1),
    }


def test_there_and_back_is_bit_equal():
    ours, report = r.apply_read(RULES, theirs())
    assert ours["qkv"].shape == (6, 4)
    assert ours["dense"].shape == (5, 4)
    assert ours["patches"].shape == (2, 12)
    assert report.is_exact
    back = r.apply_write(RULES, ours)
    assert back.keys() == theirs().keys()
    assert all(torch.equal(back[name], value) for name, value in theirs().items())


def test_everything_is_accounted_for():
    given = theirs() | {"stranger": torch.zeros(1)}
    del given["k"], given["mask_token"]  # the second is optional
    ours, report = r.apply_read(RULES, given)
    assert report.missing == ["k"]
    assert report.unused == ["q", "stranger", "v"]
    assert "qkv" not in ours
    assert report.mismatch() == "1 tensors are missing (k); 3 tensors are not part of it (q, stranger, v)"


def test_a_computed_tensor_must_be_what_it_is():
    with pytest.raises(UserError, match="ids is not what every model of this kind has there"):
        r.apply_read(RULES, theirs() | {"ids": torch.tensor([0, 2, 1])})


def test_a_wrong_shape_is_named():
    with pytest.raises(UserError, match=r"conv has the shape \(2, 3, 2, 3\), where \(2, 3, 2, 2\) is expected"):
        r.apply_read(RULES, theirs() | {"conv": torch.zeros(2, 3, 2, 3)})


def test_what_has_no_place_cannot_be_written():
    ours, _ = r.apply_read(RULES, theirs())
    with pytest.raises(UserError, match="cannot store another"):
        r.apply_write(RULES, ours | {"another": torch.zeros(1)})
    del ours["qkv"]
    with pytest.raises(UserError, match="the model has no qkv"):
        r.apply_write(RULES, ours)
