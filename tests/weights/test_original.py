"""DeiT, DINO, MAE and BEiT as they were published: timm's models inside, with what their files hold around them."""

import pytest
import torch
from peers import assert_bit_equal, assert_close_relative, randomise
from torch import nn

from vitreous.errors import UserError
from vitreous.models import ResNetSettings
from vitreous.weights import formats
from vitreous.weights.card import Card
from vitreous.weights.formats import Given
from vitreous.weights.original import FORMATS
from vitreous.weights.timm import Timm

timm_vit = pytest.importorskip("timm.models.vision_transformer")

BY_NAME = {one.name: one for one in (*FORMATS, Timm())}
SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 64, "depth": 2, "num_heads": 1, "num_classes": 5}


def ready(peer):
    randomise(peer)
    return peer.double().eval()


def vit(**changes):
    return ready(timm_vit.VisionTransformer(**(SMALL | changes)))


def distilled():
    from timm.models.deit import VisionTransformerDistilled

    return ready(VisionTransformerDistilled(**SMALL))


def masked():
    """MAE in pre-training: an encoder without a head, and a decoder that its answers do not depend on."""
    peer = timm_vit.VisionTransformer(**(SMALL | {"num_classes": 0}))
    peer.decoder_embed, peer.decoder_pred = nn.Linear(64, 32), nn.Linear(32, 48)
    peer.mask_token, peer.decoder_pos_embed = nn.Parameter(torch.empty(1, 1, 32)), nn.Parameter(torch.empty(1, 17, 32))
    peer.decoder_blocks = nn.ModuleList([timm_vit.Block(32, 2, qkv_bias=True) for _ in range(3)])
    peer.decoder_norm = nn.LayerNorm(32)
    return ready(peer)


def beit(**changes):
    from timm.models.beit import Beit

    arguments = {"qkv_bias": True, "use_abs_pos_emb": False, "use_rel_pos_bias": True, "init_values": 0.1}
    return ready(Beit(**(SMALL | {"num_heads": 2} | arguments | changes)))


def with_index(peer):
    """The state of a BEiT as it was saved when the index tables still were."""
    from timm.models.beit import gen_relative_position_index

    state, index = peer.state_dict(), gen_relative_position_index((4, 4))
    places = [name for name in state if name.endswith("relative_position_bias_table")]
    return state | {name.replace("bias_table", "index"): index for name in places}


def under(prefix, state):
    return {prefix + name: tensor for name, tensor in state.items()}


OPTIMIZER = {"optimizer.state.0.exp_avg": torch.zeros(3), "scaler.scale": torch.zeros(())}


def dino(peer):
    """A training checkpoint: both networks with their projections, the loss's centre and the optimizer."""
    head = {"head.mlp.0.weight": torch.zeros(4, 64), "head.last_layer.weight_g": torch.zeros(9, 1)}
    backbone = under("backbone.", peer.state_dict())
    student = under("student.module.", {name: tensor + 1 for name, tensor in (backbone | head).items()})
    besides = student | under("teacher.", head) | OPTIMIZER | {"dino_loss.center": torch.zeros(1, 9)}
    return under("teacher.", backbone), besides


