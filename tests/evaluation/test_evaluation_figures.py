"""That every figure is drawn from what it is given, at any number of classes. How they look was judged by eye."""

from dataclasses import replace

import pytest
import torch
from invented import blobs, simulated

from vitreous.display.figures import svg
from vitreous.evaluation import figures
from vitreous.evaluation.abstention import abstention
from vitreous.evaluation.calibration import calibration
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.metrics import scores
from vitreous.evaluation.probes import few_shot


def test_reliability_before_and_after():
    answers = simulated(300, sharpness=2.0)
    both = svg(figures.reliability(calibration(answers), calibration(answers, 2.0)))
    assert "as trained: ECE" in both and "temperature 2: ECE" in both
    assert "temperature" not in svg(figures.reliability(calibration(answers)))


@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_confusion(num_classes):
    answers = simulated(400, num_classes, noise=4.0)
    drawn = figures.confusion(scores(answers))
    text = svg(drawn)
    assert ("class 1" in text) == (num_classes <= figures.NAMED)
    shares = drawn.axes[0].images[0].get_array()
    matrix = scores(answers).confusion_matrix().double()
    expected = matrix / matrix.sum(dim=1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(torch.as_tensor(shares.data), expected)


def test_names_are_data():
    names = ("<script>alert(1)</script>", "cost $5 or $6", "a\nb", "long " * 20)
    answers = replace(simulated(100, 4), classes=names)
    for draw in (figures.confusion, figures.per_class):
        text = svg(draw(scores(answers)))
        assert "<script>" not in text and "&lt;script&gt;" in text
        assert "cost $5 or $6" in text and "a b" in text and "…" in text


def test_per_class_lists_the_worst_and_survives_absent_ones():
    answers = simulated(900, 60, noise=4.0)
    assert "the 40 of 60 classes" in svg(figures.per_class(scores(answers)))
    few = LabelledLogits(torch.eye(3), torch.tensor([0, 0, 1]), torch.arange(3), ("a", "b", "c"))
    assert "c (0)" not in svg(figures.per_class(scores(few)))
    never = LabelledLogits(torch.eye(3)[[0, 0]], torch.tensor([1, 1]), torch.arange(2), ("a", "b", "c"))
    assert "b (2)" in svg(figures.per_class(scores(never)))


def test_curves():
    assert "share of pictures predicted" in svg(figures.abstention_curve(abstention(simulated(200))))
    one = LabelledLogits(torch.eye(2), torch.arange(2), torch.arange(2), ("a", "b"))
    assert svg(figures.abstention_curve(abstention(one)))
    points = few_shot(blobs(120, seed=1), blobs(60, seed=2), seeds=2)
    text = svg(figures.few_shot_curve({"pooled": points, "tanh": points[:2]}, chance=0.25))
    assert "pooled" in text and "tanh" in text and "chance" in text and ">25<" in text
