import pytest

from vitreous.data.transforms import Preprocessing
from vitreous.models import model_settings
from vitreous.weights.card import Card
from vitreous.weights.describe import describe


@pytest.mark.parametrize(
    ("name", "size", "num_classes", "expected"),
    [
        ("vit_s16", (384, 384), 21_843, "a ViT-S/16 at 384 px with 21,843 classes"),
        ("vit_h14", (224, 280), 0, "a ViT-H/14 at 280 x 224 px without a head"),
        ("r26_vit_s32", (224, 224), 10, "a hybrid ViT-S/32 at 224 px with 10 classes"),
        ("bit_r50x3", (224, 224), 10, "a BiT R50x3 at 224 px with 10 classes"),
    ],
)
def test_as_a_person_would_say_it(name, size, num_classes, expected):
    classes = tuple(map(str, range(num_classes)))
    card = Card(model=model_settings(name, picture_px=size), classes=classes, preprocessing=Preprocessing())
    assert describe(card) == expected


def test_a_size_without_a_name():
    model = model_settings("vit_s16", depth=2, patch=(8, 4))
    words = describe(Card(model=model, preprocessing=Preprocessing()))
    assert words == "a ViT of width 384, depth 2, 6 heads, patch 8x4 at 224 px without a head"
