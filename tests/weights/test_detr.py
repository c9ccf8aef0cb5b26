"""DETR and Deformable DETR against transformers: random weights, padding; what was read is written back bit by bit."""

import copy
import json
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from peers import assert_bit_equal, assert_close_relative, randomise
from safetensors.torch import load_file
from torch import Tensor, nn

from vitreous.conversion.convert import convert
from vitreous.conversion.verify import verify
from vitreous.errors import UserError
from vitreous.models import model_settings
from vitreous.models.flops import num_parameters
from vitreous.models.shapes import shapes_only
from vitreous.tasks.detect import DetectSettings
from vitreous.tasks.detect_queries import DetectByQueries
from vitreous.weights import formats
from vitreous.weights.card import Card
from vitreous.weights.detr import PREPROCESSING
from vitreous.weights.formats import Given
from vitreous.weights.peers import imported
from vitreous.weights.trained import Trained

PX, EXTENT = (96, 128), ((60, 128), (96, 90))
SMALL: dict[str, Any] = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "num_queries": 5, "num_labels": 3}
SMALL |= {f"{side}_ffn_dim": 16 for side in ("encoder", "decoder")}
SMALL |= {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
RESNET |= {"layer_type": "basic"}
REFINED = {"with_box_refine": True}
TWO_STAGES = REFINED | {"two_stage": True, "two_stage_num_proposals": 5}
PEERS: dict[str, tuple[str, str, dict[str, Any]]] = {  # the format, the library's class, its config
    "detr": ("transformers-detr-resnet", "Detr", {}),
    "detr timm": ("transformers-detr", "Detr", {"backbone": "resnet18"}),
    "deformable": ("transformers-deformable-detr-resnet", "DeformableDetr", {}),
    "deformable timm": ("transformers-deformable-detr", "DeformableDetr", {"backbone": "resnet18"}),
    "deformable refined": ("transformers-deformable-detr-resnet", "DeformableDetr", REFINED),
    "deformable two-stage": ("transformers-deformable-detr-resnet", "DeformableDetr", TWO_STAGES),
    "deformable one level": ("transformers-deformable-detr-resnet", "DeformableDetr", {"num_feature_levels": 1}),
}


def own_resnet(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    several = kind == "DeformableDetr" and config.get("num_feature_levels", 4) > 1
    sizes = [8, 16, 32, 64]
    stages = ["stage2", "stage3", "stage4"] if several else ["stage4"]
    backbone = RESNET | {"hidden_sizes": sizes, "out_features": stages}
    return {"use_timm_backbone": False, "backbone_config": backbone}


@cache
def peer_of(name: str) -> nn.Module:
    _, kind, config = PEERS[name]
    library = imported("transformers")
    backbone = {} if "backbone" in config else own_resnet(kind, config)
    module = getattr(library, f"{kind}ForObjectDetection")(
        getattr(library, f"{kind}Config")(**(SMALL | backbone | config))
    )
    randomise(module)
    for parameter_name, buffer in module.named_buffers():  # of the fixed batch norms, all four
        if buffer.ndim == 1 and parameter_name.endswith(("weight", "bias")):
            buffer.copy_(torch.rand(len(buffer), generator=torch.Generator().manual_seed(len(buffer))) + 0.5)
    return module.double().eval()


def saved(module: nn.Module, folder) -> Given:
    module.save_pretrained(folder)
    document = json.loads((folder / "config.json").read_text())
    return Given(load_file(folder / "model.safetensors"), {"config.json": document}, "file")


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures, how much of them is picture, and the same as a mask."""
    images = torch.randn(2, 3, *PX, dtype=dtype, generator=torch.Generator().manual_seed(0))
    extent = torch.tensor(EXTENT)
    mask = torch.zeros(2, *PX, dtype=torch.int64)
    for i, (h, w) in enumerate(EXTENT):
        mask[i, :h, :w] = 1
    return images, extent, mask


def ours_of(card: Card, weights: dict[str, Tensor]) -> DetectByQueries:
    task = card.task.build(card.model.build(), card.classes).double().eval()
    task.load_state_dict(weights)
    return task


@pytest.mark.filterwarnings("ignore")  # peers give some
@pytest.mark.parametrize("name", PEERS)
def test_the_peer_computes_the_same_and_gets_its_tensors_back(name, tmp_path, monkeypatch):
    format, peer = formats.named(PEERS[name][0]), peer_of(name)
    given = saved(peer, tmp_path)
    assert formats.recognised(given).name == format.name
    card, weights, report = formats.read(given, format, PX, strict=True)
    assert report.is_exact and len(card.classes) == 3
    written = formats.write(card, weights, format.found_in(given))
    assert_bit_equal(written.tensors, given.tensors)
    task, peer = ours_of(card, weights), copy.deepcopy(peer)
    if "two-stage" in name:  # theirs rounds positions to float32 inside, whatever the precision
        monkeypatch.setattr(torch, "float32", torch.float64)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float, 1e-5)):
        images, extent, mask = inputs(dtype)
        with torch.no_grad():
            found, expected = task.to(dtype).decoded(images, extent), peer.to(dtype)(images, pixel_mask=mask)
            assert_close_relative(found.logits[-1], expected.logits, tolerance)
            assert_close_relative(found.boxes[-1], expected.pred_boxes, tolerance)
            whole = task.decoded(images), peer(images)
            assert_close_relative(whole[0].boxes[-1], whole[1].pred_boxes, tolerance)
            assert not torch.allclose(whole[0].boxes[-1], found.boxes[-1], atol=1e-4)  # padding matters


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["detr timm", "deformable", "deformable refined", "deformable two-stage"])
def test_what_is_written_is_opened_by_the_library(name, tmp_path):
    """By its own reader from a config of ours, without the help of the peer's: nothing missing, the same boxes."""
    format, peer = formats.named(PEERS[name][0]), peer_of(name)
    card, weights, _ = formats.read(saved(peer, tmp_path), format, PX, strict=True)
    written = formats.write(card, weights, format)
    again = format.card(Given(written.tensors, written.documents, "ours"))
    assert again.model == card.model and again.task == card.task and again.classes == card.classes
    library = imported("transformers")
    kind = getattr(library, written.documents["config.json"]["architectures"][0])
    opened, info = kind.from_pretrained(
        None,
        config=kind.config_class.from_dict(written.documents["config.json"]),
        state_dict=dict(written.tensors),
        dtype=torch.float64,
        output_loading_info=True,
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    images, _, mask = inputs(torch.float64)
    with torch.no_grad():
        found, expected = opened.eval()(images, pixel_mask=mask), peer(images, pixel_mask=mask)
        assert_close_relative(found.pred_boxes, expected.pred_boxes, 1e-9)


DETR_SPELLED = (
    (r"^model\.backbone\.conv_encoder\.model\.", "backbone.0.body."),
    (r"^model\.input_projection", "input_proj"),
    (r"^model\.query_position_embeddings", "query_embed"),
    (r"^model\.decoder\.layernorm", "transformer.decoder.norm"),
    (r"^model\.(encoder|decoder)", r"transformer.\1"),
    (r"encoder\.(layers\.\d+)\.self_attn_layer_norm", r"encoder.\1.norm1"),
    (r"encoder\.(layers\.\d+)\.final_layer_norm", r"encoder.\1.norm2"),
    (r"self_attn_layer_norm", "norm1"),
    (r"encoder_attn_layer_norm", "norm2"),
    (r"final_layer_norm", "norm3"),
    (r"encoder_attn", "multihead_attn"),
    (r"\.fc([12])\.", r".linear\1."),
    (r"^class_labels_classifier", "class_embed"),
    (r"^bbox_predictor", "bbox_embed"),
)


DEFORMABLE_SPELLED = (
    *DETR_SPELLED[:1],
    (r"^model\.query_position_embeddings", "query_embed"),
    (r"^model\.input_proj", "input_proj"),
    (r"^model\.", "transformer."),
    *DETR_SPELLED[5:7],
    (r"encoder_attn_layer_norm", "norm1"),
    (r"self_attn_layer_norm", "norm2"),
    (r"final_layer_norm", "norm3"),
    (r"encoder_attn", "cross_attn"),
    (r"\.fc([12])\.", r".linear\1."),
)


def as_the_original(tensors, spelled):
    """By other names; queries, keys and values in one."""
    theirs: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        other = name
        for pattern, spelling in spelled:
            other = re.sub(pattern, spelling, other)
        theirs[f"model.{other}"] = tensor
    for name in [name for name in theirs if ".q_proj." in name]:
        parts = [theirs.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        theirs[re.sub(r"\.q_proj\.", ".in_proj_", name)] = torch.cat(parts)
    return theirs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "format", "spelled"),
    [("detr timm", "detr", DETR_SPELLED), ("deformable timm", "deformable-detr", DEFORMABLE_SPELLED)],
)
def test_the_original_is_the_same_by_other_names(name, format, spelled, tmp_path):
    peer, format = peer_of(name), formats.named(format)
    theirs = as_the_original(saved(peer, tmp_path).tensors, spelled)
    beside = {"epoch": torch.tensor(300)}
    if format.decoder == "deformable":  # the heads once more for every layer
        pairs = {name: name.replace("embed.0", "embed.1") for name in theirs if "_embed.0" in name}
        beside |= {copied: theirs[name] for name, copied in pairs.items()}
    given = Given(theirs | beside, {}, "file", heads=4)
    assert formats.recognised(given).name == format.name
    card, weights, report = formats.read(given, format, PX, strict=True)
    assert sorted(report.aside) == sorted(beside) and card.classes == ("0", "1", "2")
    images, extent, mask = inputs(torch.float64)
    with torch.no_grad():
        found = ours_of(card, weights).decoded(images, extent)
        expected = peer(images, pixel_mask=mask)
    assert_close_relative(found.logits[-1], expected.logits, 1e-9)
    assert_close_relative(found.boxes[-1], expected.pred_boxes, 1e-9)
    assert_bit_equal(formats.write(card, weights, format).tensors, theirs)


@pytest.mark.parametrize("name", ["deformable refined", "deformable two-stage"])
def test_heads_may_stand_outside_of_the_decoder_alone(name, tmp_path):
    """As some published files have them."""
    format, given = formats.named(PEERS[name][0]), saved(peer_of(name), tmp_path)
    _, weights, _ = formats.read(given, format, PX, strict=True)
    moved = {re.sub(r"^model\.decoder\.(bbox|class)_embed", r"\1_embed", name): t for name, t in given.tensors.items()}
    assert moved.keys() != given.tensors.keys()
    card, again, report = formats.read(Given(moved, given.documents, "file"), format, PX, strict=True)
    assert report.is_exact and card.task.refine
    assert_bit_equal(again, weights)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "count"), [("DeformableDetr", 40_046_792), ("Detr", 41_501_895)])
