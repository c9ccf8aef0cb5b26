"""Every model has as many parameters as its publication or timm counts, with a head of 1,000 classes."""

import pytest
from torch import nn

from vitreous.models import model_settings
from vitreous.models.flops import num_parameters
from vitreous.models.shapes import shapes_only

COUNTS = {
    "vit_ti16": 5_717_416,
    "vit_s16": 22_050_664,
    "vit_b16": 86_567_656,
    "vit_b32": 88_224_232,
    "vit_l16": 304_326_632,
    "vit_h14": 632_045_800,
    "vit_g14": 1_844_440_680,  # as timm counts its vit_gigantic_patch14_224
    "r_vit_ti16": 6_337_704,
    "r26_vit_s32": 36_431_912,
    "r50_vit_l32": 328_994_856,
    "r50_vit_b16": 98_659_112,  # of the weights released with the paper, as timm counts them
    "bit_r50x1": 25_549_352,
    "bit_r101x1": 44_541_480,
    "bit_r50x3": 217_319_080,
    "bit_r152x2": 236_335_208,
    "bit_r152x4": 936_533_224,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "swin_t": 28_288_354,
    "swin_s": 49_606_258,
    "swin_b": 87_768_224,
    "swin_l": 196_532_476,
    "pvt_v2_b0": 3_666_760,
    "pvt_v2_b1": 14_009_000,
    "pvt_v2_b2": 25_362_856,
    "pvt_v2_b2_linear": 22_553_512,
    "pvt_v2_b3": 45_238_696,
    "pvt_v2_b4": 62_556_072,
    "pvt_v2_b5": 81_956_008,
    "pvt_ti": 13_229_288,
    "pvt_s": 24_485_864,
    "pvt_m": 44_208_104,
    "pvt_l": 61_369_320,
    "convnext_atto": 3_695_520,
    "convnext_femto": 5_217_784,
    "convnext_pico": 9_045_672,
    "convnext_nano": 15_593_560,
    "convnext_t": 28_589_128,
    "convnext_s": 50_223_688,
    "convnext_b": 88_591_464,
    "convnext_l": 197_767_336,
}


@pytest.mark.parametrize("name", COUNTS)
def test_as_many_as_published(name):
    with shapes_only():
        encoder = model_settings(name).build()
        head = nn.Linear(encoder.width, 1000)
    assert num_parameters(encoder) + num_parameters(head) == COUNTS[name]
