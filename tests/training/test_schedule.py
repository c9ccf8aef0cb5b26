import math

import pytest
import torch

from vitreous import settings
from vitreous.errors import UserError
from vitreous.training.schedule import ScheduleSettings


def rates(schedule, total):
    found = [schedule.rate(torch.tensor(step), total) for step in range(total)]
    assert all(rate.ndim == 0 and rate.dtype == torch.float32 for rate in found)
    return [float(rate) for rate in found]


def test_warm_up_starts_above_zero_and_ends_at_the_peak():
    found = rates(ScheduleSettings(warmup_steps=4, decay="linear"), 12)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert found[4:] == pytest.approx([1 - step / 8 for step in range(8)])


def test_cosine():
    found = rates(ScheduleSettings(warmup_fraction=0.2), 100)
    assert found[19] == found[20] == 1.0
    assert found[60] == pytest.approx(0.5)
    assert found[99] == pytest.approx(0.5 * (1 + math.cos(math.pi * 79 / 80)), abs=1e-6)
    assert 0 < found[99] < 0.001
    assert found[20:] == sorted(found[20:], reverse=True)


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_final_fraction_is_the_value_at_the_end(decay):
    schedule = ScheduleSettings(decay=decay, final_fraction=0.1)
    assert float(schedule.rate(torch.tensor(50), 50)) == pytest.approx(0.1)
    assert float(schedule.rate(torch.tensor(0), 50)) == 1.0
    assert float(schedule.rate(torch.tensor(25), 50)) == pytest.approx(0.55)


def test_constant_with_cooldown():
    found = rates(ScheduleSettings(warmup_steps=2, decay="constant", cooldown_fraction=0.4, final_fraction=0.0), 10)
    assert found == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])
    assert rates(ScheduleSettings(decay="constant"), 5) == [1.0] * 5


def test_a_rate_that_drops_at_once():
    found = rates(ScheduleSettings(decay="drop", cooldown_fraction=0.4, final_fraction=0.1, warmup_steps=2), 10)
    assert found == pytest.approx([0.5, *[1] * 5, *[0.1] * 4])


def test_steps_win_over_the_fraction_and_one_step_is_a_run():
    assert ScheduleSettings(warmup_steps=3, warmup_fraction=0.5).phases(10) == (3, 7)
    assert rates(ScheduleSettings(), 1) == [1.0]
    assert rates(ScheduleSettings(warmup_steps=5), 5) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_a_long_run_is_exact():
    schedule = ScheduleSettings(warmup_steps=10_000, decay="linear")
    assert float(schedule.rate(torch.tensor(9_999), 5_000_000)) == 1.0
    assert float(schedule.rate(torch.tensor(4_999_999), 5_000_000)) == pytest.approx(1 / 4_990_000, rel=0.2)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (ScheduleSettings(warmup_steps=11), "do not fit into 10 steps"),
        (ScheduleSettings(warmup_steps=-1), "do not fit"),
        (ScheduleSettings(warmup_steps=8, decay="constant", cooldown_fraction=0.5), "cooldown"),
        (ScheduleSettings(cooldown_fraction=0.5), "constant"),
        (ScheduleSettings(final_fraction=1.5), "final_fraction"),
        (ScheduleSettings(warmup_fraction=-0.1), "warmup_fraction"),
    ],
)
def test_what_cannot_be(wrong, word):
    with pytest.raises(UserError, match=word):
        wrong.rate(torch.tensor(0), 10)


def test_json():
    schedule = ScheduleSettings(warmup_steps=5, decay="linear")
    assert settings.from_json(ScheduleSettings, settings.to_json(schedule)) == schedule


def test_a_fall_that_is_aimed_anew_leaves_what_was_before_as_it_was():
    """To the last bit: what a run has done must be what its corrected schedule says."""
    first = ScheduleSettings(warmup_steps=3, decay="constant", falls=((10, 1.0, 17),))
    again = ScheduleSettings(warmup_steps=3, decay="constant", falls=((10, 1.0, 17), (13, 4 / 7, 31)))
    before, after = rates(first, 17), rates(again, 31)
    assert before[:13] == after[:13] and before[2:10] == [1.0] * 8
    assert before[16] == pytest.approx(1 / 7)
    assert after[13] == pytest.approx(before[13]), "no jump"
    assert after[13:] == pytest.approx([4 / 7 * (1 - step / 18) for step in range(18)])
    assert settings.from_json(ScheduleSettings, settings.to_json(again)) == again


@pytest.mark.parametrize(
    "wrong", [{"falls": ((3, 1.0, 3),)}, {"falls": ((5, 1.0, 9), (3, 1.0, 9))}, {"decay": "cosine"}]
)
def test_falls_that_make_no_sense(wrong):
    with pytest.raises(UserError, match=r"schedule\.falls"):
        ScheduleSettings(**{"decay": "constant", "falls": ((1, 1.0, 2),), **wrong}).phases(10)
