"""Swin, ConvNeXt and PVT against timm, transformers and torchvision: random weights, float64, two picture sizes; and
what was read is written back bit by bit."""

import json
import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from peers import assert_bit_equal, assert_close_relative, randomise
from safetensors.torch import load_file
from torch import nn

from vitreous.conversion.convert import convert
from vitreous.conversion.verify import verify
from vitreous.errors import UserError
from vitreous.models import SwinSettings, model_settings
from vitreous.tasks.classify import ClassifySettings
from vitreous.weights import formats
from vitreous.weights.card import Card
from vitreous.weights.carrying import _small_maps, carry
from vitreous.weights.formats import Given
from vitreous.weights.peers import imported
from vitreous.weights.processors import USUAL
from vitreous.weights.trained import Trained

DEPTHS, WIDTHS = [1, 2, 1, 1], [8, 12, 18, 24]
SWIN = {"patch_size": 4, "embed_dim": 8, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4}


@dataclass
class Peer:
    module: nn.Module
    tensors: dict[str, torch.Tensor]
    documents: dict[str, Any]

    def logits(self, images):
        found = self.module(images)
        return getattr(found, "logits", found)


def timm(name, px, **arguments):
    module = imported("timm").create_model(name, num_classes=5, **arguments)
    randomise(module)
    config = {"architecture": name, "model_args": arguments, "pretrained_cfg": {"input_size": [3, *px]}}
    return Peer(module.double().eval(), module.state_dict(), {"config.json": config})


def transformers(kind, folder, hidden_act="gelu", **config):
    library = imported("transformers")
    module = getattr(library, f"{kind}ForImageClassification")(
        getattr(library, f"{kind}Config")(num_labels=5, hidden_act=hidden_act, **config)
    )
    randomise(module)
    module.double().eval().save_pretrained(folder)  # under the names of files, which are not those in memory
    document = json.loads((folder / "config.json").read_text())
    return Peer(module, load_file(folder / "model.safetensors"), {"config.json": document})


def torchvision(module):
    randomise(module)
    return Peer(module.double().eval(), module.state_dict(), {})


def tv_swin(px):
    from torchvision.models.swin_transformer import SwinTransformer

    return torchvision(SwinTransformer([4, 4], 8, [2, 2], [1, 2], [4, 4], num_classes=5))


def tv_convnext(px):
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return torchvision(ConvNeXt([CNBlockConfig(8, 12, 1), CNBlockConfig(12, None, 2)], num_classes=5))


def tv_resnet(px):
    from torchvision.models.resnet import BasicBlock, ResNet

    return torchvision(ResNet(BasicBlock, [1, 2, 1, 1], num_classes=5))


def v2(linear):
    return {
        "depths": DEPTHS,
        "hidden_sizes": WIDTHS,
        "num_attention_heads": [1, 2, 3, 4],
        "mlp_ratios": [2, 3, 2, 2],
        "sr_ratios": [8, 4, 2, 1],
        "linear_attention": linear,
    }


def timm_pvt(px, linear=False):
    sizes = {"depths": DEPTHS, "embed_dims": WIDTHS, "num_heads": [1, 2, 3, 4], "sr_ratios": [8, 4, 2, 1]}
    return timm("pvt_v2_b2", px, **sizes, mlp_ratios=[2, 3, 2, 2], linear=linear)


