"""Predictor: pictures in, answers out; for Python, the terminal and whatever serves.

Nothing here knows torch: a model of ours answers through `torch_predictor`, an exported one through `export.runtime`,
which needs ONNX Runtime alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.data.images import BadPicture, Picture
from vitreous.display.html import Html, tag, together
from vitreous.display.tables import html_table
from vitreous.errors import UserError
from vitreous.prediction.pictures import AnyPicture, pixels, pixels_or_why


@dataclass(frozen=True)
class Answer:
    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]  # (K,), calibrated by the model's temperature
    thresholds: tuple[tuple[float, float], ...] = ()  # (coverage, least probability of a class in such a set)

    def top(self, num: int = 5) -> list[tuple[str, float]]:
        """The likeliest classes, best first."""
        order = np.argsort(-self.probabilities, kind="stable")[:num]
        return [(self.classes[place], float(self.probabilities[place])) for place in order]

    @property
    def best(self) -> str:
        return self.top(1)[0][0]

    @property
    def confidence(self) -> float:
        return float(self.probabilities.max())

    def is_sure(self, least: float) -> bool:
        """Whether the best class is at least that likely; if not, one may rather say nothing."""
        return self.confidence >= least

    def prediction_set(self, coverage: float) -> tuple[str, ...]:
        """The classes, likeliest first, among which the right one is with the probability `coverage`.

        Empty where no class is likely. The promise is about pictures like those of the validation part.
        """
        found = [least for known, least in self.thresholds if abs(known - coverage) < 1e-9]
        if not found:
            raise UserError(no_such_coverage(coverage, self.thresholds))
        return tuple(name for name, probability in self.top(len(self.classes)) if probability >= found[0])

    def html(self, num: int = 5) -> Html:
        """The likeliest classes as bars, and the sets that are promised to hold the right one."""
        rows = [(tag.bdi(name), _bar(value), f"{100 * value:.1f} %") for name, value in self.top(num)]
        sets = [
            (f"{100 * coverage:g} % sure", ", ".join(self.prediction_set(coverage)) or "no class is likely enough")
            for coverage, _ in self.thresholds
        ]
        return together(
            html_table(("class", "", "probability"), rows), html_table(("set", "classes"), sets) if sets else None
        )

    def _repr_html_(self) -> str:
        return self.html().markup


def _bar(share: float) -> Html:
    return tag.div(style=f"width: {max(1, round(160 * share))}px; height: 0.8em; background: #0072b2")


def no_such_coverage(coverage: float, thresholds: Sequence[tuple[float, float]]) -> str:
    if not thresholds:
        return "this model has no thresholds for prediction sets: they are fitted on a validation part, after training"
    known = ", ".join(f"{one:g}" for one, _ in thresholds)
    return f"this model has no prediction sets of coverage {coverage:g}: there are {known}"


class Predictor(ABC):
    """A model with its classes and the preprocessing it was trained with."""

    classes: tuple[str, ...]
    thresholds: tuple[tuple[float, float], ...]

    @staticmethod
    def load(where: str | Path, device: str = "cpu") -> "Predictor":
        """From an exported .onnx file or its folder, without torch; or from anything that `vitreous.load` reads.

        `device` is cpu, cuda or auto; exported models run on the CPU.
        """
        exported = exported_file(where)
        if exported is not None:
            from vitreous.export.runtime import ExportedPredictor

            return ExportedPredictor(exported)
        from vitreous.prediction.torch_predictor import TorchPredictor

        return TorchPredictor.load(where, device)

    @abstractmethod
    def probabilities(self, pictures: Sequence[Picture]) -> NDArray[np.float32]:
        """Pictures of any sizes -> (N, K), calibrated."""

    def __call__(self, picture: AnyPicture) -> Answer:
        """Raises BadPicture where there is no readable picture."""
        return self._answers([pixels(picture)])[0]

    def answers(self, pictures: Iterable[AnyPicture], batch_size: int = 16) -> Iterator[Answer | BadPicture]:
        """One for every picture, in order, as they come; why there is none, where one cannot be read."""
        waiting = iter(pictures)
        while some := list(islice(waiting, batch_size)):
            read = [pixels_or_why(one) for one in some]
            found = iter(self._answers([one for one in read if not isinstance(one, BadPicture)]))
            for one in read:
                yield one if isinstance(one, BadPicture) else next(found)

    def _answers(self, pictures: list[Picture]) -> list[Answer]:
        if not pictures:
            return []
        return [Answer(self.classes, row, self.thresholds) for row in self.probabilities(pictures)]


def exported_file(where: str | Path) -> Path | None:
    """The .onnx file that is meant; None where it is something for `vitreous.load`."""
    path = Path(where).expanduser()
    if path.suffix == ".pt2":
        raise UserError(
            f"{where}: loading a torch.export program runs code that it holds, so we read none; "
            "if you trust it, use torch.export.load, or export to onnx"
        )
    if path.suffix == ".onnx":
        if not path.is_file():
            raise UserError(f"{where}: no such file")
        return path
    if any((path / name).exists() for name in ("model", "model.json", "recipe.json", "config.json")):
        return None  # weights, whatever else lies beside them
    files = sorted(path.glob("*.onnx"))
    if len(files) > 1:
        raise UserError(f"{where}: {len(files)} exported models ({files[0].name}, {files[1].name} ...); name one")
    return files[0] if files else None
