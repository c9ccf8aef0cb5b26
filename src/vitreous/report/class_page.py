"""The sections that a model of one class per picture has of its own."""

from vitreous.report import few_shot
from vitreous.report import results as measured
from vitreous.report import trust as confidence
from vitreous.report.class_judgement import ClassFitted, of_classes
from vitreous.report.html import Html

Sections = tuple[tuple[str, str, Html], ...]


def results(result: ClassFitted) -> Sections:
    return (
        ("results", "Results", measured.scores(result)),
        ("confusion", "Confusions", measured.confusions(result)),
        ("mistakes", "Most confident mistakes", measured.mistakes(result)),
    )


def trust(result: ClassFitted) -> Sections:
    return (
        ("calibration", "Calibration", confidence.calibration(result)),
        ("sets", "Prediction sets", confidence.sets(result)),
        ("abstention", "Abstention", confidence.abstention(result)),
    )


def features(result: ClassFitted) -> Sections:
    return (("few-shot", "Few-shot accuracy", few_shot.few_shot(result)),)


def told(result: ClassFitted, index: int) -> str:
    place = result.account.test.place(index)
    return result.account.test.classes[int(result.account.test.best()[place])]


def usage(result: ClassFitted) -> tuple[str, str]:
    coverage = max((one.coverage for one in of_classes(result).sets if one.coverage < 0.95), default=None)
    lines = "print(outcome.best, outcome.confidence)\nprint(outcome.top(3))"
    if coverage is None:
        return "", lines
    return f" --coverage {coverage:g}", f"{lines}\nprint(outcome.prediction_set({coverage:g}))"
