"""Stored predictions teach what the teacher would: bit for bit, and nothing else is mistaken for them."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from test_conformance import MODELS
from vitreous import settings
from vitreous.cli import main
from vitreous.data.augmentation import Augmentation, CropSettings, EraseSettings, MixSettings
from vitreous.data.order import OrderSettings
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.jobs.build import build_loader, build_objective
from vitreous.jobs.teach import teach
from vitreous.jobs.train import train
from vitreous.models import ViTSettings
from vitreous.recipes.distill import cifar10_deit
from vitreous.tasks.classify import ClassifySettings
from vitreous.tasks.distill import DistillSettings
from vitreous.teaching.lessons import load_teacher, views_of
from vitreous.teaching.stored import StoredPredictions, TaughtLoader, claimed, identity, store
from vitreous.training.averages import AverageSettings
from vitreous.training.devices import World
from vitreous.training.optim import AdamWSettings, SGDSettings
from vitreous.training.run import RunDirectory
from vitreous.weights import own
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

DATA = DataSettings(where="fashion", train_limit=120, val_fraction=0.01)
MIXED = Augmentation(
    crop=CropSettings(method="pad", pad_px=2),
    erase=EraseSettings(probability=0.25),
    mix=MixSettings(mixup=0.8, cutmix=1.0),
)
CPU = torch.device("cpu")
PART = 40  # samples: two steps, so that an epoch of six has three parts


@pytest.fixture(scope="module")
def splits():
    return DATA.build()


@pytest.fixture(autouse=True)
def opened_once(splits, monkeypatch):
    """The data, which every run here shares."""
    monkeypatch.setattr(DataSettings, "build", lambda self: splits)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, splits):
    """Random weights will do: it predicts whatever it does. Its size and normalisation are not its students'."""
    torch.manual_seed(0)
    model = ViTSettings(picture_px=(14, 14), patch=7, width=16, depth=1, heads=2)
    return saved_teacher(tmp_path_factory.mktemp("teacher"), model, splits)


def saved_teacher(folder, model, splits):
    task = ClassifySettings().build(model.build(), splits.train.classes)
    nn.init.normal_(task.head.weight)
    seen = replace(cifar10_deit().normalise, size_px=model.picture_px, mean=(0.3, 0.3, 0.3))
    card = Card(model=model, task=ClassifySettings(), classes=splits.train.classes, preprocessing=seen)
    Trained(card, task.state_dict(), "").save(folder / "model")
    return str(folder)


def student(teacher, augmentation=MIXED, **objective):
    recipe = cifar10_deit(teacher)
    return replace(
        recipe,
        data=DATA,
        model=replace(recipe.model, picture_px=(28, 28), patch=14, width=16, depth=1, heads=2, stochastic_depth=0.0),
        objective=DistillSettings(**objective),
        augmentation=augmentation,
        optimizer=SGDSettings(lr=0.05),
        average=AverageSettings(),
        training=replace(
            recipe.training,
            steps=14,
            batch_size=20,
            precision="fp32",
            compile=False,
            cuda_graph=False,
            log_every_steps=3,
            workers=0,
        ),
    )


def learning_from(recipe, folder):
    return replace(recipe, objective=replace(recipe.objective, stored=str(folder)))


@pytest.fixture(scope="module")
def stored(teacher, splits, tmp_path_factory):
    """Decisions about mixed views of three epochs."""
    folder = tmp_path_factory.mktemp("answers") / "hard"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DataSettings, "build", lambda self: splits)
        found = teach(student(teacher), folder, samples=PART)
    assert found == {"epochs": 3, "views": 360, "asked": 360}
    return folder


def outcome(run):
    return RunDirectory(run).rows(), own.load_model(run / "model")[0]


# ---- the same lesson


