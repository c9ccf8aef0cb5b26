import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitreous import settings
from vitreous.cli import dotted, separated
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings, model_settings
from vitreous.objectives.taught import TaughtSettings
from vitreous.recipes import RECIPES, find_recipe, finetune_recipe, parameters
from vitreous.recipes.cifar10 import cifar10_convnext
from vitreous.recipes.finetune import finetune, larger, paper_finetune
from vitreous.recipes.masked import cifar10_mae
from vitreous.recipes.paper import pretrain_imagenet, pretrain_imagenet21k, pretrain_jft
from vitreous.recipes.recipe import Recipe, short_name
from vitreous.recipes.segment import rendered_segmenter
from vitreous.recipes.unlabelled import cell_of, cifar10_tuned
from vitreous.tasks.classify import ClassifySettings
from vitreous.tasks.detect import DetectSettings
from vitreous.tasks.mask_queries import MaskQuerySettings
from vitreous.tasks.predictions import Detections, Embeddings, InstanceMasks
from vitreous.training.optim import AdamWSettings, SGDSettings
from vitreous.weights.shipped import shipped_folder
from vitreous.weights.trained import Card, Trained


@pytest.fixture(autouse=True)
def only_cards(monkeypatch):
    """Recipes look at nothing but the card of what they start from: the weights of an L/16 would take a gigabyte."""
    load_all = Trained.load

    def load(where):
        if shipped_folder(str(where)):  # a few megabytes
            return load_all(where)
        return Trained(settings.load(Card, Path(where) / "model.json"), {}, str(where))

    monkeypatch.setattr(Trained, "load", load)


def start_run(folder, model):
    card = Card(model=model, task=ClassifySettings(), classes=("a", "b"), preprocessing=Preprocessing(mean=(0.1,) * 3))
    folder.mkdir(parents=True, exist_ok=True)
    settings.save(card, folder / "model.json")
    return str(folder)


def build(name, tmp_path):
    """Those that start from a run are given one, and those with a teacher a name of one."""
    given = {"start": start_run(tmp_path / "start", model_settings("vit_b16")), "data": "fashion", "teacher": "a run"}
    needed = {one.name for one in parameters(RECIPES[name]) if one.value == "needed" or one.name == "start"}
    return find_recipe(name, {key: value for key, value in given.items() if key in needed})


every_recipe = pytest.mark.parametrize("name", RECIPES)


@every_recipe
def test_builds(name, tmp_path):
    recipe = build(name, tmp_path)
    assert recipe.preprocessing.size_px == recipe.model.picture_px
    if not isinstance(recipe.objective, TaughtSettings):  # which cannot be built without their teacher
        with torch.device("meta"):
            objective = recipe.objective.build(recipe.model.build(), tuple("abcdefghij"))
            images = torch.empty(2, 3, *recipe.preprocessing.size_px)
            assert len(objective.encoder(images).pooled) == 2
            if objective.task is not None:
                found = objective.task.predict(images)
            if objective.task is not None and isinstance(found, Embeddings):
                assert found.embedding.shape == (2, recipe.objective.width)
            elif objective.task is not None:
                num = found.logits.shape[2 if isinstance(found, Detections | InstanceMasks) else 1]
                with_none = recipe.name == "coco_detr" or isinstance(found, InstanceMasks)
                assert len(found.logits) == 2 and num - with_none == 10
        if name.startswith(("fashion", "cifar")):
            assert recipe.optimizer.build(objective.to_empty(device="cpu"))
    steps = recipe.training.num_steps(steps_per_epoch=3000)
    assert recipe.schedule.phases(steps)


@every_recipe
def test_json_round_trip(name, tmp_path):
    recipe = build(name, tmp_path)
    settings.save(recipe, tmp_path / "recipe.json")
    assert settings.load(Recipe, tmp_path / "recipe.json") == recipe
    assert find_recipe(str(tmp_path / "recipe.json"), {}) == recipe