# Format -> the peer for a size of pictures (and a folder to save in), and two sizes. timm rolls a map before it pads
# it, the released code and torchvision after: only where windows fill the maps do all agree.
PEERS = {
    "timm-swin": (lambda px, folder: timm("swin_tiny_patch4_window7_224", px, img_size=px, **SWIN), (32, 64), (64, 96)),
    "timm-convnext": (lambda px, folder: timm("convnext_tiny", px, depths=DEPTHS, dims=WIDTHS), (45, 70), (64, 96)),
    "timm-convnext ": (lambda px, folder: timm("convnext_atto", px, depths=DEPTHS, dims=WIDTHS), (32, 32), (64, 96)),
    "timm-pvt-v2": (lambda px, folder: timm_pvt(px), (45, 70), (64, 96)),
    "timm-pvt-v2 ": (lambda px, folder: timm_pvt(px, linear=True), (45, 70), (64, 96)),
    "torchvision-swin": (lambda px, folder: tv_swin(px), (44, 60), (24, 40)),  # the last map is lower than a window
    "torchvision-convnext": (lambda px, folder: tv_convnext(px), (45, 70), (64, 96)),
    "timm-resnet": (lambda px, folder: timm("resnet50", px, layers=[1, 2, 1, 1]), (45, 70), (64, 96)),
    "torchvision-resnet": (lambda px, folder: tv_resnet(px), (45, 70), (64, 96)),
    "transformers-resnet": (
        lambda px, folder: transformers(
            "ResNet", folder, hidden_act="relu", embedding_size=8, hidden_sizes=[32, 64], depths=[1, 2]
        ),
        (64, 64),
        (70, 70),
    ),
    "transformers-swin": (
        lambda px, folder: transformers("Swin", folder, image_size=px[0], **SWIN),
        (64, 32),  # the last map is as narrow as a window: nothing shifts on it, in either direction
        (72, 88),
    ),
    "transformers-convnext": (
        lambda px, folder: transformers("ConvNext", folder, hidden_sizes=WIDTHS, depths=DEPTHS, image_size=px[0]),
        (64, 64),
        (72, 72),
    ),
    "transformers-pvt": (
        lambda px, folder: transformers(
            "Pvt",
            folder,
            image_size=px[0],
            depths=DEPTHS,
            hidden_sizes=WIDTHS,
            num_attention_heads=[1, 2, 3, 4],
            mlp_ratios=[2, 3, 2, 2],
        ),
        (64, 64),
        (96, 96),
    ),
    "transformers-pvt-v2": (lambda px, folder: transformers("PvtV2", folder, **v2(False)), (64, 64), (72, 72)),
    "transformers-pvt-v2 ": (lambda px, folder: transformers("PvtV2", folder, **v2(True)), (64, 64), (72, 72)),
}


def ours_of(card, weights):
    task = card.task.build(card.model.build(), card.classes).double().eval()
    task.load_state_dict({name: tensor for name, tensor in weights.items() if not name.startswith("extra.")})
    return task


def written(card, weights, format):
    """Of pictures shown whole: transformers' processors cut squares alone."""
    whole = replace(card, preprocessing=replace(card.preprocessing, crop="squash"))
    return formats.write(whole, weights, format)


