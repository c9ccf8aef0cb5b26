import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

from vitreous.evaluation.baseline import Pixels, fit
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.heads import judges, least_squares_head, limited, logistic_head

NUM_CLASSES = 4


def features(num, seed, width=10, noise=1.0):
    torch.manual_seed(0)
    centres = 3 * torch.randn(NUM_CLASSES, width)
    torch.manual_seed(seed)
    labels = torch.arange(num) % NUM_CLASSES
    values = 5 + 20 * (centres[labels] + noise * torch.randn(num, width))
    return FeatureSet(values.float(), labels, torch.arange(num))


def accuracy(head, data):
    return float((head.linear(data.values).argmax(dim=1) == data.labels).double().mean())


@pytest.mark.parametrize("head", [least_squares_head, logistic_head])
@pytest.mark.parametrize("num_val", [200, 8])
def test_a_head_is_for_features_as_they_are(head, num_val):
    """Judged on validation pictures where there are enough, else on training pictures left out."""
    train, test = features(200, 1, noise=2.0), features(2000, 2, noise=2.0)
    found = head(train, judges(features(num_val, 3, noise=2.0)), NUM_CLASSES)
    theirs = LogisticRegression(C=0.01, max_iter=5000).fit(train.values, train.labels)
    assert accuracy(found, test) >= theirs.score(test.values, test.labels) - 0.03
    assert found.score == pytest.approx(accuracy(found, test), abs=0.1)
    assert found.log_loss < 1.0, "its softmax means something"


def test_views_of_a_picture_are_left_out_together():
    """Labels that mean nothing: whoever saw another view of a picture would know it."""
    torch.manual_seed(1)
    pictures = torch.randn(60, 30)
    values = torch.cat([pictures + 0.01 * torch.randn(60, 30) for _ in range(4)])
    data = FeatureSet(values, torch.randint(2, (60,)).repeat(4), torch.arange(60).repeat(4))
    assert logistic_head(data, None, 2).score < 0.75


def test_class_weights_count_pictures_several_times():
    few = Pixels(features(12, 1, noise=3.0).values.double() / 20, torch.arange(12) % NUM_CLASSES)
    twice = Pixels(*(torch.cat([part, part[few.labels == 0]]) for part in (few.values, few.labels)))
    weights = torch.tensor([2.0, 1.0, 1.0, 1.0]) * 12 / 15  # a mean over 12 pictures in place of 15
    weighted = fit(few, 0.1, tolerance=1e-8, class_weights=weights)
    torch.testing.assert_close(weighted, fit(twice, 0.1, tolerance=1e-8), atol=1e-5, rtol=0)


def test_a_class_of_one_picture_and_many_pictures():
    lonely = features(41, 1).only(torch.tensor([*range(0, 41, 4), 1, *range(2, 41, 4), 3]))
    assert logistic_head(lonely, None, NUM_CLASSES) is not None and least_squares_head(lonely, None, NUM_CLASSES)
    assert len(limited(features(100, 1), 30)) == 30 and len(limited(features(10, 1), 30)) == 10


def test_one_picture_per_class_and_one_picture_alone():
    """Pictures are left out in turn whatever their class; of one alone nothing is left to choose by."""
    few = features(NUM_CLASSES, 1, noise=0.1)
    assert accuracy(logistic_head(few, None, NUM_CLASSES), features(40, 2, noise=0.1)) == 1
    assert logistic_head(features(1, 1), None, NUM_CLASSES) is None


def test_heads_of_several_labels_are_scikit_learns_one_by_one():
    torch.manual_seed(0)
    values = torch.randn(150, 6)
    labels = (values @ torch.randn(6, 3) + torch.randn(150, 3) > 0.5).float()
    weights = fit(Pixels(values.double(), labels), 0.1, tolerance=1e-8, num_classes=3)
    for number in range(3):
        theirs = LogisticRegression(C=1 / (0.1 * 150), tol=1e-10).fit(values, labels[:, number])
        assert weights[:-1, number].numpy() == pytest.approx(theirs.coef_[0], abs=1e-4)
        assert float(weights[-1, number]) == pytest.approx(float(theirs.intercept_[0]), abs=1e-4)


@pytest.mark.parametrize("num_val", [200, 8])
def test_a_head_of_several_labels_is_judged_by_mean_average_precision(num_val):
    def drawn(num, seed):
        torch.manual_seed(seed)
        values = 5 + 20 * torch.randn(num, 6)
        return FeatureSet(values, (values[:, :3] + 10 * torch.randn(num, 3) > 5).float(), torch.arange(num))

    found = logistic_head(drawn(200, 1), judges(drawn(num_val, 2)), 3)
    test = drawn(1000, 3)
    theirs = average_precision_score(test.labels, found.linear(test.values), average="macro")
    assert theirs > 0.9 and found.score == pytest.approx(theirs, abs=0.05)
