"""The rules of VOC2007's challenge, as benchmarks/voc.py has them."""

from pathlib import Path

import numpy as np
import pytest

from vitreous.tasks.box_precision import Found, Truth

BOX = [0.0, 0.0, 10.0, 10.0]
FAR = [50.0, 50.0, 60.0, 60.0]
HALF = [0.0, 0.0, 10.0, 5.0]  # overlaps with BOX by exactly one half


@pytest.fixture
def voc2007(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import voc

    return voc.voc2007


def of(rows):
    """(picture, class, box, crowd or score), one per row."""
    picture, classes, boxes, last = zip(*rows, strict=True)
    return np.array(picture), np.array(classes), np.array(boxes), np.array(last)


def test_precision_at_eleven_recalls(voc2007):
    truth = Truth(*of([(0, 0, BOX, False), (1, 0, BOX, False), (1, 0, FAR, True), (1, 1, BOX, False)]))
    found = [
        (0, 0, BOX, 0.9),  # right
        (1, 0, FAR, 0.8),  # difficult: as if it were not there
        (0, 0, BOX, 0.7),  # found before: wrong
        (1, 0, HALF, 0.65),  # one half is not more than one half: wrong
        (1, 0, BOX, 0.6),  # right
        (1, 1, FAR, 0.5),  # wrong, and the class is never found
    ]
    per_class = voc2007(truth, Found(*of(found)), 2)
    # Recalls up to one half are reached with a precision of 1, the others with 2 of 4.
    assert per_class.tolist() == pytest.approx([(6 * 1.0 + 5 * 0.5) / 11, 0.0])