@pytest.mark.parametrize("recipe", [*RECIPES.values(), finetune], ids=lambda recipe: recipe.__name__)
def test_docstring_tells_command_cost_score_and_section(recipe, tmp_path):
    first, *rest = (recipe.__doc__ or "").strip().splitlines()
    assert len(first) > 30 and first.endswith("."), "it stands alone in `vitreous list`"
    text = "\n".join(rest)
    command = re.search(r"^ +Command: +(vitreous .+)$", text, re.MULTILINE)
    assert command
    for word in ("cost", "score"):
        assert re.search(rf"{word}.*:", text, re.IGNORECASE), word
    if "paper" in first:
        assert re.search(r"^ +Section: ", text, re.MULTILINE)
    # What stands there can be typed: its settings exist.
    plain, given = separated(shlex.split(command[1])[1:], [])
    start = start_run(tmp_path / "start", model_settings("vit_ti16"))
    changes = {name: start if name == "start" else value for name, value in dotted(given).items()}
    if plain[0] == "train":
        assert isinstance(find_recipe(plain[1], changes), Recipe)
    else:
        assert isinstance(finetune_recipe(start, "DATA", changes), Recipe)


@pytest.mark.parametrize("name", ["camvid_mask2former", "camvid_eomt"])
def test_camvid_from_scratch_is_the_segmenter_with_another_decoder(name):
    """So that the three can be compared from either start, and on another family of models."""
    theirs, ours = find_recipe("camvid_segmenter", {}), find_recipe(name, {"start": "none"})
    assert theirs.start is None
    training = replace(ours.training, clip=theirs.training.clip, epochs=theirs.training.epochs)
    assert replace(training, evaluate_every_epochs=theirs.training.evaluate_every_epochs) == theirs.training
    assert replace(ours, name=theirs.name, objective=theirs.objective, training=theirs.training) == theirs


# ---- the paper's numbers

PRETRAINING = [
    # recipe, model, weight decay, dropout, rate, decay, epochs, clip, loss
    (pretrain_jft, "vit_b16", 0.1, 0.0, 8e-4, "linear", 7, None, "sigmoid"),
    (pretrain_jft, "vit_b32", 0.1, 0.0, 8e-4, "linear", 7, None, "sigmoid"),
    (pretrain_jft, "vit_l32", 0.1, 0.0, 6e-4, "linear", 7, None, "sigmoid"),
    (pretrain_jft, "vit_l16", 0.1, 0.0, 4e-4, "linear", 14, None, "sigmoid"),
    (pretrain_jft, "vit_h14", 0.1, 0.0, 3e-4, "linear", 14, None, "sigmoid"),
    (pretrain_imagenet21k, "vit_b16", 0.03, 0.1, 1e-3, "linear", 90, None, "sigmoid"),
    (pretrain_imagenet21k, "vit_l16", 0.03, 0.1, 1e-3, "linear", 90, None, "sigmoid"),
    (pretrain_imagenet, "vit_b16", 0.3, 0.1, 3e-3, "cosine", 300, 1.0, "softmax"),
    (pretrain_imagenet, "vit_l32", 0.3, 0.1, 3e-3, "cosine", 300, 1.0, "softmax"),
]


@pytest.mark.parametrize(
    ("recipe", "model", "weight_decay", "dropout", "rate", "decay", "epochs", "clip", "loss"), PRETRAINING
)
def test_pretraining_of_the_paper(recipe, model, weight_decay, dropout, rate, decay, epochs, clip, loss):
    found = recipe(model)
    assert found.optimizer == AdamWSettings(lr=rate, beta1=0.9, beta2=0.999, weight_decay=weight_decay)
    assert found.model == replace(model_settings(model), dropout=dropout)
    assert found.model.picture_px == (224, 224)
    assert (found.schedule.warmup_steps, found.schedule.warmup_fraction, found.schedule.decay) == (10_000, 0, decay)
    assert (found.training.epochs, found.training.steps) == (epochs, None)
    assert (found.training.batch_size, found.training.clip) == (4096, clip)
    assert (found.objective.head, found.objective.loss) == ("tanh", loss)


def test_a_resnet_has_no_dropout_to_set():
    assert pretrain_imagenet("bit_r50x1").model == model_settings("bit_r50x1")


def test_imagenet_is_reported_on_its_val_split():
    assert pretrain_imagenet().data.test_split == "val"
    for recipe in (pretrain_imagenet21k(), pretrain_jft()):
        assert recipe.data.test_fraction == 0  # nothing is taken from train for a score that nobody reports


