"""The quality of maps of segments, by hand."""

import numpy as np
import pytest

from vitreous.data.panoptic import Panoptic, Segment
from vitreous.evaluation.panoptic import panoptic_quality

SKY, CAR = 0, 1


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
