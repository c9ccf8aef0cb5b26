"""Mask2Former and EoMT against transformers: random weights, masks and classes; what was read is written back bit by
bit."""

import copy
import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from peers import assert_bit_equal, assert_close_relative, randomise
from safetensors.torch import load_file
from torch import Tensor, nn

from vitreous.conversion.agreement import agree
from vitreous.conversion.convert import convert
from vitreous.conversion.verify import verify
from vitreous.errors import UserError
from vitreous.models import model_settings
from vitreous.models.flops import num_parameters
from vitreous.models.shapes import shapes_only
from vitreous.tasks.mask_queries import Learning, MaskQueries, MaskQuerySettings, PixelSettings
from vitreous.weights import formats
from vitreous.weights.card import Card
from vitreous.weights.formats import Given
from vitreous.weights.mask_queries import PREPROCESSING
from vitreous.weights.peers import imported
from vitreous.weights.trained import Trained

STAGES = {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
SWIN = {"model_type": "swin", "embed_dim": 8, "depths": [1, 2, 1, 1], "num_heads": [1, 2, 2, 2], "window_size": 3}
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1]}
RESNET |= {"layer_type": "basic"}
SMALL: dict[str, Any] = {"num_queries": 5, "num_labels": 3, "num_attention_heads": 4}
HEAD = {"feature_size": 32, "hidden_dim": 32, "mask_feature_size": 24, "encoder_feedforward_dim": 16}
HEAD |= {"dim_feedforward": 40, "encoder_layers": 1, "decoder_layers": 5}
VIT = {"hidden_size": 32, "num_hidden_layers": 3, "image_size": 64, "num_blocks": 2, "num_register_tokens": 2}
GATED = {"use_swiglu_ffn": True, "patch_size": 8, "num_upscale_blocks": 1, "num_register_tokens": 0}
PEERS: dict[str, tuple[str, str, dict[str, Any], tuple[int, int]]] = {
    "swin": ("transformers-mask2former", "Mask2Former", HEAD | {"backbone_config": SWIN | STAGES}, (75, 100)),
    "resnet": ("transformers-mask2former-resnet", "Mask2Former", HEAD | {"backbone_config": RESNET | STAGES}, (70, 96)),
    "eomt": ("transformers-eomt", "Eomt", VIT, (64, 64)),
    "eomt gated": ("transformers-eomt", "Eomt", VIT | GATED, (64, 64)),
}


@cache
def peer_of(name: str) -> nn.Module:
    _, kind, config, _ = PEERS[name]
    library = imported("transformers")
    module = getattr(library, f"{kind}ForUniversalSegmentation")(getattr(library, f"{kind}Config")(**(SMALL | config)))
    randomise(module)
    for buffer_name, buffer in module.named_buffers():
        if buffer_name.endswith(("running_mean", "running_var")):  # so that no map is all zeros, of which no norm is
            least = 0.5 if buffer_name.endswith("var") else -0.5
            buffer.copy_(torch.rand(len(buffer), generator=torch.Generator().manual_seed(len(buffer))) + least)
        if buffer_name == "attn_mask_probs":
            buffer.zero_()
    return module.double().eval()


def saved(module: nn.Module, folder) -> Given:
    module.save_pretrained(folder)
    document = json.loads((folder / "config.json").read_text())
    return Given(load_file(folder / "model.safetensors"), {"config.json": document}, "file")


def images_of(name: str, dtype: torch.dtype) -> Tensor:
    return torch.randn(2, 3, *PEERS[name][3], dtype=dtype, generator=torch.Generator().manual_seed(0))


def ours_of(card: Card, weights: dict[str, Tensor]) -> MaskQueries:
    task = card.task.build(card.model.build(), card.classes).double().eval()
    task.load_state_dict({name: tensor for name, tensor in weights.items() if not name.startswith("extra.")})
    return task


