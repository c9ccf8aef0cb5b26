"""The hash that all randomness comes from."""

import pytest
import torch

from vitreous import keys


def bits_set(x: torch.Tensor) -> torch.Tensor:
    """(..., 64): the bits of int64 numbers."""
    return (x[..., None] >> torch.arange(64)) & 1


def test_the_hash_never_changes():
    """A change here would silently change the batches of every run ever recorded."""
    drawn = keys.sample_keys(7, 3, torch.tensor([0, 1, 123_456_789]))
    assert drawn.tolist() == [-3166105301156100012, -3523259161109202606, -6494144502823497717]
    assert (keys.uniform(drawn, "flip", 2) * 2**24).tolist() == [
        [600330.0, 1936746.0],
        [18482.0, 8623047.0],
        [12016184.0, 13005837.0],
    ]
    assert keys.integers(drawn, "shift", 3, 9).tolist() == [[3, 1, 8], [8, 6, 6], [8, 8, 1]]
    assert keys.orderings(drawn, "mask", 6).tolist() == [[3, 2, 5, 1, 4, 0], [5, 4, 3, 0, 1, 2], [2, 0, 5, 1, 3, 4]]
    assert keys.epoch_order(7, 3, 8).tolist() == [3, 4, 6, 1, 0, 2, 7, 5]


def test_splitmix64_reference():
    """The first outputs of splitmix64 from state 1234567, as in the public test vectors of that generator."""
    state = torch.arange(1, 6) * keys.GOLDEN + 1234567
    unsigned = [number % 2**64 for number in keys.mix(state).tolist()]
    assert unsigned == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_one_number_mixes_as_a_tensor_does():
    numbers = [0, 1, -1, 2**63 - 1, -(2**63), 123456789]
    assert [keys._mix_number(number) for number in numbers] == keys.mix(torch.tensor(numbers)).tolist()


def test_avalanche():
    """Flipping any bit of a key flips each bit of the draw about half the time."""
    inputs = keys.sample_keys(0, 0, torch.arange(512))
    flipped = inputs[:, None] ^ (1 << torch.arange(64))
    before, after = keys.bits(inputs, "a", 1), keys.bits(flipped.flatten(), "a", 1).view(512, 64)
    share = bits_set(before ^ after).double().mean(0)  # (in, out)
    assert share.min() > 0.35
    assert share.max() < 0.65


def test_uniform_is_uniform():
    draws = keys.uniform(keys.sample_keys(0, 0, torch.arange(4096)), "a", 16)
    assert draws.min() >= 0
    assert draws.max() < 1
    counts = torch.histc(draws, 32, 0, 1)
    chi_squared = ((counts - 2048) ** 2 / 2048).sum()
    assert chi_squared < 61.1  # 31 degrees of freedom, p = 0.001
    assert abs(torch.corrcoef(draws.T) - torch.eye(16)).max() < 0.08


@pytest.mark.parametrize("below", [1, 2, 3, 9, 1000, 2**31])
def test_integers_stay_in_range(below: int):
    draws = keys.integers(keys.sample_keys(1, 0, torch.arange(2000)), "a", 4, below)
    assert draws.min() >= 0
    assert draws.max() < below
    assert abs(draws.double().mean() - (below - 1) / 2) < 0.02 * below


def test_normal_is_normal():
    draws = keys.normal(keys.sample_keys(1, 0, torch.arange(2000)), "a", 16).double()
    assert torch.isfinite(draws).all()
    assert abs(draws.mean()) < 0.02
    assert abs(draws.std() - 1) < 0.02
    assert abs((draws**4).mean() - 3) < 0.2


def test_seeds_epochs_samples_and_purposes_are_independent():
    ids = torch.arange(4096)
    draws = [
        keys.uniform(keys.sample_keys(seed, epoch, ids), purpose, 1)[:, 0]
        for seed in (0, 1)
        for epoch in (0, 1)
        for purpose in ("view0.crop", "view1.crop")
    ]
    assert abs(torch.corrcoef(torch.stack(draws)) - torch.eye(8)).max() < 0.08
    assert len({tuple(draw[:8].tolist()) for draw in draws}) == 8


def test_a_draw_does_not_depend_on_its_batch():
    ids = torch.arange(100)
    whole = keys.uniform(keys.sample_keys(3, 2, ids), "a", 5)
    part = keys.uniform(keys.sample_keys(3, 2, ids[40:50]), "a", 3)
    assert torch.equal(whole[40:50, :3], part)


def test_keys_do_not_collide():
    drawn = torch.cat([keys.sample_keys(seed, epoch, torch.arange(5000)) for seed in (0, 1) for epoch in range(5)])
    assert len(drawn.unique()) == len(drawn)


def test_orderings_and_epoch_order_are_permutations():
    orders = keys.orderings(keys.sample_keys(0, 0, torch.arange(3000)), "a", 5)
    assert torch.equal(orders.sort(1).values, torch.arange(5).expand(3000, 5))
    assert abs((orders[:, 0] == 2).double().mean() - 0.2) < 0.03
    first, second = keys.epoch_order(0, 0, 1000), keys.epoch_order(0, 1, 1000)
    assert torch.equal(first.sort().values, torch.arange(1000))
    assert (first == second).sum() < 10


def test_step_seeds_differ():
    seeds = {keys.step_seed(seed, step, rank) for seed in range(3) for step in range(50) for rank in range(4)}
    assert len(seeds) == 600
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_any_python_integer_is_a_seed():
    ids = torch.arange(3)
    for seed in (-1, 2**63 - 1, 2**64 + 5):
        assert len(keys.sample_keys(seed, 0, ids).unique()) == 3


def test_purposes_have_codes_of_their_own():
    names = [f"view{view}.{what}" for view in range(20) for what in ("crop", "flip", "erase", "colour")]
    codes = {keys.purpose_code(name) for name in names}
    assert len(codes) == len(names)
    assert all(0 <= code < 2**63 for code in codes)
