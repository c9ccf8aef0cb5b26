"""Masks of queries merged into one map, against transformers' own; and the quality of such maps, by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vitreous.evaluation.panoptic import Panoptic, Segment, merged, panoptic_quality
from vitreous.weights.peers import imported

SKY, CAR = 0, 1


def said(*queries: tuple[int, float, slice]) -> tuple[np.ndarray, np.ndarray]:
    """A class, how sure, and the columns of a 4 x 8 picture, for each query."""
    logits, masks = np.full((len(queries), 3), -9.0), np.full((len(queries), 4, 8), -5.0)
    for number, (category, sure, columns) in enumerate(queries):
        logits[number, category] = sure
        masks[number, :, columns] = 5.0
    return logits, masks


def test_things_are_apart_and_stuff_is_one():
    logits, masks = said((SKY, 9, slice(0, 2)), (SKY, 9, slice(6, 8)), (CAR, 9, slice(2, 4)), (CAR, 9, slice(4, 6)))
    found = merged(logits, masks, stuff={SKY})
    assert found.numbers[0].tolist() == [1, 1, 2, 2, 3, 3, 1, 1]
    assert [(one.number, one.category) for one in found.segments] == [(1, SKY), (2, CAR), (3, CAR)]


def test_what_is_unsure_hidden_or_none_is_left_out():
    logits, masks = said((CAR, 9, slice(0, 8)), (SKY, -8.9, slice(0, 4)), (2, 9, slice(0, 2)))
    found = merged(logits, masks)
    assert (found.numbers == 1).all() and len(found.segments) == 1
    # Of the second, all but a quarter belongs to who is surer.
    logits, masks = said((CAR, 12, slice(0, 6)), (CAR, -6, slice(0, 8)))
    assert merged(logits, masks, least_score=0.5).numbers[0].tolist() == [1] * 6 + [0] * 2
    assert merged(*said((2, 9, slice(0, 8)))).segments == ()


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
    ours = merged(logits[0].numpy(), enlarged[0].numpy(), {0, 1}, least_score=0.5, least_left=0.4)
    categories = {one["id"]: one["label_id"] for one in theirs["segments_info"]}  # fused ones come several times
    assert len(categories) > 1 and list(categories.values()) == [one.category for one in ours.segments]
    names = dict(zip(categories, (one.number for one in ours.segments), strict=True)) | {-1: 0, 0: 0}
    their_map = theirs["segmentation"].numpy()
    same = np.vectorize(names.__getitem__)(their_map.astype(int)) == ours.numbers
    assert same.mean() > 0.999  # they compare in float32


# ---- quality


def of(row: list[int], *segments: tuple[int, int]) -> Panoptic:
    return Panoptic(np.array([row], np.int32), tuple(Segment(*one) for one in segments))


def test_quality_by_hand():
    """Two cars: one found with 3 of 4 pixels in common, one missed; another made up. The sky is right but for a px."""
    truth = of([1, 1, 1, 1, 2, 2, 3, 3, 3, 3], (1, CAR), (2, CAR), (3, SKY))
    found = of([1, 1, 1, 2, 2, 3, 3, 3, 3, 3], (1, CAR), (2, CAR), (3, SKY))
    mean, classes = panoptic_quality([found], [truth], 3)
    # The first car: 3 shared of 4; the second found car shares 1 of 3 with the true one: neither is matched.
    assert classes[CAR].sq == pytest.approx(3 / 4) and classes[CAR].rq == pytest.approx(1 / (1 + 2 / 2))
    assert classes[SKY].pq == pytest.approx(4 / 5)
    assert mean.pq == pytest.approx((0.75 * 0.5 + 0.8) / 2) and set(classes) == {SKY, CAR}


def test_classes_must_agree_and_what_is_unknown_does_not_count():
    truth = of([1, 1, 0, 0], (1, CAR))
    assert panoptic_quality([truth], [truth], 2)[0].pq == 1
    assert panoptic_quality([of([1, 1, 1, 0], (1, CAR))], [truth], 2)[0].pq == 1  # a pixel that nobody knows
    assert panoptic_quality([of([1, 1, 2, 2], (1, CAR), (2, CAR))], [truth], 2)[0].pq == 1
    assert panoptic_quality([of([1, 1, 0, 0], (1, SKY))], [truth], 2)[0].pq == 0
