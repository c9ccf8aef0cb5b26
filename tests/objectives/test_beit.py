"""BEiT: its blocks, its loss beside transformers' own, and its teacher."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import vitreous
from promises import keep_promises, shrunk
from vitreous import keys as K
from vitreous.batch import Batch
from vitreous.data.transforms import Preprocessing
from vitreous.errors import UserError
from vitreous.jobs.build import build_objective
from vitreous.models import ResNetSettings, TokeniserSettings, ViTSettings
from vitreous.models.base import Grid
from vitreous.models.shapes import shapes_only
from vitreous.models.stems import ConvStem
from vitreous.objectives.beit import BLOCKS, BEiTSettings, _block, draw_blocks
from vitreous.objectives.tokeniser import VisualTokensSettings
from vitreous.recipes.beit import beit_imagenet, cifar10_beit, cifar10_tokeniser
from vitreous.teaching.teachers import Teacher
from vitreous.weights.trained import Trained

WORDS = TokeniserSettings(picture_px=(24, 24), stride=8, width=16, vocabulary=12, blocks=1)
VIT = ViTSettings(picture_px=(24, 24), patch=8, width=16, depth=2, heads=2, pool="mean")
PREPROCESSING = Preprocessing(size_px=(24, 24))


def teacher(**changes):
    torch.manual_seed(0)
    return Teacher(replace(WORDS, **changes).build(), PREPROCESSING, PREPROCESSING)


def built(model=VIT, given=None, **changes):
    settings = BEiTSettings(**({"least_block": 2} | changes))
    torch.manual_seed(1)
    return settings.build(model.build(), (), teacher() if given is None else given)


def batch(num=4, size=24):
    ids = torch.arange(num)
    images = torch.randn(num, 3, size, size, generator=torch.Generator().manual_seed(2))
    return Batch((images,), {}, ids, K.sample_keys(0, 0, ids))


# ---- The whole of it, on real pictures


@pytest.fixture(scope="module")
def words_run(tmp_path_factory):
    """A tokeniser trained for some seconds."""
    recipe = replace(
        shrunk(cifar10_tokeniser(), steps=20, lr=5e-3),
        model=TokeniserSettings(picture_px=(28, 28), stride=4, width=16, vocabulary=32, blocks=1),
        objective=VisualTokensSettings(decoder_width=16, decoder_blocks=1),
    )
    folder = tmp_path_factory.mktemp("words")
    vitreous.train(recipe, folder, read_test=False)
    return folder


def test_promises(words_run, tmp_path):
    recipe = shrunk(cifar10_beit(teacher=str(words_run)))
    recipe = replace(recipe, model=replace(recipe.model, patch=4))
    rows = keep_promises(recipe, tmp_path, falls_to=0.9)
    assert rows[-1]["accuracy"] > rows[0]["accuracy"]
    assert len({round(row["words"], 3) for row in rows}) > 1 and all(row["words"] > 2 for row in rows)

    # The teacher is the run's own tokeniser, and has not moved; what is saved is the ViT alone.
    (words, _), (saved, _) = (vitreous.weights.own.load_model(run / "model") for run in (words_run, tmp_path / "one"))
    objective = build_objective(recipe, ())
    assert all(
        torch.equal(objective.teacher.model.state_dict()[name.removeprefix("encoder.")], words[name]) for name in words
    )
    assert saved.keys() == objective.encoder.state_dict(prefix="encoder.").keys()


def test_the_grids_must_be_equal(words_run):
    recipe = shrunk(cifar10_beit(teacher=str(words_run)))  # patches of 7 px, where a word has 4
    with pytest.raises(UserError, match=r"grid of 7 x 7 words and the ViT one of 4 x 4 patches: choose --model.patch"):
        build_objective(replace(recipe, objective=BEiTSettings(least_block=2)), ())


def test_a_run_without_a_teacher_is_refused():
    with pytest.raises(UserError, match="--teacher"):
        build_objective(replace(shrunk(cifar10_beit()), teacher=None), ())


def test_the_papers_recipe_hides_75_patches():
    """A ViT of 224 px beside a tokeniser of 112, which is shown the same pictures at half their size."""
    recipe = beit_imagenet("tokeniser")
    with shapes_only():
        vit = recipe.model.build()
    small = TokeniserSettings(width=16, blocks=0)
    given = Teacher(small.build(), Preprocessing(size_px=small.picture_px), recipe.preprocessing)
    objective = recipe.objective.build(vit, (), given)
    assert objective.num == 75 and objective.head.weight.shape == (8192, 768)


# ---- The loss


@pytest.mark.parametrize("positions", ["use_shared_relative_position_bias", "use_absolute_position_embeddings"])
def test_the_loss_is_that_of_transformers(positions, tmp_path):
    from transformers import BeitConfig, BeitForMaskedImageModeling

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = BeitConfig(image_size=24, patch_size=8, vocab_size=12, use_mask_token=True, **sizes, **{positions: True})
    torch.manual_seed(0)
    peer = BeitForMaskedImageModeling(config).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    peer.save_pretrained(tmp_path)
    objective = BEiTSettings(least_block=2).build(Trained.load(tmp_path).encoder(), (), teacher()).eval()
    objective.head.load_state_dict(peer.lm_head.state_dict())
    with torch.no_grad():
        objective.mask_token.copy_(peer.beit.embeddings.mask_token.flatten())

    given = batch()
    found = objective(given, torch.tensor(0.5))
    masked = draw_blocks(given.keys, Grid(3, 3), 3, least=2, aspect=0.3)
    hidden = torch.zeros(4, 9, dtype=torch.bool).scatter(1, masked, True)
    codes = objective.teacher(given.images).maps[-1].argmax(1).flatten(1)
    answer = peer(given.images, bool_masked_pos=hidden, labels=codes[hidden])
    torch.testing.assert_close(found["loss"], answer.loss, atol=1e-5, rtol=1e-5)
    assert found["accuracy"] == (answer.logits.argmax(2) == codes)[hidden].float().mean()
    found["loss"].backward()
    answer.loss.backward()
    theirs = peer.beit.embeddings.mask_token.grad.flatten()
    torch.testing.assert_close(objective.mask_token.grad, theirs, atol=1e-5, rtol=1e-4)


def test_what_is_hidden_is_not_seen():
    """The loss changes with any patch that is left, and with none that is masked, whatever words are wanted there."""
    objective, images = built().eval(), batch(1).images
    masked, wanted = torch.tensor([[4, 2, 7]]), torch.tensor([[0, 3, 5]])
    before = objective.losses(images, masked, wanted)[0]
    for cell in range(9):
        changed = images.clone()
        row, column = 8 * (cell // 3), 8 * (cell % 3)
        changed[..., row : row + 8, column : column + 8] += 1
        assert (objective.losses(changed, masked, wanted)[0] == before) == (cell in (4, 2, 7))


def test_the_words_wanted_are_the_teachers():
    """An objective whose head knows the words by their cell is right where the teacher agrees."""
    objective, given = built(), batch(6)
    codes = objective.teacher(given.images).maps[-1].argmax(1).flatten(1)
    masked = draw_blocks(given.keys, Grid(3, 3), 3, least=2, aspect=0.3)
    with torch.no_grad():
        objective.head.weight.zero_()
        objective.head.bias.zero_()
        objective.head.bias[5] = 100.0
    found = objective(given, torch.tensor(0.0))
    share = (codes.gather(1, masked) == 5).float().mean()
    assert 0 < share < 1  # or the test would tell nothing
    torch.testing.assert_close(found["accuracy"], share)
    torch.testing.assert_close(found["loss"].detach(), 100 * (1 - share))


def test_masks_belong_to_the_sample_whatever_its_batch():
    """So the mean of two ranks' losses is the loss of one."""
    objective, whole = built().eval(), batch(4)
    parts = [objective(part, torch.tensor(0.3))["loss"] for part in whole.parts(2)]
    torch.testing.assert_close(torch.stack(parts).mean(), objective(whole, torch.tensor(0.3))["loss"])


