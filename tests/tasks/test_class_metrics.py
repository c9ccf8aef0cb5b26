import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.tasks import ClassifySettings
from vitreous.tasks.class_metrics import ClassificationMetric, ManyLabelsMetric, Ranking
from vitreous.tasks.classify import sigmoid_loss, softmax_loss
from vitreous.tasks.predictions import ClassLogits, PixelLogits


def batch(logits, **targets):
    ids = torch.arange(len(logits))
    return Batch((logits,), targets, ids, ids)


def test_metric_over_uneven_batches():
    torch.manual_seed(0)
    logits, labels = torch.randn(10, 7), torch.randint(7, (10,))
    metric = ClassificationMetric(softmax_loss)
    for part in (slice(0, 6), slice(6, 10)):
        metric.update(ClassLogits(logits[part]), batch(logits[part], label=labels[part]))
    found = metric.compute()
    assert found[metric.headline] == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    ranks = (logits > logits.gather(1, labels[:, None])).sum(1)
    assert found["top5"] == pytest.approx((ranks < 5).float().mean().item())
    assert found["log_loss"] == pytest.approx(softmax_loss(logits, {"label": labels}).mean().item(), abs=1e-6)
    assert found["pictures"] == 10


def test_metric_of_several_labels():
    metric = ManyLabelsMetric(sigmoid_loss)
    labels = torch.tensor([[0, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]])
    logits = torch.tensor([[0.0, 1, 9, 0, 0, 0], [0, 3, 0, 0, 0, 0], [5, 4, 3, 2, 1, 0.5]])
    for part in (slice(0, 2), slice(2, 3)):
        metric.update(ClassLogits(logits[part], many=True), batch(logits[part], labels=labels[part]))
    found = metric.compute()
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert found["top5"] == pytest.approx(2 / 3)
    assert found["log_loss"] == pytest.approx(sigmoid_loss(logits, {"labels": labels}).mean().item())
    present = [0, 1, 2, 5]  # no picture has the others
    theirs = [average_precision_score(labels[:, one], logits[:, one]) for one in present]
    assert found[metric.headline] == pytest.approx(np.mean(theirs))


def test_one_label_per_picture_has_a_mean_average_precision_too():
    logits, labels = torch.randn(20, 3, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 3
    metric = ManyLabelsMetric(sigmoid_loss)
    metric.update(ClassLogits(logits, many=True), batch(logits, label=labels))
    theirs = average_precision_score(np.eye(3)[labels], logits.numpy(), average="macro")
    assert metric.compute()["mAP"] == pytest.approx(theirs)


def test_average_precisions_are_those_of_scikit_learn_with_equal_scores_too():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 6, (80, 9), generator=generator).float()  # many are equal
    scores[:, 0] = 1.0
    labels = torch.rand(80, 9, generator=generator) < torch.linspace(0.05, 0.9, 9)
    found = Ranking.of(scores, labels).average_precisions()
    theirs = [average_precision_score(labels[:, one], scores[:, one]) for one in range(9)]
    np.testing.assert_allclose(found, theirs, rtol=1e-12)


def test_a_metric_of_nothing():
    for metric in (ClassificationMetric(softmax_loss), ManyLabelsMetric(sigmoid_loss)):
        with pytest.raises(UserError, match="no pictures to score"):
            metric.compute()


def test_another_kind_of_prediction_is_refused():
    logits = torch.zeros(1, 2, 4, 4)
    with pytest.raises(UserError, match="classify whole pictures"):
        ClassificationMetric(softmax_loss).update(PixelLogits(logits), batch(logits, label=torch.zeros(1).long()))


@pytest.mark.parametrize(
    ("loss", "kind", "headline"), [("softmax", "classify", "accuracy"), ("sigmoid", "label", "mAP")]
)
def test_a_task_brings_the_metric_of_its_loss(loss, kind, headline):
    settings = ClassifySettings(loss=loss)
    task = settings.build(ViTSettings(picture_px=(8, 8), patch=4, width=8, depth=1, heads=2).build(), ("a", "b"))
    assert (settings.task_kind, task.metric().headline) == (kind, headline)
    prediction = task.predict(torch.zeros(3, 3, 8, 8))
    assert prediction.many == (loss == "sigmoid")
    assert {name: one.shape for name, one in prediction.outputs().items()} == {"logits": (3, 2)}
    torch.testing.assert_close(
        prediction.probabilities(), torch.full((3, 2), 0.5 if loss == "softmax" else 1 / (1 + math.exp(10)))
    )