@pytest.mark.filterwarnings("ignore")  # peers give some
@pytest.mark.parametrize("name", PEERS)
def test_the_peer_computes_the_same_and_gets_its_tensors_back(name, tmp_path):
    make, *sizes = PEERS[name]
    format = formats.named(name.strip())
    for px in sizes:
        peer = make(px, tmp_path)
        given = Given(peer.tensors, peer.documents, "file")
        assert formats.recognised(given).name == format.name
        card, weights, report = formats.read(given, format, px, strict=True)
        assert card.model.picture_px == px and len(card.classes) == 5 and report.is_exact
        images = torch.randn(2, 3, *px, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            found = ours_of(card, weights).predict(images).logits
            assert_close_relative(found, peer.logits(images), 1e-9)
        assert_bit_equal(written(card, weights, format.found_in(given)).tensors, peer.tensors)


@pytest.mark.parametrize("name", [name for name in PEERS if name.startswith(("timm", "transformers"))])
@pytest.mark.filterwarnings("ignore")
def test_what_is_written_beside_the_tensors_builds_the_same_peer(name, tmp_path):
    """A config of ours, read by the library: the same tensors fit, and we read the same model again."""
    make, px, _ = PEERS[name]
    peer, format = make(px, tmp_path), formats.named(name.strip())
    given = Given(peer.tensors, peer.documents, "file")
    card, weights, _ = formats.read(given, format, px, strict=True)
    config = written(card, weights, format.found_in(given)).documents["config.json"]
    again = format.card(Given(peer.tensors, {"config.json": config}, "file"))
    assert again.model == card.model
    if format.library == "timm":
        built = imported("timm").create_model(config["architecture"], num_classes=5, **config["model_args"])
    else:
        library = imported("transformers")
        values = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
        built = getattr(library, config["architectures"][0])(
            library.AutoConfig.for_model(config["model_type"], **values)
        )
    built.double().load_state_dict(peer.module.state_dict())
    images = torch.randn(1, 3, *px, dtype=torch.float64)
    with torch.no_grad():
        found = built.eval()(images)
        assert torch.equal(getattr(found, "logits", found), peer.logits(images))


@pytest.mark.parametrize("px", [(64, 64), (64, 96)])
def test_the_original_swin_is_timm_with_its_merging_a_stage_earlier(px):
    peer = timm("swin_tiny_patch4_window7_224", px, img_size=px, **SWIN)
    format = formats.named("swin")
    theirs = {re.sub(r"layers\.1\.downsample", "layers.0.downsample", name): t for name, t in peer.tensors.items()}
    theirs = {f"model.{name.replace('head.fc', 'head')}": tensor for name, tensor in theirs.items()}
    places = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    offsets = places[:, None] - places[None] + 3
    for i in range(2):
        for j in range(2):
            theirs[f"model.layers.{i}.blocks.{j}.attn.relative_position_index"] = offsets[..., 0] * 7 + offsets[..., 1]
    beside = {"model.layers.0.blocks.1.attn_mask": torch.zeros(16, 16, 16), "epoch": torch.tensor(299)}
    given = Given(theirs | beside, {}, "file")
    assert formats.recognised(given).name == "swin"
    card, weights, report = formats.read(given, format, px, strict=True)
    assert sorted(report.aside) == sorted(beside)
    images = torch.randn(1, 3, *px, dtype=torch.float64)
    with torch.no_grad():
        assert_close_relative(ours_of(card, weights).predict(images).logits, peer.logits(images), 1e-9)
    assert_bit_equal(formats.write(card, weights, format).tensors, theirs)

    # SimMIM's own: the same below `encoder`, with a mask token and a linear decoder in place of the head.
    painter = {name.replace("model.", "model.encoder.", 1): t for name, t in theirs.items() if ".head." not in name}
    beside = {"model.encoder.mask_token": torch.zeros(1, 1, 8), "model.decoder.0.weight": torch.zeros(192, 16, 1, 1)}
    given = Given(painter | beside, {}, "file")
    assert formats.recognised(given).name == "swin"
    card, again, report = formats.read(given, format, px, strict=True)
    assert card.task is None and sorted(report.aside) == sorted(beside)
    assert_bit_equal(again, {name: tensor for name, tensor in weights.items() if name.startswith("encoder.")})


@pytest.mark.parametrize("px", [(64, 64), (45, 70)])
def test_the_original_convnext_is_timm_by_other_names(px):
    peer = timm("convnext_tiny", px, depths=DEPTHS, dims=WIDTHS)
    format = formats.named("convnext")
    spelled = (
        (r"^stem", "downsample_layers.0"),
        (r"^stages\.(\d)\.downsample", r"downsample_layers.\1"),
        (r"\.blocks\.", "."),
        ("conv_dw", "dwconv"),
        (r"mlp\.fc", "pwconv"),
        (r"head\.norm", "norm"),
        (r"head\.fc", "head"),
    )
    theirs = {}
    for name, tensor in peer.tensors.items():
        other = name
        for pattern, spelling in spelled:
            other = re.sub(pattern, spelling, other)
        theirs[f"model.{other}"] = tensor
    given = Given(theirs, {}, "file")
    assert formats.recognised(given).name == "convnext"
    card, weights, _ = formats.read(given, format, px, strict=True)
    images = torch.randn(1, 3, *px, dtype=torch.float64)
    with torch.no_grad():
        assert_close_relative(ours_of(card, weights).predict(images).logits, peer.logits(images), 1e-9)
    assert_bit_equal(formats.write(card, weights, format).tensors, theirs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "to"),
    [
        ("swin_t", "timm-swin"),
        ("swin_t", "torchvision-swin"),
        ("swin_t", "swin"),
        ("convnext_atto", "timm-convnext"),
        ("convnext_atto", "transformers-convnext"),
        ("pvt_v2_b0", "timm-pvt-v2"),
        ("pvt_ti", "transformers-pvt"),
        ("resnet18", "timm-resnet"),
        ("resnet18", "torchvision-resnet"),
        ("resnet50", "transformers-resnet"),
    ],
)
def test_converted_by_the_command_and_verified_by_the_library(model, to, tmp_path):
    small = {"swin_t": {"width": 8, "depths": (1, 2), "heads": (1, 2), "window": 4}}
    three = {"widths": (8, 12, 16, 24), "depths": (1, 1, 2, 1)}
    small |= {"resnet18": {"depths": (1, 1, 1, 1)}, "resnet50": {"depths": (1, 2), "base_width": 8}}
    settings = model_settings(model, picture_px=64, **small.get(model, three))
    settings = settings.changed(heads=(1, 2, 2, 3)) if model.startswith("pvt") else settings
    torch.manual_seed(0)
    encoder = settings.build()
    randomise(encoder)
    task = ClassifySettings().build(encoder, ("cat", "dog"))
    nn.init.normal_(task.head.weight)
    card = Card(
        model=settings,
        task=ClassifySettings(),
        classes=("cat", "dog"),
        preprocessing=replace(USUAL, size_px=(64, 64)),
    )
    Trained(card, task.state_dict(), "here").save(tmp_path / "start")
    said = convert(str(tmp_path / "start"), tmp_path / "out", to)
    assert f"({to})" in said
    found = verify(str(tmp_path / "out"), picture_px=(64, 64))
    assert found.format == to and found.peer is not None
    assert max(values["float64"] for values in found.distances.values()) < 1e-9


