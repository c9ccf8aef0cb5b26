"""SimMIM against transformers' own, on a Swin and on a ViT; what each family's mask tokens hide; what is refused."""

from dataclasses import replace

import pytest
import torch
import transformers

from promises import keep_promises, shrunk
from test_conformance import MODELS
from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models import ConvStem, ResNetSettings, SwinSettings, ViTSettings
from vitreous.models.base import Grid
from vitreous.objectives.patches import cut
from vitreous.objectives.simmim import SimMIM, SimMIMSettings
from vitreous.recipes.masked import cifar10_simmim
from vitreous.weights.trained import Trained

SWIN = SwinSettings(picture_px=(32, 32), patch=2, width=8, depths=(2, 2), heads=(1, 2), window=4, norm_epsilon=1e-5)
VIT = ViTSettings(picture_px=(24, 16), patch=4, width=16, depth=2, heads=2)
HYBRID = replace(VIT, patch=1, stem=ConvStem(widths=(8, 16), strides=(2, 2), residuals=(1, 0)))
FAMILIES = {
    "swin": SWIN,
    "vit": VIT,
    "hybrid": HYBRID,
    "convnext": replace(MODELS["convnext"], picture_px=(16, 24)),
    "pvt-v1": MODELS["pvt-v1"],
    "pvt-v2": MODELS["pvt-v2"],
}
PROGRESS = torch.tensor(0.0)


def built(model=SWIN, **changes) -> SimMIM:
    torch.manual_seed(0)
    return SimMIMSettings(**{"mask_px": 4, **changes}).build(model.build(), ())


def batch_of(size=(32, 32), num=3) -> Batch:
    ids = torch.arange(num)
    images = torch.randn(num, 3, *size, generator=torch.Generator().manual_seed(1))
    return Batch(views=(images,), targets={}, ids=ids, keys=K.sample_keys(0, 0, ids))


def test_promises(tmp_path):
    recipe = shrunk(cifar10_simmim(picture_px=28), lr=2e-2)
    model = SwinSettings(picture_px=(32, 32), patch=4, width=16, depths=(1, 2), heads=(1, 2), window=4)
    recipe = replace(recipe, model=model, objective=SimMIMSettings(mask_px=4))
    keep_promises(recipe, tmp_path, falls_to=0.9)


# ---- the peer


def swin_peer():
    config = transformers.SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=8,
        depths=[2, 2],
        num_heads=[1, 2],
        window_size=4,
        encoder_stride=4,
        drop_path_rate=0.0,
        hidden_act="gelu",
    )
    return transformers.SwinForMaskedImageModeling(config), SWIN, "swin"


def vit_peer():
    config = transformers.ViTConfig(
        image_size=32,
        patch_size=4,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        encoder_stride=4,
        layer_norm_eps=1e-6,
    )
    return transformers.ViTForMaskedImageModeling(config), replace(VIT, picture_px=(32, 32)), "vit"


@pytest.mark.parametrize("make", [swin_peer, vit_peer])
def test_loss_and_gradients_equal_transformers(make, tmp_path):
    torch.manual_seed(3)
    peer, model, prefix = make()
    for name, parameter in peer.named_parameters():  # larger than at the start, so that all of it counts
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name and name.endswith("weight") else 0.0, std=0.2)
    ours = like(peer.eval(), model, prefix, tmp_path)
    batch = batch_of()
    hidden = ours.draw(batch.keys)
    squares = torch.zeros(3, 64, dtype=torch.bool).scatter(1, hidden, True).view(3, 8, 8)
    times = 4 // peer.config.patch_size
    masked = squares.repeat_interleave(times, 1).repeat_interleave(times, 2).flatten(1)
    theirs = peer(batch.images, bool_masked_pos=masked)
    mine = ours(batch, PROGRESS)["loss"]
    torch.testing.assert_close(mine, theirs.loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.painted(batch.images, hidden), theirs.reconstruction, rtol=1e-4, atol=1e-4)

    mine.backward()
    theirs.loss.backward()
    embeddings = getattr(peer, prefix).embeddings
    patches = ours.encoder.patches if prefix == "swin" else ours.encoder.stem.patches
    for found, expected in (
        (ours.mask_token.grad, embeddings.mask_token.grad[0, 0]),
        (ours.head.weight.grad, peer.decoder[0].weight.grad.flatten(1)),
        (patches.linear.weight.grad, embeddings.patch_embeddings.projection.weight.grad.flatten(1)),
    ):
        assert found.abs().max() > 0
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def like(peer, model, prefix, folder) -> SimMIM:
    """Ours with the peer's weights: the encoder's from its files, as users bring them."""
    peer.save_pretrained(folder)
    ours = built(model)
    ours.encoder.load_state_dict(Trained.load(folder).encoder().state_dict())
    ours.mask_token.data.copy_(getattr(peer, prefix).embeddings.mask_token[0, 0])
    ours.head.weight.data.copy_(peer.decoder[0].weight.flatten(1))
    ours.head.bias.data.copy_(peer.decoder[0].bias)
    return ours


