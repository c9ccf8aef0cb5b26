"""Mixup and CutMix: the Beta distribution, the draws, and what becomes of pictures and labels."""

import numpy as np
import pytest
import torch

from vitreous import keys as K
from vitreous.data.mixing import KNOTS, Mixer, beta_quantiles, quantile

KEYS = K.sample_keys(0, 0, torch.arange(6000))


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 1.0, 2.0, 8.0])
def test_quantiles_are_scipys(alpha: float):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.beta.ppf(np.linspace(0, 1, KNOTS), alpha, alpha)
    np.testing.assert_allclose(beta_quantiles(alpha), expected, atol=2e-5)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.0])
def test_draws_are_beta_distributed(alpha: float):
    stats = pytest.importorskip("scipy.stats")
    weights = Mixer(alpha, 0.0, 1.0, 0.5).draw(KEYS, (8, 8)).weight
    assert stats.kstest(weights.double().numpy(), stats.beta(alpha, alpha).cdf).pvalue > 0.001


def test_quantile_is_exact_at_the_ends():
    table = torch.from_numpy(beta_quantiles(1.0))
    torch.testing.assert_close(quantile(table, torch.tensor([0.0, 0.25, 1.0])), torch.tensor([0.0, 0.25, 1.0]))


def test_kinds_are_chosen_with_their_probabilities():
    mix = Mixer(0.8, 1.0, 0.6, 0.25).draw(KEYS, (1000, 1000))
    cut, blended = mix.boxes[:, 2] > 0, mix.blend < 1
    assert not (cut & blended).any()
    assert abs(cut.double().mean() - 0.6 * 0.25) < 0.02
    assert abs(blended.double().mean() - 0.6 * 0.75) < 0.02
    assert (mix.weight[~cut & ~blended] == 1).all()


def test_one_kind_alone_is_always_chosen():
    assert (Mixer(0.2, 0.0, 1.0, 0.5).draw(KEYS, (8, 8)).boxes == 0).all()
    assert (Mixer(0.0, 1.0, 1.0, 0.5).draw(KEYS, (8, 8)).blend == 1).all()
    assert not Mixer(0.0, 0.0, 1.0, 0.5).active and not Mixer(0.8, 1.0, 0.0, 0.5).active
    assert Mixer(0.8, 0.0, 0.6, 0.5).active and Mixer(0.0, 0.8, 0.6, 0.5).active


def test_cutmix_weight_is_the_exact_area():
    mixer = Mixer(0.0, 1.0, 1.0, 0.5)
    keys, size = KEYS[:300], (13, 17)
    mix = mixer.draw(keys, size)
    shown = mixer.images(mix, torch.zeros(300, 3, *size), torch.ones(300, 3, *size))
    torch.testing.assert_close(1 - shown.mean(dim=(1, 2, 3)), mix.weight)
    assert set(shown.unique().tolist()) == {0.0, 1.0}
    assert abs((1 - mix.weight).mean() - 0.5) > 0.02  # clipped at the edges, so less than the mean of Beta(1, 1)


def test_cutmix_is_torchvisions_rule():
    """The same centre and lambda give the same box (recomputed here from the draws)."""
    height, width = 20, 30
    mix = Mixer(0.0, 1.0, 1.0, 0.5).draw(KEYS[:50], (height, width))
    _, _, lam, y, x = K.uniform(KEYS[:50], "mix", 5).double().unbind(1)
    for box, lam_, y_, x_ in zip(mix.boxes.tolist(), lam.tolist(), y.tolist(), x.tolist(), strict=True):
        r = 0.5 * (1 - lam_) ** 0.5
        row, column = int(y_ * height), int(x_ * width)
        y1, x1 = max(row - int(r * height), 0), max(column - int(r * width), 0)
        y2, x2 = min(row + int(r * height), height), min(column + int(r * width), width)
        assert box == [y1, x1, y2 - y1, x2 - x1]


def test_mixup_blends():
    mixer = Mixer(0.8, 0.0, 1.0, 0.0)
    a, b = torch.randn(50, 3, 4, 4), torch.randn(50, 3, 4, 4)
    mix = mixer.draw(KEYS[:50], (4, 4))
    share = mix.weight[:, None, None, None]
    torch.testing.assert_close(mixer.images(mix, a, b), a * share + b * (1 - share))


def test_targets_of_one_and_of_several_labels():
    mixer = Mixer(0.8, 0.0, 1.0, 0.0)
    mix = mixer.draw(KEYS[:4], (4, 4))
    one = mixer.targets(mix, {"label": torch.arange(4)}, {"label": torch.arange(4).roll(-1)})
    assert one["partner"].tolist() == [1, 2, 3, 0]
    assert torch.equal(one["weight"], mix.weight)
    labels = torch.eye(4)
    several = mixer.targets(mix, {"labels": labels}, {"labels": labels.roll(-1, 0)})
    assert set(several) == {"labels"}
    torch.testing.assert_close(several["labels"].sum(1), torch.ones(4))
    torch.testing.assert_close(several["labels"].diagonal(), mix.weight)
