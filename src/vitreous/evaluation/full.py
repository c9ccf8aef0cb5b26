"""Everything that can be measured from a model's predictions, in one object: for `fit`, `evaluate` and the report."""

from dataclasses import dataclass
from typing import Any

from vitreous import settings
from vitreous.display.html import together
from vitreous.display.tables import Table
from vitreous.errors import UserError
from vitreous.evaluation.abstention import Abstention, Silence, abstention, silence
from vitreous.evaluation.box_scores import BoxEvaluation
from vitreous.evaluation.calibration import Calibration, fit_temperature
from vitreous.evaluation.calibration import calibration as measured_calibration
from vitreous.evaluation.conformal import COVERAGES, Sets, fit_threshold, measure_sets
from vitreous.evaluation.logits import LabelledLogits
from vitreous.evaluation.many import ManyEvaluation, choose_thresholds, decisions, evaluate_many
from vitreous.evaluation.metrics import Estimate, Scores, scores
from vitreous.evaluation.pixel_scores import PixelEvaluation
from vitreous.weights.calibration import Calibration as CardCalibration
from vitreous.weights.calibration import ClassCalibration, ManyCalibration

WISHES = (0.95, 0.99)  # accuracies to find a threshold of confidence for


@dataclass(frozen=True)
class ClassEvaluation:
    """For one class per picture."""

    scores: Scores  # on test, like the other fields; with the model's temperature
    temperature: float  # fitted on validation pictures, or as given
    validation_pictures: int  # 0: nothing was fitted
    before: Calibration  # at temperature 1
    after: Calibration  # at the temperature
    sets: tuple[Sets, ...]  # their thresholds are fitted on validation pictures
    abstention: Abstention
    silences: tuple[Silence, ...]

    headline_name = "accuracy"

    @property
    def headline(self) -> Estimate:
        return self.scores.top1

    def to_json(self) -> Any:
        return {"kind": settings.kind(type(self)), **settings.to_json(self)}

    @property
    def calibration(self) -> ClassCalibration:
        """What `predict` needs to know, for the model's card."""
        sets = tuple((one.coverage, one.threshold) for one in self.sets)
        return ClassCalibration(temperature=self.temperature, sets=sets)

    def tables(self) -> list[Table]:
        found = [*self.scores.tables(), _calibration_table(self.before, self.after, self.validation_pictures)]
        if self.sets:
            found.append(_sets_table(self.sets))
        if self.silences:
            found.append(_silences_table(self.silences))
        return found

    def summary(self) -> str:
        """For the terminal."""
        return "\n\n".join(one.text() for one in self.tables())

    def _repr_html_(self) -> str:
        return together(one.html() for one in self.tables()).markup


Evaluation = ClassEvaluation | ManyEvaluation | PixelEvaluation | BoxEvaluation


def evaluation_of(document: Any, where: str) -> Evaluation:
    """The evaluation that `to_json` was given."""
    known: tuple[type[Evaluation], ...] = (ClassEvaluation, ManyEvaluation, PixelEvaluation, BoxEvaluation)
    kinds = {settings.kind(one): one for one in known}
    if not isinstance(document, dict) or document.get("kind") not in kinds:
        raise UserError(f"{where}: this version does not know this kind of evaluation; evaluate the model again")
    return settings.from_json(kinds[document["kind"]], document, where=where)


def evaluate_fully(
    val: LabelledLogits | None,
    test: LabelledLogits,
    *,
    calibration: CardCalibration | None = None,
    coverages: tuple[float, ...] = COVERAGES,
) -> Evaluation:
    """Val fits what the model's calibration lacks, and may be absent; test is measured."""
    known = None if calibration is None or calibration.temperature == 1 else calibration.temperature
    if test.has_many_labels:
        thresholds = calibration.thresholds if isinstance(calibration, ManyCalibration) else ()
        return evaluate_many(val, test, temperature=known, thresholds=thresholds)
    return evaluate_classes(val, test, temperature=known, coverages=coverages)


def fitted_calibration(val: LabelledLogits) -> CardCalibration:
    """What `predict` needs to know, from validation pictures only."""
    if val.has_many_labels:
        temperature = fit_temperature(decisions(val))
        return ManyCalibration(temperature=temperature, thresholds=choose_thresholds(val, temperature))
    temperature = fit_temperature(val)
    sets = tuple((coverage, fit_threshold(val, coverage, temperature)) for coverage in COVERAGES)
    return ClassCalibration(temperature=temperature, sets=sets)


def evaluate_classes(
    val: LabelledLogits | None,
    test: LabelledLogits,
    *,
    temperature: float | None = None,  # None: fitted on val, or 1 without it
    coverages: tuple[float, ...] = COVERAGES,
) -> ClassEvaluation:
    """Val fits temperature and thresholds, and may be absent; test is measured."""
    if temperature is None:
        temperature = 1.0 if val is None else fit_temperature(val)
    return ClassEvaluation(
        scores=scores(test, temperature),
        temperature=temperature,
        validation_pictures=0 if val is None else len(val),
        before=measured_calibration(test),
        after=measured_calibration(test, temperature),
        sets=() if val is None else tuple(measure_sets(val, test, wanted, temperature) for wanted in coverages),
        abstention=abstention(test, temperature),
        silences=() if val is None else tuple(silence(val, test, wish, temperature) for wish in WISHES),
    )


def _calibration_table(before: Calibration, after: Calibration, num_val: int) -> Table:
    shown = [before] if after.temperature == 1 else [before, after]
    rows = [
        ("ECE", *(one.ece.percent() for one in shown)),
        ("adaptive ECE", *(one.adaptive_ece.percent() for one in shown)),
        ("Brier", *(one.brier.plain() for one in shown)),
        ("log-loss", *(one.log_loss.plain() for one in shown)),
        ("mean confidence", *(f"{100 * one.confidence:.2f} %" for one in shown)),
    ]
    note = f"temperature fitted on {num_val:,} validation pictures" if num_val else ""
    return Table(("calibration", *(f"temperature {one.temperature:.4g}" for one in shown)), rows, note)


def _sets_table(sets: tuple[Sets, ...]) -> Table:
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
    return Table(("prediction sets", "coverage measured", "expected", "mean size", "empty"), rows)


def _silences_table(silences: tuple[Silence, ...]) -> Table:
    rows = []
    for one in silences:
        if one.threshold is None or one.answered is None:
            rows.append((f"{100 * one.wished:g} %", "not reliably reached on validation", "-", "-"))
        else:
            reached = "-" if one.accuracy is None else one.accuracy.percent()
            rows.append((f"{100 * one.wished:g} %", f"{one.threshold:.3f}", one.answered.percent(), reached))
    return Table(("target accuracy", "confidence threshold", "share predicted", "accuracy measured"), rows)
