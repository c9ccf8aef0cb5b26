import numpy as np

from vitreous.display.words import class_in_words, counted, percent
from vitreous.models.vit import ViTSettings
from vitreous.prediction.pixel_outcomes import PixelOutcome


def test_numbers_agree_with_what_they_count():
    assert [counted(1, "class", "classes"), counted(1200, "picture")] == ["1 class", "1,200 pictures"]
    assert ViTSettings(depth=1, heads=1).describe() == "ViT, width 768, 1 block, 1 head, patches of 16 px"


def test_per_cent_is_written_with_a_space():
    assert [percent(0.98666), percent(1, 0), percent(0.98666, 3)] == ["98.7 %", "100 %", "98.666 %"]


def test_a_class_that_is_only_a_number_does_not_run_into_its_share():
    assert [class_in_words("3"), class_in_words("road"), class_in_words("#804080")] == ["class 3", "road", "#804080"]
    outcome = PixelOutcome(("0", "3"), np.array([[1, 1, 1, 0]], np.uint8), np.ones((1, 4)))
    assert outcome.words == "class 3 75 %, class 0 25 %"