def test_the_teacher_never_trains():
    objective = built().train()
    words = objective.teacher.model
    assert not words.training and not any(p.requires_grad for p in words.parameters())
    objective(batch(), torch.tensor(0.0))["loss"].backward()
    assert all(p.grad is None for p in words.parameters())


def test_in_bfloat16_the_losses_stay_in_float32():
    objective = built()
    exact = objective(batch(), torch.tensor(0.5))["loss"].item()
    with torch.autocast("cpu", torch.bfloat16):
        found = objective(batch(), torch.tensor(0.5))
    assert all(value.dtype == torch.float32 for value in found.values())
    assert found["loss"].item() == pytest.approx(exact, rel=0.05)


def test_a_collapsed_tokeniser_is_noticed():
    given = teacher()
    with torch.no_grad():
        given.model.words.bias[3] = 1e3
    objective = built(given=given)
    numbers = {name: float(value.detach()) for name, value in objective(batch(), torch.tensor(0.5)).items()}
    assert "a tokeniser that had collapsed itself" in objective.concern(numbers)
    healthy = {name: float(value.detach()) for name, value in built()(batch(), torch.tensor(0.5)).items()}
    assert objective.concern(healthy) is None


# ---- Block masks

GRIDS = [(Grid(14, 14), 75, 16), (Grid(8, 8), 25, 5), (Grid(5, 9), 18, 4), (Grid(2, 12), 9, 9), (Grid(3, 3), 3, 1)]
every_grid = pytest.mark.parametrize(("grid", "num", "least"), GRIDS)
KEYS = K.sample_keys(0, 0, torch.arange(2000))


