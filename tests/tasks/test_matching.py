"""Function matching: both sides see one view, labels count where there are some, and any teacher will do."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from promises import keep_promises, shrunk
from test_conformance import MODELS
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.jobs.train import train
from vitreous.models import ViTSettings
from vitreous.models.base import Features
from vitreous.recipes.fashion import fashion_vit
from vitreous.tasks.matching import FunctionMatchingSettings

MODEL = ViTSettings(picture_px=(16, 16), patch=4, width=16, depth=1, heads=2, num_prefix=0, pool="mean")
CLASSES = ("a", "b", "unlabelled")


class Linear(nn.Module):
    """A teacher of five classes of its own, as logits or as an encoder's features."""

    def __init__(self, as_features=False):
        super().__init__()
        self.as_features, self.seen = as_features, []
        self.weight = torch.randn(5, 3 * 16 * 16, generator=torch.Generator().manual_seed(1))

    def forward(self, views):
        self.seen.append(views)
        found = views.flatten(1) @ self.weight.T
        return Features(maps=(), prefix=None, pooled=found) if self.as_features else found


def batch(labels=(0, 1, 2, 2)):
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return Batch(views=(images,), targets={"label": torch.tensor(labels)}, ids=torch.arange(4), keys=torch.arange(4))


def built(teacher=None, **changes):
    torch.manual_seed(0)
    return FunctionMatchingSettings(**changes).build(MODEL.build(), CLASSES, teacher or Linear())


def test_the_divergence_is_from_the_teachers_probabilities():
    teacher = Linear()
    objective, shown = built(teacher, temperature=3.0), batch()
    ours = objective.match_head(objective.encoder(shown.images).pooled) / 3
    theirs = (teacher(shown.images) / 3).softmax(dim=1)
    expected = 9 * (theirs * (theirs.log() - ours.log_softmax(dim=1))).sum(dim=1).mean()
    torch.testing.assert_close(objective(shown, torch.zeros(()))["loss"], expected)


def test_features_are_matched_by_their_direction():
    teacher = Linear(as_features=True)
    objective, shown = built(teacher, match="features"), batch()
    ours = objective.match_head(objective.encoder(shown.images).pooled)
    expected = (1 - F.cosine_similarity(ours, teacher(shown.images).pooled)).mean()
    torch.testing.assert_close(objective(shown, torch.zeros(()))["loss"], expected)


def test_pictures_without_labels_add_nothing_to_the_label_loss():
    objective = built(label_share=0.5)
    some = objective(batch((0, 1, 2, 2)), torch.zeros(()))["label_loss"]
    first = objective(batch((0, 2, 2, 2)), torch.zeros(()))["label_loss"]
    second = objective(batch((2, 1, 2, 2)), torch.zeros(()))["label_loss"]
    torch.testing.assert_close(some, first + second)
    assert objective(batch((2, 2, 2, 2)), torch.zeros(()))["label_loss"] == 0


@pytest.mark.parametrize("name", ["swin", "convnext", "pvt-v1", "pvt-v2"])
def test_a_pyramid_sees_every_size_too(name):
    torch.manual_seed(0)
    encoder = replace(MODELS[name], picture_px=(16, 16)).build()
    objective = FunctionMatchingSettings(student_px=(12, 16)).build(encoder, CLASSES, Linear())
    loss = objective(batch(), torch.zeros(()))["loss"]
    both = [FunctionMatchingSettings(student_px=(px,)) for px in (12, 16)]
    for one in both:
        objective.settings = one
        loss = loss - objective(batch(), torch.zeros(()))["loss"] / 2
    torch.testing.assert_close(loss, torch.zeros(()), atol=1e-5, rtol=0)


def test_the_student_sees_every_size_and_the_teacher_the_view_once():
    teacher = Linear()
    objective = built(teacher, student_px=(8, 16))
    sizes = []
    objective.encoder.stem.register_forward_pre_hook(lambda _, given: sizes.append(tuple(given[0].shape[-2:])))
    teacher.seen.clear()
    objective(batch(), torch.zeros(()))
    assert sizes == [(8, 8), (16, 16)]
    assert [tuple(views.shape) for views in teacher.seen] == [(4, 3, 16, 16)]


def test_wrong_settings_are_refused():
    with pytest.raises(UserError, match="label_share is 2"):
        built(label_share=2)
    with pytest.raises(UserError, match="temperature is 0"):
        built(temperature=0)


def test_keeps_the_promises_of_an_objective(tmp_path):
    start = shrunk(replace(fashion_vit(), name="teacher"), steps=4)
    train(start, tmp_path / "teacher", read_test=False)
    objective = FunctionMatchingSettings(label_share=0.3, student_px=(14, 28))
    recipe = shrunk(replace(fashion_vit(), objective=objective, teacher=str(tmp_path / "teacher")))
    rows = keep_promises(recipe, tmp_path)
    assert {"teacher_loss", "label_loss"} <= rows[-1].keys()
