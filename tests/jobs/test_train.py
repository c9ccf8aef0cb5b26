import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from promises import shrunk
from scenes import write_scenes
from vitreous import settings
from vitreous.data.order import OrderSettings
from vitreous.data.sources import DataSettings
from vitreous.errors import UserError
from vitreous.jobs.build import build_objective
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.train import train, trained
from vitreous.models import ConvStem, ViTSettings
from vitreous.models.base import Encoder
from vitreous.objectives.base import Objective
from vitreous.recipes import find_recipe
from vitreous.recipes.fashion import fashion_vit
from vitreous.recipes.recipe import Recipe
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.averages import AverageSettings
from vitreous.training.loop import MemorySettings
from vitreous.training.optim import MuonSettings, SGDSettings
from vitreous.training.run import RunDirectory
from vitreous.weights.trained import Trained


def tiny(**changes):
    recipe = fashion_vit()
    return replace(
        recipe,
        data=DataSettings(train_limit=100, val_fraction=0.01),
        model=ViTSettings(picture_px=(28, 28), patch=14, width=16, depth=1, heads=2),
        optimizer=SGDSettings(lr=0.05),
        training=replace(recipe.training, steps=4, batch_size=50, log_every_steps=2, evaluate_every_epochs=0),
        **changes,
    )


def test_a_run_and_its_results(tmp_path):
    recipe = tiny()
    results = train(recipe, tmp_path / "run")
    assert settings.load(Recipe, tmp_path / "run/recipe.json") == recipe
    assert json.loads((tmp_path / "run/results.json").read_text()) == results
    assert results["parameters"] == sum(p.numel() for p in Trained.load(tmp_path / "run").task().parameters())
    assert {"val", "test", "steps", "wall_s", "train_s"} <= results.keys()
    assert train(recipe, tmp_path / "run") == results


def test_muon_needs_whole_matrices(tmp_path):
    recipe = replace(tiny(), optimizer=MuonSettings())
    recipe = replace(recipe, training=replace(recipe.training, memory=MemorySettings(shard=True)))
    with pytest.raises(UserError, match="Muon updates whole matrices, which no rank has under sharding"):
        train(recipe, tmp_path)


def test_the_test_set_stays_unread_where_choices_are_made(tmp_path):
    results = train(tiny(), tmp_path, read_test=False)
    assert "test" not in results
    assert "val" in results


def test_the_averaged_weights_are_what_is_kept(tmp_path):
    recipe = tiny(average=AverageSettings(kind="polyak", factor=0.5))
    results = train(recipe, tmp_path)
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert results["val"]["log_loss"] == last["val_average/log_loss"] != last["val/log_loss"]
    found = evaluate(tmp_path, split="val").evaluation
    assert found.scores.log_loss.value == pytest.approx(last["val_average/log_loss"], abs=1e-6)


def test_training_may_start_from_a_head_that_was_fitted_first(tmp_path):
    first = tiny(objective=ClassifySettings())
    train(first, tmp_path / "first", into="kept")
    assert not (tmp_path / "first" / "model").exists()
    start = Trained.load(tmp_path / "first" / "kept")
    again = replace(first, start=str(tmp_path / "first" / "kept"), start_head=True)
    built = build_objective(again, start.card.classes).state_dict()
    assert all(torch.equal(built[name], value) for name, value in start.weights.items())
    assert not build_objective(replace(again, start_head=False), start.card.classes).head.weight.any()
    for wrong, classes in ((replace(again, start=None), start.card.classes), (again, start.card.classes[::-1])):
        with pytest.raises(UserError, match="start_head needs weights that include a head"):
            build_objective(wrong, classes)


def test_a_run_goes_on_in_the_order_that_it_was_begun_in(tmp_path, monkeypatch):
    """Begun when a recipe did not say by which algorithm; for so many pictures, there is another one by now."""
    monkeypatch.setattr("vitreous.data.order.SORTED_UP_TO", 10)
    new = tiny()
    old = replace(new, data=replace(new.data, order=OrderSettings(version=1)))
    for name, recipe in (("old", old), ("new", new)):
        train(recipe, tmp_path / name, read_test=False)
    train(old, tmp_path / "resumed", read_test=False, until=2)
    path = tmp_path / "resumed" / "recipe.json"
    document = json.loads(path.read_text())
    assert document["data"].pop("order")["version"] == 1
    path.write_text(json.dumps(document))
    train(new, tmp_path / "resumed", read_test=False)
    assert json.loads(path.read_text())["data"]["order"]["version"] == 1
    weights = {name: Trained.load(tmp_path / name).weights for name in ("old", "new", "resumed")}
    for name, value in weights["resumed"].items():
        assert torch.equal(value, weights["old"][name])
    assert any(not torch.equal(value, weights["new"][name]) for name, value in weights["old"].items())


def test_another_recipe_is_refused_and_told_apart(tmp_path):
    recipe = tiny()
    train(recipe, tmp_path)
    others = {
        "optimizer.lr 0.05 there, 0.5 here": replace(recipe, optimizer=SGDSettings(lr=0.5)),
        "model.stem None there, absent here": replace(
            recipe, model=replace(recipe.model, patch=1, stem=ConvStem(widths=(8,), strides=(2,), residuals=(0,)))
        ),
    }
    for message, other in others.items():
        with pytest.raises(UserError, match="holds a different run") as error:
            train(other, tmp_path)
        assert message in str(error.value)
    assert settings.load(Recipe, tmp_path / "recipe.json") == recipe


