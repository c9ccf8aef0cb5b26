"""Candidates: the models that a fit has made, and which of them to keep."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from vitreous.fitting.first import FIRST_MODEL, ON_PIXELS
from vitreous.fitting.transfer import ENOUGH_TO_LEARN
from vitreous.weights.trained import Trained

FINE_TUNED, FROM_SCRATCH = "fine-tuned", "trained from scratch"
AHEAD = 2  # validation pictures by which a model must beat one of another kind: fewer may be chance


@dataclass(frozen=True, kw_only=True)
class Candidate:
    name: str
    score: float | None  # on the validation part; None: there is none
    is_kept: bool = False


class Said(Protocol):
    """A model's predictions on the validation part, as far as comparing models needs them."""

    def score(self) -> float: ...  # the headline

    def __len__(self) -> int: ...  # pictures


@dataclass(frozen=True)
class Scored:
    """A headline score, and the number of pictures it is from."""

    value: float
    pictures: int

    def score(self) -> float:
        return self.value

    def __len__(self) -> int:
        return self.pictures

    @property
    def worth(self) -> float:
        """The number of pictures that the model gets right, or its equivalent for headlines other than accuracy."""
        return round(self.value * self.pictures, 6)


@dataclass(frozen=True)
class Kept:
    """The best candidate."""

    model: Trained
    said: Said | None  # its predictions on the validation part
    candidates: tuple[Candidate, ...]
    name: str
    reason: str


def chosen(
    scores: Mapping[str, Scored | None], floor: str | None, *, is_continued: bool, num_train: int
) -> tuple[str, str]:
    """Which model to keep, and why. `floor`: the best of the first models; `is_continued`: training started from its
    weights, so that both are of one kind."""
    known = {name: found for name, found in scores.items() if found is not None}
    learned = [name for name in scores if name not in (ON_PIXELS, FIRST_MODEL)]
    if not known:
        best = learned[-1] if learned and (floor is None or num_train >= ENOUGH_TO_LEARN) else floor
        assert best is not None
        return best, "there is no validation part to compare it with others"
    best, gained = floor, 0 if is_continued and floor == FIRST_MODEL else AHEAD - 1
    for name in learned:
        if best is None or known[name].worth > known[best].worth + gained:
            best, gained = name, 0
    assert best is not None
    others = ", ".join(f"{name} {100 * found.value:.1f} %" for name, found in known.items() if name != best)
    return best, f"{100 * known[best].value:.1f} % on the validation part" + (f"; {others}" if others else "")
