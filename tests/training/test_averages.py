import pytest
import torch
from torch import nn

from vitreous.errors import UserError
from vitreous.training.averages import AverageSettings


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def change(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    model[1].running_mean.fill_(float(seed))
    model[1].num_batches_tracked += 1


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", ["ema", "polyak"])
def test_by_hand(kind):
    model = module()
    average = AverageSettings(kind=kind, factor=0.7).build(model)
    expected = {name: p.detach().double() for name, p in model.named_parameters()}
    for number in range(1, 30):
        change(model, number)
        average.update()
        keep = min(0.7, (1 + number) / (10 + number)) if kind == "ema" else 0.7
        for name, p in model.named_parameters():
            expected[name] = keep * expected[name] + (1 - keep) * p.detach().double()
    for name, value in expected.items():
        torch.testing.assert_close(average.state()[name].double(), value, rtol=1e-5, atol=1e-5)
    assert int(average.state()["updates"]) == 29


def test_ema_forgets_its_start_and_polyak_does_not():
    remains = {}
    for kind in ("ema", "polyak"):
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        average = AverageSettings(kind=kind).build(model)
        nn.init.zeros_(model.weight)
        for _ in range(100):
            average.update()
        remains[kind] = float(average.state()["weight"])
    assert remains["polyak"] == pytest.approx(0.9999**100)
    assert remains["ema"] < 1e-6


def test_swapped_puts_the_average_in_and_the_weights_back():
    model = module()
    average = AverageSettings(kind="ema").build(model)
    for number in (1, 2):
        change(model, number)
        average.update()
    change(model, 3)  # not taken in: the buffers of the second update are the ones to see
    own = snapshot(model)
    storage = [p.data_ptr() for p in model.parameters()]
    with average.swapped():
        inside = snapshot(model)
        assert [p.data_ptr() for p in model.parameters()] == storage
    state = average.state()
    assert all(torch.equal(inside[name], state[name]) for name in inside)
    assert float(inside["1.running_mean"][0]) == 2.0
    assert not torch.equal(inside["0.weight"], own["0.weight"])
    assert equal(snapshot(model), own)
    with pytest.raises(RuntimeError, match="stop"), average.swapped():
        raise RuntimeError("stop")
    assert equal(snapshot(model), own)


@pytest.mark.parametrize("kind", ["ema", "polyak"])
def test_state_round_trip_is_exact(kind):
    model = module()
    average = AverageSettings(kind=kind, factor=0.9).build(model)
    for number in range(5):
        change(model, number)
        average.update()
    state = {name: value.clone() for name, value in average.state().items()}
    other = AverageSettings(kind=kind, factor=0.9).build(model)
    other.load_state(state)
    change(model, 9)
    average.update()
    other.update()
    assert equal(average.state(), other.state())
    assert not equal(average.state(), state)


def test_low_precision_weights_have_a_float32_average():
    model = nn.Linear(2, 2).to(torch.bfloat16)
    average = AverageSettings(kind="polyak", factor=0.999).build(model)
    start = average.state()["weight"].clone()
    with torch.no_grad():
        model.weight += 1
    target = model.weight.detach().float()
    average.update()
    assert average.state()["weight"].dtype == torch.float32
    torch.testing.assert_close(average.state()["weight"], start + 0.001 * (target - start))
    with average.swapped():
        assert model.weight.dtype == torch.bfloat16


def test_none_does_nothing():
    model = module()
    average = AverageSettings().build(model)
    own = snapshot(model)
    average.update()
    with average.swapped():
        assert equal(snapshot(model), own)
    assert not average.is_on
    assert average.state() == {}
    average.load_state({})


def test_what_cannot_be():
    with pytest.raises(UserError, match="factor"):
        AverageSettings(kind="ema", factor=1.0).build(module())
    average = AverageSettings(kind="ema").build(module())
    with pytest.raises(UserError, match="lacks"):
        average.load_state({})
    with pytest.raises(UserError, match="unknown"):
        AverageSettings().build(module()).load_state(average.state())
    with pytest.raises(UserError, match="shape"):
        average.load_state({**average.state(), "0.weight": torch.zeros(1)})
