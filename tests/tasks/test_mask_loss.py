"""The loss of masks by queries against transformers' own, on the same outputs and the same points."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.batch import IGNORED, Batch
from vitreous.errors import UserError
from vitreous.nn.query_masks import QueryMasks, class_scores, logits_at, pixels_at, uncertain_first
from vitreous.tasks.mask_loss import MaskWeights, Points, PointSettings, mask_losses, match, query_losses
from vitreous.tasks.mask_targets import ClassMasks, MaskTargets, PackedMasks, class_masks, object_masks
from vitreous.weights.peers import imported

LAYERS, BATCH, QUERIES, CLASSES, CHANNELS = 3, 2, 6, 4, 8
SETTINGS = PointSettings(number=40)
KEYS = torch.tensor([3, 11])


def made(layers_of_pixels: int = 1, shape: tuple[int, int] = (5, 7)) -> QueryMasks:
    generator = torch.Generator().manual_seed(0)
    return QueryMasks(
        torch.randn(LAYERS, BATCH, QUERIES, CLASSES + 1, generator=generator, requires_grad=True),
        torch.randn(LAYERS, BATCH, QUERIES, CHANNELS, generator=generator, requires_grad=True),
        torch.randn(layers_of_pixels, BATCH, CHANNELS, *shape, generator=generator, requires_grad=True),
    )


def whole_masks(said: QueryMasks) -> Tensor:
    """(L, B, Q, h, w)"""
    return torch.einsum("lbqc,lbchw->lbqhw", said.embeddings, said.pixels.expand(LAYERS, -1, -1, -1, -1))


@dataclass(frozen=True)
class ObjectMasks(MaskTargets):
    """As the peer has them: one map per object, interpolated between its places."""

    masks: Tensor  # (B, M, h, w)

    def at(self, points: Tensor) -> Tensor:
        grid = (2 * points - 1)[:, :, None]  # (B, P, 1, 2)
        return F.grid_sample(self.masks.to(points.dtype), grid, align_corners=False)[..., 0]


def objects(shape: tuple[int, int] = (9, 8)) -> ObjectMasks:
    masks = torch.rand(BATCH, 3, *shape, generator=torch.Generator().manual_seed(1)) > 0.5
    classes = torch.tensor([[2, 0, 2], [1, 3, 0]])
    return ObjectMasks(classes, torch.tensor([[True, True, False], [True, True, True]]), masks)


def inner(points: Points) -> Points:
    """None nearer to the border than the middles of the outermost places: there, theirs has masks fade into nothing."""
    names = ("matching", "candidates", "anywhere")
    return replace(points, **{name: getattr(points, name).clamp(0.1, 0.9) for name in names})


class Dealt:
    """torch.rand for the peer, which asks for points by shape: those that ours drew, for each mask the same."""

    def __init__(self, points: Points, targets: MaskTargets) -> None:
        self.points, self.counts, self.asked = points, targets.valid.sum(dim=1), 0

    def __call__(self, *shape: int, **_: object) -> Tensor:
        if shape[0] == 1:  # a picture's turn to be matched
            self.asked += 1
            return self.points.matching[(self.asked - 1) % BATCH][None]
        pool = (self.points.candidates, self.points.anywhere)
        (chosen,) = (each for each in pool if each.shape[1] == shape[1])
        return chosen.repeat_interleave(self.counts, dim=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layers_of_pixels", [1, LAYERS])
def test_as_transformers_on_the_same_points(layers_of_pixels, monkeypatch):
    library = imported("transformers")
    module = imported("transformers", "transformers.models.mask2former.modeling_mask2former")
    config = library.Mask2FormerConfig(num_labels=CLASSES, train_num_points=SETTINGS.number)
    said, targets, points = made(layers_of_pixels), objects(), inner(Points.drawn(KEYS, SETTINGS))
    factors = {"loss_cross_entropy": 2.0, "loss_mask": 5.0, "loss_dice": 5.0}
    criterion = module.Mask2FormerLoss(config, factors)
    masks = whole_masks(said)
    labels = [targets.masks[i][targets.valid[i]].float() for i in range(BATCH)]
    classes = [targets.classes[i][targets.valid[i]] for i in range(BATCH)]
    with monkeypatch.context() as patched:
        patched.setattr(torch, "rand", Dealt(points, targets))
        others = [
            {"masks_queries_logits": masks[layer], "class_queries_logits": said.logits[layer]} for layer in range(2)
        ]
        theirs = criterion(masks[-1], said.logits[-1], labels, classes, others)
    expected = sum(factors[next(kind for kind in factors if kind in name)] * value for name, value in theirs.items())
    ours = query_losses(said, targets, points, MaskWeights())
    assert_named = {"class": "loss_cross_entropy", "mask": "loss_mask", "dice": "loss_dice"}
    for name, their_name in assert_named.items():
        torch.testing.assert_close(ours[name], theirs[their_name], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours["loss"], expected, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad(loss, tuple(said), retain_graph=True) for loss in (ours["loss"], expected)]
    for mine, their in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, their, atol=1e-5, rtol=1e-4)


def test_masks_are_read_between_places():
    said, points = made(), torch.rand(BATCH, 11, 2, generator=torch.Generator().manual_seed(2))
    found = logits_at(said.embeddings, pixels_at(said.pixels, points))
    for layer, masks in enumerate(whole_masks(said)):
        expected = F.grid_sample(masks, (2 * points - 1)[:, :, None], padding_mode="border", align_corners=False)
        expected = expected[..., 0]
        torch.testing.assert_close(found[layer], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(said.masks(), whole_masks(said)[-1], atol=1e-5, rtol=1e-5)


def test_the_least_certain_points_of_those_that_count():
    logits = torch.tensor([[3.0, -0.1, 0.2, 5.0, 0.0]])
    known = torch.tensor([[True, True, True, True, False]])
    assert set(uncertain_first(logits, known, 2)[0].tolist()) == {1, 2}


def test_points_are_the_samples_own():
    both, one = Points.drawn(KEYS, SETTINGS), Points.drawn(KEYS[1:], SETTINGS)
    for name in ("matching", "candidates", "anywhere"):
        drawn = getattr(both, name)
        assert torch.equal(drawn[1:], getattr(one, name)) and not torch.equal(drawn[0], drawn[1])
        assert drawn.min() >= 0 and drawn.max() < 1
    assert both.candidates.shape == (2, 120, 2) and both.anywhere.shape == (2, 10, 2) and both.num_uncertain == 30


# ---- a class per pixel


def labelled() -> Batch:
    labels = torch.zeros(BATCH, 6, 8, dtype=torch.int64)
    labels[0, :, 4:], labels[0, 2] = 3, IGNORED
    labels[1] = IGNORED
    images = torch.zeros(BATCH, 3, 6, 8)
    return Batch((images,), {"mask": labels}, torch.arange(BATCH), KEYS)


def test_a_target_per_class_that_is_shown():
    targets = class_masks(labelled(), CLASSES)
    assert targets.valid.tolist() == [[True, False, False, True], [False] * 4]
    points = torch.tensor([[[0.1, 0.1], [0.9, 0.9], [0.9, 0.4]]]).expand(BATCH, -1, -1)  # (x, y); the last is ignored
    assert targets.known(points).tolist() == [[True, True, False], [False] * 3]
    assert targets.at(points)[0].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_what_is_ignored_does_not_count():
    """Neither in matching nor in the loss, whatever is drawn there; a picture without a label has no mask to learn."""
    said, points, weights = made(), Points.drawn(KEYS, SETTINGS), MaskWeights()
    batch = labelled()
    targets = class_masks(batch, CLASSES)
    losses = query_losses(said, targets, points, weights)
    assert all(value.isfinite() for value in losses.values())
    found = match(said, targets, points.matching, weights)
    assert (found[:, 1] == -1).all() and (found[:, 0, [1, 2]] == -1).all()
    entropy, dice = mask_losses(said, targets, found, points)
    assert entropy[:, 1].sum() == dice[:, 1].sum() == 0
    # With the ignored row given to a class, points there count, and the loss is another.
    batch.targets["mask"][0, 2] = 0
    assert not torch.allclose(query_losses(said, class_masks(batch, CLASSES), points, weights)["mask"], losses["mask"])


def test_scores_of_classes_add_up_over_queries():
    said = made()
    masks, classes = whole_masks(said)[-1].sigmoid(), said.logits[-1].softmax(dim=-1)[..., :-1]
    expected = torch.einsum("bqk,bqhw->bkhw", classes, masks)
    torch.testing.assert_close(class_scores(said).exp(), expected, atol=1e-6, rtol=1e-5)


# ---- objects


def test_crowds_and_gaps_are_no_targets():
    batch = Batch(
        (torch.zeros(1, 3, 8, 8),),
        {
            "masks": torch.full((1, 2, 2, 1), 7, dtype=torch.uint8),
            "classes": torch.tensor([[1, IGNORED, 2]]),
            "crowd": torch.tensor([[False, False, True]]),
        },
        torch.arange(1),
        KEYS[:1],
    )
    assert object_masks(batch).valid.tolist() == [[True, False, False]]


def test_bits_are_read_at_the_pixel_that_holds_a_point():
    generator = torch.Generator().manual_seed(3)
    masks, points = torch.rand(2, 11, 6, 9, generator=generator) > 0.5, torch.rand(2, 40, 2, generator=generator)
    weights = (masks.long() << (torch.arange(11) % 8)[:, None, None]).unbind(1)
    bits = torch.stack([sum(weights[:8]), sum(weights[8:])], dim=-1).to(torch.uint8)
    found = PackedMasks(torch.zeros(2, 11), torch.ones(2, 11, dtype=torch.bool), bits).at(points)
    expected = F.grid_sample(masks.float(), (2 * points - 1)[:, :, None], "nearest", align_corners=False)[..., 0]
    assert torch.equal(found, expected)


def test_what_is_needed_is_named():
    batch = Batch((torch.zeros(1, 3, 8, 8),), {"label": torch.zeros(1)}, torch.arange(1), KEYS[:1])
    with pytest.raises(UserError, match="no masks, and segmentation"):
        class_masks(batch, 2)
    with pytest.raises(UserError, match="no masks of objects"):
        object_masks(batch)


def test_classes_of_pixels_are_those_of_one_mask_each():
    """The same loss as of the masks themselves, read at the pixel that a point lies in."""
    labels = torch.randint(0, CLASSES, (BATCH, 6, 8), generator=torch.Generator().manual_seed(3))
    classes = torch.arange(CLASSES).expand(BATCH, -1)
    targets = ClassMasks(classes, torch.ones(BATCH, CLASSES, dtype=torch.bool), labels)
    points = torch.rand(BATCH, 30, 2, generator=torch.Generator().manual_seed(4))
    one_hot = F.one_hot(labels, CLASSES).movedim(-1, 1).float()
    expected = F.grid_sample(one_hot, (2 * points - 1)[:, :, None], mode="nearest", align_corners=False)[..., 0]
    torch.testing.assert_close(targets.at(points), expected)