@pytest.mark.parametrize(
    ("learner", "lecturer"), [("swin", "convnext"), ("convnext", "pvt-v2"), ("pvt-v1", "swin"), ("pvt-v2", "vit")]
)
def test_any_family_teaches_any_other(tmp_path, splits, learner, lecturer):
    """Asked at every step, and once for all: the same student, which has come nearer to its teacher."""
    torch.manual_seed(0)
    folder = saved_teacher(tmp_path, replace(MODELS[lecturer], picture_px=(16, 24)), splits)
    recipe = student(folder, distillation="soft", weight=1.0, student=ClassifySettings())
    recipe = replace(recipe, model=replace(MODELS[learner], picture_px=(28, 28)), optimizer=AdamWSettings(lr=0.03))
    teach(recipe, tmp_path / "answers", samples=PART)
    train(recipe, tmp_path / "asked", read_test=False)
    train(learning_from(recipe, tmp_path / "answers"), tmp_path / "read", read_test=False)
    (rows, weights), (found_rows, found) = (outcome(tmp_path / name) for name in ("asked", "read"))
    assert found_rows == rows and all(torch.equal(found[name], weights[name]) for name in weights)
    losses = [row["teacher_loss"] for row in rows if "teacher_loss" in row]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("distillation", "augmentation"),
    [("hard", MIXED), ("soft", MIXED), ("hard", Augmentation(crop=CropSettings(method="pad")))],
    ids=["hard-mixed", "soft-mixed", "hard-plain"],
)
def test_training_from_predictions_equals_training_with_the_teacher(tmp_path, teacher, distillation, augmentation):
    recipe = student(teacher, augmentation, distillation=distillation)
    teach(recipe, tmp_path / "answers", samples=PART)
    train(recipe, tmp_path / "asked", read_test=False)
    # Stopped on the way, too; and no teacher is there any more.
    read = replace(learning_from(recipe, tmp_path / "answers"), teacher=None)
    train(read, tmp_path / "read", read_test=False, until=9)
    train(read, tmp_path / "read", read_test=False)
    (rows, weights), (found_rows, found) = (outcome(tmp_path / name) for name in ("asked", "read"))
    assert found_rows == rows
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    assert 0 < rows[-2]["agreement"] < 1


def test_two_ranks_read_the_predictions_of_their_own_samples(teacher, splits, stored):
    """Theirs, side by side, are those of one alone; and they are what the teacher says of these very views."""
    recipe, found = student(teacher), {}
    views = views_of(recipe, splits.train)
    for size in (1, 2):
        batches = []
        for rank in range(size):
            loader = build_loader(recipe, splits.train, World(rank=rank, size=size, device=CPU))
            taught = TaughtLoader(loader, StoredPredictions(stored, views, loader), rank, size)
            batches.append(list(taught.batches(3, 8)))  # into the second epoch
        found[size] = [side_by_side(step) for step in zip(*batches, strict=True)]
    live = load_teacher(recipe, splits.train.classes)
    for alone, together in zip(found[1], found[2], strict=True):
        assert all(torch.equal(first, second) for first, second in zip(alone, together, strict=True))
        _, images, predictions = alone
        assert torch.equal(predictions, live(images).argmax(dim=1))


def side_by_side(batches):
    parts = zip(*((one.ids, one.images, one.targets["teacher"]) for one in batches), strict=True)
    return [torch.cat(part) for part in parts]


def test_ranks_that_teach_share_the_work(tmp_path, teacher, splits, stored):
    recipe = student(teacher)
    loader = build_loader(recipe, splits.train, World(rank=0, size=1, device=CPU))
    shutil.copy(stored / "answers.json", tmp_path)
    live = load_teacher(recipe, splits.train.classes)
    asked = [
        store(tmp_path, loader, lambda batch: live(batch.images).argmax(dim=1), 3, rank=rank, world=2)
        for rank in (1, 0)
    ]
    assert asked == [160, 200]
    check_alike(tmp_path, stored)


def check_alike(folder, expected):
    files = sorted(file.relative_to(expected) for file in expected.glob("epoch-*/steps-*/answers.safetensors"))
    assert len(files) == 9
    assert all((folder / file).read_bytes() == (expected / file).read_bytes() for file in files)


# ---- killed on the way

TEACH = """
import sys, time
from pathlib import Path
from vitreous import settings
from vitreous.jobs.teach import teach
from vitreous.recipes.recipe import Recipe
from vitreous.teaching.stored import StoredPredictions

def slowly(self, part, predictions, write=StoredPredictions.write):
    write(self, part, predictions)
    print(part.start, flush=True)
    if part.start == 8:  # within the second epoch
        time.sleep(100)

StoredPredictions.write = slowly
teach(settings.load(Recipe, Path(sys.argv[1])), sys.argv[2], samples=40)
"""


