from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from promises import keep_promises, shrunk
from vitreous.batch import Batch
from vitreous.errors import UserError
from vitreous.models import ResNetSettings, ViTSettings
from vitreous.models.stems import ConvStem
from vitreous.objectives.moco import MoCoV3Settings, info_nce
from vitreous.recipes import find_recipe
from vitreous.recipes.contrastive import cifar10_mocov3, mocov3_imagenet
from vitreous.training.optim import AdamWSettings

TINY = ViTSettings(picture_px=(8, 8), patch=4, width=16, depth=1, heads=2, positions="sincos")
SMALL = MoCoV3Settings(hidden=12, out=5)


def pairs(num=6):
    generator = torch.Generator().manual_seed(0)
    views = tuple(torch.randn(num, 3, 8, 8, generator=generator) for _ in range(2))
    return Batch(views=views, targets={}, ids=torch.arange(num), keys=torch.arange(num))


def built(settings, model=TINY):
    torch.manual_seed(0)
    return settings.build(model.build(), ())


def test_promises(tmp_path):
    recipe = shrunk(cifar10_mocov3())
    rows = keep_promises(replace(recipe, objective=replace(recipe.objective, hidden=64)), tmp_path)
    assert all(row["feature_std"] > 0.3 for row in rows)


def test_the_loss_of_a_query_is_lightlys():
    """Theirs has the negatives of all queries in one bank: so query by query, the other keys in the bank."""
    lightly = pytest.importorskip("lightly.loss")
    torch.manual_seed(0)
    queries, keys = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5)
    theirs = queries.detach().clone().requires_grad_()
    loss = info_nce(queries, keys, 0.2)
    losses = []
    for place in range(7):
        peer = lightly.NTXentLoss(temperature=0.2, memory_bank_size=(6, 5))
        peer.memory_bank.bank = F.normalize(torch.cat([keys[:place], keys[place + 1 :]]), dim=1)
        losses.append(peer(theirs[place : place + 1], keys[place : place + 1]))
    expected = torch.stack(losses).mean()
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(queries.grad, theirs.grad, atol=1e-5, rtol=0)


def test_each_view_finds_the_key_of_the_other():
    objective, batch = built(SMALL), pairs()
    with torch.no_grad():  # no copy any more
        for p in [*objective.key_encoder.parameters(), *objective.key_projector.parameters()]:
            p.add_(0.1 * torch.randn_like(p))
    queries = [objective.predictor(objective.projector(objective.encoder(view).pooled)) for view in batch.views]
    keys = [objective.key_projector(objective.key_encoder(view).pooled) for view in batch.views]
    expected = 2 * 0.2 * (info_nce(queries[0], keys[1], 0.2) + info_nce(queries[1], keys[0], 0.2))
    torch.testing.assert_close(objective(batch, torch.tensor(0.0))["loss"], expected, atol=1e-5, rtol=0)


def test_the_copy_follows_and_only_the_learner_learns():
    objective = built(SMALL)
    assert objective.learner is objective.encoder
    assert not any(p.requires_grad for name, p in objective.named_parameters() if name.startswith("key_"))
    before = [p.clone() for p in objective.key_encoder.parameters()]
    with torch.no_grad():
        for p in objective.encoder.parameters():
            p.add_(1.0)
    for progress, kept in ((0.0, 0.99), (0.5, 0.995), (1.0, 1.0)):
        wanted = [new + kept * (old - new) for old, new in zip(before, objective.encoder.parameters(), strict=True)]
        objective.after_step(torch.tensor(progress))
        torch.testing.assert_close(list(objective.key_encoder.parameters()), wanted)
        before = [p.clone() for p in objective.key_encoder.parameters()]


def test_patches_of_a_vit_are_frozen():
    def frozen(settings, model):
        return {name for name, p in built(settings, model).encoder.named_parameters() if not p.requires_grad}

    hybrid = replace(TINY, stem=ConvStem(widths=(32,), strides=(2,), residuals=(0,)), patch=2)
    resnet = ResNetSettings(picture_px=(8, 8), depths=(1, 1, 1, 1), base_width=8, root="small")
    assert frozen(SMALL, TINY) == {"stem.patches.linear.weight", "stem.patches.linear.bias"}
    assert frozen(replace(SMALL, freeze_patches=False), TINY) == set()
    assert frozen(SMALL, hybrid) == frozen(SMALL, resnet) == set()


def test_frozen_patches_do_not_move():
    objective = built(SMALL)
    optimizer = AdamWSettings(lr=0.1).build(objective)
    before = {name: p.clone() for name, p in objective.encoder.named_parameters()}
    objective(pairs(), torch.tensor(0.0))["loss"].backward()
    optimizer.step()
    same = {name for name, p in objective.encoder.named_parameters() if torch.equal(p, before[name])}
    assert same == {"stem.patches.linear.weight", "stem.patches.linear.bias"}


def test_collapse_is_noticed():
    objective = built(SMALL)
    with torch.no_grad():
        objective.encoder.norm.weight.zero_()  # every picture gets the same answer
        objective.encoder.norm.bias.normal_()
        numbers = {name: float(number) for name, number in objective(pairs(32), torch.tensor(0.0)).items()}
    assert "collapsing" in objective.concern(numbers)
    assert "freeze_patches" in objective.concern(numbers)
    assert objective.concern({"feature_std": 0.9, "feature_rank": 20.0}) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden": 0}, "hidden is 0"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"momentum": 1.1}, "momentum is 1.1"),
    ],
)
def test_impossible_settings_are_refused(changes, named):
    with pytest.raises(UserError, match=named):
        built(MoCoV3Settings(**changes))


def test_one_view_is_not_enough():
    batch = pairs()
    with pytest.raises(UserError, match="MoCo v3 compares two views"):
        built(SMALL)(replace(batch, views=batch.views[:1]), torch.tensor(0.0))


def test_the_papers_recipe():
    recipe = mocov3_imagenet("vit_s16")
    assert (recipe.model.heads, recipe.model.positions, recipe.optimizer.weight_decay) == (12, "sincos", 0.1)
    assert recipe.optimizer.lr == pytest.approx(1.5e-4 * recipe.training.batch_size / 256)
    assert recipe.schedule.phases(3000) == (400, 2600)
    assert [view.augmentation.colour.solarize for view in recipe.more_views] == [0.2]
    assert find_recipe("mocov3_imagenet", {"model": "vit_b16"}).model.width == 768
    for other in ("bit_r50x1", "r50_vit_b16"):
        with pytest.raises(UserError, match="plain ViT"):
            mocov3_imagenet(other)
