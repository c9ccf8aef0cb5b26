"""ResNets with fixed batch norms: parameter counts, what learns. tests/weights has the peers."""

import pytest
import torch
from torch import nn

from vitreous.errors import UserError
from vitreous.models import ResNetV1Settings, model_settings
from vitreous.models.flops import num_parameters
from vitreous.models.shapes import shapes_only
from vitreous.nn.convolution import FrozenBatchNorm
from vitreous.nn.folded import folded

TINY = ResNetV1Settings(picture_px=(32, 48), depths=(1, 1), base_width=4)


def test_they_are_called_by_their_layers():
    assert [model_settings(f"resnet{num}").name for num in (18, 101)] == ["ResNet-18", "ResNet-101"]


def test_norms_that_do_not_learn_are_no_parameters():
    with shapes_only():
        learned, fixed = (model_settings("resnet50", learned_norms=learned).build() for learned in (True, False))
    assert num_parameters(learned) - num_parameters(fixed) == 53_120
    assert learned.state_dict().keys() == fixed.state_dict().keys()


def test_frozen_levels_get_no_gradient():
    encoder = TINY.changed(frozen_levels=2).build()
    encoder(torch.randn(1, 3, 32, 48)).pooled.sum().backward()
    levels = encoder.trunk.levels
    assert all(p.grad is None for level in levels[:2] for p in level.parameters())
    assert all(p.grad is not None for p in levels[2].parameters())
    with pytest.raises(UserError, match="3 levels"):
        TINY.changed(frozen_levels=4).build()


def test_the_norm_is_batch_norm_in_evaluation():
    frozen, norm = FrozenBatchNorm(3), nn.BatchNorm2d(3).eval()
    for name, theirs in {"weight": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}.items():
        value = torch.rand(3) + 0.5
        getattr(frozen, name).data.copy_(value)
        getattr(norm, theirs).data.copy_(value)
    x = torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(frozen(x), norm(x))
    assert torch.equal(frozen.train()(x), frozen.eval()(x))  # statistics stay, whatever it is shown


def test_folded_norms_change_nothing_but_rounding():
    encoder = TINY.build().double()
    for norm in encoder.modules():
        if isinstance(norm, FrozenBatchNorm):
            for name in ("weight", "bias", "mean", "variance"):
                getattr(norm, name).data.uniform_(0.5, 1.5)
            norm.weight.data[::2] *= -1  # of factors below zero the largest is the smallest
    whole = nn.ModuleDict({"encoder": encoder, "head": nn.Linear(3, 3)})
    short = folded(whole, torch.float64)
    x = torch.randn(2, 3, 32, 48).double()
    for ours, expected in zip(short["encoder"](x).maps, encoder(x).maps, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)
    assert short["head"].weight is whole["head"].weight and folded(whole["head"], torch.float16) is whole["head"]
    assert not any(isinstance(part, FrozenBatchNorm) for part in short["encoder"].modules())


def test_half_precision_stays_half():
    assert FrozenBatchNorm(3)(torch.randn(1, 3, 2, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16
