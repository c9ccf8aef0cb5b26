from dataclasses import replace

import pytest
import torch
import transformers

from promises import keep_promises, shrunk
from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models import ResNetSettings, ViTSettings, model_settings
from vitreous.models.base import Grid
from vitreous.models.flops import flops as encoder_flops
from vitreous.models.shapes import shapes_only
from vitreous.models.stems import ConvStem
from vitreous.objectives import mae
from vitreous.objectives.mae import MAE, MAESettings
from vitreous.objectives.patches import cut, of_cells, pasted
from vitreous.recipes.masked import cifar10_mae, mae_imagenet
from vitreous.training.optim import AdamWSettings

TINY = ViTSettings(picture_px=(24, 24), patch=4, width=32, depth=2, heads=2, positions="sincos")  # a grid of 6 x 6
LIGHT = MAESettings(decoder_depth=2, decoder_width=16, decoder_heads=2)
PROGRESS = torch.tensor(0.0)


def built(model=TINY, settings=LIGHT) -> MAE:
    torch.manual_seed(0)
    return settings.build(model.build(), ())


def batch_of(size=(24, 24), num=4) -> Batch:
    ids = torch.arange(num)
    images = torch.randn(num, 3, *size, generator=torch.Generator().manual_seed(1))
    return Batch(views=(images,), targets={}, ids=ids, keys=K.sample_keys(0, 0, ids))


def test_promises(tmp_path):
    recipe = shrunk(cifar10_mae())
    small = replace(recipe.objective, decoder_depth=2, decoder_width=64, decoder_heads=2)
    rows = keep_promises(replace(recipe, objective=small), tmp_path, falls_to=0.99)
    assert rows[-1]["loss"] < 1.0  # what always answering the mean of a patch would give


# ---- the peer


def copy_linear(ours, theirs):
    ours.weight.data.copy_(theirs.weight.flatten(1))
    ours.bias.data.copy_(theirs.bias)


def copy_blocks(ours, theirs):
    for block, layer in zip(ours, theirs, strict=True):
        parts = [layer.attention.q_proj, layer.attention.k_proj, layer.attention.v_proj]
        block.attention.project_in.weight.data.copy_(torch.cat([part.weight for part in parts]))
        block.attention.project_in.bias.data.copy_(torch.cat([part.bias for part in parts]))
        copy_linear(block.attention.project_out, layer.attention.o_proj)
        copy_linear(block.mlp.expand, layer.mlp.fc1)
        copy_linear(block.mlp.contract, layer.mlp.fc2)
        for norm, other in ((block.attention_norm, layer.layernorm_before), (block.mlp_norm, layer.layernorm_after)):
            norm.load_state_dict(other.state_dict())


def pixels_last(values: torch.Tensor) -> torch.Tensor:
    """Rows in the peer's order (ph, pw, C) from ours (C, ph, pw)."""
    return values.unflatten(0, (3, 4, 4)).permute(1, 2, 0, *range(3, values.ndim + 2)).flatten(0, 2)


@pytest.fixture(scope="module")
def peer() -> transformers.ViTMAEForPreTraining:
    torch.manual_seed(3)
    config = transformers.ViTMAEConfig(
        image_size=24,
        patch_size=4,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=64,
        layer_norm_eps=1e-6,
        norm_pix_loss=True,
    )
    model = transformers.ViTMAEForPreTraining(config)
    # This version leaves the fixed positions of a fresh model at zero, which the published ones do not have.
    if not model.vit.embeddings.position_embeddings.any():
        model.vit.embeddings.patch_embeddings.projection._is_hf_initialized = False
        model.vit.embeddings.initialize_weights()
    model.decoder.initialize_weights(36)
    for name, p in model.named_parameters():
        if p.requires_grad:  # larger than at the start, so that all of it counts
            torch.nn.init.normal_(p, mean=1.0 if "norm.weight" in name else 0.0, std=0.2)
    return model


def like(peer, settings=LIGHT) -> MAE:
    ours = built(settings=settings)
    embeddings, encoder, decoder = peer.vit.embeddings, ours.encoder, ours.decoder
    copy_linear(encoder.stem.patches.linear, embeddings.patch_embeddings.projection)
    encoder.prefix.tokens.data.copy_(embeddings.cls_token[0])
    copy_blocks(encoder.blocks, peer.vit.layers)
    encoder.norm.load_state_dict(peer.vit.layernorm.state_dict())
    copy_linear(decoder.embed, peer.decoder.decoder_embed)
    decoder.mask_token.data.copy_(peer.decoder.mask_token[0, 0])
    copy_blocks(decoder.blocks, peer.decoder.decoder_layers)
    decoder.norm.load_state_dict(peer.decoder.decoder_norm.state_dict())
    for name, theirs in peer.decoder.decoder_pred.named_parameters():
        values = theirs.unflatten(0, (4, 4, 3)).permute(2, 0, 1, *range(3, theirs.ndim + 2)).flatten(0, 2)
        decoder.predict.get_parameter(name).data.copy_(values)
    # Positions are not copied: both compute them.
    torch.testing.assert_close(encoder.positions.tables[0].table, embeddings.position_embeddings[0])
    torch.testing.assert_close(decoder.positions.table, peer.decoder.decoder_pos_embed[0])
    return ours