def masks(grid, num, least, keys=KEYS):
    cells = draw_blocks(keys, grid, num, least=least, aspect=0.3)
    assert cells.shape == (len(keys), num) and cells.dtype == torch.int64
    return torch.zeros(len(keys), grid.cells, dtype=torch.bool).scatter(1, cells, True).view(-1, *grid)


@every_grid
def test_the_count_is_exact(grid, num, least):
    assert (masks(grid, num, least).sum(dim=(1, 2)) == num).all()


@every_grid
def test_every_cell_is_masked_at_times_and_seen_at_times(grid, num, least):
    often = masks(grid, num, least).float().mean(dim=0)
    assert often.min() > 0 and often.max() < 1
    # By chance alone one side is as good as the other.
    assert (often - often.flip(0)).abs().max() < 0.08 and (often - often.flip(1)).abs().max() < 0.08


def test_masked_cells_lie_together():
    """Neighbours of masked cells are mostly masked; where cells are chosen one by one they are by the share alone."""
    made = masks(Grid(14, 14), 75, 16)
    pairs = torch.cat(
        [(made[:, 1:] & made[:, :-1]).sum(dim=(1, 2)), (made[:, :, 1:] & made[:, :, :-1]).sum(dim=(1, 2))]
    )
    alone = torch.zeros(2000, 196, dtype=torch.bool).scatter(1, K.orderings(KEYS, "alone", 196)[:, :75], True)
    alone = alone.view(-1, 14, 14)
    apart = (alone[:, 1:] & alone[:, :-1]).sum(dim=(1, 2)).float().mean()
    assert pairs.float().mean() > 2 * apart
    # A union of a few rectangles, one of them cut: few corners. Counted as 2 x 2 windows with an odd number of masked
    # cells, of which a rectangle inside has four and a cut one two more.
    windows = sum(made[:, i : 13 + i, j : 13 + j].int() for i in (0, 1) for j in (0, 1))
    corners = (windows % 2).sum(dim=(1, 2)).float()
    scattered = (sum(alone[:, i : 13 + i, j : 13 + j].int() for i in (0, 1) for j in (0, 1)) % 2).sum(dim=(1, 2))
    assert corners.mean() < 20 and scattered.float().mean() > 60