# The format, the peer, its file, and what the file holds besides.
CASES = {
    "deit": lambda: ("deit", peer := vit(), under("model.", peer.state_dict()), {}),
    "deit-training": lambda: ("deit", peer := vit(), under("model.", peer.state_dict()), OPTIMIZER),
    "deit-distilled": lambda: ("deit", peer := distilled(), under("model.", peer.state_dict()), {}),
    "deit-bare": lambda: ("timm", peer := distilled(), peer.state_dict(), {}),
    "dino": lambda: ("dino", peer := vit(num_classes=0), *dino(peer)),
    "dino-student": lambda: (
        "dino-student",
        peer := vit(num_classes=0),
        under("student.module.backbone.", peer.state_dict()),
        OPTIMIZER,
    ),
    "dino-bare": lambda: ("timm", peer := vit(num_classes=0), peer.state_dict(), {}),
    "mae": lambda: ("mae", peer := masked(), under("model.", peer.state_dict()), OPTIMIZER),
    "mae-bare": lambda: ("mae-bare", peer := masked(), peer.state_dict(), {}),
    "mae-fine-tuned": lambda: ("mae", peer := vit(global_pool="avg"), under("model.", peer.state_dict()), {}),
    "beit": lambda: ("beit", peer := beit(), under("model.", with_index(peer)), {}),
    "beit-shared": lambda: (
        "beit",
        peer := beit(use_rel_pos_bias=False, use_shared_rel_pos_bias=True, global_pool="token"),
        under("model.", with_index(peer)),
        {},
    ),
    "beit-bare": lambda: ("beit-bare", peer := beit(), with_index(peer), {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_read_compared_and_written_back(case, dtype, tolerance):
    name, peer, file, besides = CASES[case]()
    peer.to(dtype)
    file = {key: tensor.to(dtype) if tensor.is_floating_point() else tensor for key, tensor in file.items()}
    given = Given(file | besides, {}, "file")
    format = formats.recognised(given)
    assert format.name == name
    card, weights, report = formats.read(given, format)
    assert report.is_exact, report.mismatch()
    assert report.aside == sorted(besides)
    images = torch.randn(2, 3, 16, 16, dtype=dtype)
    encoder = card.model.build().to(dtype).eval()
    model = encoder if card.task is None else card.task.build(encoder, card.classes).to(dtype).eval()
    prefix = "encoder." if card.task is None else ""
    model.load_state_dict({n.removeprefix(prefix): t for n, t in weights.items() if not n.startswith("extra.")})
    with torch.no_grad():
        features = encoder(images)
        tokens = torch.cat([features.prefix, features.maps[0].flatten(2).transpose(1, 2)], dim=1)
        assert_close_relative(tokens, peer.forward_features(images), tolerance)
        answer = features.pooled if card.task is None else model.predict(images)
        assert_close_relative(answer, peer(images), tolerance)
    assert_bit_equal(formats.write(card, weights, format).tensors, file)


def test_the_teacher_is_what_remains():
    name, peer, file, besides = CASES["dino"]()
    _, weights, _ = formats.read(Given(file | besides, {}, "file"), BY_NAME[name])
    assert torch.equal(weights["encoder.norm.weight"], peer.norm.weight)


def test_a_decoder_is_kept():
    name, peer, file, _ = CASES["mae"]()
    _, weights, _ = formats.read(Given(file, {}, "file"), BY_NAME[name])
    kept = {key for key in weights if key.startswith("extra.")}
    assert kept == {f"extra.{key}" for key in peer.state_dict() if "decoder" in key or key == "mask_token"}


def test_an_index_table_of_another_grid_is_refused():
    name, _, file, _ = CASES["beit"]()
    file["model.blocks.1.attn.relative_position_index"] = torch.zeros(17, 17, dtype=torch.int64)
    with pytest.raises(UserError, match=r"blocks\.1\.attn\.relative_position_index"):
        formats.read(Given(file, {}, "file"), BY_NAME[name])


def test_unknown_tensors_are_not_set_aside():
    name, _, file, _ = CASES["deit"]()
    _, _, report = formats.read(Given(file | {"model.adapter.weight": torch.zeros(1)}, {}, "file"), BY_NAME[name])
    assert report.unused == ["model.adapter.weight"] and not report.aside


def test_preprocessing_is_that_of_imagenet():
    name, _, file, _ = CASES["deit"]()
    p = BY_NAME[name].card(Given(file, {}, "file")).preprocessing
    assert (p.mean, p.crop_fraction, p.interpolation) == ((0.485, 0.456, 0.406), 0.875, "bicubic")


def test_no_place_for_a_resnet():
    card = Card(
        model=ResNetSettings(), preprocessing=BY_NAME["deit"].card(Given(CASES["deit"]()[2], {}, "x")).preprocessing
    )
    with pytest.raises(UserError, match="no place for a ResNet"):
        BY_NAME["deit"].rules(card)
