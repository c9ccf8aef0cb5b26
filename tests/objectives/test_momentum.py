import copy
import math

import pytest
import torch
from torch import nn

from vitreous.models import ViTSettings
from vitreous.objectives.momentum import Momentum, ramp


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def changed(module):
    """All weights and buffers moved by different amounts."""
    other = copy.deepcopy(module)
    with torch.no_grad():
        for tensor in [*other.parameters(), other[1].running_mean, other[1].running_var]:
            tensor.add_(torch.rand_like(tensor))
    return other


def test_the_ramp_is_half_a_cosine():
    values = [float(ramp(0.996, 1.0, torch.tensor(at))) for at in (0.0, 0.25, 0.5, 1.0)]
    quarter = 1 - 0.004 * (1 + math.cos(math.pi / 4)) / 2
    assert values == pytest.approx([0.996, quarter, 0.998, 1.0], abs=1e-7)


def test_it_starts_equal_and_is_no_part_of_the_gradient():
    module = small()
    teacher = Momentum(module)
    assert all(torch.equal(a, b) for a, b in zip(teacher.module.parameters(), module.parameters(), strict=True))
    assert not any(p.requires_grad for p in teacher.parameters())
    assert not teacher(torch.randn(5, 3, requires_grad=True)).requires_grad
    assert all(p.requires_grad for p in module.parameters())  # the student's are as they were


def test_it_never_trains():
    """Neither dropout nor the statistics of a batch change its answer, whatever it is part of."""
    parent = nn.ModuleList([Momentum(small())]).train()
    teacher, x = parent[0], torch.randn(6, 3)
    assert not any(module.training for module in teacher.modules())
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    assert torch.equal(teacher(x), teacher(x))
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


@pytest.mark.parametrize("keep", [0.9, torch.tensor(0.9)])
def test_following(keep):
    module = small()
    teacher, target = Momentum(module), changed(module)
    addresses = [p.data_ptr() for p in teacher.parameters()]
    teacher.follow(target, keep)
    for mine, old, new in zip(teacher.module.parameters(), module.parameters(), target.parameters(), strict=True):
        torch.testing.assert_close(mine, 0.9 * old + 0.1 * new)
    assert torch.equal(teacher.module[1].running_mean, target[1].running_mean)  # buffers are copied
    assert [p.data_ptr() for p in teacher.parameters()] == addresses  # in place: a CUDA graph knows the address


def test_keeping_all_changes_nothing_and_keeping_none_copies():
    module = small()
    teacher, target = Momentum(module), changed(module)
    teacher.follow(target, torch.tensor(1.0))
    assert all(torch.equal(a, b) for a, b in zip(teacher.module.parameters(), module.parameters(), strict=True))
    teacher.follow(target, torch.tensor(0.0))
    for mine, new in zip(teacher.module.parameters(), target.parameters(), strict=True):
        torch.testing.assert_close(mine, new)


def test_its_state_is_saved_with_its_owner():
    module = small()
    teacher = Momentum(module)
    teacher.follow(changed(module), 0.5)
    again = Momentum(small())
    again.load_state_dict(teacher.state_dict())
    x = torch.randn(5, 3)
    assert torch.equal(again(x), teacher(x))


def test_a_vit_s_tables_follow_too():
    encoder = ViTSettings(picture_px=(8, 8), patch=4, width=8, depth=1, heads=2, positions="sincos").build()
    teacher = Momentum(encoder)
    teacher.follow(encoder, 0.5)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(teacher(x).pooled, encoder.eval()(x).pooled)
