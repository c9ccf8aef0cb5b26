from dataclasses import replace

import pytest
import torch

from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ResNetSettings, ViTSettings
from vitreous.tasks.classify import ClassifySettings
from vitreous.weights import own
from vitreous.weights.trained import Card, Trained

MODEL = ViTSettings(picture_px=(8, 12), patch=4, width=16, depth=2, heads=2)
CLASSES = ("cat", "dog", "emu")


@pytest.fixture
def trained():
    torch.manual_seed(0)
    settings = ClassifySettings(head="tanh")
    task = settings.build(MODEL.build(), CLASSES)
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    card = Card(model=MODEL, task=settings, classes=CLASSES, preprocessing=Preprocessing(size_px=(8, 12)))
    return Trained(card, task.state_dict(), "here")


def test_save_and_load(trained, tmp_path):
    trained.save(tmp_path / "weights")
    images = torch.randn(2, 3, 8, 12)
    found = Trained.load(tmp_path / "weights")
    assert found.card == trained.card
    assert not found.task().training
    assert torch.equal(found.task().predict(images).logits, trained.task().predict(images).logits)


def test_models_have_a_version_and_those_without_are_the_first(trained, tmp_path):
    trained.save(tmp_path / "now")
    weights, document = own.load_model(tmp_path / "now")
    assert document.pop("format") == 2
    assert document.pop("calibration") is None
    own.save_model(tmp_path / "before", weights, document)
    assert Trained.load(tmp_path / "before").card == trained.card
    own.save_model(tmp_path / "later", weights, {**document, "format": 3, "unheard": "of"})
    with pytest.raises(UserError, match=r"model\.json: written by a later version of vitreous \(format 3"):
        Trained.load(tmp_path / "later")


def test_a_run_is_known_by_the_model_in_it(trained, tmp_path):
    trained.save(tmp_path / "run" / "model")
    assert Trained.load(tmp_path / "run").card == trained.card


def test_resized_when_it_is_loaded(trained):
    larger = trained.encoder(replace(MODEL, picture_px=(16, 16)))
    assert larger.grid == (4, 4)
    expected = trained.encoder()
    expected.resize((16, 16))
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(larger.eval()(images).pooled, expected.eval()(images).pooled)
    assert larger.positions.tables[0].state_dict().keys() == expected.positions.tables[0].state_dict().keys()


def test_what_has_no_weights_may_change(trained):
    encoder = trained.encoder(replace(MODEL, dropout=0.5))
    assert encoder.dropout.p == 0.5


@pytest.mark.parametrize("other", [replace(MODEL, width=32), replace(MODEL, depth=3), ResNetSettings(depths=(1,))])
def test_another_model_than_the_weights_are_for(trained, other):
    with pytest.raises(UserError, match="do not fit the model") as error:
        trained.encoder(other)
    assert "\n" not in str(error.value)


def test_what_is_not_there(tmp_path):
    with pytest.raises(UserError, match="no such run"):
        Trained.load(tmp_path / "nothing")
    with pytest.raises(UserError, match="a folder without weights"):
        Trained.load(tmp_path)
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(UserError, match="has not finished"):
        Trained.load(tmp_path)


def test_a_damaged_model_is_named(trained, tmp_path):
    trained.save(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="damaged"):
        Trained.load(tmp_path)