def test_published_sizes(kind, count):
    library = imported("transformers")
    config = getattr(library, f"{kind}Config")()
    with torch.device("meta"):
        peer = getattr(library, f"{kind}ForObjectDetection")(config)
        files = {
            name.replace(".backbone.model", ".backbone.conv_encoder.model"): t for name, t in peer.state_dict().items()
        }
        files = {re.sub(r"\.mlp\.fc", ".fc", name).replace("o_proj", "out_proj"): t for name, t in files.items()}
        given = Given(files, {"config.json": config.to_dict()}, "file")
    with shapes_only():
        card = formats.recognised(given).card(given)
        task = card.task.build(card.model.build(), card.classes)
    assert num_parameters(task) == count == sum(p.numel() for p in peer.parameters())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("decoder", "to"),
    [("detr", "detr"), ("deformable", "transformers-deformable-detr-resnet")],
)
def test_converted_by_the_command_and_verified_by_the_library(decoder, to, tmp_path):
    torch.manual_seed(0)
    sizes = {"queries": 5, "width": 32, "heads": 8, "mlp_width": 16, "encoder_depth": 1, "decoder_depth": 2}
    task = DetectSettings(decoder=decoder, **sizes, refine=decoder == "deformable")
    model = model_settings("resnet18", picture_px=64)
    detector = task.build(model.build(), ("cat", "dog"))
    randomise(detector)
    for buffer in detector.buffers():  # of the norms
        buffer.copy_(torch.rand(buffer.shape) + 0.5)
    card = Card(model=model, task=task, classes=("cat", "dog"), preprocessing=replace(PREPROCESSING, size_px=(64, 64)))
    Trained(card, detector.state_dict(), "here").save(tmp_path / "start")
    assert f"({to})" in convert(str(tmp_path / "start"), tmp_path / "out", to)
    found = verify(str(tmp_path / "out"), picture_px=(64, 64))
    assert found.format == to and found.peer is not None
    assert max(values["float64"] for values in found.distances.values()) < 1e-9
    assert set(found.distances) == {"logits", "boxes"}


def test_other_models_have_no_place(tmp_path):
    card, *_ = formats.read(
        saved(peer_of("deformable"), tmp_path), formats.named("transformers-deformable-detr-resnet")
    )
    with pytest.raises(UserError, match="holds a DETR"):
        formats.named("detr").rules(card)
    with pytest.raises(UserError, match="cannot store a ResNet"):
        formats.named("timm").rules(card)
