from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from promises import keep_promises, shrunk
from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models import ResNetSettings, ViTSettings
from vitreous.models.base import Grid
from vitreous.models.stems import ConvStem
from vitreous.objectives.masked import Masked, MaskedSettings
from vitreous.objectives.patches import cut
from vitreous.recipes.masked import cifar10_masked, masked_patch_paper
from vitreous.training.optim import AdamWSettings

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
TINY = ViTSettings(picture_px=(32, 24), patch=(8, 4), width=16, depth=1, heads=2)  # a grid of 4 x 6
PROGRESS = torch.tensor(0.0)


def masked(model=TINY, **changes) -> Masked:
    torch.manual_seed(0)
    return MaskedSettings(**{"mean": MEAN, "std": STD, **changes}).build(model.build(), ())


def pictures(num=3, size=(32, 24)) -> torch.Tensor:
    """Levels (B, 3, H, W) from 0 to 255."""
    return torch.randint(0, 256, (num, 3, *size), generator=torch.Generator().manual_seed(1)).float()


def batch_of(levels: torch.Tensor) -> Batch:
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    ids = torch.arange(len(levels))
    return Batch(views=((levels / 255 - mean) / std,), targets={}, ids=ids, keys=K.sample_keys(0, 0, ids))


def test_promises(tmp_path):
    keep_promises(shrunk(cifar10_masked()), tmp_path)


# ---- what is corrupted


@pytest.mark.parametrize(("mask_ratio", "numbers"), [(0.5, (26, 3, 3)), (0.15, (8, 1, 1)), (1.0, (51, 6, 7))])
def test_exact_numbers_of_each_kind(mask_ratio, numbers):
    objective = masked(replace(TINY, picture_px=(32, 32), patch=4), mask_ratio=mask_ratio)  # 64 patches
    rest = objective.num_corrupted - objective.num_masked - objective.num_swapped
    assert (objective.num_masked, objective.num_swapped, rest) == numbers


def test_mask_token_other_patch_and_kept():
    objective = masked(replace(TINY, picture_px=(32, 32), patch=4))
    objective.mask_token.data.fill_(7.0)
    keys = K.sample_keys(0, 0, torch.arange(5))
    corrupted, sources = objective.draw(keys)
    assert all(len(set(row)) == 32 for row in corrupted.tolist())  # no cell twice
    assert not torch.equal(corrupted[0], corrupted[1])
    masked_cells, swapped, _ = corrupted.split((26, 3, 3), dim=1)
    assert (swapped != sources).all()
    assert sources.min() >= 0
    assert sources.max() < 64
    tokens = torch.randn(5, 64, 16)
    seen = objective.corrupted(tokens, corrupted, sources)
    for one in range(5):
        expected = tokens[one].clone()
        expected[swapped[one]] = tokens[one, sources[one]]
        expected[masked_cells[one]] = 7.0
        assert torch.equal(seen[one], expected)


def test_any_other_cell_takes_its_place():
    objective = masked()
    _, sources = objective.draw(K.sample_keys(0, 0, torch.arange(2000)))
    assert set(sources.flatten().tolist()) == set(range(24))


def test_corrupted_before_positions(monkeypatch):
    objective = masked(mask_ratio=1.0)
    encode, given = objective.encoder.encode, []

    def watched(tokens, grid):
        given.append(tokens)
        return encode(tokens, grid)

    monkeypatch.setattr(objective.encoder, "encode", watched)
    batch = batch_of(pictures())
    objective(batch, PROGRESS)
    corrupted, _ = objective.draw(batch.keys)
    for tokens, cells in zip(given[0], corrupted[:, : objective.num_masked], strict=True):
        assert torch.equal(tokens[cells], objective.mask_token.expand(len(cells), -1))  # the same wherever it lies


# ---- what is predicted


def colour(levels) -> int:
    """Of one place, by hand: the upper three bits of every channel's mean."""
    r, g, b = (int(channel.mean()) >> 5 for channel in levels)
    return r << 6 | g << 3 | b


def test_mean_colours_by_hand():
    levels = pictures()
    levels[0, :, :8, :4] = torch.tensor([255.0, 0.0, 32.0])[:, None, None]  # 111 000 001
    found = masked().targets(batch_of(levels).images, Grid(4, 6))
    assert found.shape == (3, 24, 1)
    assert int(found[0, 0]) == 0b111_000_001
    for row in range(4):
        for column in range(6):
            patch = levels[1, :, row * 8 : row * 8 + 8, column * 4 : column * 4 + 4]
            assert int(found[1, row * 6 + column]) == colour(patch)