def test_how_memory_is_saved_may_change_when_a_run_is_resumed(tmp_path):
    """Fewer ranks may need more parts of a batch."""
    recipe = tiny()
    sparing = replace(recipe, training=replace(recipe.training, memory=MemorySettings(accumulate=5, recompute=True)))
    train(recipe, tmp_path / "as begun", read_test=False)
    train(recipe, tmp_path / "changed", read_test=False, until=2)
    train(sparing, tmp_path / "changed", read_test=False)
    rows = (RunDirectory(tmp_path / name).rows() for name in ("as begun", "changed"))
    one, two = ([row["loss"] for row in run if "loss" in row] for run in rows)
    assert len(one) == 2 and two == pytest.approx(one, abs=1e-5)


def test_a_run_that_failed_before_it_began_may_be_mended(tmp_path):
    with pytest.raises(UserError, match="multiple of the heads"):
        train(replace(tiny(), model=ViTSettings(picture_px=(28, 28), patch=14, width=16, heads=3)), tmp_path)
    train(tiny(), tmp_path)
    assert settings.load(Recipe, tmp_path / "recipe.json") == tiny()


def test_killed_between_the_last_checkpoint_and_the_results(tmp_path):
    results = train(tiny(), tmp_path)
    (tmp_path / "results.json").unlink()
    again = train(tiny(), tmp_path)
    assert again["test"] == results["test"]


def test_an_objective_that_is_no_task_leaves_its_encoder(tmp_path):
    """As self-supervised ones will: nothing in the way from recipe to run directory asks for classes."""

    class Quiet(Objective):
        def __init__(self, encoder: Encoder) -> None:
            super().__init__()
            self.encoder, self.teacher = encoder, torch.nn.Linear(1, 1)

    encoder = tiny().model.build()
    left = trained(tiny(), Quiet(encoder), ("a",), "somewhere")
    left.save(tmp_path / "model")
    found = Trained.load(tmp_path)
    assert found.card.task is None
    assert found.card.classes == ()
    assert all(name.startswith("encoder.") for name in found.weights)
    with pytest.raises(UserError, match="without a head"):
        found.task()
    for name, tensor in found.encoder().state_dict().items():
        assert torch.equal(tensor, encoder.state_dict()[name])


def test_a_run_finds_its_data_from_any_folder_and_names_what_could_not_be_read(tmp_path, monkeypatch, capsys):
    write_scenes(tmp_path / "pictures", {"a": 30, "b": 30, "empty": 0}, size=(28, 28))
    (tmp_path / "pictures" / "b" / "0003.png").write_bytes(b"junk")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    recipe = replace(tiny(), data=DataSettings(where="pictures"))
    results = train(recipe, "run")
    (named,) = results["unreadable"]
    assert named.startswith(str(tmp_path / "pictures/b/0003.png (not a picture"))
    assert "class folders without pictures skipped: empty" in capsys.readouterr().err
    assert train(recipe, "run") == results
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert evaluate(tmp_path / "run").evaluation.scores.pictures == results["test"]["pictures"]


def test_evaluate_counts_all_of_what_is_not_split(tmp_path):
    from PIL import Image

    train(tiny(), tmp_path / "run")
    classes = Trained.load(tmp_path / "run").card.classes
    for name in (classes[3], classes[1]):  # a part of the classes, in another order of numbers
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (28, 28), (number, 0, 0)).save(tmp_path / "pictures" / name / f"{number}.png")
    assert evaluate(tmp_path / "run", tmp_path / "pictures").evaluation.scores.pictures == 8


def test_pictures_without_labels(tmp_path):
    """A folder of pictures as they come: learned from, refused by whatever needs labels."""
    (tmp_path / "flat").mkdir()
    for index in range(40):
        pixels = np.random.default_rng(index).integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "flat" / f"{index}.png")
    recipe = shrunk(find_recipe("cifar10_mae", {"data.where": str(tmp_path / "flat")}), steps=3)
    recipe = replace(
        recipe,
        data=replace(recipe.data, where=str(tmp_path / "flat"), train_limit=None),
        training=replace(recipe.training, batch_size=512, precision="auto", compile="auto", cuda_graph=True),
    )
    results = train(recipe, tmp_path / "run")
    assert results["steps"] == 3 and results["batch_size"] == 2, (
        "eight steps an epoch of 27 pictures" and Trained.load(tmp_path / "run").card.task is None
    )
    with pytest.raises(UserError, match="no labels"):
        evaluate(tmp_path / "run", probes=("knn",))
    with pytest.raises(UserError, match="no labels"):
        train(replace(recipe, objective=fashion_vit().objective), tmp_path / "supervised")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rates": "0.1,0.2"}, "no score to choose a rate by"),
        ({"training.keep": "best"}, "no score to keep the best by"),
    ],
)
def test_nothing_is_chosen_by_a_score_that_is_not_there(tmp_path, changes, named):
    recipe = shrunk(find_recipe("cifar10_mae", changes))
    with pytest.raises(UserError, match=named):
        train(recipe, tmp_path / "run")
