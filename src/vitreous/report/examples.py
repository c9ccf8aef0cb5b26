"""Which test pictures a report shows: the best, the typical, the worst. Each of them once."""

from collections.abc import Sequence
from typing import TypeVar

NUM_SHOWN = 3  # of each kind, if there are enough

T = TypeVar("T")


def chosen(best_first: Sequence[T], worst_first: Sequence[T]) -> dict[str, list[T]]:
    """Of all pictures, in both orders; kinds for which none is left are left out."""
    num = min(NUM_SHOWN, max(1, round(len(best_first) / 3)))
    best = list(best_first[:num])
    worst = [one for one in worst_first if one not in best][:num]
    others = [one for one in best_first if one not in (*best, *worst)]
    middle = max(0, (len(others) - num) // 2)
    kinds = {"The best": best, "The typical": others[middle : middle + num], "The worst": worst}
    return {kind: some for kind, some in kinds.items() if some}
