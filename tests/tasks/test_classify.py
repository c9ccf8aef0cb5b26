import math

import pytest
import torch
from torch import nn

from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.models.base import Encoder, Features
from vitreous.tasks.classify import (
    ClassifySettings,
    LinearHead,
    TanhHead,
    sigmoid_loss,
    softmax_loss,
)

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.25, 1.0]])
LABELS = torch.tensor([0, 1])
CLASSES = ("a", "b", "c")


class Pooled(Encoder):
    """Its features are its pictures."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images):
        return Features(maps=(), prefix=None, pooled=images * self.scale)


def batch(images, **targets):
    return Batch(views=(images,), targets=targets, ids=torch.arange(len(images)), keys=torch.arange(len(images)))


def log_probability(row, label):
    return row[label] - math.log(sum(math.exp(value) for value in row))


def test_softmax_by_hand():
    expected = [-log_probability(row, label) for row, label in zip(LOGITS.tolist(), LABELS.tolist(), strict=True)]
    torch.testing.assert_close(softmax_loss(LOGITS, {"label": LABELS}), torch.tensor(expected))


def test_label_smoothing_by_hand():
    smoothing, expected = 0.3, []
    for row, label in zip(LOGITS.tolist(), LABELS.tolist(), strict=True):
        wanted = [smoothing / 3 + (1 - smoothing) * (index == label) for index in range(3)]
        expected.append(-sum(share * log_probability(row, index) for index, share in enumerate(wanted)))
    torch.testing.assert_close(softmax_loss(LOGITS, {"label": LABELS}, smoothing), torch.tensor(expected))


def test_mixed_targets_by_hand():
    targets = {"label": LABELS, "partner": torch.tensor([2, 0]), "weight": torch.tensor([0.75, 0.1])}
    expected = [
        -(0.75 * log_probability(LOGITS[0].tolist(), 0) + 0.25 * log_probability(LOGITS[0].tolist(), 2)),
        -(0.1 * log_probability(LOGITS[1].tolist(), 1) + 0.9 * log_probability(LOGITS[1].tolist(), 0)),
    ]
    torch.testing.assert_close(softmax_loss(LOGITS, targets), torch.tensor(expected))


def binary(logit, wanted):
    p = 1 / (1 + math.exp(-logit))
    return -(wanted * math.log(p) + (1 - wanted) * math.log(1 - p))


@pytest.mark.parametrize(
    ("targets", "wanted"),
    [
        ({"label": LABELS}, [[1, 0, 0], [0, 1, 0]]),
        ({"labels": torch.tensor([[1, 0, 1], [0, 0, 0]])}, [[1, 0, 1], [0, 0, 0]]),
        (
            {"label": LABELS, "partner": torch.tensor([2, 0]), "weight": torch.tensor([0.75, 0.1])},
            [[0.75, 0, 0.25], [0.9, 0.1, 0]],
        ),
    ],
    ids=["one label", "several labels", "mixed"],
)
def test_sigmoid_by_hand(targets, wanted):
    expected = [
        sum(binary(logit, share) for logit, share in zip(row, shares, strict=True))
        for row, shares in zip(LOGITS.tolist(), wanted, strict=True)
    ]
    torch.testing.assert_close(sigmoid_loss(LOGITS, targets), torch.tensor(expected))


@pytest.mark.parametrize("head", ["linear", "tanh"])
def test_the_sigmoid_head_starts_at_minus_ten(head):
    task = ClassifySettings(head=head, loss="sigmoid").build(Pooled(4), CLASSES)
    logits = task.predict(torch.randn(2, 4)).logits
    torch.testing.assert_close(logits, torch.full((2, 3), -10.0))


@pytest.mark.parametrize("head", ["linear", "tanh"])
def test_the_head_starts_at_zero_and_learns(head):
    task = ClassifySettings(head=head).build(Pooled(4), CLASSES)
    images = torch.randn(2, 4)
    assert task.predict(images).logits.eq(0).all()
    loss = task(batch(images, label=LABELS), torch.zeros(()))["loss"]
    assert loss.item() == pytest.approx(math.log(3))
    loss.backward()
    output = task.head if head == "linear" else task.head.output
    assert output.weight.grad.abs().max() > 0


def test_the_tanh_head_has_one_hidden_layer_of_the_encoders_width():
    head = TanhHead(4, 3)
    with torch.no_grad():
        head.output.weight.normal_()
    x = torch.randn(2, 4)
    expected = torch.tanh(x @ head.hidden.weight.T + head.hidden.bias) @ head.output.weight.T + head.output.bias
    torch.testing.assert_close(head(Features(maps=(), prefix=None, pooled=x)), expected)
    assert head.hidden.weight.shape == (4, 4)


def test_the_distilled_head_averages_two_answers():
    model = ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=1, heads=2, num_prefix=2)
    task = ClassifySettings(head="distilled").build(model.build(), CLASSES)
    images = torch.randn(2, 3, 8, 8)
    assert not task.predict(images).logits.any()
    with torch.no_grad():
        for parameter in task.head.parameters():
            parameter.normal_()
    tokens = task.encoder(images).prefix
    expected = (task.head.classes(tokens[:, 0]) + task.head.distillation(tokens[:, 1])) / 2
    torch.testing.assert_close(task.predict(images).logits, expected)
    assert {name for name, _ in task.head.named_parameters()} == {
        f"{part}.{kind}" for part in ("classes", "distillation") for kind in ("weight", "bias")
    }
    sigmoid = ClassifySettings(head="distilled", loss="sigmoid").build(model.build(), CLASSES)
    torch.testing.assert_close(sigmoid.predict(images).logits, torch.full((2, 3), -10.0))


@pytest.mark.parametrize(
    "encoder", [Pooled(4), ViTSettings(picture_px=(8, 8), patch=4, width=16, heads=2, depth=1).build()]
)
def test_the_distilled_head_needs_two_tokens(encoder):
    with pytest.raises(UserError, match="num_prefix 2"):
        ClassifySettings(head="distilled").build(encoder, CLASSES)


def test_the_loss_is_a_mean_in_float32_even_of_bfloat16():
    task = ClassifySettings(label_smoothing=0.2).build(Pooled(3), CLASSES)
    with torch.no_grad():
        task.head.weight.copy_(torch.eye(3))
    found = task.to(torch.bfloat16)(batch(LOGITS.bfloat16(), label=LABELS), torch.zeros(()))["loss"]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, softmax_loss(LOGITS, {"label": LABELS}, 0.2).mean())


def test_on_a_vit():
    model = ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=1, heads=2)
    task = ClassifySettings().build(model.build(), CLASSES)
    assert isinstance(task.head, LinearHead)
    assert task.predict(torch.randn(2, 3, 8, 8)).logits.shape == (2, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label_smoothing": 1.0}, "below 1"),
        ({"label_smoothing": 0.1, "loss": "sigmoid"}, "softmax"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(UserError, match=message):
        ClassifySettings(**settings).build(Pooled(2), CLASSES)


def test_several_labels_need_the_sigmoid_loss():
    task = ClassifySettings().build(Pooled(3), CLASSES)
    with pytest.raises(UserError, match="sigmoid"):
        task(batch(LOGITS, labels=torch.ones(2, 3)), torch.zeros(()))


def test_class_weights_by_hand():
    weights = torch.tensor([2.0, 0.5, 1.0])
    plain = softmax_loss(LOGITS, {"label": LABELS})
    torch.testing.assert_close(softmax_loss(LOGITS, {"label": LABELS}, class_weights=weights), plain * weights[LABELS])
    mixed = {"label": LABELS, "partner": torch.tensor([2, 0]), "weight": torch.tensor([0.75, 0.1])}
    partner = softmax_loss(LOGITS, {"label": mixed["partner"]}) * weights[mixed["partner"]]
    expected = mixed["weight"] * plain * weights[LABELS] + (1 - mixed["weight"]) * partner
    torch.testing.assert_close(softmax_loss(LOGITS, mixed, class_weights=weights), expected)


def test_class_weights_change_the_loss_but_neither_the_weights_on_disk_nor_the_metric():
    plain, weighted = (
        ClassifySettings(class_weights=given).build(Pooled(3), CLASSES) for given in ((), (3.0, 1.0, 1.0))
    )
    assert plain.state_dict().keys() == weighted.state_dict().keys()
    shown = batch(torch.eye(3)[:2], label=torch.tensor([0, 1]))
    losses = [task(shown, torch.tensor(0.0))["loss"] for task in (plain, weighted)]
    torch.testing.assert_close(losses[1], losses[0] * 2)  # both start at log 3, and the mean weight is 2
    with torch.device("meta"):
        assert weighted.class_weights.device.type == "cpu"
        rebuilt = ClassifySettings(class_weights=(3.0, 1.0, 1.0)).build(Pooled(3), CLASSES)
    assert rebuilt.class_weights.device.type == "cpu", "it is not in the file that would fill it"
    for other in ({"class_weights": (1.0, 2.0)}, {"class_weights": (1.0, 1.0, 1.0), "loss": "sigmoid"}):
        with pytest.raises(UserError, match="one per class and the softmax loss"):
            ClassifySettings(**other).build(Pooled(3), CLASSES)


def test_a_cosine_head_starts_with_gradients_of_ordinary_size():
    torch.manual_seed(0)
    objective = ClassifySettings(head="cosine").build(Pooled(8), CLASSES)
    objective(batch(torch.randn(6, 8), label=torch.tensor([0, 1, 2, 0, 1, 2])), torch.zeros(()))["loss"].backward()
    assert float(objective.head.weight.grad.norm()) < 100


def test_the_cosines_of_a_head_are_in_float32_under_autocast():
    """A scale of 100, as CLIP has, would make 0.2 or more of a rounding in bfloat16."""
    torch.manual_seed(0)
    head = ClassifySettings(head="cosine").build(Pooled(16), CLASSES).head
    head.log_scale.data.fill_(math.log(100))
    features = Pooled(16)(1 + 0.1 * torch.randn(6, 16))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        half = head(features)
    torch.testing.assert_close(half, head(features))
