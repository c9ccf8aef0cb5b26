"""How far its confidence can be trusted: calibration, prediction sets, abstention."""

from functools import partial

from vitreous.display.words import counted
from vitreous.evaluation.calibration import Calibration
from vitreous.evaluation.figures import abstention_curve, reliability
from vitreous.report.class_judgement import ClassFitted, of_classes
from vitreous.report.figures import inline
from vitreous.report.html import Content, Html, paragraph, table, tag, together
from vitreous.report.words import number, percent, share


def calibration(result: ClassFitted) -> Html:
    found = of_classes(result)
    if not found.validation_pictures:
        return together(
            paragraph("There was no validation part to fit a temperature on: this is the model as trained."),
            _calibration_table(found.before),
            _diagram(found.before, "Reliability as trained"),
        )
    return together(
        paragraph(
            "A calibrated model that says 80 % is right four times out of five: its points lie on the diagonal. One "
            f"number, a temperature of {found.temperature:.3f}, was fitted on "
            f"{counted(found.validation_pictures, 'validation picture')} and is stored with the model."
        ),
        tag.div(
            _diagram(found.before, "Reliability before calibration"),
            _diagram(found.after, "Reliability after calibration"),
            class_="figures",
        ),
        _calibration_table(found.before, found.after),
    )


def _diagram(found: Calibration, alt: str) -> Html:
    return inline(partial(reliability, found), alt)


def _calibration_table(*shown: Calibration) -> Html:
    rows: list[tuple[Content, ...]] = [
        ("expected calibration error", *(share(one.ece) for one in shown)),
        ("the same, bins of equal size", *(share(one.adaptive_ece) for one in shown)),
        ("Brier score", *(number(one.brier) for one in shown)),
        ("log-loss", *(number(one.log_loss) for one in shown)),
        ("mean confidence", *(percent(one.confidence) for one in shown)),
        ("accuracy", *(share(one.accuracy) for one in shown)),
    ]
    header = ("on the test part", *(("as trained", "calibrated")[: len(shown)]))
    return table(header, rows, numbers=range(1, 1 + len(shown)))


def sets(result: ClassFitted) -> Html:
    found = of_classes(result).sets
    if not found:
        return paragraph("There are none: their thresholds are fitted on a validation part.")
    rows = [
        (
            percent(one.coverage, 0),
            share(one.measured) + ("" if one.holds else " missed"),
            f"{100 * one.expected_low:.1f} to {percent(one.expected_high)}",
            f"{one.mean_size.value:.2f}",
            percent(one.empty.value),
            f"{one.threshold:.3f}",
        )
        for one in found
    ]
    return together(
        paragraph(
            "Instead of one class, a set that holds the right class with a promised probability: small where the "
            "picture is clear, large where it is not, empty where nothing is likely."
        ),
        table(
            ("promised", "measured on test", "expected", "mean size", "empty", "least probability"),
            rows,
            numbers=range(6),
        ),
        _of_all_classes(result),
    )


def _of_all_classes(result: ClassFitted) -> Html | None:
    found = of_classes(result)
    which = [percent(one.coverage, 0) for one in found.sets if one.threshold == 0]
    if not which:
        return None
    return paragraph(
        f"At {' and '.join(which)} a set names all classes: "
        f"{counted(found.validation_pictures, 'validation picture')} are too few to leave any out with so little risk.",
        class_="note",
    )


def abstention(result: ClassFitted) -> Html:
    found = of_classes(result)
    rows = [
        (
            percent(one.wished, 0),
            "not reliably reached" if one.threshold is None else f"{one.threshold:.3f}",
            share(one.answered),
            share(one.accuracy),
        )
        for one in found.silences
    ]
    return together(
        paragraph("The model can abstain where it is not sure: fewer predictions, and more of them right."),
        inline(partial(abstention_curve, found.abstention), "Accuracy of the predictions against the share predicted"),
        table(
            ("target accuracy", "confidence threshold", "share predicted", "accuracy on test"),
            rows,
            numbers=range(4),
        )
        if rows
        else None,
        paragraph(
            "Thresholds were chosen on validation pictures so that the lower end of the interval reaches the target; ",
            tag.code("vitreous predict --abstain"),
            " applies one.",
            class_="note",
        )
        if rows
        else None,
    )
