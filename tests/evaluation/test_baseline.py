import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from scenes import write_scenes
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.evaluation import baseline
from vitreous.evaluation.baseline import (
    MainComponents,
    PixelRegression,
    Pixels,
    accuracy,
    fit,
    logistic_regression,
    spread_out,
)


def data(num, seed, num_classes=4, pixels=12):
    """Classes that overlap, so that no fit is perfect."""
    torch.manual_seed(0)
    centres = torch.rand(num_classes, pixels, dtype=torch.float64)
    torch.manual_seed(seed)
    labels = torch.arange(num) % num_classes
    return Pixels((centres[labels] + 0.4 * torch.randn(num, pixels, dtype=torch.float64)).clamp(0, 1), labels)


def probabilities(weights, pixels):
    return (pixels.values @ weights[:-1] + weights[-1]).softmax(dim=1)


@pytest.mark.parametrize("penalty", [1e-4, 1e-2])
def test_equals_scikit_learn(penalty):
    """scikit-learn sums the loss over N pictures and weighs it with C, so C = 1 / (penalty * N)."""
    train, test = data(160, 1), data(80, 2)
    theirs = LogisticRegression(C=1 / (penalty * 160), tol=1e-8, max_iter=10_000).fit(train.values, train.labels)
    ours = fit(train, penalty, tolerance=1e-8)
    expected = torch.from_numpy(theirs.predict_proba(test.values))
    torch.testing.assert_close(probabilities(ours, test), expected, atol=1e-4, rtol=0)
    assert accuracy(ours, test) == theirs.score(test.values, test.labels)


def test_a_warm_start_ends_at_the_same_place():
    train = data(160, 1)
    cold = fit(train, 1e-3, tolerance=1e-8)
    warm = fit(train, 1e-3, start=fit(train, 1e-2), tolerance=1e-8)
    torch.testing.assert_close(probabilities(cold, train), probabilities(warm, train), atol=1e-4, rtol=0)


def test_features_that_go_together():
    """As those of a model that has hardly learned: a valley so narrow that plain L-BFGS needs thousands of steps."""
    torch.manual_seed(0)
    turned, _ = torch.linalg.qr(torch.randn(200, 200, dtype=torch.float64))
    values = torch.randn(300, 200, dtype=torch.float64) * torch.logspace(0, -4, 200, dtype=torch.float64) @ turned
    train = Pixels(values / values.std(dim=0), torch.arange(300) % 4)
    cold = fit(train, 1e-5, tolerance=1e-7)
    theirs = LogisticRegression(C=1 / (1e-5 * 300), tol=1e-10, max_iter=1000, solver="newton-cg").fit(
        train.values, train.labels
    )
    expected = torch.from_numpy(theirs.predict_proba(train.values))
    torch.testing.assert_close(probabilities(cold, train), expected, atol=1e-4, rtol=0)


def test_what_has_not_converged_says_so():
    with pytest.raises(UserError, match="has not converged"):
        fit(data(40, 1), 1e-4, tolerance=1e-300)


def test_features_that_are_not_finite():
    train = data(40, 1)
    train.values[3, 3] = torch.nan
    with pytest.raises(UserError, match="not finite"):
        fit(train, 1e-4)


def test_the_penalty_is_chosen_on_validation_data(monkeypatch):
    train, val, test = data(60, 1), data(200, 2), data(100, 3)
    monkeypatch.setattr(baseline, "PENALTIES", (1e-5, 1e-2, 10.0))
    found = logistic_regression(train, val, test)
    scores = {penalty: accuracy(fit(train, penalty), val) for penalty in (1e-5, 1e-2, 10.0)}
    assert dict(found.val_accuracies) == pytest.approx(scores)
    assert len(set(scores.values())) == 3
    assert found.penalty == max(scores, key=scores.get)
    assert found.accuracy == accuracy(fit(train, found.penalty), test)


def test_pixels_lie_between_0_and_1_and_grey_counts_once():
    grey = np.repeat(np.arange(256, dtype=np.uint8).reshape(4, 8, 8, 1), 3, axis=3)
    found = Pixels.of(grey, np.arange(4))
    assert found.values.shape == (4, 64)
    assert (found.values.min(), found.values.max()) == (0, 1)
    coloured = grey.copy()
    coloured[0, 0, 0, 0] ^= 255
    assert Pixels.of(coloured, np.arange(4)).values.shape == (4, 192)


def test_pictures_of_any_source_within_bounds(tmp_path):
    root = write_scenes(tmp_path, {"dark": 60, "grey": 50, "light": 20}, size=(50, 40))
    (root / "dark" / "0003.png").write_bytes(b"broken")
    splits = DataSettings(where=str(root), keep_gb=0).build()
    found = PixelRegression(splits.train, splits.val, most=60)
    assert (found.num_pictures, found.px) in ((59, 32), (60, 32)) and found.val_accuracy > 0.5
    told = found.baseline(splits.test)
    assert told.accuracy > 0.5 and told.pictures == found.num_pictures and len(told.val_accuracies) == 4
    assert PixelRegression(splits.train, None).val_accuracy is None


def test_a_part_of_a_source_has_all_classes_in_proportion():
    source = DataSettings(where="fashion").build().train
    some = spread_out(source, 500)
    assert np.bincount(some.labels).tolist() == [50] * 10
    assert spread_out(some, 500) is some


def test_the_main_components_are_enough():
    parts = DataSettings(where="fashion", train_limit=600).build()
    pixels = Pixels.read(parts.train, 28)
    assert Pixels.read(parts.train, 32).values.shape[1] == 3 * 32 * 32
    whole, main = MainComponents(pixels.values, 5000), MainComponents(pixels.values, 150)
    assert whole.of(pixels) is pixels
    turned = main.of(pixels).values
    kept = turned.square().sum() / (pixels.values - pixels.values.mean(dim=0)).square().sum()
    assert turned.shape == (600, 150) and 0.95 < kept <= 1
