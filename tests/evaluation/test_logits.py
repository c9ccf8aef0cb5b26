import pytest
import torch
from torch import nn

from vitreous.batch import Batch
from vitreous.data.base import Subset
from vitreous.data.loader import EvalLoader
from vitreous.errors import UserError
from vitreous.evaluation.features import has_tanh_layer, pooled_features, tanh_features
from vitreous.evaluation.logits import LabelledLogits, collect_logits, confident_mistakes
from vitreous.evaluation.metrics import scores
from vitreous.evaluation.score import score
from vitreous.models.base import Encoder, Features
from vitreous.recipes import find_recipe
from vitreous.tasks.classify import ClassifySettings

CLASSES = ("a", "b", "c")


class Passing(Encoder):
    """Pictures are their own features; in training mode they are zeroed, so that it is noticed."""

    width = 3

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images):
        assert not torch.is_grad_enabled()
        return Features(maps=(), prefix=None, pooled=images * self.scale * (0 if self.training else 1))


def batches(images, **targets):
    for part in (slice(0, 3), slice(3, None)):
        ids = torch.arange(10, 10 + len(images))[part]
        yield Batch(views=(images[part],), targets={n: t[part] for n, t in targets.items()}, ids=ids, keys=ids)


IMAGES = torch.tensor([[3.0, 0, 0], [0, 2, 0], [0, 0, 1], [2, 1, 0]])
LABELS = torch.tensor([0, 1, 2, 1])


def task(head="linear"):
    made = ClassifySettings(head=head).build(Passing(), CLASSES).train()
    with torch.no_grad():
        if head == "linear":
            made.head.weight.copy_(torch.eye(3))
    return made


def test_logits_are_collected_in_order_and_in_evaluation_mode():
    model = task()
    found = collect_logits(model, batches(IMAGES, label=LABELS), CLASSES)
    assert torch.equal(found.logits, IMAGES) and found.logits.dtype == torch.float32
    assert torch.equal(found.labels, LABELS)
    assert found.ids.tolist() == [10, 11, 12, 13]
    assert len(found) == 4
    assert model.training, "left as it was"
    assert found.right().tolist() == [True, True, True, False]
    expected = score(model.eval(), batches(IMAGES, label=LABELS))
    assert expected["accuracy"] == found.right().double().mean()


def test_several_labels_a_picture():
    labels = torch.tensor([[1.0, 1, 0], [0, 1, 0], [1, 0, 0], [0, 1, 1]])
    found = collect_logits(task(), batches(IMAGES, labels=labels), CLASSES)
    assert found.has_many_labels and found.right().tolist() == [True, True, False, False]
    with pytest.raises(UserError, match="several labels"):
        found.one_label()


def test_probabilities_follow_the_temperature():
    found = LabelledLogits(IMAGES, LABELS, LABELS, CLASSES)
    torch.testing.assert_close(found.probabilities(2.0), (IMAGES.double() / 2).softmax(dim=1))
    assert found.only(torch.tensor([2])).labels.tolist() == [2]


def test_what_does_not_fit_is_said():
    with pytest.raises(UserError, match="no pictures"):
        collect_logits(task(), [], CLASSES)
    with pytest.raises(UserError, match="3 logits per picture, but there are 2 class names"):
        collect_logits(task(), batches(IMAGES, label=LABELS), ("a", "b"))
    with pytest.raises(UserError, match="from 0 to 5"):
        LabelledLogits(IMAGES, torch.tensor([0, 1, 2, 5]), LABELS, CLASSES).one_label()


def test_the_surest_mistakes_come_first():
    logits = torch.tensor([[5.0, 0, 0], [0, 9, 0], [0, 2, 0], [0, 0, 3]])
    found = LabelledLogits(logits, torch.tensor([1, 1, 0, 0]), torch.tensor([7, 8, 9, 6]), CLASSES)
    mistakes = confident_mistakes(found)
    assert [(one.id, one.label, one.predicted) for one in mistakes] == [(7, "b", "a"), (6, "a", "c"), (9, "a", "b")]
    assert mistakes[0].confidence == pytest.approx(float(logits[0].double().softmax(0)[0]))
    assert len(confident_mistakes(found, num=1)) == 1


def test_pooled_features():
    encoder = Passing().train()
    found = pooled_features(encoder, batches(IMAGES, label=LABELS))
    assert torch.equal(found.values, IMAGES) and torch.equal(found.labels, LABELS)
    assert found.ids.tolist() == [10, 11, 12, 13]
    assert encoder.training
    assert found.only(found.labels == 1).ids.tolist() == [11, 13]
    with pytest.raises(UserError, match="no pictures"):
        pooled_features(encoder, [])


def test_tanh_features_are_what_the_head_reads():
    model = task("tanh")
    with torch.no_grad():
        model.head.output.weight.copy_(torch.eye(3))
    found = tanh_features(model, batches(IMAGES, label=LABELS))
    assert has_tanh_layer(model) and not has_tanh_layer(task())
    torch.testing.assert_close(found.values, collect_logits(model, batches(IMAGES, label=LABELS), CLASSES).logits)
    with pytest.raises(UserError, match="no hidden layer"):
        tanh_features(task(), batches(IMAGES, label=LABELS))


def test_a_real_model_and_loader():
    """The same numbers as `score`, which adds up batch by batch."""
    recipe = find_recipe("fashion_vit", {})
    source = Subset(recipe.data.build().test, range(70))
    torch.manual_seed(0)
    model = recipe.objective.build(recipe.model.build(), source.classes)
    nn.init.normal_(model.head.output.weight)
    loader = EvalLoader(source, recipe.preprocessing, batch_size=32)
    assert len(loader) == len(list(loader)) == 3
    found, expected = scores(collect_logits(model, loader, source.classes)), score(model.eval(), loader)
    assert found.top1.value == pytest.approx(expected["accuracy"])
    assert found.top5.value == pytest.approx(expected["top5"])
    assert found.log_loss.value == pytest.approx(expected["log_loss"], rel=1e-5)
    features = pooled_features(model.encoder, loader)
    assert features.values.shape == (70, model.encoder.width)
    assert torch.equal(features.labels, torch.from_numpy(source.labels))
    assert tanh_features(model, loader).values.abs().max() <= 1