def test_windows_larger_than_the_maps_have_no_place_elsewhere():
    model = model_settings("swin_t", picture_px=64)
    card = Card(model=model, task=None, classes=(), preprocessing=USUAL)
    for name in ("timm-swin", "transformers-swin", "swin"):  # their tables are as small as the maps, or break
        with pytest.raises(UserError, match=r"no place for windows of 7 in maps as small as 2 x 2.*--picture-px 224"):
            formats.named(name).run_as(card)
    with pytest.raises(UserError, match="small_maps 'pad', this model 'shrink'"):
        carry(card, model.build().state_dict(), formats.named("torchvision-swin"))


@pytest.mark.parametrize(
    ("ways", "picture_px", "differ"),
    [
        (("shift", "shrink"), (64, 64), True),  # a last map of 4 x 4, as large as a window, along which only one shifts
        (("square", "shrink"), (64, 64), False),
        (("square", "shrink"), (64, 128), True),  # 4 x 8: only one shifts along the longer side
        (("shift", "pad"), (128, 128), False),  # every map is larger
    ],
)
def test_small_maps_matter_where_windows_differ(ways, picture_px, differ):
    ours, theirs = (
        SwinSettings(picture_px=picture_px, patch=2, width=8, heads=(1, 1, 2, 2), window=4, small_maps=way)
        for way in ways
    )
    said = _small_maps(ours, theirs)
    assert bool(said) == differ and (not said or f"small_maps '{ways[1]}', this model '{ways[0]}'" in said[0])
    built = []
    for settings in (ours, theirs):
        torch.manual_seed(0)
        built.append(settings.build().eval())
    x = torch.randn(1, 3, *picture_px)
    with torch.no_grad():
        assert torch.equal(*(one(x).pooled for one in built)) != differ


def test_other_families_have_no_place():
    for name in ("timm-swin", "timm-convnext", "timm-pvt-v2", "transformers-pvt", "swin"):
        with pytest.raises(UserError, match=f"{name} cannot store a ViT-S/16"):
            formats.named(name).encoder_rules(model_settings("vit_s16"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("theirs", "format", "ours", "changes"),
    [
        ("timm swin_tiny_patch4_window7_224", "timm-swin", "swin_t", {}),
        ("timm swin_large_patch4_window12_384", "timm-swin", "swin_l", {"window": 12, "picture_px": (384, 384)}),
        ("timm convnext_atto", "timm-convnext", "convnext_atto", {}),
        ("timm convnext_nano", "timm-convnext", "convnext_nano", {}),
        ("timm convnext_base", "timm-convnext", "convnext_b", {}),
        ("timm pvt_v2_b0", "timm-pvt-v2", "pvt_v2_b0", {}),
        ("timm pvt_v2_b2_li", "timm-pvt-v2", "pvt_v2_b2_linear", {}),
        ("timm pvt_v2_b5", "timm-pvt-v2", "pvt_v2_b5", {}),
        ("torchvision resnet50", "torchvision-resnet", "resnet50", {}),
        ("torchvision resnet101", "torchvision-resnet", "resnet101", {}),
        ("timm resnet34", "torchvision-resnet", "resnet34", {}),
        ("torchvision swin_s", "torchvision-swin", "swin_s", {"small_maps": "pad"}),
        ("torchvision convnext_small", "torchvision-convnext", "convnext_s", {}),
    ],
)
def test_published_models_are_known_by_their_shapes(theirs, format, ours, changes):
    """Their names stand for the sizes that ours stand for, and every tensor has a place on both sides."""
    library, name = theirs.split()
    with torch.device("meta"):
        peer = getattr(imported("torchvision").models, name)() if library == "torchvision" else None
        peer = peer or imported("timm").create_model(name)
        given = Given(peer.state_dict(), {}, name)
        chosen = formats.named(format)
        assert formats.recognised(given).name == format
        card = chosen.card(given, changes.get("picture_px"))
        task = card.task.build(card.model.build(), card.classes)
    assert card.model == model_settings(ours, **changes)
    rules = chosen.found_in(given).rules(card)
    assert {each for rule in rules for each in rule.theirs} == set(given.tensors)
    ours = {each for rule in rules for each in rule.ours if not each.startswith("extra.")}
    assert ours == set(task.state_dict())
