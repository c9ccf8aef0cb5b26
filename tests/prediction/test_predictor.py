import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from vitreous import platforms
from vitreous.data.images import BadPicture
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.tasks.classify import ClassifySettings
from vitreous.weights.calibration import ClassCalibration
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained


@pytest.fixture
def predictor():
    torch.manual_seed(0)
    model, task = ViTSettings(picture_px=(8, 12), patch=4, width=16, depth=1, heads=2), ClassifySettings()
    built = task.build(model.build(), ("cat", "dog", "emu"))
    torch.nn.init.normal_(built.head.weight)
    preprocessing = Preprocessing(size_px=(8, 12), crop="squash", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    card = Card(
        model=model,
        task=task,
        classes=("cat", "dog", "emu"),
        preprocessing=preprocessing,
        calibration=ClassCalibration(temperature=2.0),
    )
    return TorchPredictor(Trained(card, built.state_dict(), "here"))


def test_whatever_is_given_as_a_picture_is_the_same_picture(predictor, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    (tmp_path / "a.png").write_bytes(stream.getvalue())
    expected = (torch.from_numpy(pixels).permute(2, 0, 1) / 255 - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / (
        torch.tensor([0.4, 0.5, 0.6])[:, None, None]
    )
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    files = (stream.getvalue(), tmp_path / "a.png", str(tmp_path / "a.png"))
    for picture in (pixels, *files, Image.fromarray(pixels), Image.open(tmp_path / "a.png"), tensor, tensor / 255):
        torch.testing.assert_close(predictor.inputs(picture)[0], expected)


def test_an_answer_is_calibrated_and_sorted(predictor):
    picture = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    answer = predictor(picture)
    logits = predictor.task.predict(predictor.inputs(picture)).logits[0].detach()
    torch.testing.assert_close(torch.from_numpy(answer.probabilities), (logits / 2).softmax(0))
    names, values = zip(*answer.top(2), strict=True)
    assert values[0] >= values[1]
    assert names[0] == ("cat", "dog", "emu")[int(logits.argmax())]


def test_grey_and_turned_pictures(predictor, tmp_path):
    grey = np.random.default_rng(0).integers(0, 256, (8, 12), dtype=np.uint8)
    expected = predictor.inputs(np.repeat(grey[:, :, None], 3, axis=2))
    for picture in (grey, Image.fromarray(grey), torch.from_numpy(grey)[None]):
        torch.testing.assert_close(predictor.inputs(picture), expected)
    image, exif = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 30, 3), dtype=np.uint8)), Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=exif)
    with Image.open(tmp_path / "turned.jpg") as opened:
        torch.testing.assert_close(predictor.inputs(opened), predictor.inputs(tmp_path / "turned.jpg"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.zeros((8, 12, 3)), "float64"),
        (np.zeros((3, 8, 12), dtype=np.uint8), "(H, W, 3)"),
        (torch.zeros(8, 12, 3), "(3, H, W)"),
        (torch.full((3, 8, 12), 2.0), "from 0 to 1"),
        (torch.full((3, 8, 12), torch.nan), "from 0 to 1"),
        (7, "int is no picture"),
    ],
)
def test_what_is_no_picture_is_told_in_one_line(predictor, given, words):
    with pytest.raises(UserError, match=re.escape(words)):
        predictor(given)


# ---- in Python, as the commands do; and in a notebook


def test_answers_about_many_pictures(predictor, tmp_path):
    random = np.random.default_rng(0).integers(0, 256, (3, 20, 20, 3), dtype=np.uint8)
    (tmp_path / "set").mkdir()
    for number, pixels in enumerate(random[:2]):
        Image.fromarray(pixels).save(tmp_path / "set" / f"{number}.png")
    (tmp_path / "set" / "bad.png").write_bytes(b"no picture")
    found = vitreous.predict(predictor, tmp_path / "set", random[2])
    assert len(found) == 4 and isinstance(found[2], BadPicture)
    for place, pixels in ((0, random[0]), (3, random[2])):
        np.testing.assert_allclose(found[place].probabilities, predictor(pixels).probabilities, atol=1e-6)
    assert repr(found).startswith("Predictions(4: ")
    markup = found._repr_html_()
    assert markup.count("<img") == 3 and "unreadable: " in markup and found[0].best in markup


def test_an_answer_in_a_notebook(predictor):
    answer = replace(predictor(np.zeros((8, 12, 3), dtype=np.uint8)), classes=("<b>", "dog", "emu"), sets=((0.9, 0.0),))
    markup = answer._repr_html_()
    assert "&lt;b&gt;" in markup and "<b>" not in markup
    assert f"{100 * answer.confidence:.1f} %" in markup and "90 % sure" in markup


def test_attention_says_how_decisive_it_is(predictor):
    found = vitreous.attention(predictor, np.random.default_rng(0).integers(0, 256, (30, 30, 3), dtype=np.uint8))
    assert found.map.shape == (2, 3) and found.picture.shape == (8, 12, 3)
    highest = 100 * float(found.map.max())
    assert f"at most {highest:.1f} % on a patch, evenly " in found._repr_html_()
    assert str(found).startswith(f"{found.outcome.best} {100 * found.outcome.confidence:.1f} %, ")
    assert f"at most {highest:.1f} % on a patch" in str(found) and "\n" not in str(found)


def test_a_single_picture_that_cannot_be_read_is_named(predictor, tmp_path):
    for asked in (predictor, lambda path: vitreous.attention(predictor, path)):
        with pytest.raises(BadPicture, match=r"nothing\.png: No such file"):
            asked(tmp_path / "nothing.png")


def test_a_cpu_made_for_bfloat16_predicts_in_it_and_alike_in_any_batch(predictor, monkeypatch):
    pictures = list(np.random.default_rng(0).integers(0, 256, (5, 20, 20, 3), dtype=np.uint8))
    exact = predictor.outputs(pictures)["logits"]
    monkeypatch.setattr(platforms, "cpu_has_bfloat16", lambda: True)
    found = predictor.outputs(pictures)["logits"]
    assert found.dtype == np.float32 and not np.array_equal(found, exact)
    np.testing.assert_allclose(found, exact, atol=0.02 * np.abs(exact).max())
    np.testing.assert_array_equal(found, np.concatenate([predictor.outputs([one])["logits"] for one in pictures]))
