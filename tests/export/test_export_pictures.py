"""Preprocessing inside the graph against Preprocessing: the same pictures, of odd sizes, to the level."""

import numpy as np
import pytest
from onnx import TensorProto

from vitreous.data.transforms import Preprocessing
from vitreous.export.graph import Graph, Value
from vitreous.export.pictures import write_pictures
from vitreous.export.runtime import open_session
from vitreous.export.usage import Fitting

SIZES = ((32, 48), (500, 375), (7, 5), (1, 1), (64, 62), (31, 64), (600, 800), (28, 28), (300, 3), (33, 201), (48, 32))


def session(preprocessing):
    graph = Graph()
    fitted = write_pictures(Fitting(**vars(preprocessing)), graph, "pictures")
    given = ("pictures", TensorProto.UINT8, ("batch", "height", "width", 3))
    return open_session(graph.model([given], {"fitted": Value(fitted, (3, 32, 48))}).SerializeToString())


def levels(preprocessing, opened, pictures):
    """How far apart the two are, in levels of 255."""
    expected = preprocessing.normalised(preprocessing.resized(pictures)).numpy()
    (found,) = opened.run(None, {"pictures": pictures})
    return np.abs(found - expected) * np.array(preprocessing.std).reshape(1, 3, 1, 1) * 255


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("crop", ["centre", "squash", "squash-centre", "letterbox"])
def test_every_way_to_fit(crop, interpolation):
    generator = np.random.default_rng(0)
    for odd_margin, skip_fitting in (("even", True), ("down", False)):
        preprocessing = Preprocessing(
            size_px=(32, 48),
            crop=crop,
            crop_fraction=0.8,
            odd_margin=odd_margin,
            skip_fitting=skip_fitting,
            interpolation=interpolation,
            mean=(0.4, 0.5, 0.6),
            std=(0.2, 0.25, 0.3),
        )
        opened = session(preprocessing)
        for size in SIZES:
            pictures = generator.integers(0, 256, (2, *size, 3), dtype=np.uint8)
            difference = levels(preprocessing, opened, pictures)
            assert difference.max() < 1.01, (size, odd_margin)
            assert (difference > 0.5).mean() < 0.001, (size, odd_margin)


def test_grey_black_and_white_pictures():
    preprocessing = Preprocessing(size_px=(32, 48))
    opened = session(preprocessing)
    for level in (0, 127, 255):
        assert levels(preprocessing, opened, np.full((1, 50, 41, 3), level, np.uint8)).max() < 0.01


def test_a_new_field_of_preprocessing_is_noticed():
    """What the graph does not know of must not be lost on the way."""
    assert vars(Preprocessing()).keys() == Fitting.__dataclass_fields__.keys()
