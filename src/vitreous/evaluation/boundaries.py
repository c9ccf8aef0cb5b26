"""How well the outlines of classes match: the boundary F-score (Csurka et al. 2013), per class and picture.

A pixel of one outline is matched if the other has one within 0.75 % of the picture's diagonal. Precision is the matched
share of the predicted outline, recall that of the labelled one.
"""

import math

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
TOLERANCE = 0.0075  # of the diagonal


def boundary_scores(labels: NDArray[np.integer], found: NDArray[np.integer], num_classes: int) -> NDArray[np.float64]:
    """(K,) F-scores of one picture; NaN if neither has an outline of the class. Labels below 0 are ignored, and make no
    outlines."""
    height, width = labels.shape
    reach = max(1, math.ceil(TOLERANCE * math.hypot(height, width)))
    ignored = labels < 0
    theirs, ours = _outlines(labels, ignored), _outlines(found, ignored)
    scores = np.full(num_classes, np.nan)
    for number in np.union1d(np.unique(labels[theirs]), np.unique(found[ours])).tolist():
        wanted, drawn = theirs & (labels == number), ours & (found == number)
        if wanted.any() and drawn.any():
            precision = (drawn & widened(wanted, reach)).sum() / drawn.sum()
            recall = (wanted & widened(drawn, reach)).sum() / wanted.sum()
            scores[number] = 2 * precision * recall / max(precision + recall, 1e-12)
        else:
            scores[number] = 0.0
    return scores


def _outlines(labels: NDArray[np.integer], ignored: Mask) -> Mask:
    """(H, W): pixels with a neighbour, on any of four sides, of another class; both of them not ignored."""
    found = np.zeros(labels.shape, np.bool_)
    across = (labels[:, 1:] != labels[:, :-1]) & ~ignored[:, 1:] & ~ignored[:, :-1]
    down = (labels[1:] != labels[:-1]) & ~ignored[1:] & ~ignored[:-1]
    found[:, 1:] |= across
    found[:, :-1] |= across
    found[1:] |= down
    found[:-1] |= down
    return found


def widened(mask: Mask, reach: int) -> Mask:
    """(H, W): pixels with a true one at a distance of at most `reach`."""
    height, width = mask.shape
    padded = np.pad(mask, reach)
    # First along the rows, each length once: then a disc is one shifted copy per row.
    halves = [math.isqrt(reach * reach - row * row) for row in range(-reach, reach + 1)]
    wide = {0: padded}
    for half in range(1, reach + 1):
        wider = wide[half - 1].copy()
        wider[:, half:] |= padded[:, :-half]
        wider[:, :-half] |= padded[:, half:]
        wide[half] = wider
    found = np.zeros(mask.shape, np.bool_)
    for row, half in enumerate(halves):
        found |= wide[half][row : row + height, reach : reach + width]
    return found