def test_a_killed_teacher_goes_on(tmp_path, teacher, stored):
    settings.save(student(teacher), tmp_path / "recipe.json")
    folder, alone = tmp_path / "answers", os.environ | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", TEACH, str(tmp_path / "recipe.json"), str(folder)]
    process = subprocess.Popen(words, env=alone, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while (line := process.stdout.readline()) != "8\n":
        assert line, process.stderr.read()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    there = {file: file.stat().st_mtime_ns for file in folder.glob("*/steps-*/answers.safetensors")}
    assert len(there) == 5
    (folder / "epoch-0001" / ".steps-00000002.vitreous-tmp-1").mkdir(
        exist_ok=True
    )  # as a kill within a write leaves it
    found = teach(student(teacher), folder, samples=PART)
    assert found == {"epochs": 3, "views": 360, "asked": 160}
    assert all(file.stat().st_mtime_ns == at for file, at in there.items())
    assert not list(folder.glob("*/.*"))
    check_alike(folder, stored)


# ---- refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: replace(r, training=replace(r.training, seed=1)), "seed 0 there, 1 here"),
        (lambda r: replace(r, training=replace(r.training, batch_size=10)), "batch_size 20 there, 10 here"),
        (lambda r: replace(r, augmentation=replace(MIXED, flip=0.25)), "augmentation.flip 0.5 there, 0.25 here"),
        (lambda r: replace(r, normalise=replace(r.normalise, std=(0.1, 0.2, 0.3))), "preprocessing.std"),
        (lambda r: replace(r, data=replace(DATA, order=OrderSettings(balance=True))), "balance false there, true here"),
        (
            lambda r: replace(r, objective=replace(r.objective, distillation="soft")),
            'distillation "hard" there, "soft"',
        ),
        (
            lambda r: replace(r, training=replace(r.training, steps=19)),
            "no predictions for epoch 4 of the 4 of this run",
        ),
    ],
)
def test_predictions_for_other_views_are_refused(tmp_path, teacher, stored, change, message):
    recipe = change(learning_from(student(teacher), stored))
    with pytest.raises(UserError, match=message) as error:
        train(recipe, tmp_path, read_test=False)
    assert "\n" not in str(error.value)


def test_predictions_about_other_pictures_are_refused(tmp_path, teacher, splits, stored, monkeypatch):
    changed = replace(DATA, train_limit=121)
    monkeypatch.undo()
    other = changed.build()
    recipe = replace(learning_from(student(teacher), stored), data=changed)
    with pytest.raises(UserError, match=r"pictures .* there, .* here"):
        train(recipe, tmp_path, read_test=False, open_data=lambda data: other)
    assert identity(other.train) != identity(splits.train)
    on_disk = replace(DATA, keep_gb=0.0).build()
    assert on_disk.train.pictures is None
    assert identity(on_disk.train) == identity(splits.train)


def test_no_folder_another_teacher_a_moved_part_a_flipped_bit(tmp_path, teacher, splits, stored):
    recipe = student(teacher)
    with pytest.raises(UserError, match="no predictions are stored there"):
        train(learning_from(recipe, tmp_path / "nothing"), tmp_path / "run", read_test=False)
    with pytest.raises(UserError, match="does not learn from a teacher's stored predictions"):
        teach(replace(recipe, objective=ClassifySettings()), tmp_path / "answers")

    mine = tmp_path / "mine"
    shutil.copytree(stored, mine)
    weights, card = own.load_model(Path(teacher) / "model")
    own.save_model(tmp_path / "other", {name: value + 0.01 for name, value in weights.items()}, card)
    with pytest.raises(UserError, match="holds predictions of another teacher"):
        teach(replace(recipe, teacher=str(tmp_path / "other")), mine, samples=PART)

    shutil.rmtree(mine / "epoch-0000" / "steps-00000002")
    shutil.copytree(mine / "epoch-0001" / "steps-00000002", mine / "epoch-0000" / "steps-00000002")
    with pytest.raises(UserError, match="predictions for other views or samples"):
        train(learning_from(recipe, mine), tmp_path / "moved", read_test=False)

    file = mine / "epoch-0000" / "steps-00000000" / "answers.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    with pytest.raises(UserError, match="damaged"):
        train(learning_from(recipe, mine), tmp_path / "damaged", read_test=False)
    # What is damaged is asked for again.
    assert teach(recipe, mine, samples=PART)["asked"] == 40


@pytest.fixture(scope="module")
def other_teacher(teacher, tmp_path_factory):
    """The same model with other weights."""
    folder = tmp_path_factory.mktemp("other")
    weights, card = own.load_model(Path(teacher) / "model")
    own.save_model(folder, {name: value + 0.01 for name, value in weights.items()}, card)
    return str(folder)


