"""DeiT's losses against timm's and by hand; what a run of it keeps; and that both tokens learn what they should."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from promises import keep_promises, shrunk
from vitreous import settings
from vitreous.batch import Batch
from vitreous.data.augmentation import WarpSettings
from vitreous.errors import UserError
from vitreous.jobs.build import build_objective
from vitreous.jobs.train import train
from vitreous.models import ViTSettings
from vitreous.recipes import find_recipe
from vitreous.recipes.distill import cifar10_deit, deit_imagenet
from vitreous.recipes.fashion import fashion_vit
from vitreous.recipes.recipe import Recipe
from vitreous.tasks import task_settings
from vitreous.tasks.classify import ClassifySettings
from vitreous.tasks.distill import DistillSettings, teacher_loss
from vitreous.training.run import RunDirectory
from vitreous.weights import own
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

CLASSES = ("a", "b", "c")
MODEL = ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=1, heads=2, num_prefix=2)
ONE_HEAD = ClassifySettings(label_smoothing=0.1)
NOW = torch.zeros(())


class Fixed(nn.Module):
    """A teacher that notes what it is shown."""

    def __init__(self, logits):
        super().__init__()
        self.logits, self.seen = logits, []

    def forward(self, views):
        self.seen.append(views)
        return self.logits


TEACHER = torch.tensor([[1.0, 3.0, 0.0], [0.5, 0.0, 2.0], [2.0, 1.0, 1.5], [0.0, 0.1, -1.0]])


def distill(teacher=None, **changes):
    torch.manual_seed(0)
    made = DistillSettings(**changes).build(MODEL.build(), CLASSES, teacher)
    with torch.no_grad():
        for parameter in made.student.head.parameters():
            parameter.normal_()
    return made


def batch(**targets):
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    targets = {"label": torch.tensor([0, 1, 2, 0])} | targets
    return Batch(views=(images,), targets=targets, ids=torch.arange(4), keys=torch.arange(4))


# ---- the losses


def peer_and_ours(tmp_path, distillation):
    """timm's own distillation of a DeiT by a ViT, and ours with the same weights."""
    pytest.importorskip("timm.task")
    from safetensors.torch import save_file
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer
    from timm.task import TokenDistillationTask

    torch.manual_seed(0)
    shape = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 5}
    student, teacher = VisionTransformerDistilled(**shape), VisionTransformer(**shape)
    student.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    teacher.pretrained_cfg = {"mean": (0.1, 0.2, 0.3), "std": (0.3, 0.2, 0.4)}
    for one in (student, teacher):
        for name in ("head", "head_dist"):
            if hasattr(one, name):
                nn.init.normal_(getattr(one, name).weight)
    share = 0.5 if distillation == "hard" else 0.1
    theirs = TokenDistillationTask(
        student,
        teacher,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        distill_type=distillation,
        task_loss_weight=1 - share,
        temperature=3.0,
        verbose=False,
    )

    for name, one in (("student", student), ("teacher", teacher)):
        (tmp_path / name).mkdir()
        save_file(one.state_dict(), tmp_path / name / "model.safetensors")
        known = one.pretrained_cfg
        arguments = {"num_heads": 2, "img_size": 16}
        config = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": known, "model_args": arguments}
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    ours = Trained.load(tmp_path / "student")
    recipe = replace(
        cifar10_deit(str(tmp_path / "teacher")),
        start=str(tmp_path / "student"),
        model=ours.card.model,
        objective=DistillSettings(distillation=distillation),
        normalise=ours.card.preprocessing,
    )
    objective = build_objective(recipe, tuple("01234"))
    objective.student.load_state_dict(ours.task().state_dict())
    return theirs.train(), objective.train()


@pytest.mark.parametrize("distillation", ["hard", "soft"])
def test_as_timm(tmp_path, distillation):
    theirs, ours = peer_and_ours(tmp_path, distillation)
    images, labels = torch.randn(6, 3, 16, 16), torch.tensor([0, 1, 2, 3, 4, 0])
    expected = theirs(images, labels)
    found = ours(Batch(views=(images,), targets={"label": labels}, ids=labels, keys=labels), NOW)
    # A teacher's logits are rounded to half precision, of which its decisions know nothing here.
    near = 1e-5 if distillation == "hard" else 1e-3
    for ours_name, name in (("loss", "loss"), ("label_loss", "task_loss"), ("teacher_loss", "distill_loss")):
        torch.testing.assert_close(found[ours_name], expected[name].detach(), atol=near, rtol=near, check_dtype=False)
    expected["loss"].backward()
    found["loss"].backward()
    weight = theirs.trainable_module.head_dist.weight.grad
    torch.testing.assert_close(ours.student.head.distillation.weight.grad, weight, atol=near, rtol=near)