@pytest.mark.filterwarnings("ignore")  # peers give some
@pytest.mark.parametrize("name", PEERS)
def test_the_peer_computes_the_same_and_gets_its_tensors_back(name, tmp_path):
    format, peer = formats.named(PEERS[name][0]), peer_of(name)
    given = saved(peer, tmp_path)
    assert formats.recognised(given).name == format.name
    card, weights, report = formats.read(given, format, PEERS[name][3], strict=True)
    assert report.is_exact and len(card.classes) == 3 and card.task.queries == 5
    assert_bit_equal(formats.write(card, weights, format.found_in(given)).tensors, given.tensors)
    task, peer = ours_of(card, weights), copy.deepcopy(peer)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float, 1e-5)):
        images = images_of(name, dtype)
        with torch.no_grad():
            found, expected = task.to(dtype).decoded(images), peer.to(dtype)(images)
        assert_close_relative(found.logits[-1], expected.class_queries_logits, tolerance)
        assert_close_relative(found.masks(), expected.masks_queries_logits, tolerance)
        if dtype == torch.float64 and "eomt" not in name:  # and so does every layer
            with torch.no_grad():
                expected = peer.double()(images, output_auxiliary_logits=True)
            for layer, theirs in enumerate(expected.auxiliary_logits):
                assert_close_relative(found.logits[layer], theirs["class_queries_logits"], tolerance)


@pytest.mark.filterwarnings("ignore")
def test_queries_that_learn_look_inside_their_masks_as_the_peers_do(tmp_path, monkeypatch):
    peer = copy.deepcopy(peer_of("eomt"))
    card, weights, _ = formats.read(saved(peer, tmp_path), formats.named("transformers-eomt"), (64, 64), strict=True)
    peer.attn_mask_probs.fill_(1.0)
    peer.set_attn_implementation("eager")  # the fused one takes their float32 mask for another, in float64
    monkeypatch.setattr(torch, "float32", torch.float64)  # theirs rounds the softmax to it, whatever the precision
    said: list[tuple[Tensor, Tensor]] = []
    predict = peer.predict
    monkeypatch.setattr(peer, "predict", lambda tokens: said.append(predict(tokens)) or said[-1])
    images, task = images_of("eomt", torch.float64), ours_of(card, weights)
    with torch.no_grad():
        peer(images)
        found = task.decoded(images, Learning(torch.arange(2), torch.tensor(0.0)))
        free = task.decoded(images, Learning(torch.arange(2), torch.tensor(1.0)))
        plain = task.decoded(images)
    assert len(found.logits) == len(said) == 3 and len(plain.logits) == 1
    for layer, (masks, logits) in enumerate(said):
        assert_close_relative(found.logits[layer], logits, 1e-9)
        ours = torch.einsum("bqc,bchw->bqhw", found.embeddings[layer], found.pixels[layer])
        assert_close_relative(ours, masks, 1e-9)
    assert_close_relative(free.logits[-1], plain.logits[-1], 1e-9)  # at the end of a run all are let go
    assert not torch.allclose(found.logits[-1], plain.logits[-1], atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_masks_that_still_bind_are_refused(tmp_path):
    peer = copy.deepcopy(peer_of("eomt"))
    peer.attn_mask_probs.fill_(0.5)
    with pytest.raises(UserError, match="attn_mask_probs is not 0"):
        formats.read(saved(peer, tmp_path), formats.named("transformers-eomt"), (64, 64))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PEERS)
def test_what_is_written_is_opened_by_the_library(name, tmp_path):
    """By its own reader from a config of ours: nothing missing, the same masks; and read again it is the same card."""
    format, peer = formats.named(PEERS[name][0]), peer_of(name)
    card, weights, _ = formats.read(saved(peer, tmp_path), format, PEERS[name][3], strict=True)
    card = replace(card, task=replace(card.task, output="instances"), classes=("a", "b", "c"))
    written = formats.write(card, weights, format)
    again = format.card(Given(written.tensors, written.documents, "ours"))
    assert again.task == replace(card.task, dropout=again.task.dropout) and again.classes == card.classes
    assert again.preprocessing == card.preprocessing and again.model == card.model
    assert format.assumed(Given(written.tensors, written.documents, "ours"), again) == []