# ---- what is seen


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_pixels_are_not_seen_and_the_loss_is_about_them_alone(family):
    model = FAMILIES[family]
    ours, batch = built(model).eval(), batch_of(model.picture_px)
    hidden = ours.draw(batch.keys)
    squares = ours.squares
    assert hidden.shape == (3, -(-6 * squares.cells // 10))
    painted, loss = ours.painted(batch.images, hidden), ours(batch, PROGRESS)["loss"]
    over = ours._over(hidden, Grid(*model.picture_px))[:, None].expand_as(batch.images)
    torch.testing.assert_close(
        cut(over.float(), squares).mean(dim=-1).sum(dim=1), torch.full((3,), float(hidden.shape[1]))
    )
    # Whatever is hidden: neither its own token tells, nor one beside it that overlaps.
    assert torch.equal(ours.painted(torch.where(over, 100.0, batch.images), hidden), painted)
    assert not torch.equal(ours.painted(torch.where(over, batch.images, 1.0), hidden), painted)
    torch.testing.assert_close(loss, (painted - batch.images)[over].abs().mean())
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in (ours.mask_token, ours.head.weight, ours.head.bias))


def test_squares_follow_the_keys():
    ours, keys = built(), K.sample_keys(0, 0, torch.arange(4))
    hidden = ours.draw(keys)
    assert torch.equal(ours.draw(keys.flip(0)).flip(0), hidden)  # of the sample, not of its place in the batch
    assert not torch.equal(hidden[0], hidden[1])
    assert not torch.equal(ours.draw(K.sample_keys(0, 1, torch.arange(4))), hidden)  # another epoch, other squares


def test_reconstruction_changes_the_hidden_squares_alone():
    ours, batch = built(VIT), batch_of((24, 16))
    whole, seen = ours.reconstruction(batch.images, batch.keys)
    assert (whole.shape, seen.shape) == ((3, 3, 24, 16), (3, 1, 24, 16))
    assert float(seen.mean()) == pytest.approx(1 - 15 / 24)
    assert torch.equal(torch.where(seen > 0, whole, batch.images), batch.images)
    assert (whole != batch.images)[(seen == 0).expand_as(whole)].float().mean() > 0.99


def test_checkpointing_changes_nothing():
    losses = []
    for checkpointing in (False, True):
        ours = built()
        ours.encoder.checkpointing = checkpointing
        loss = ours(batch_of(), PROGRESS)["loss"]
        loss.backward()
        losses.append((loss.detach(), ours.mask_token.grad))
    assert torch.equal(losses[0][0], losses[1][0])
    torch.testing.assert_close(losses[0][1], losses[1][1])


@pytest.mark.parametrize(
    ("model", "changes", "match"),
    [
        (SWIN, {"mask_ratio": 1.0}, "hides 64 of 64 squares"),
        (SWIN, {"mask_ratio": 0.0}, "hides 0 of 64 squares"),
        (SWIN, {"mask_ratio": float("nan")}, "mask_ratio is nan"),
        (SWIN, {"mask_px": 3}, "whole patches, here of 2 x 2 px"),
        (SWIN, {"mask_px": 0}, "mask_px is 0: a square must be whole patches"),
        (SWIN, {"mask_px": 12}, "do not fill a picture of 32 x 32 px"),
        (replace(SWIN, picture_px=(30, 30)), {"mask_px": 2}, "one position per 4 x 4 px"),
        (
            ResNetSettings(picture_px=(32, 32), depths=(1, 1), base_width=8),
            {},
            "puts mask tokens in place of patches, and ResNet has none",
        ),
        (MODELS["igpt"], {}, "puts mask tokens in place of patches, and IGPT has none"),
    ],
)
def test_settings_that_cannot_be(model, changes, match):
    with pytest.raises(UserError, match=match) as error:
        built(model, **changes)
    assert "\n" not in str(error.value)
