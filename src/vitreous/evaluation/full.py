"""Everything that answers alone can tell of a model, in one object: for `fit`, `evaluate` and the report."""

from dataclasses import dataclass
from typing import Any

from vitreous import settings
from vitreous.evaluation.abstention import Abstention, Silence, abstention, silence
from vitreous.evaluation.answers import Answers
from vitreous.evaluation.calibration import Calibration, calibration, fit_temperature
from vitreous.evaluation.conformal import COVERAGES, Kind, Sets, measure_sets
from vitreous.evaluation.metrics import Scores, scores
from vitreous.terminal import table

WISHES = (0.95, 0.99)  # accuracies for which a threshold of confidence is looked for


@dataclass(frozen=True)
class Evaluation:
    scores: Scores  # on test, as the other fields; with the model's temperature
    temperature: float  # fitted on validation pictures, or as given
    validation_pictures: int  # 0: nothing was fitted
    before: Calibration | None  # at temperature 1; None for several labels a picture
    after: Calibration | None  # at the temperature
    sets: tuple[Sets, ...]  # their thresholds are fitted on validation pictures
    abstention: Abstention
    silences: tuple[Silence, ...]

    def to_json(self) -> Any:
        return settings.to_json(self)

    @property
    def card_sets(self) -> tuple[tuple[float, float], ...]:
        """What `predict` needs to know, for the model's card."""
        return tuple((one.coverage, one.threshold) for one in self.sets if one.kind == "threshold")

    def summary(self) -> str:
        """For the terminal."""
        parts = [self.scores.text()]
        if self.before is not None and self.after is not None:
            parts.append(_calibration_text(self.before, self.after, self.validation_pictures))
        if self.sets:
            parts.append(_sets_text(self.sets))
        if self.silences:
            parts.append(_silences_text(self.silences))
        return "\n\n".join(parts)


def evaluate_fully(
    val: Answers | None,
    test: Answers,
    *,
    temperature: float | None = None,  # None: fitted on val, or 1 without it
    coverages: tuple[float, ...] = COVERAGES,
    kind: Kind = "threshold",
    wishes: tuple[float, ...] = WISHES,
) -> Evaluation:
    """Val fits temperature and thresholds, and may be absent; test is measured."""
    if test.has_many_labels:
        return Evaluation(scores(test), temperature or 1.0, 0, None, None, (), abstention(test), ())
    if temperature is None:
        temperature = 1.0 if val is None else fit_temperature(val)
    return Evaluation(
        scores=scores(test, temperature),
        temperature=temperature,
        validation_pictures=0 if val is None else len(val),
        before=calibration(test),
        after=calibration(test, temperature),
        sets=() if val is None else tuple(measure_sets(val, test, wanted, temperature, kind) for wanted in coverages),
        abstention=abstention(test, temperature),
        silences=() if val is None else tuple(silence(val, test, wish, temperature) for wish in wishes),
    )


def _calibration_text(before: Calibration, after: Calibration, num_val: int) -> str:
    shown = [before] if after.temperature == 1 else [before, after]
    rows = [
        ("ECE", *(one.ece.percent() for one in shown)),
        ("adaptive ECE", *(one.adaptive_ece.percent() for one in shown)),
        ("Brier", *(one.brier.plain() for one in shown)),
        ("log-loss", *(one.log_loss.plain() for one in shown)),
        ("mean confidence", *(f"{100 * one.confidence:.2f} %" for one in shown)),
    ]
    text = table(rows, ("calibration", *(f"temperature {one.temperature:.4g}" for one in shown)))
    return text + (f"\ntemperature fitted on {num_val:,} validation pictures" if num_val else "")


def _sets_text(sets: tuple[Sets, ...]) -> str:
    rows = [
        (
            f"{100 * one.coverage:g} %",
            one.measured.percent(),
            f"{100 * one.expected_low:.2f} to {100 * one.expected_high:.2f}" + ("" if one.holds else " (missed)"),
            f"{one.mean_size.value:.2f} ({one.mean_size.low:.2f} to {one.mean_size.high:.2f})",
            f"{100 * one.empty.value:.1f} %",
        )
        for one in sets
    ]
    return table(rows, ("prediction sets", "coverage measured", "expected", "mean size", "empty"))


def _silences_text(silences: tuple[Silence, ...]) -> str:
    rows = []
    for one in silences:
        if one.threshold is None or one.answered is None:
            rows.append((f"{100 * one.wished:g} %", "not reached for sure on validation", "-", "-"))
        else:
            reached = "-" if one.accuracy is None else one.accuracy.percent()
            rows.append((f"{100 * one.wished:g} %", f"{one.threshold:.3f}", one.answered.percent(), reached))
    return table(rows, ("wished accuracy", "answer at confidence", "share answered", "accuracy measured"))