SIZES = {"queries": 5, "width": 32, "heads": 4, "mlp_width": 32, "decoder_depth": 2}
PIXEL = PixelSettings(mask_width=16, mlp_width=16, depth=1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to", ["transformers-mask2former", "transformers-mask2former-resnet", "transformers-eomt"])
def test_conversion_is_proven_by_the_library(to, tmp_path, monkeypatch):
    """A model of ours, saved, converted, and opened and compared by transformers."""
    compared = []
    monkeypatch.setattr(
        "vitreous.conversion.convert.agree",
        lambda *given, **more: compared.append(agree(*given, **more)) or compared[0],
    )
    if to == "transformers-eomt":
        model = model_settings("vit_s16", picture_px=64).changed(
            width=32, depth=2, heads=2, num_prefix=0, num_registers=1, layer_scale=1.0
        )
    else:
        model = model_settings("swin_t" if to == "transformers-mask2former" else "resnet18", picture_px=64)
        # On a map as small as its windows, where the library's segmenters shift them and classifiers do not.
        small = {"width": 24, "depths": (1, 1, 2, 2), "window": 2, "small_maps": "shift"}
        model = model.changed(**(small if to == "transformers-mask2former" else {"base_width": 8}))
    decoder = "eomt" if to == "transformers-eomt" else "mask2former"
    task = MaskQuerySettings(decoder=decoder, **SIZES, pixel=PIXEL, blocks=1)
    segmenter = task.build(model.build(), ("cat", "dog"))
    randomise(segmenter)
    preprocessing = replace(PREPROCESSING, size_px=(64, 64))
    card = Card(model=model, task=task, classes=("cat", "dog"), preprocessing=preprocessing)
    Trained(card, segmenter.state_dict(), "here").save(tmp_path / "start")
    assert f"({to})" in convert(str(tmp_path / "start"), tmp_path / "out", to)
    assert set(compared[0].distances) == {"logits", "masks"} and compared[0].reader != "our own model"
    found = verify(str(tmp_path / "out"), picture_px=(64, 64))
    assert found.format == to and found.peer is not None and set(found.distances) == {"logits", "masks"}
    assert max(values["float64"] for values in found.distances.values()) < 1e-9


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "queries"), [("swin_t", 100), ("swin_l", 200), ("resnet50", 100)])
def test_published_sizes_are_the_librarys(name, queries):
    """All sizes of the config that we write, but for one norm that the library never uses."""
    library = imported("transformers")
    card = Card(
        model=model_settings(name, picture_px=224),
        task=MaskQuerySettings(queries=queries),
        classes=tuple("c" * n for n in range(80)),
        preprocessing=PREPROCESSING,
    )
    format = formats.named("transformers-mask2former" + ("-resnet" if name == "resnet50" else ""))
    config = library.Mask2FormerConfig.from_dict(format.documents(card)["config.json"])
    with shapes_only():
        ours = num_parameters(card.task.build(card.model.build(), card.classes))
    with torch.device("meta"):
        peer = library.Mask2FormerForUniversalSegmentation(config)
    unused = ("layernorm.weight", "layernorm.bias")
    swin = "model.pixel_level_module.encoder.swin."
    sizes = {n: p.numel() for n, p in peer.named_parameters() if n not in {swin + one for one in unused}}
    # Norms of a ResNet that are fixed are no parameters of ours.
    assert ours == sum(sizes.values()), (ours, sum(sizes.values()))


def test_other_models_have_no_place():
    model = model_settings("pvt_v2_b0", picture_px=64)
    card = Card(model=model, task=MaskQuerySettings(), classes=("a", "b"), preprocessing=PREPROCESSING)
    with pytest.raises(UserError, match="cannot store a PVT"):
        formats.named("transformers-mask2former").run_as(card)
    with pytest.raises(UserError, match="EoMT of transformers only"):
        formats.named("transformers-eomt").run_as(card)