def test_predictions_of_another_teacher_than_the_recipe_names_are_refused(tmp_path, teacher, other_teacher, stored):
    recipe = learning_from(student(teacher), stored)
    with pytest.raises(
        UserError, match=r"these predictions are not from .* as it is now, but from .*; name that --teacher"
    ) as e:
        train(replace(recipe, teacher=other_teacher), tmp_path / "run", read_test=False)
    assert "\n" not in str(e.value) and teacher in str(e.value) and other_teacher in str(e.value)
    for teacher_there_or_not in (teacher, str(tmp_path / "gone"), None):
        build_objective(replace(recipe, teacher=teacher_there_or_not), recipe.data.build().train.classes)


@pytest.mark.parametrize("average", [AverageSettings(), AverageSettings(kind="ema")], ids=["plain", "averaged"])
def test_a_run_goes_on_with_the_predictions_that_it_began_with(tmp_path, teacher, other_teacher, stored, average):
    mine = tmp_path / "answers"
    shutil.copytree(stored, mine)
    recipe = replace(learning_from(student(teacher), mine), teacher=None, average=average)
    train(recipe, tmp_path / "run", read_test=False, until=4)
    held = RunDirectory(tmp_path / "run").latest_checkpoint().tensors
    # Those of older runs have it nowhere. An average is of exactly what it was, and must not look for it.
    assert "teacher.fingerprint" in held["objective"]
    shutil.rmtree(mine)
    teach(student(other_teacher), mine, samples=PART)  # to the same views
    with pytest.raises(UserError, match="its predictions are not from the teacher that this run began with") as error:
        train(recipe, tmp_path / "run", read_test=False)
    assert "\n" not in str(error.value)
    shutil.rmtree(mine)
    shutil.copytree(stored, mine)
    assert train(recipe, tmp_path / "run", read_test=False)["steps"] == 14


@pytest.mark.parametrize(
    "change",
    [
        {"teacher": "x"},
        {"teacher": {"where": "x", "fingerprint": "y"}},
        {"teacher": {"where": "x", "fingerprint": 2**64}},
        {"steps_a_part": 0},
        {"steps_a_part": "2"},
        {"views": []},
    ],
)
def test_a_document_of_something_else(tmp_path, teacher, stored, change):
    document = json.loads((stored / "answers.json").read_text())
    for wrong in (document | change, [document]):
        (tmp_path / "answers.json").write_text(json.dumps(wrong))
        for use in (
            lambda: train(learning_from(student(teacher), tmp_path), tmp_path / "run", read_test=False),
            lambda: teach(student(teacher), tmp_path, samples=PART),
        ):
            with pytest.raises(UserError, match=r"answers.json: not written by `vitreous teach`") as error:
                use()
            assert "\n" not in str(error.value)


def test_a_folder_of_somebody_else_is_left_as_it_is(tmp_path):
    (tmp_path / "epoch-0000").mkdir()
    (tmp_path / "epoch-0000" / ".notes.old").write_text("mine")
    with pytest.raises(UserError, match="contains 'epoch-0000', but no teacher's predictions"), claimed(tmp_path, {}):
        pass
    assert (tmp_path / "epoch-0000" / ".notes.old").read_text() == "mine"


def test_one_process_at_a_time(tmp_path, teacher, stored):
    mine = tmp_path / "mine"
    shutil.copytree(stored, mine)
    code = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'ab'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(mine / "lock")], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="in use by process"):
            teach(student(teacher), mine, samples=PART)
    finally:
        holder.kill()
        holder.communicate()


# ---- the verb


def test_the_verb(tmp_path, teacher, stored, capsys):
    settings.save(student(teacher), tmp_path / "recipe.json")
    words = ["teach", str(tmp_path / "recipe.json"), "--epochs", "1", "--out", str(tmp_path / "answers")]
    main(words)
    printed = capsys.readouterr().out
    assert "120 views in 1 epoch, 120 of them computed now" in printed
    assert f"--objective.stored {tmp_path / 'answers'}" in printed
    about = json.loads((tmp_path / "answers" / "answers.json").read_text())
    assert about["teacher"]["where"] == teacher
    assert about["views"] == json.loads((stored / "answers.json").read_text())["views"]
    assert len(list((tmp_path / "answers").glob("*/steps-*"))) == 1  # of 16,384 samples at most
    with pytest.raises(SystemExit):
        main([*words[:2], "--epochs", "0"])
    assert "at least 1" in capsys.readouterr().err
