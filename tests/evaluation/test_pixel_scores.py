"""Scores of pixels, against scikit-learn's on all pixels at once."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, jaccard_score, precision_score, recall_score

from vitreous.errors import UserError
from vitreous.evaluation.pixel_scores import Tally

CLASSES = ("sky", "road", "car", "cat", "never")
DRAWS = np.random.default_rng(0)


def pictures(num=6):
    """Of different sizes, with ignored pixels; nothing is labelled `cat`, but some is taken for it."""
    for place in range(num):
        size = (20 + place, 30 - place)
        labels = DRAWS.integers(0, 3, size)
        found = np.where(DRAWS.random(size) < 0.3, DRAWS.integers(0, 4, size), labels)
        labels = np.where(DRAWS.random(size) < 0.1, -1, labels)
        yield labels, found, DRAWS.uniform(0.3, 1, size).astype(np.float32)


@pytest.fixture(scope="module")
def counted():
    shown = list(pictures())
    tally = Tally(CLASSES)
    for place, one in enumerate(shown):
        tally.add(10 + place, *one)
    labels, found = (np.concatenate([one[place].ravel() for one in shown]) for place in (0, 1))
    return tally.scores(), labels[labels >= 0], found[labels >= 0], shown


def test_against_scikit_learn(counted):
    scores, labels, found, _ = counted
    numbers = list(range(len(CLASSES)))
    assert (np.array(scores.confusion) == confusion_matrix(labels, found, labels=numbers)).all()
    expected = jaccard_score(labels, found, labels=numbers[:4], average=None)
    np.testing.assert_allclose([one.iou.value for one in scores.per_class[:4]], expected)
    assert scores.per_class[4].iou is None and scores.per_class[3].recall is None
    assert scores.miou.value == pytest.approx(expected.mean())
    assert scores.pixel_accuracy.value == pytest.approx((labels == found).mean())
    seen = recall_score(labels, found, labels=numbers[:3], average=None)
    assert scores.class_accuracy.value == pytest.approx(seen.mean())
    precisions = precision_score(labels, found, labels=numbers[:4], average=None)
    np.testing.assert_allclose([one.precision for one in scores.per_class[:4]], precisions)


def test_single_pictures(counted):
    scores, *_, shown = counted
    assert [index for index, _ in scores.picture_ious] == list(range(10, 16))
    for (labels, found, _), (_, measured) in zip(shown, scores.picture_ious, strict=True):
        valid = labels >= 0
        assert measured == pytest.approx(jaccard_score(labels[valid], found[valid], average="macro"))


def test_intervals_are_of_pictures(counted):
    scores, *_ = counted
    for one in (scores.miou, scores.pixel_accuracy, scores.boundary_f, scores.per_class[0].iou):
        assert one.low <= one.value <= one.high and one.high - one.low > 1e-4
    alike = Tally(CLASSES)
    labels, found, confidence = next(iter(pictures(1)))
    for place in range(5):
        alike.add(place, labels, found, confidence)
    same = alike.scores().miou
    assert same.low == pytest.approx(same.high)  # drawing among equal pictures changes nothing, however many pixels


def test_calibration_counts_all_pixels(counted):
    scores, labels, found, shown = counted
    sure = np.concatenate([confidence[labels >= 0] for labels, _, confidence in shown])
    assert sum(one.pixels for one in scores.bins) == len(labels)
    edges = np.linspace(0, 1, 16)
    places = np.clip(np.digitize(sure, edges, right=True) - 1, 0, 14)
    gaps = [abs((sure - (labels == found))[places == place].sum()) for place in range(15)]
    assert scores.ece.value == pytest.approx(sum(gaps) / len(sure), abs=1e-6)


def test_nothing_to_score():
    tally = Tally(CLASSES)
    tally.add(0, np.full((4, 4), -1), np.zeros((4, 4), int), np.ones((4, 4), np.float32))
    with pytest.raises(UserError, match="no labelled pixels"):
        tally.scores()


def test_tables(counted):
    overall, by_class = counted[0].tables()
    assert "mIoU" in overall.text() and "boundary F-score" in overall.text()
    assert "car" in by_class.text() and "never" not in by_class.text()