def test_one_block_that_is_enough_is_a_rectangle():
    """With as many cells wanted as the least block has, the first block is all there is, but for rounding."""
    made = masks(Grid(8, 8), 16, 16)
    rows, columns = made.any(dim=2).sum(dim=1), made.any(dim=1).sum(dim=1)
    square = (rows == 4) & (columns == 4)
    assert square.float().mean() > 0.15  # by far the most frequent shape that rounding leaves at 16
    assert (rows * columns <= 32).float().mean() > 0.9


def test_the_sizes_and_aspects_of_blocks():
    grid, draws = Grid(40, 40), K.uniform(KEYS, "test", 4).double()
    top, left, tall, wide = _block(draws, torch.full((2000,), 100), grid, least=16, aspect=0.3).unbind(1)
    assert ((top >= 0) & (left >= 0) & (top + tall <= 40) & (left + wide <= 40)).all()
    area, ratio = tall * wide, tall / wide
    # Sides are rounded to whole cells: half a cell either way.
    assert area.float().mean().item() == pytest.approx(58, rel=0.03)  # midway from 16 to 100
    assert (area >= 12).all() and (area <= 115).all()
    assert ratio.log().mean().abs() < 0.03  # as often tall as wide
    assert ratio.log().std().item() == pytest.approx(
        2 * math.log(1 / 0.3) / math.sqrt(12), rel=0.05
    )  # evenly, in the log
    assert ratio.min() > 0.2 and ratio.max() < 5
    # As many as are still missing, but never fewer than the least.
    few = _block(draws, torch.full((2000,), 3), grid, least=16, aspect=0.3)
    assert ((few[:, 2] * few[:, 3]).float().mean() - 16).abs() < 1


def test_a_long_block_fits_a_flat_grid():
    draws = K.uniform(KEYS, "test", 4).double()
    top, left, tall, wide = _block(draws, torch.full((2000,), 9), Grid(2, 12), least=9, aspect=0.3).unbind(1)
    assert ((top + tall <= 2) & (left + wide <= 12) & (top >= 0) & (left >= 0)).all()
    assert (tall * wide >= 8).all()


def test_where_ten_blocks_are_not_enough_the_count_is_still_exact(monkeypatch):
    monkeypatch.setattr("vitreous.objectives.beit.BLOCKS", 1)
    made = masks(Grid(8, 8), 60, 5)
    assert (made.sum(dim=(1, 2)) == 60).all() and BLOCKS == 10


# ---- Settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_ratio": 0.05}, "0 of 9 patches"),
        ({"mask_ratio": 1.0}, "9 of 9 patches"),
        ({"mask_ratio": float("nan")}, "mask_ratio is nan: it is a share of the patches, between 0 and 1"),
        ({"mask_ratio": float("inf")}, "mask_ratio is inf: it is a share"),
        ({"least_block": 4}, "set it to 1 to 3"),
        ({"least_block": 0}, "set it to 1 to 3"),
        ({"aspect": 1.5}, "aspect is 1.5"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message) as error:
        built(**changes)
    assert "\n" not in str(error.value)


def test_models_that_cannot_be():
    # Convolutional tokens know of their neighbours, and so of what is hidden beside them.
    hybrid = replace(VIT, patch=1, stem=ConvStem(widths=(8,), strides=(8,), residuals=(0,)))
    for model in (ResNetSettings(picture_px=(24, 24), depths=(1,), base_width=8, root="small"), hybrid):
        with pytest.raises(UserError, match="BEiT hides patches of the picture, so it needs a plain ViT"):
            built(model)
    with pytest.raises(UserError, match="the teacher is another kind of model"):
        built(given=Teacher(VIT.build(), PREPROCESSING, PREPROCESSING))
    with pytest.raises(UserError, match="the teacher is another kind of model"):
        built(given=nn.Identity())