def test_downsized_colours_by_hand():
    levels = pictures()
    found = masked(target="downsized").targets(batch_of(levels).images, Grid(4, 6))
    assert found.shape == (3, 24, 16)
    patch = levels[2, :, 8:16, 12:16]  # row 1, column 3; places of 2 x 1 px
    expected = [colour(patch[:, 2 * y : 2 * y + 2, x : x + 1]) for y in range(4) for x in range(4)]
    assert found[2, 9].tolist() == expected


def test_every_level_keeps_its_three_bits():
    """Levels on the border between two colours are not moved over it by rounding."""
    levels = torch.arange(256.0).reshape(1, 1, 16, 16).expand(1, 3, 16, 16)
    objective = masked(ViTSettings(picture_px=(16, 16), patch=4, width=8, depth=1, heads=1), target="downsized")
    found = objective.targets(batch_of(levels).images, Grid(4, 4))
    whole = cut(levels[:, :1], Grid(4, 4)).long() >> 5
    assert torch.equal(found, whole << 6 | whole << 3 | whole)


def test_pixels_are_the_normalised_patch():
    batch = batch_of(pictures())
    found = masked(target="pixels").targets(batch.images, Grid(4, 6))
    assert torch.equal(found[1, 8], batch.images[1, :, 8:16, 8:12].flatten())  # row 1, column 2


@pytest.mark.parametrize("target", ["mean", "downsized", "pixels"])
def test_loss_over_all_corrupted_patches_and_no_others(target):
    objective, batch = masked(target=target), batch_of(pictures())
    corrupted, sources = objective.draw(batch.keys)
    with torch.no_grad():
        tokens, grid = objective.encoder.embed(batch.images)
        encoded = objective.encoder.encode(objective.corrupted(tokens, corrupted, sources), grid)
        predicted, wanted = objective.head(encoded.patches), objective.targets(batch.images, grid)
        losses = []
        for one in range(3):
            for cell in corrupted[one].tolist():
                if target == "pixels":
                    losses.append((predicted[one, cell] - wanted[one, cell]).square().mean())
                else:
                    losses.append(F.cross_entropy(predicted[one, cell].view(-1, 512), wanted[one, cell]))
        assert len(losses) == 3 * 12
        found = objective(batch, PROGRESS)["loss"]
    torch.testing.assert_close(found, torch.stack(losses).mean(), rtol=1e-5, atol=1e-6)


def test_bfloat16_gives_the_same_loss_in_float32():
    objective, batch = masked(), batch_of(pictures())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = objective(batch, PROGRESS)["loss"]
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, objective(batch, PROGRESS)["loss"], rtol=2e-2, atol=0)


# ---- errors


def test_the_wrong_normalisation_is_noticed():
    batch = batch_of(pictures())
    masked().look([batch])
    with pytest.raises(UserError, match="set them to normalise"):
        masked(mean=(0.5, 0.5, 0.6)).look([batch])
    with pytest.raises(UserError, match="set them to normalise"):
        masked(std=(0.1, 0.1, 0.1)).look([batch])


@pytest.mark.parametrize(
    ("model", "changes", "match"),
    [
        (TINY, {"mask_ratio": 0.0}, "0 of 24 patches"),
        (TINY, {"mask_ratio": 1.5}, "mask_ratio is 1.5: it is a share of the patches, between 0 and 1"),
        (TINY, {"mask_ratio": float("nan")}, "mask_ratio is nan: it is a share of the patches, between 0 and 1"),
        (TINY, {"mask_ratio": float("inf")}, "mask_ratio is inf: it is a share"),
        (TINY, {"std": (0.0, 1.0, 1.0)}, "above 0"),
        (replace(TINY, patch=2), {"target": "downsized"}, "cannot be cut into 4 x 4 equal parts"),
        (replace(TINY, channels=1), {}, "1 channels"),
        (ResNetSettings(picture_px=(32, 32), depths=(1, 1, 1, 1), base_width=8), {}, "plain ViT"),
        (replace(TINY, patch=1, stem=ConvStem(widths=(8,), strides=(4,), residuals=(0,))), {}, "plain ViT"),
    ],
)
def test_settings_that_cannot_be(model, changes, match):
    with pytest.raises(UserError, match=match):
        masked(model, **changes)


def test_the_paper_s_numbers():
    found = masked_patch_paper()
    assert (found.objective.target, found.objective.mask_ratio) == ("mean", 0.5)
    assert (found.objective.mean, found.objective.std) == (found.normalise.mean, found.normalise.std)
    assert found.optimizer == AdamWSettings(lr=2e-4, beta1=0.9, beta2=0.999, weight_decay=0.1)
    assert (found.schedule.warmup_steps, found.schedule.decay) == (10_000, "cosine")
    assert (found.training.batch_size, found.training.steps) == (4096, 1_000_000)
    assert found.model == ViTSettings()  # B/16 at 224 px
    with pytest.raises(UserError, match="plain ViT"):
        masked_patch_paper("r50_vit_b16")
