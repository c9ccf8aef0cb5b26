"""Masks merged into one map of segments: by hand, and against transformers' own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vitreous.data.panoptic import NOTHING, Panoptic, Segment, merged
from vitreous.weights.peers import imported

SKY, CAR = 0, 1


def merge(logits, masks, stuff=(), least_score=0.8, **how):
    """Of queries as a model gives them: those that are sure of a class."""
    shares = torch.tensor(logits).double().softmax(dim=1)
    scores, categories = shares.max(dim=1)
    kept = (categories != shares.shape[1] - 1) & (scores > least_score)
    return merged(
        categories[kept].tolist(), scores[kept].tolist(), [masks[kept.numpy()]], masks.shape[1:], stuff, **how
    )


def said(*queries: tuple[int, float, slice]) -> tuple[np.ndarray, np.ndarray]:
    """A class, how sure, and the columns of a 4 x 8 picture, for each query."""
    logits, masks = np.full((len(queries), 3), -9.0), np.full((len(queries), 4, 8), -5.0)
    for number, (category, sure, columns) in enumerate(queries):
        logits[number, category] = sure
        masks[number, :, columns] = 5.0
    return logits, masks


def test_things_are_apart_and_stuff_is_one():
    logits, masks = said((SKY, 9, slice(0, 2)), (SKY, 9, slice(6, 8)), (CAR, 9, slice(2, 4)), (CAR, 9, slice(4, 6)))
    found = merge(logits, masks, stuff={SKY})
    assert found.numbers[0].tolist() == [1, 1, 2, 2, 3, 3, 1, 1]
    assert [(one.number, one.category) for one in found.segments] == [(1, SKY), (2, CAR), (3, CAR)]


def test_what_is_unsure_hidden_or_none_is_left_out():
    logits, masks = said((CAR, 9, slice(0, 8)), (SKY, -8.9, slice(0, 4)), (2, 9, slice(0, 2)))
    found = merge(logits, masks)
    assert (found.numbers == 1).all() and len(found.segments) == 1
    # Of the second, all but a quarter belongs to who is surer.
    logits, masks = said((CAR, 12, slice(0, 6)), (CAR, -6, slice(0, 8)))
    assert merge(logits, masks, least_score=0.5).numbers[0].tolist() == [1] * 6 + [0] * 2
    assert merge(*said((2, 9, slice(0, 8)))).segments == ()


@pytest.mark.filterwarnings("ignore")
def test_as_transformers_merges():
    processor = imported("transformers").Mask2FormerImageProcessor
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(1, 12, 5, generator=generator)
    masks = 3 * torch.randn(1, 12, 12, 16, generator=generator).cumsum(3)
    (theirs,) = processor().post_process_panoptic_segmentation(
        SimpleNamespace(class_queries_logits=logits, masks_queries_logits=masks),
        threshold=0.5,
        overlap_mask_area_threshold=0.4,
        label_ids_to_fuse={0, 1},
        target_sizes=[(384, 384)],
    )
    # Theirs enlarges first, to 384 x 384 px whatever the canvas was.
    enlarged = torch.nn.functional.interpolate(masks, (384, 384), mode="bilinear", align_corners=False)
    ours = merge(logits[0].numpy(), enlarged[0].numpy(), {0, 1}, least_score=0.5, least_left=0.4)
    categories = {one["id"]: one["label_id"] for one in theirs["segments_info"]}  # fused ones come several times
    assert len(categories) > 1 and list(categories.values()) == [one.category for one in ours.segments]
    names = dict(zip(categories, (one.number for one in ours.segments), strict=True)) | {-1: 0, 0: 0}
    their_map = theirs["segmentation"].numpy()
    same = np.vectorize(names.__getitem__)(their_map.astype(int)) == ours.numbers
    assert same.mean() > 0.999  # they compare in float32


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_strips_make_no_difference(rows):
    rng = np.random.default_rng(0)
    masks, scores = 3 * rng.standard_normal((6, 20, 30)).cumsum(2).astype(np.float32), rng.uniform(0.5, 1, 6).tolist()
    whole = merged([0, 1, 0, 1, 2, 2], scores, [masks], (20, 30), {0}, least_left=0.3)
    cut = [masks[:, top : top + rows] for top in range(0, 20, rows)]
    found = merged([0, 1, 0, 1, 2, 2], scores, cut, (20, 30), {0}, least_left=0.3)
    assert len(whole.segments) > 1 and found.segments == whole.segments
    assert np.array_equal(found.numbers, whole.numbers)


def test_as_coco_has_them():
    numbers = np.zeros((3, 5), np.int32)
    numbers[1:, 2:4], numbers[0, 0] = 70_000, 258
    found = Panoptic(numbers, (Segment(70_000, CAR, 0.75), Segment(258, SKY)))
    r, g, b = np.moveaxis(found.rgb().astype(int), 2, 0)
    assert np.array_equal(r + 256 * g + 256**2 * b, numbers) and numbers[2, 0] == NOTHING
    assert found.as_coco() == [
        {"id": 70_000, "category_id": 2, "area": 4, "bbox": [2, 1, 2, 2], "iscrowd": 0, "score": 0.75},
        {"id": 258, "category_id": 1, "area": 1, "bbox": [0, 0, 1, 1], "iscrowd": 0, "score": 1.0},
    ]
