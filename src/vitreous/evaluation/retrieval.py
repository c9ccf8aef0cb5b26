"""Retrieval scores: finding a picture's texts among all texts, and a text's picture among all pictures.

Texts of one picture are correlated, so intervals come from resampling whole pictures (bootstrap, fixed seed).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous import settings
from vitreous.display.html import together
from vitreous.display.tables import Table
from vitreous.display.words import counted
from vitreous.evaluation.metrics import Estimate
from vitreous.tasks.retrieval import DEPTHS, Ranks

DRAWS = 1000


@dataclass(frozen=True)
class RetrievalEvaluation:
    pictures: int
    texts: int
    depths: tuple[int, ...]
    to_texts: tuple[Estimate, ...]  # at each depth: the share of pictures with one of their texts among the best
    to_pictures: tuple[Estimate, ...]  # the share of texts whose picture is among the best
    both: tuple[Estimate, ...]  # the mean of the two
    median_ranks: tuple[float, float]  # of a picture's best text, and of a text's picture; 1 is the first

    headline_name = "recall@1"

    @property
    def headline(self) -> Estimate:
        return self.both[0]

    def to_json(self) -> Any:
        return {"kind": settings.kind(type(self)), **settings.to_json(self)}

    def tables(self) -> list[Table]:
        rows = [
            (f"recall@{depth}", *(one.percent() for one in found))
            for depth, *found in zip(self.depths, self.to_texts, self.to_pictures, self.both, strict=True)
        ]
        rows.append(("median rank", *(f"{rank:g}" for rank in self.median_ranks), ""))
        of = f"{counted(self.pictures, 'picture')}, {counted(self.texts, 'text')}"
        return [Table((of, "text of a picture", "picture of a text", "mean"), rows)]

    def summary(self) -> str:
        """For the terminal."""
        return "\n\n".join(one.text() for one in self.tables())

    def _repr_html_(self) -> str:
        return together(one.html() for one in self.tables()).markup


def evaluate_ranks(ranks: Ranks, owner: Tensor) -> RetrievalEvaluation:
    """owner (T,): the picture that each text is about."""
    of_pictures, of_texts, owner = ranks.of_pictures.cpu(), ranks.of_texts.cpu(), owner.cpu()
    num = len(of_pictures)
    counts = torch.bincount(owner, minlength=num).double()
    drawn = torch.ones(num).multinomial(DRAWS * num, True, generator=torch.Generator().manual_seed(0))
    times = torch.zeros(DRAWS, num, dtype=torch.float64)
    times.scatter_add_(1, drawn.view(DRAWS, num), torch.ones(DRAWS, num, dtype=torch.float64))
    to_texts, to_pictures, both = [], [], []
    for depth in DEPTHS:
        hits = (of_pictures < depth).double()
        found = torch.bincount(owner, (of_texts < depth).double(), minlength=num)
        one, other = times @ hits / num, (times @ found) / (times @ counts)
        values = float(hits.mean()), float((of_texts < depth).double().mean())
        to_texts.append(_estimate(values[0], one))
        to_pictures.append(_estimate(values[1], other))
        both.append(_estimate(sum(values) / 2, (one + other) / 2))
    medians = float(of_pictures.double().median()) + 1, float(of_texts.double().median()) + 1
    return RetrievalEvaluation(
        num, len(of_texts), DEPTHS, tuple(to_texts), tuple(to_pictures), tuple(both), median_ranks=medians
    )


def _estimate(value: float, resampled: Tensor) -> Estimate:
    low, high = torch.quantile(resampled, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Estimate(value, low, high)