@pytest.mark.parametrize("normalise", [True, False])
def test_loss_and_gradients_equal_transformers(peer, normalise):
    batch = batch_of()
    ours = like(peer, replace(LIGHT, normalise=normalise))
    kept, dropped = ours.draw(batch.keys)
    order = torch.cat([kept, dropped], dim=1)
    noise = order.argsort(dim=1).float()  # the peer keeps the cells with the least noise, in this order
    peer.config.norm_pix_loss = normalise
    peer.zero_grad()
    theirs = peer(batch.images, noise=noise)
    assert torch.equal(theirs.mask.sum(dim=1), torch.full((4,), 27.0))
    mine = ours(batch, PROGRESS)["loss"]
    torch.testing.assert_close(mine, theirs.loss, rtol=1e-5, atol=1e-6)

    mine.backward()
    theirs.loss.backward()
    first = peer.vit.layers[0]
    qkv = torch.cat(
        [part.weight.grad for part in (first.attention.q_proj, first.attention.k_proj, first.attention.v_proj)]
    )
    for found, expected in (
        (
            ours.encoder.stem.patches.linear.weight.grad,
            peer.vit.embeddings.patch_embeddings.projection.weight.grad.flatten(1),
        ),
        (ours.encoder.prefix.tokens.grad, peer.vit.embeddings.cls_token.grad[0]),
        (ours.encoder.blocks[0].attention.project_in.weight.grad, qkv),
        (ours.encoder.blocks[1].mlp.expand.weight.grad, peer.vit.layers[1].mlp.fc1.weight.grad),
        (ours.encoder.norm.weight.grad, peer.vit.layernorm.weight.grad),
        (ours.decoder.mask_token.grad, peer.decoder.mask_token.grad[0, 0]),
        (pixels_last(ours.decoder.predict.weight.grad), peer.decoder.decoder_pred.weight.grad),
    ):
        assert found.abs().max() > 0
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


# ---- what is seen


def test_pasted_undoes_cut():
    images = batch_of((24, 16)).images
    assert torch.equal(pasted(cut(images, Grid(6, 4)), Grid(6, 4), (4, 4)), images)


@pytest.mark.parametrize("num_prefix", [0, 1, 3])
def test_the_encoder_sees_the_kept_patches_alone(num_prefix, monkeypatch):
    ours = built(replace(TINY, num_prefix=num_prefix, pool="mean"))
    batch = batch_of()
    kept, dropped = ours.draw(batch.keys)
    assert (kept.shape, dropped.shape) == ((4, 9), (4, 27))
    assert torch.equal(torch.cat([kept, dropped], dim=1).sort(dim=1).values, torch.arange(36).expand(4, -1))
    lengths = []
    handle = ours.encoder.blocks[0].register_forward_hook(lambda block, given, out: lengths.append(given[0].shape[1]))
    patches = cut(batch.images, Grid(6, 6)).clone()
    predicted = ours.predicted(patches, kept, dropped)
    handle.remove()
    assert lengths == [num_prefix + 9]
    # What was dropped can be anything.
    for one in range(4):
        patches[one, dropped[one]] = 100.0
    assert torch.equal(ours.predicted(patches, kept, dropped), predicted)
    patches[:, kept[0, 0]] = 0.0
    assert not torch.equal(ours.predicted(patches, kept, dropped)[0], predicted[0])


def test_patches_are_embedded_as_in_the_whole_picture():
    ours, batch = built(), batch_of()
    kept, dropped = ours.draw(batch.keys)
    whole, _ = ours.encoder.embed(batch.images)
    encoded = ours.encoder.encode(of_cells(whole, kept), Grid(6, 6), at=kept)
    cells = torch.cat([kept, dropped], dim=1)
    found = ours.predicted(cut(batch.images, Grid(6, 6)), kept, dropped)
    torch.testing.assert_close(found, ours.decoder(encoded, cells))


def test_masks_follow_the_keys():
    ours = built()
    keys = K.sample_keys(0, 0, torch.arange(4))
    kept, _ = ours.draw(keys)
    assert torch.equal(ours.draw(keys.flip(0))[0].flip(0), kept)  # of the sample, not of its place in the batch
    assert not torch.equal(kept[0], kept[1])
    assert not torch.equal(ours.draw(K.sample_keys(0, 1, torch.arange(4)))[0], kept)  # another epoch, another mask


def test_normalised_targets_have_no_mean_and_unit_variance():
    images = torch.rand(2, 3, 24, 24) * 5 + 3
    images[0, :, :4, :4] = 2.0  # an even patch has no variance to divide by
    targets = built().targets(cut(images, Grid(6, 6)))
    assert torch.equal(targets[0, 0], torch.zeros(48))
    rest = targets[1]
    torch.testing.assert_close(rest.mean(dim=-1), torch.zeros(36), atol=1e-5, rtol=0)
    torch.testing.assert_close(rest.var(dim=-1), torch.ones(36), atol=1e-3, rtol=0)


