"""Usage: what one must know to use an exported model. It travels inside the file; reading it needs no torch."""

from dataclasses import dataclass
from typing import Any, Literal

from vitreous import settings
from vitreous.prediction.reading import Fitting, Reading
from vitreous.weights import version1

Input = Literal["pictures", "tensors"]
Precision = Literal["fp32", "bf16", "int8"]
FITTED = "fitted"  # the name, inside the graph, of what the model sees of pictures


@dataclass(frozen=True, kw_only=True)
class Usage:
    FORMAT = 2  # of what an exported file says about its use

    input: Input  # uint8 pictures (B, H, W, 3) of any size, or normalised float32 (B, 3, h, w)
    precision: Precision
    reading: Reading  # what the outputs mean

    @property
    def fitting(self) -> Fitting:
        return self.reading.fitting

    @classmethod
    def of(cls, card: Any, input: Input, precision: Precision) -> "Usage":
        """`card`: a `Card` with a task."""
        return cls(input=input, precision=precision, reading=Reading.of(card))

    @classmethod
    def read(cls, document: Any, where: str) -> "Usage":
        """Of an exported file, whatever version of ours wrote it."""
        return settings.from_json(cls, version1.usage(document), where=where)
