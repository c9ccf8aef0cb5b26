import io

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.transforms import Preprocessing
from vitreous.models import ViTSettings
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.tasks.classify import ClassifySettings
from vitreous.trained import Trained
from vitreous.weights.card import Card


@pytest.fixture
def predictor():
    torch.manual_seed(0)
    model, task = ViTSettings(picture_px=(8, 12), patch=4, width=16, depth=1, heads=2), ClassifySettings()
    built = task.build(model.build(), ("cat", "dog", "emu"))
    torch.nn.init.normal_(built.head.weight)
    preprocessing = Preprocessing(size_px=(8, 12), crop="squash", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    card = Card(model=model, task=task, classes=("cat", "dog", "emu"), preprocessing=preprocessing, temperature=2.0)
    return TorchPredictor(Trained(card, built.state_dict(), "here"))


def test_bytes_files_and_pixels_are_one(predictor, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    (tmp_path / "a.png").write_bytes(stream.getvalue())
    expected = (torch.from_numpy(pixels).permute(2, 0, 1) / 255 - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / (
        torch.tensor([0.4, 0.5, 0.6])[:, None, None]
    )
    for picture in (pixels, stream.getvalue(), tmp_path / "a.png", str(tmp_path / "a.png")):
        torch.testing.assert_close(predictor.inputs(picture)[0], expected)


def test_an_answer_is_calibrated_and_sorted(predictor):
    picture = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    answer = predictor(picture)
    logits = predictor.task.predict(predictor.inputs(picture))[0].detach()
    torch.testing.assert_close(torch.from_numpy(answer.probabilities), (logits / 2).softmax(0))
    names, values = zip(*answer.top(2), strict=True)
    assert values[0] >= values[1]
    assert names[0] == ("cat", "dog", "emu")[int(logits.argmax())]
