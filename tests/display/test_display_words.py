from vitreous.display.words import counted, percent
from vitreous.models.vit import ViTSettings


def test_numbers_agree_with_what_they_count():
    assert [counted(1, "class", "classes"), counted(1200, "picture")] == ["1 class", "1,200 pictures"]
    assert ViTSettings(depth=1, heads=1).describe() == "ViT, width 768, 1 block, 1 head, patches of 16 px"


def test_per_cent_is_written_with_a_space():
    assert [percent(0.98666), percent(1, 0), percent(0.98666, 3)] == ["98.7 %", "100 %", "98.666 %"]
