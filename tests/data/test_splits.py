import numpy as np
import pytest

from vitreous.data.splits import held_out, limited

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), [200, 100, 60, 30, 10]))


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.25, 0.5, 0.9])
def test_held_out_part_is_stratified_and_disjoint(fraction):
    stay, held = held_out(LABELS, fraction, 0, "test")
    assert np.array_equal(np.sort(np.concatenate([stay, held])), np.arange(400))
    assert len(held) == round(fraction * 400)
    assert (np.diff(stay) > 0).all() and (np.diff(held) > 0).all()
    counts = np.bincount(LABELS[held], minlength=5)
    assert np.abs(counts - fraction * np.bincount(LABELS)).max() <= 1


def test_the_choice_depends_on_seed_and_purpose_alone():
    first = held_out(LABELS, 0.2, 0, "test")[1]
    assert np.array_equal(first, held_out(LABELS, 0.2, 0, "test")[1])
    for other in (held_out(LABELS, 0.2, 1, "test")[1], held_out(LABELS, 0.2, 0, "val")[1]):
        assert 0.1 < len(np.intersect1d(first, other)) / 80 < 0.4, "about a fifth by chance"
    # Written down once: a change here would let yesterday's test pictures into tomorrow's training.
    assert held_out(np.arange(20) % 2, 0.3, 0, "test")[1].tolist() == [0, 1, 13, 14, 16, 17]


def test_every_class_stays_in_train():
    labels = np.array([0] * 50 + [1, 2, 3, 3])
    for seed in range(10):
        stay, held = held_out(labels, 0.8, seed, "val")
        assert set(labels[stay]) == {0, 1, 2, 3}
    stay, held = held_out(np.arange(7), 0.5, 0, "val")
    assert len(held) == 0 and len(stay) == 7
    assert len(held_out(labels, 0.0, 0, "val")[1]) == 0


def test_limits_are_nested_stratified_and_show_every_class():
    previous = set()
    for num in (5, 8, 40, 100, 399, 400, 1000):
        chosen = limited(LABELS, num, 3)
        assert len(chosen) == min(num, 400) and previous <= set(chosen)
        counts = np.bincount(LABELS[chosen], minlength=5)
        assert counts.min() >= 1
        if num >= 40:
            assert np.abs(counts - len(chosen) * np.bincount(LABELS) / 400).max() <= 2
        previous = set(chosen)
    balanced = limited(np.repeat(np.arange(10), 600), 1200, 0)
    assert np.bincount(balanced // 600).tolist() == [120] * 10