FINETUNING = [
    # task, steps, rates, held out
    ("imagenet", 20_000, (0.003, 0.01, 0.03, 0.06), 0.01),
    ("cifar", 10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
    ("pets", 500, (0.001, 0.003, 0.01, 0.03), 0.1),
    ("flowers", 500, (0.001, 0.003, 0.01, 0.03), 0.1),
]


@pytest.mark.parametrize(("task", "steps", "rates", "held_out"), FINETUNING)
def test_finetuning_of_the_paper(tmp_path, task, steps, rates, held_out):
    start = start_run(tmp_path, replace(model_settings("vit_b16"), dropout=0.0))
    found = paper_finetune(start, "somewhere", task)
    assert isinstance(found.optimizer, SGDSettings)
    assert (found.optimizer.momentum, found.optimizer.weight_decay, found.optimizer.nesterov) == (0.9, 0, False)
    assert (found.training.batch_size, found.training.clip, found.training.steps) == (512, 1.0, steps)
    assert found.schedule.decay == "cosine"
    assert (found.rates, found.data.val_fraction) == (rates, held_out)
    assert found.model == replace(model_settings("vit_b16"), picture_px=(384, 384))
    assert (found.objective.head, found.objective.loss, found.average.kind) == ("linear", "softmax", "none")
    assert found.data.test_split == ("val" if task == "imagenet" else "test")
    assert found.start == start
    assert found.preprocessing == Preprocessing(size_px=(384, 384), mean=(0.1,) * 3)  # as the model is used to


@pytest.mark.parametrize(("model", "picture_px"), [("vit_l16", 512), ("vit_h14", 518)])
def test_headline_numbers_of_the_paper(tmp_path, model, picture_px):
    found = paper_finetune(start_run(tmp_path, model_settings(model)), "imagenet", "imagenet", headline=True)
    assert found.model.picture_px == (picture_px, picture_px)
    assert (found.average.kind, found.average.factor) == ("polyak", 0.9999)


def test_pictures_of_whole_patches(tmp_path):
    found = paper_finetune(start_run(tmp_path, model_settings("vit_h14")), "somewhere")
    assert found.model.picture_px == (378, 378)


@pytest.mark.parametrize(
    ("model", "picture_px"),
    [
        (model_settings("vit_b16"), (384, 384)),
        (model_settings("vit_b32"), (384, 384)),
        (model_settings("r50_vit_b16"), (384, 384)),
        (model_settings("bit_r50x1"), (384, 384)),
        (ViTSettings(picture_px=(28, 56), patch=7), (49, 98)),
        (model_settings("swin_t"), (384, 384)),
        (cifar10_convnext().model, (56, 56)),  # of 55 px, seven would be dropped
        (model_settings("convnext_atto", picture_px=32), (64, 64)),
    ],
)
def test_a_larger_picture_by_default(model, picture_px):
    assert larger(model).picture_px == picture_px
    assert larger(model, 448).picture_px == (448, 448)


# ---- finding recipes


def test_a_function_s_own_parameters_come_before_the_fields():
    found = find_recipe("pretrain_jft", {"model": "vit_l16", "optimizer.lr": "0.1", "model.dropout": "0.3"})
    assert found.name == "pretrain_jft-vit_l16"
    assert found.training.epochs == 14
    assert (found.optimizer.lr, found.model.dropout) == (0.1, 0.3)


def test_on_pictures_with_objects_a_decoder_is_fine_tuned(tmp_path):
    """It was a head for classes of whole pictures. The decoder is as that of a run that found objects."""
    found = finetune_recipe("vitreous-xs", "rendered:objects", {})
    assert (found.objective.decoder, found.normalise.crop) == ("deformable", "letterbox")
    model = model_settings("vit_ti16", picture_px=32)
    for task, targets in (
        (DetectSettings(decoder="centres"), "boxes"),
        (MaskQuerySettings(output="instances"), "instances"),
    ):
        card = Card(model=model, task=task, classes=("a",), preprocessing=Preprocessing(size_px=(32, 32)))
        Trained(card, {}, "made").save(tmp_path / targets / "model")
        found = finetune_recipe(str(tmp_path / targets / "model"), "rendered:objects", {})
        assert found.objective == task and found.data.layout.targets == targets


def test_a_model_by_its_name_is_for_the_recipe_s_pictures():
    found = find_recipe("cifar10_simclr", {"model.stochastic_depth": "0.2", "model": "convnext_atto"})
    assert found.model == model_settings("convnext_atto", picture_px=32, patch=1, stochastic_depth=0.2)
    camvid = find_recipe("camvid_segmenter", {"model": "swin_t"}).model
    assert (camvid.name, camvid.picture_px) == ("Swin-T with windows of 8", (240, 320))
    with pytest.raises(UserError, match="Did you mean convnext_atto"):
        find_recipe("cifar10_simclr", {"model": "convnext_ato"})
    with pytest.raises(UserError, match="--model swin_t: the weights of vitreous-s are for one model"):
        finetune_recipe("vitreous-s", "fashion", {"model": "swin_t"})


def test_what_is_missing_or_unknown_is_named():
    with pytest.raises(UserError, match="needs --start"):
        find_recipe("paper_finetune", {"data": "x"})
    with pytest.raises(UserError, match="Did you mean cifar10_vit"):
        find_recipe("cifar_vit", {})
    with pytest.raises(UserError, match="no model is called"):
        find_recipe("pretrain_jft", {"model": "vit_x16"})


def test_tuning_keeps_the_model_and_starts_from_the_run(tmp_path):
    model = cifar10_mae().model
    found = cifar10_tuned(start_run(tmp_path / "start", model), epochs=7)
    assert found.start == str(tmp_path / "start")
    assert found.model == replace(model, stochastic_depth=0.1)
    assert (found.optimizer.layer_decay, found.training.epochs, found.augmentation.mix.cutmix) == (0.75, 7, 1.0)
    scratch = cifar10_tuned()
    assert (scratch.start, scratch.model, scratch.optimizer.layer_decay) == (None, found.model, 1.0)


# ---- other pictures than their own


def test_rendered_shapes_are_learned_from_an_encoder_that_ships_unless_told_otherwise():
    found, scratch = rendered_segmenter(), rendered_segmenter(start=None)
    shipped = Trained.load("vitreous-xs").card
    assert (found.start, scratch.start) == ("vitreous-xs", None)
    assert found.model == replace(shipped.model, picture_px=(64, 64))
    assert found.normalise.mean == shipped.preprocessing.mean
    assert isinstance(found.optimizer, AdamWSettings)
    assert scratch.model.stem is not None


# Those that start from a run are of its size.
UNLABELLED = [
    name
    for name, recipe in RECIPES.items()
    if "start" not in {one.name for one in parameters(recipe)} and not find_recipe(name, {}).data.need_labels
]


@pytest.mark.parametrize("name", UNLABELLED)
@pytest.mark.parametrize("picture_px", [96, 64])
def test_what_learns_without_labels_takes_pictures_of_any_size(name, picture_px):
    recipe = find_recipe(name, {"picture_px": str(picture_px)})
    assert recipe.preprocessing.size_px == (picture_px, picture_px)
    with torch.device("meta"):
        encoder = recipe.model.build()
        for view in recipe.more_views:
            height, width = view.size_px or recipe.model.picture_px
            assert len(encoder.features(torch.empty(2, 3, height, width)).pooled) == 2
        if not isinstance(recipe.objective, TaughtSettings):
            recipe.objective.build(encoder, ())
    if name.startswith("cifar10") and isinstance(recipe.model, ViTSettings):
        assert 8 <= encoder.grid.h <= 15, "as many patches as CIFAR-10's pictures have, or a few more"


def test_patches_cover_the_picture():
    assert [cell_of(side) for side in (8, 32, 48, 64, 96, 128, 224, 256)] == [1, 4, 4, 8, 8, 16, 16, 32]
    with pytest.raises(UserError, match="give 96 or 104"):
        find_recipe("cifar10_mae", {"picture_px": "100"})


def test_a_folder_of_runs_is_not_called_like_a_file():
    given = ("a/labels.csv", "a/b.c/", "hf:x/y.v2", "w.safetensors")
    assert [short_name(one) for one in given] == ["labels", "b.c", "y.v2", "w"]
