"""The sections that a model of one class per picture has of its own."""

from vitreous.fitting.fit import FitResult
from vitreous.report import few_shot
from vitreous.report import results as measured
from vitreous.report import trust as confidence
from vitreous.report.html import Html
from vitreous.report.judgement import of_classes

Sections = tuple[tuple[str, str, Html], ...]


def results(result: FitResult) -> Sections:
    return (
        ("results", "Results", measured.scores(result)),
        ("confusion", "Confusions", measured.confusions(result)),
        ("mistakes", "Most confident mistakes", measured.mistakes(result)),
    )


def trust(result: FitResult) -> Sections:
    return (
        ("calibration", "Calibration", confidence.calibration(result)),
        ("sets", "Prediction sets", confidence.sets(result)),
        ("abstention", "Abstention", confidence.abstention(result)),
    )


def features(result: FitResult) -> Sections:
    return (("few-shot", "Few-shot accuracy", few_shot.few_shot(result)),)


def told(result: FitResult, place: int) -> str:
    return result.test.classes[int(result.test.best()[place])]


def usage(result: FitResult) -> tuple[str, str]:
    coverage = max((one.coverage for one in of_classes(result).sets if one.coverage < 0.95), default=None)
    lines = "print(outcome.best, outcome.confidence)\nprint(outcome.top(3))"
    if coverage is None:
        return "", lines
    return f" --coverage {coverage:g}", f"{lines}\nprint(outcome.prediction_set({coverage:g}))"
