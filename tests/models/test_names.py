"""Names and their settings, without torch where that is promised."""

import subprocess
import sys

import pytest

from vitreous.errors import UserError
from vitreous.models import MODELS, ResNetSettings, ResNetStem, ViTSettings, model_names, model_settings


def test_any_size_with_any_patch():
    settings = model_settings("vit_l7", picture_px=(28, 42))
    assert (settings.width, settings.depth, settings.heads, settings.patch) == (1024, 24, 16, 7)
    assert settings.picture_px == (28, 42)


def test_one_number_means_a_square():
    assert model_settings("bit_r50x1", picture_px=96).picture_px == (96, 96)


def test_half_b_halves_every_width():
    b, half = model_settings("vit_b32"), model_settings("vit_halfb32")
    assert half.width * 2 == b.width and half.depth == b.depth
    assert half.width // half.heads * 2 == b.width // b.heads


def test_hybrids():
    assert model_settings("r50_vit_b16").stem == ResNetStem(depths=(3, 4, 9))
    assert model_settings("r50_vit_b32").stem == ResNetStem(depths=(3, 4, 6, 3))
    assert model_settings("r50_vit_b32").patch == 1
    assert model_settings("r_vit_ti16") == ViTSettings(
        width=192, depth=12, heads=3, patch=8, stem=ResNetStem(depths=())
    )


def test_bit_widths():
    assert model_settings("bit_r152x4") == ResNetSettings(depths=(3, 8, 36, 3), base_width=256)


@pytest.mark.parametrize(
    "name", ["vit_bb16", "vit_b", "vit_b0", "bit_r51x1", "bit_r50x0", "r50_vit_b14", "resnet51", ""]
)
def test_unknown_names_are_one_clear_line(name):
    with pytest.raises(UserError, match="no model is called") as error:
        model_settings(name)
    assert "\n" not in str(error.value)


def test_did_you_mean():
    with pytest.raises(UserError, match="vit_b16"):
        model_settings("vitb16")
    with pytest.raises(UserError, match=r"no setting 'dept'.*depth"):
        model_settings("vit_b16", dept=3)


def test_listing_imports_no_torch():
    code = "import sys; from vitreous.models import model_names; print(len(model_names()), 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(len(MODELS)), "False"]


def test_every_listed_name_has_settings():
    assert all(model_settings(name) for name in model_names())


def test_convolutions_of_bit_take_sgd_and_all_others_adamw_with_layer_decay():
    names = ("bit_r50x1", "vit_b16", "r50_vit_b16", "swin_t", "convnext_t", "pvt_v2_b2", "igpt_s")
    suits = {name: model_settings(name).finetuning for name in names}
    assert {name for name, one in suits.items() if one.optimizer == "SGD"} == {"bit_r50x1"}
    assert all(one.layer_decay < 1 for one in suits.values() if one.optimizer == "AdamW")
    assert not suits["igpt_s"].enlarges and suits["swin_t"].enlarges