def test_reconstruction_changes_the_dropped_patches_alone():
    ours = built(replace(TINY, picture_px=(24, 16)))  # a grid of 6 x 4
    batch = batch_of((24, 16))
    painted, seen = ours.reconstruction(batch.images, batch.keys)
    assert (painted.shape, seen.shape) == ((4, 3, 24, 16), (4, 1, 24, 16))
    assert float(seen.mean()) == 0.25
    assert torch.equal(torch.where(seen > 0, painted, batch.images), batch.images)
    assert (painted != batch.images)[(seen == 0).expand_as(painted)].float().mean() > 0.99
    kept, _ = ours.draw(batch.keys)
    assert float(cut(seen, Grid(6, 4))[0, kept[0]].min()) == 1.0
    # With the truth predicted, the picture comes back: the mean and variance of a patch are those of the true one.
    ours.predicted = lambda patches, kept, dropped: ours.targets(of_cells(patches, dropped))
    torch.testing.assert_close(ours.reconstruction(batch.images, batch.keys)[0], batch.images, atol=1e-5, rtol=0)


def test_checkpointing_changes_nothing_and_reaches_the_decoder():
    losses = []
    for checkpointing in (False, True):
        ours = built()
        ours.encoder.checkpointing = checkpointing
        loss = ours(batch_of(), PROGRESS)["loss"]
        loss.backward()
        losses.append((loss.detach(), ours.encoder.blocks[0].mlp.expand.weight.grad))
    assert torch.equal(losses[0][0], losses[1][0])
    torch.testing.assert_close(losses[0][1], losses[1][1])
    calls = []
    ours.decoder.blocks[0].register_forward_pre_hook(lambda *given: calls.append(1))
    ours(batch_of(), PROGRESS)["loss"].backward()
    assert len(calls) == 2  # once more on the way back


# ---- cost


def test_flops_by_hand():
    """A block of width D on n tokens: 24 n D^2 in its dense layers and 4 n^2 D in its attention."""

    def blocks(depth, n, width):
        return depth * (24 * n * width**2 + 4 * n**2 * width)

    expected = blocks(2, 1 + 9, 32) + blocks(2, 1 + 36, 16)
    expected += 2 * 9 * 48 * 32  # only the kept patches are embedded
    expected += 2 * (1 + 9) * 32 * 16 + 2 * 27 * 16 * 48  # into the decoder, and out of it where patches are dropped
    assert mae.flops(TINY, LIGHT) == expected


def test_a_large_encoder_costs_a_third():
    model = model_settings("vit_l16")
    with shapes_only():
        whole = encoder_flops(model.build())
    assert mae.flops(model, MAESettings()) / whole == pytest.approx(0.335, abs=0.001)


# ---- settings and recipes


@pytest.mark.parametrize(
    ("model", "changes", "match"),
    [
        (TINY, {"mask_ratio": 1.0}, "keeps 0 of 36 patches"),
        (TINY, {"mask_ratio": 0.0}, "keeps 36 of 36 patches"),
        (TINY, {"mask_ratio": float("nan")}, "mask_ratio is nan: it is a share of the patches, between 0 and 1"),
        (TINY, {"mask_ratio": float("-inf")}, "mask_ratio is -inf: it is a share"),
        (TINY, {"decoder_heads": 3}, "multiple of the heads"),
        (TINY, {"decoder_width": 6}, "and of 4"),
        (TINY, {"decoder_depth": 0}, "at least 1"),
        (ResNetSettings(picture_px=(32, 32), depths=(1, 1, 1, 1), base_width=8), {}, "plain ViT"),
        (replace(TINY, patch=1, stem=ConvStem(widths=(8,), strides=(4,), residuals=(0,))), {}, "plain ViT"),
    ],
)
def test_settings_that_cannot_be(model, changes, match):
    with pytest.raises(UserError, match=match):
        built(model, replace(LIGHT, **changes))


def test_a_picture_of_another_size_is_an_error():
    with pytest.raises(UserError, match="built for"):
        built()(batch_of((32, 32)), PROGRESS)


def test_the_paper_s_numbers():
    found = mae_imagenet()
    assert found.objective == MAESettings(
        mask_ratio=0.75, decoder_depth=8, decoder_width=512, decoder_heads=16, normalise=True
    )
    assert found.optimizer == AdamWSettings(lr=2.4e-3, beta1=0.9, beta2=0.95, weight_decay=0.05)
    assert (found.training.batch_size, found.training.epochs, found.training.clip) == (4096, 800, None)
    assert (found.model.positions, found.model.width, found.augmentation.crop.scale) == ("sincos", 1024, (0.2, 1.0))
    assert found.schedule.phases(800 * 312)[0] == 40 * 312
    assert mae_imagenet(epochs=1600).schedule.phases(1600 * 312)[0] == 40 * 312
    for epochs in (0, 20):  # all of a shorter run is warm-up
        assert mae_imagenet(epochs=epochs).schedule.phases(20 * 312) == (20 * 312, 0)