def test_the_soft_loss_by_hand():
    logits = torch.tensor([[0.2, -0.4, 1.0]])
    answers = torch.tensor([[1.0, 3.0, 0.0]])

    def softmax(row):
        powers = [math.exp(value / 2.0) for value in row]
        return [power / sum(powers) for power in powers]

    ours, theirs = softmax(logits[0].tolist()), softmax(answers[0].tolist())
    divergence = sum(q * math.log(q / p) for p, q in zip(ours, theirs, strict=True))
    assert teacher_loss(logits, answers, 2.0).item() == pytest.approx(4 * divergence, rel=1e-5)


def test_shares_of_the_paper_and_others():
    for distillation, share in (("hard", 0.5), ("soft", 0.1)):
        found = distill(Fixed(TEACHER), distillation=distillation)(batch(), NOW)
        expected = (1 - share) * found["label_loss"] + share * found["teacher_loss"]
        torch.testing.assert_close(found["loss"], expected)
    found = distill(Fixed(TEACHER), weight=0.25)(batch(), NOW)
    torch.testing.assert_close(found["loss"], 0.75 * found["label_loss"] + 0.25 * found["teacher_loss"])


def test_each_token_learns_from_one_alone():
    taught = {}
    for weight in (0.0, 1.0):
        made = distill(Fixed(TEACHER), weight=weight)
        made(batch(), NOW)["loss"].backward()
        head = made.student.head
        taught[weight] = [float(one.weight.grad.abs().sum()) > 0 for one in (head.classes, head.distillation)]
    assert taught == {0.0: [True, False], 1.0: [False, True]}


@pytest.mark.parametrize("distillation", ["hard", "soft"])
def test_one_head_learns_from_both(distillation):
    made = distill(Fixed(TEACHER), student=ONE_HEAD, distillation=distillation)
    found = made(batch(), NOW)
    logits = made.student.predict(batch().images).logits
    torch.testing.assert_close(
        found["label_loss"], F.cross_entropy(logits, batch().targets["label"], label_smoothing=0.1)
    )
    by_teacher = {
        "hard": F.cross_entropy(logits, TEACHER.argmax(dim=1)),
        "soft": 9 * F.kl_div((logits / 3).log_softmax(1), (TEACHER / 3).softmax(1), reduction="batchmean"),
    }
    near = 1e-5 if distillation == "hard" else 1e-3
    torch.testing.assert_close(found["teacher_loss"], by_teacher[distillation], atol=near, rtol=near)
    assert found["agreement"] == (logits.argmax(1) == TEACHER.argmax(1)).float().mean()


def test_mixed_pictures_the_label_is_mixed_and_the_teacher_decides_about_the_mixture():
    teacher = Fixed(TEACHER)
    made = distill(teacher)
    mixed = batch(partner=torch.tensor([1, 1, 0, 2]), weight=torch.tensor([0.7, 0.2, 1.0, 0.0]))
    found = made(mixed, NOW)
    assert teacher.seen[0] is mixed.images
    for_label, for_teacher = made.student.head.both(made.encoder(mixed.images))
    first, second = (
        F.cross_entropy(for_label, mixed.targets[name], reduction="none", label_smoothing=0.1)
        for name in ("label", "partner")
    )
    share = mixed.targets["weight"]
    torch.testing.assert_close(found["label_loss"], (share * first + (1 - share) * second).mean())
    torch.testing.assert_close(found["teacher_loss"], F.cross_entropy(for_teacher, TEACHER.argmax(dim=1)))


@pytest.mark.parametrize("distillation", ["hard", "soft"])
def test_stored_predictions_stand_in_for_the_teacher(distillation):
    asked = distill(Fixed(TEACHER), distillation=distillation)(batch(), NOW)
    stored = DistillSettings(distillation=distillation).kept(TEACHER)
    assert stored.dtype == (torch.int64 if distillation == "hard" else torch.float16)
    read = distill(distillation=distillation)(batch(teacher=stored), NOW)
    assert asked == read  # to the last bit


def test_losses_are_float32_under_bfloat16():
    made = distill(Fixed(TEACHER.bfloat16()), distillation="soft")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = made(batch(), NOW)
        prediction = made.task.predict(batch().images).logits
    assert {number.dtype for number in found.values()} == {torch.float32}
    assert prediction.dtype == torch.float32
    found["loss"].backward()


# ---- the prediction


def test_the_prediction_is_the_sum_of_both_softmaxes():
    """The paper's; averaged logits, as loaded models have them, give another one here."""
    made = distill(Fixed(TEACHER))
    features = made.encoder(batch().images)
    first, second = made.student.head.both(features)
    expected = (first.softmax(dim=1) + second.softmax(dim=1)) / 2
    torch.testing.assert_close(made.task.predict(batch().images).logits.exp(), expected)
    unlikely = torch.tensor([[0.0, 200.0, -200.0]])
    head = made.student.head
    head.both = lambda features: (unlikely, unlikely)
    assert torch.isfinite(head(features)).all()
    plain = ClassifySettings(head="distilled").build(MODEL.build(), CLASSES)
    plain.load_state_dict(distill(Fixed(TEACHER)).student.state_dict())
    torch.testing.assert_close(plain.predict(batch().images).logits, (first + second) / 2)


