"""Teachers see a student's views as they are used to see pictures, and are no part of what learns from them."""

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.models.base import Features
from vitreous.tasks.classify import ClassifySettings
from vitreous.teaching.teachers import Teacher
from vitreous.training.averages import AverageSettings
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

CLASSES = ("ant", "bee", "cat")
MODEL = ViTSettings(picture_px=(16, 16), patch=8, width=16, depth=1, heads=2, dropout=0.5)
OWN = Preprocessing(size_px=(16, 16), mean=(0.1, 0.2, 0.3), std=(0.4, 0.3, 0.2))
STUDENTS = Preprocessing(size_px=(16, 16), mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))


def task(seed=0):
    torch.manual_seed(seed)
    made = ClassifySettings().build(MODEL.build(), CLASSES)
    nn.init.normal_(made.head.weight)
    return made


def pictures(size=16):
    levels = torch.randint(0, 256, (4, 3, size, size), generator=torch.Generator().manual_seed(0))
    return levels.to(torch.uint8)


def saved(folder, own=OWN, head=True):
    weights = {name: value for name, value in task().state_dict().items() if head or name.startswith("encoder.")}
    about = {"task": ClassifySettings(), "classes": CLASSES} if head else {}
    Trained(Card(model=MODEL, preprocessing=own, **about), weights, "").save(folder)
    return str(folder)


def test_it_sees_its_own_normalisation(tmp_path):
    teacher = Teacher.load(saved(tmp_path / "teacher"), STUDENTS)
    views, own = STUDENTS.normalised(pictures()), OWN.normalised(pictures())
    torch.testing.assert_close(teacher.adapted(views), own)
    torch.testing.assert_close(teacher(views), task().eval().predict(own).logits)
    alike = Teacher(task(), STUDENTS, STUDENTS)
    assert torch.equal(alike.adapted(views), views)  # to the last bit


@pytest.mark.parametrize("size", [8, 24])
def test_it_sees_its_own_size(size):
    teacher = Teacher(task(), OWN, replace(STUDENTS, size_px=(size, size)))
    views, own = STUDENTS.normalised(pictures(size)), OWN.normalised(pictures(size))
    expected = F.interpolate(own, size=(16, 16), mode="bilinear", antialias=True)
    torch.testing.assert_close(teacher.adapted(views), expected)
    assert teacher(views).shape == (4, 3)


def test_an_encoder_answers_features_at_the_size_that_its_preprocessing_makes(tmp_path):
    """As DINOv2, whose positions are for larger pictures than it is shown."""
    where = saved(tmp_path / "teacher", own=replace(OWN, size_px=(32, 32)), head=False)
    teacher = Teacher.load(where, STUDENTS)
    features = teacher(STUDENTS.normalised(pictures()))
    assert isinstance(features, Features)
    assert features.maps[-1].shape[-2:] == (4, 4)
    with pytest.raises(UserError, match="without a head predicts no classes"):
        teacher.in_order_of(CLASSES)


def test_a_peer_teaches_too(tmp_path):
    """A file of timm's, told by its contents, with its own size and normalisation: its logits, on the same views."""
    pytest.importorskip("timm")
    from safetensors.torch import save_file
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    peer = VisionTransformer(img_size=32, patch_size=16, embed_dim=32, depth=1, num_heads=2, num_classes=3).eval()
    nn.init.normal_(peer.head.weight)
    save_file(peer.state_dict(), tmp_path / "model.safetensors")
    known = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "label_names": ["cat", "ant", "bee"]}
    arguments = {"num_heads": 2, "img_size": 32}
    config = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 3,
        "pretrained_cfg": known,
        "model_args": arguments,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    teacher = Teacher.load(str(tmp_path), STUDENTS).in_order_of(CLASSES)
    levels = pictures().float() / 255
    mean, std = (torch.tensor(known[name])[:, None, None] for name in ("mean", "std"))
    with torch.no_grad():
        shown = F.interpolate((levels - mean) / std, size=(32, 32), mode="bilinear", antialias=True)
        expected = peer(shown)[:, [1, 2, 0]]
    torch.testing.assert_close(teacher(STUDENTS.normalised(pictures())), expected, atol=1e-4, rtol=1e-4)


def test_classes_in_another_order_are_mapped():
    views = STUDENTS.normalised(pictures())
    plain, mapped = (Teacher(task(), OWN, STUDENTS, CLASSES) for _ in range(2))
    assert torch.equal(plain.in_order_of(CLASSES)(views), mapped(views))
    assert torch.equal(mapped.in_order_of(("cat", "ant", "bee"))(views), plain(views)[:, [2, 0, 1]])
    numbered = Teacher(task(), OWN, STUDENTS, ("0", "1", "2"))
    assert torch.equal(numbered.in_order_of(CLASSES)(views), plain(views))  # a file without names
    assert torch.equal(numbered.in_order_of(("2", "1", "0"))(views), plain(views)[:, [2, 1, 0]])


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (("ant", "bee", "dog"), "it does not know 'dog' and the data has no 'cat'"),
        (("ant", "bee"), r"the data has no 'cat' \(3 classes there, 2 here\)"),
        (("ant", "ant", "bee", "cat"), "a name occurs twice"),
    ],
)
def test_other_classes_cannot_be_taught(classes, message):
    with pytest.raises(UserError, match=message):
        Teacher(task(), OWN, STUDENTS, CLASSES, "runs/teacher").in_order_of(classes)


class Learner(nn.Module):
    def __init__(self, teacher):
        super().__init__()
        self.weight, self.teacher = nn.Parameter(torch.ones(2)), teacher


def test_it_is_no_part_of_what_learns():
    learner = Learner(Teacher(task(), OWN, STUDENTS))
    assert [name for name, _ in learner.named_parameters()] == ["weight"]
    assert set(learner.state_dict()) == {"weight", "teacher.fingerprint"}
    kept = AverageSettings(kind="ema").build(learner).state()
    assert not [name for name in kept if "model" in name or "encoder" in name]
    views = STUDENTS.normalised(pictures()).requires_grad_()
    learner.train()
    assert torch.equal(learner.teacher(views), learner.teacher(views))  # no dropout
    assert not learner.teacher(views).requires_grad
    moved = learner.to(torch.float64)
    assert moved.teacher(views.double()).dtype == torch.float64


def test_a_run_goes_on_with_the_teacher_that_it_began_with():
    state = Learner(Teacher(task(), OWN, STUDENTS)).state_dict()
    Learner(Teacher(task(), OWN, STUDENTS)).load_state_dict(state)
    for other in (Teacher(task(seed=1), OWN, STUDENTS), Teacher(task(), STUDENTS, STUDENTS)):
        with pytest.raises(UserError, match="not the teacher that this run began with"):
            Learner(other).load_state_dict(state)
