"""Usage: what one must know to use an exported model. It travels inside the file; reading it needs no torch."""

from dataclasses import dataclass
from typing import Any, Literal

Input = Literal["pictures", "tensors"]
Precision = Literal["fp32", "bf16", "int8"]
FITTED = "fitted"  # the name, inside the graph, of what the model sees of pictures


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """The way from a picture to the model's input: the fields of `Preprocessing`, which knows torch."""

    size_px: tuple[int, int]
    crop: Literal["centre", "squash", "squash-centre"]
    crop_fraction: float
    odd_margin: Literal["even", "down"]
    skip_fitting: bool
    interpolation: Literal["bilinear", "bicubic", "nearest"]
    resizer: Literal["torch", "pillow"]  # whose rounding; a graph has torch's
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Usage:
    input: Input  # uint8 pictures (B, H, W, 3) of any size, or normalised float32 (B, 3, h, w)
    precision: Precision
    fitting: Fitting
    classes: tuple[str, ...]
    loss: Literal["softmax", "sigmoid"]  # how logits become probabilities
    temperature: float  # logits are divided by it before that
    sets: tuple[tuple[float, float], ...]  # (coverage, least probability of a class in such a set)

    @property
    def input_name(self) -> str:
        return self.input

    @property
    def output_name(self) -> str:
        return "probabilities" if self.input == "pictures" else "logits"

    @classmethod
    def of(cls, card: Any, input: Input, precision: Precision) -> "Usage":
        """`card`: a `Card` with a task."""
        return cls(
            input=input,
            precision=precision,
            fitting=Fitting(**vars(card.preprocessing)),
            classes=card.classes,
            loss=card.task.loss,
            temperature=card.temperature,
            sets=card.sets,
        )
