"""torchvision's VisionTransformer, with random weights, against what is read from it; then written back."""

from dataclasses import replace

import pytest
import torch
from peers import assert_bit_equal, assert_close_relative, converted, randomise

from vitreous.errors import UserError
from vitreous.weights import formats
from vitreous.weights.formats import Given
from vitreous.weights.torchvision import FORMATS

vision_transformer = pytest.importorskip("torchvision.models.vision_transformer")

TODAY, PUBLISHED = FORMATS
TWO_HEADS = {"config.json": {"num_heads": 2}}


def vit(**changes):
    base = {"image_size": 16, "patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 128, "mlp_dim": 48}
    return vision_transformer.VisionTransformer(**(base | {"num_classes": 5} | changes))


PEERS = {
    "plain": (vit, TWO_HEADS),
    "hidden-layer": (lambda: vit(representation_size=128), TWO_HEADS),
    "wider-heads": (lambda: vit(num_heads=1), {"config.json": {"num_heads": 1}}),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", PEERS)
def test_logits_and_features(name, dtype, tolerance):
    build, documents = PEERS[name]
    peer = build()
    randomise(peer)
    peer = peer.to(dtype).eval()
    card, ours = converted(TODAY, peer, documents)
    fresh = vision_transformer.VisionTransformer(**TODAY.documents(card)["config.json"]).to(dtype)
    fresh.load_state_dict(formats.write(card, ours.state_dict(), TODAY).tensors)
    assert_bit_equal(fresh.state_dict(), peer.state_dict())
    images = torch.randn(2, 3, 16, 16, dtype=dtype)
    tokens = []
    peer.encoder.register_forward_hook(lambda _, __, out: tokens.append(out))
    with torch.no_grad():
        assert_close_relative(ours.predict(images).logits, peer(images), tolerance)
        features = ours.encoder(images)
    found = torch.cat([features.prefix, features.maps[0].flatten(2).transpose(1, 2)], dim=1)
    assert_close_relative(found, tokens[0], tolerance)


def test_the_published_spelling():
    state = vit().state_dict()
    old = {name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): t for name, t in state.items()}
    given = Given(old, TWO_HEADS, "file")
    assert formats.recognised(given).name == PUBLISHED.name and not TODAY.fits(given)
    card, weights, report = formats.read(given, PUBLISHED)
    assert report.is_exact
    assert_bit_equal(formats.write(card, weights, PUBLISHED).tensors, old)
    assert_bit_equal(formats.write(card, weights, TODAY).tensors, state)


@pytest.mark.parametrize(
    ("name", "heads", "patch"),
    [("vit_b_16", 12, 16), ("vit_b_32", 12, 32), ("vit_l_16", 16, 16), ("vit_l_32", 16, 32), ("vit_h_14", 16, 14)],
)
def test_published_models_are_known_by_their_shapes(name, heads, patch):
    with torch.device("meta"):
        peer = getattr(vision_transformer, name)()
        card = TODAY.card(Given(peer.state_dict(), {}, name))
        ours = card.task.build(card.model.build(), card.classes)
    rules = TODAY.rules(card)
    assert (card.model.heads, card.model.patch, card.model.picture_px) == (heads, patch, (224, 224))
    assert {theirs for rule in rules for theirs in rule.theirs} == set(peer.state_dict())
    assert {mine for rule in rules for mine in rule.ours} == set(ours.state_dict())


@pytest.mark.parametrize(
    "changes",
    [{"pool": "mean"}, {"num_registers": 1}, {"gelu": "tanh"}, {"picture_px": (16, 32)}, {"pool_norm": "after"}],
)
def test_what_has_no_place(changes):
    card = TODAY.card(Given(vit().state_dict(), TWO_HEADS, "file"))
    with pytest.raises(UserError, match="torchvision"):
        TODAY.rules(replace(card, model=card.model.changed(**changes)))


def test_heads_that_cannot_be_told():
    with pytest.raises(UserError, match="num_heads"):
        TODAY.card(Given(vit().state_dict(), {}, "file"))


def test_a_table_that_is_no_square():
    state = vit().state_dict() | {"encoder.pos_embedding": torch.zeros(1, 13, 128)}
    with pytest.raises(UserError, match="square"):
        TODAY.card(Given(state, {}, "file"))
