"""Embeddings are what an encoder pools; of a model with two towers, what texts are compared with."""

import numpy as np
import pytest
import torch

from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.models import ViTSettings
from vitreous.models.text import TextSettings
from vitreous.prediction.embedder import Embedder
from vitreous.prediction.predictor import Predictor
from vitreous.tasks.image_text import ImageTextSettings
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

MODEL = ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=1, heads=2)
PREPROCESSING = Preprocessing(size_px=(8, 8))
PICTURES = list(np.random.default_rng(0).integers(0, 256, (3, 12, 9, 3), dtype=np.uint8))


def inputs():
    return PREPROCESSING.normalised(torch.stack([PREPROCESSING.resized(picture) for picture in PICTURES]))


def test_of_an_encoder():
    encoder = MODEL.build().eval()
    weights = encoder.state_dict(prefix="encoder.")
    embedder = Embedder(Trained(Card(model=MODEL, preprocessing=PREPROCESSING), weights, "here"))
    with torch.no_grad():
        expected = encoder(inputs()).pooled.numpy()
    np.testing.assert_allclose(embedder.embed(PICTURES), expected, atol=1e-6)
    assert (embedder.width, embedder.normalisation) == (16, "none")
    assert embedder.embed([]).shape == (0, 16)


def test_of_two_towers():
    task = ImageTextSettings(width=6, text=TextSettings(vocabulary=40, end=39, context=5, width=8, depth=1, heads=2))
    built = task.build(MODEL.build(), ()).eval()
    trained = Trained(Card(model=MODEL, task=task, preprocessing=PREPROCESSING), built.state_dict(), "here")
    embedder = Embedder(trained)
    with torch.no_grad():
        expected = built.embed_pictures(inputs()).numpy()
    np.testing.assert_allclose(embedder.embed(PICTURES), expected, atol=1e-6)
    assert (embedder.width, embedder.normalisation) == (6, "l2")
    other = task.build(built.encoder, ()).state_dict()  # the same picture tower, and other texts
    assert Embedder(Trained(trained.card, other, "here")).fingerprint != embedder.fingerprint


def test_two_towers_ask_for_words(tmp_path):
    task = ImageTextSettings(width=6, text=TextSettings(vocabulary=40, end=39, context=5, width=8, depth=1, heads=2))
    weights = task.build(MODEL.build(), ()).state_dict()
    Trained(Card(model=MODEL, task=task, preprocessing=PREPROCESSING), weights, "here").save(tmp_path / "model")
    with pytest.raises(UserError, match="compares pictures with words, so it needs some"):
        Predictor.load(tmp_path / "model")


def test_an_exported_model_has_none(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(UserError, match="only makes predictions"):
        Embedder.load(tmp_path / "model.onnx")
