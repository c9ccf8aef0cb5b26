import torch
from torch import nn

from vitreous.objectives.heads import BatchNorm, projector


def test_batch_norm_is_torchs():
    torch.manual_seed(0)
    ours, theirs = BatchNorm(5), nn.BatchNorm1d(5)
    with torch.no_grad():
        for own, other in ((ours.norm_scale, theirs.weight), (ours.norm_bias, theirs.bias)):
            other.copy_(own.normal_())
    x = (3 * torch.randn(12, 5) + 7).requires_grad_()
    again = x.detach().clone().requires_grad_()
    weights = torch.randn(12, 5)
    (ours(x) * weights).sum().backward()
    (theirs(again) * weights).sum().backward()
    torch.testing.assert_close(ours(x), theirs(again), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(x.grad, again.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.norm_scale.grad, theirs.weight.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.norm_bias.grad, theirs.bias.grad, atol=1e-5, rtol=1e-4)


def test_batch_norm_is_the_same_in_evaluation():
    norm, x = BatchNorm(5, affine=False), torch.randn(6, 5)
    assert not list(norm.parameters())
    torch.testing.assert_close(norm.eval()(x), nn.BatchNorm1d(5, affine=False)(x), atol=1e-5, rtol=1e-5)


def test_batch_norm_works_in_float32():
    """A mean of 300 and differences of 1 are lost where bfloat16 adds them up."""
    x = (300 + torch.arange(-8, 8).repeat(4)[:, None] * 2).to(torch.bfloat16)
    answer = BatchNorm(1)(x)
    assert answer.dtype == torch.bfloat16
    torch.testing.assert_close(answer.float(), BatchNorm(1)(x.float()), atol=0.01, rtol=0.01)


def test_projector():
    plain, normed = projector(6, 8, 8, 3), projector(6, 8, 3, norm_last=True)
    assert [type(layer).__name__ for layer in plain] == [
        *("Linear", "BatchNorm", "ReLU"),
        *("Linear", "BatchNorm", "ReLU"),
        "Linear",
    ]
    assert [layer.bias is not None for layer in plain if isinstance(layer, nn.Linear)] == [False, False, True]
    assert [type(layer).__name__ for layer in normed] == ["Linear", "BatchNorm", "ReLU", "Linear", "BatchNorm"]
    assert [layer.bias is not None for layer in normed if isinstance(layer, nn.Linear)] == [False, False]
    answer = normed(torch.randn(50, 6))
    assert answer.shape == (50, 3)
    torch.testing.assert_close(answer.mean(dim=0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(answer.var(dim=0, correction=0), torch.ones(3), atol=1e-2, rtol=0)