def test_cards_from_before_are_read():
    card = Card(
        model=MODEL, task=ClassifySettings(head="distilled"), classes=CLASSES, preprocessing=cifar10_deit().normalise
    )
    document = settings.to_json(card)
    del document["task"]["fusion"]
    assert settings.from_json(Card, document) == card


# ---- settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": 1.5}, "between 0 and 1"),
        ({"temperature": 0.0}, "above 0"),
        ({"student": ClassifySettings(loss="sigmoid")}, "student.loss softmax"),
    ],
)
def test_what_cannot_be(changes, message):
    with pytest.raises(UserError, match=message):
        DistillSettings(**changes).build(MODEL.build(), CLASSES, Fixed(TEACHER))


def test_more_that_cannot_be():
    with pytest.raises(UserError, match="num_prefix 2"):
        DistillSettings().build(replace(MODEL, num_prefix=1).build(), CLASSES, Fixed(TEACHER))
    with pytest.raises(UserError, match="softmax loss: set fusion"):
        ClassifySettings(head="distilled", loss="sigmoid", fusion="softmax").build(MODEL.build(), CLASSES)
    with pytest.raises(UserError, match="one label each"):
        several = replace(batch(), targets={"labels": torch.zeros(4, 3)})
        distill(Fixed(TEACHER))(several, NOW)
    with pytest.raises(UserError, match="name its run or weights with --teacher"):
        build_objective(replace(cifar10_deit(), teacher=None), CLASSES)


def test_the_command_line_reaches_every_setting():
    recipe = find_recipe("cifar10_vit", {"objective.kind": "Distill", "objective.student.head": "linear"})
    assert recipe.objective.student == replace(DistillSettings().student, head="linear")
    assert task_settings(recipe.objective) == recipe.objective.student
    document = json.loads(json.dumps(settings.to_json(recipe)))
    assert settings.from_json(Recipe, document) == recipe


# ---- a whole run


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A run of another family, size and normalisation than its students."""
    recipe = replace(
        fashion_vit(),
        model=ViTSettings(picture_px=(14, 14), patch=7, width=16, depth=1, heads=2),
        data=replace(fashion_vit().data, train_limit=400),
    )
    recipe = replace(recipe, training=replace(recipe.training, steps=20, batch_size=50, workers=0))
    folder = tmp_path_factory.mktemp("runs") / "teacher"
    train(recipe, folder, read_test=False)
    return str(folder)


def test_it_keeps_its_promises(tmp_path, teacher):
    recipe = shrunk(cifar10_deit(teacher))
    recipe = replace(recipe, augmentation=replace(recipe.augmentation, warp=WarpSettings()))
    rows = keep_promises(recipe, tmp_path)
    assert {"label_loss", "teacher_loss", "agreement"} <= rows[-1].keys()

    # The student alone remains, with its two heads; of the teacher not even a checkpoint holds the weights.
    trained = Trained.load(tmp_path / "one")
    assert trained.card.task == recipe.objective.student
    assert {name.partition(".")[0] for name in trained.weights} == {"encoder", "head"}
    checkpoint = RunDirectory(tmp_path / "one").latest_checkpoint()
    held = [name for name in checkpoint.tensors["objective"] if name.startswith("teacher")]
    assert held == ["teacher.fingerprint"]
    results = json.loads((tmp_path / "one" / "results.json").read_text())
    assert results["parameters"] == sum(parameter.numel() for parameter in trained.task().parameters())

    # It goes on with this teacher only.
    other, state = tmp_path / "other", tmp_path / "state"
    weights, card = own.load_model(Path(teacher) / "model")
    own.save_model(other, {name: value + 0.01 for name, value in weights.items()}, card)
    train(recipe, state, read_test=False, until=3)
    renamed = replace(recipe, teacher=str(other))
    settings.save(renamed, state / "recipe.json")  # as if the weights had been exchanged where they lie
    with pytest.raises(UserError, match="not the teacher that this run began with"):
        train(renamed, state, read_test=False)


def test_the_papers_numbers():
    recipe = deit_imagenet("TEACHER")
    assert recipe.optimizer.lr == pytest.approx(1e-3)  # 5e-4 a batch of 512
    assert (recipe.model.num_prefix, recipe.model.stochastic_depth) == (2, 0.1)
    with pytest.raises(UserError, match="no distillation token"):
        deit_imagenet("TEACHER", model="bit_r50x1")
