"""Outcome: the prediction for one picture, whatever the kind of task. Knows no torch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from vitreous.display.html import Content, Html

Outputs = Mapping[str, NDArray[Any]]  # by name, each (B, ...)
Sizes = Sequence[tuple[int, int]]  # height and width of each original picture


class Outcome(ABC):
    """In the coordinates of the original picture."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The prediction in a few words."""

    @abstractmethod
    def row(self) -> tuple[Content, ...]:
        """For a table of many pictures: the prediction, its probability, the next best."""

    @abstractmethod
    def html(self, num: int = 5) -> Html: ...

    def __str__(self) -> str:
        return self.words

    def _repr_html_(self) -> str:
        return self.html().markup
