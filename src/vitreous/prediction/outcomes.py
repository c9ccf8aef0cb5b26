"""Outcomes: the predictions for single pictures, made from a model's raw outputs.

The one implementation for torch, exported and served models; it knows no torch. A kind of task is one function that
calibrates the outputs, one that makes outcomes of them, and one line in KINDS.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.data.images import Picture
from vitreous.data.kinds import TaskKind
from vitreous.display.html import Content, Html, tag, together
from vitreous.display.tables import html_table
from vitreous.errors import UserError
from vitreous.prediction.box_outcomes import box_outcomes, calibrated_boxes
from vitreous.prediction.instance_outcomes import calibrated_instances, instance_outcomes
from vitreous.prediction.outcome import Outcome, Outputs, Sizes
from vitreous.prediction.pixel_outcomes import pixel_outcomes, pixel_views, scaled_logits
from vitreous.prediction.reading import Reading
from vitreous.weights.calibration import ClassCalibration, ManyCalibration

__all__ = [
    "KINDS",
    "ClassOutcome",
    "ManyOutcome",
    "Outcome",
    "Outputs",
    "RankedOutcome",
    "Sizes",
    "calibrated",
    "no_such_coverage",
    "outcomes",
    "views",
]

LEAST = 0.5  # probability from which a picture has a label, if none was chosen on validation pictures


@dataclass(frozen=True)
class RankedOutcome(Outcome):
    """With a probability for every class."""

    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]  # (K,), calibrated

    def top(self, num: int = 5) -> list[tuple[str, float]]:
        """The most likely classes, best first."""
        order = np.argsort(-self.probabilities, kind="stable")[:num]
        return [(self.classes[place], float(self.probabilities[place])) for place in order]

    @property
    def best(self) -> str:
        return self.top(1)[0][0]

    @property
    def confidence(self) -> float:
        return float(self.probabilities.max())

    def is_sure(self, least: float) -> bool:
        """Whether the best class is at least that likely; if not, it may be better to name none."""
        return self.confidence >= least


@dataclass(frozen=True)
class ClassOutcome(RankedOutcome):
    """One class per picture."""

    sets: tuple[tuple[float, float], ...] = ()  # (coverage, least probability of a class in such a set)

    @property
    def words(self) -> str:
        return self.best

    def __str__(self) -> str:
        return ", ".join(f"{name} {100 * value:.1f} %" for name, value in self.top(3))

    def prediction_set(self, coverage: float) -> tuple[str, ...]:
        """The classes, most likely first, that contain the right one with the probability `coverage`.

        Empty if no class is likely. The promise holds for pictures like those of the validation part.
        """
        found = [least for known, least in self.sets if abs(known - coverage) < 1e-9]
        if not found:
            raise UserError(no_such_coverage(coverage, self.sets))
        return tuple(name for name, probability in self.top(len(self.classes)) if probability >= found[0])

    def row(self) -> tuple[Content, ...]:
        others = ", ".join(f"{name} {100 * value:.1f} %" for name, value in self.top(3)[1:])
        return tag.b(tag.bdi(self.best)), f"{100 * self.confidence:.1f} %", others

    def html(self, num: int = 5) -> Html:
        """The most likely classes as bars, and the prediction sets."""
        rows = [(tag.bdi(name), _bar(value), f"{100 * value:.1f} %") for name, value in self.top(num)]
        sets = [
            (f"{100 * coverage:g} % sure", ", ".join(self.prediction_set(coverage)) or "no class is likely enough")
            for coverage, _ in self.sets
        ]
        return together(
            html_table(("class", "", "probability"), rows), html_table(("set", "classes"), sets) if sets else None
        )


@dataclass(frozen=True)
class ManyOutcome(RankedOutcome):
    """Any number of labels per picture, each decided independently."""

    thresholds: NDArray[np.float32]  # (K,): from this probability on, a picture has the label

    @property
    def labels(self) -> list[tuple[str, float]]:
        """Those of the picture, most likely first; perhaps none."""
        chosen = self.probabilities >= self.thresholds
        order = np.argsort(-self.probabilities, kind="stable")
        return [(self.classes[place], float(self.probabilities[place])) for place in order if chosen[place]]

    def threshold(self, name: str) -> float:
        return float(self.thresholds[self.classes.index(name)])

    @property
    def words(self) -> str:
        return " + ".join(name for name, _ in self.labels) or "no label"

    def row(self) -> tuple[Content, ...]:
        chosen = self.labels
        others = [one for one in self.top(len(chosen) + 2) if one not in chosen]
        return (
            tag.b(tag.bdi(self.words)),
            ", ".join(f"{100 * value:.1f} %" for _, value in chosen),
            ", ".join(f"{name} {100 * value:.1f} %" for name, value in others),
        )

    def html(self, num: int = 5) -> Html:
        """Every label of the picture, and the most likely others, with the probability that each needs."""
        chosen = self.labels
        listed = [*chosen, *(one for one in self.top(len(chosen) + num) if one not in chosen)][: max(num, len(chosen))]
        rows = [
            (
                tag.b(tag.bdi(name)) if (name, value) in chosen else tag.bdi(name),
                _bar(value),
                f"{100 * value:.1f} %",
                f"{100 * self.threshold(name):.1f} %",
            )
            for name, value in listed
        ]
        return html_table(("label", "", "probability", "needed"), rows)


def _bar(share: float) -> Html:
    return tag.div(style=f"width: {max(1, round(160 * share))}px; height: 0.8em; background: #0072b2")


def no_such_coverage(coverage: float, sets: Sequence[tuple[float, float]]) -> str:
    if not sets:
        return "this model has no thresholds for prediction sets: they are fitted on a validation part, after training"
    known = ", ".join(f"{one:g}" for one, _ in sets)
    return f"this model has no prediction sets of coverage {coverage:g}, only of {known}"


# ---- From raw outputs


def _softmax(outputs: Outputs, reading: Reading) -> Outputs:
    scaled = outputs["logits"].astype(np.float64) / reading.temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return {"probabilities": np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)}


def _sigmoid(outputs: Outputs, reading: Reading) -> Outputs:
    scaled = np.clip(outputs["logits"].astype(np.float64) / reading.temperature, -700, 700)  # exp(710) overflows
    return {"probabilities": np.asarray(1 / (1 + np.exp(-scaled)), np.float32)}


def _class_outcomes(outputs: Outputs, reading: Reading, sizes: Sizes) -> list[Outcome]:
    sets = reading.calibration.sets if isinstance(reading.calibration, ClassCalibration) else ()
    return [ClassOutcome(reading.classes, row, sets) for row in outputs["probabilities"]]


def _many_outcomes(outputs: Outputs, reading: Reading, sizes: Sizes) -> list[Outcome]:
    chosen = reading.calibration.thresholds if isinstance(reading.calibration, ManyCalibration) else ()
    thresholds = np.asarray(chosen or [LEAST] * len(reading.classes), np.float32)
    return [ManyOutcome(reading.classes, row, thresholds) for row in outputs["probabilities"]]


class Kind(NamedTuple):
    calibrated: Callable[[Outputs, Reading], Outputs]  # raw -> as an exported file that takes pictures returns them
    outcomes: Callable[[Outputs, Reading, Sizes], list[Outcome]]  # from calibrated outputs
    views: Callable[[Picture, Reading], list[Picture]] = lambda picture, _: [picture]  # that the model is shown


KINDS: dict[TaskKind, Kind] = {
    "classify": Kind(_softmax, _class_outcomes),
    "label": Kind(_sigmoid, _many_outcomes),
    "segment": Kind(scaled_logits, pixel_outcomes, pixel_views),
    "detect": Kind(calibrated_boxes, box_outcomes),
    "instances": Kind(calibrated_instances, instance_outcomes),
}


def calibrated(outputs: Outputs, reading: Reading) -> Outputs:
    """Raw outputs, as an exported file that takes pictures returns them; outputs of such a file stay as they are."""
    return KINDS[reading.kind].calibrated(outputs, reading) if "logits" in outputs else outputs


def outcomes(outputs: Outputs, reading: Reading, sizes: Sizes) -> list[Outcome]:
    """One per picture, from raw or calibrated outputs."""
    return KINDS[reading.kind].outcomes(calibrated(outputs, reading), reading, sizes)


def views(picture: Picture, reading: Reading) -> list[Picture]:
    """What the model is shown of a picture: usually the picture itself."""
    return KINDS[reading.kind].views(picture, reading)
