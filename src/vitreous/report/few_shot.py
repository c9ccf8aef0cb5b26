"""What a few pictures of each class are enough for."""

from functools import partial

from vitreous.evaluation.figures import few_shot_curve
from vitreous.fitting.first import FIRST_MODEL, ON_PIXELS
from vitreous.report.class_judgement import ClassFitted
from vitreous.report.figures import inline
from vitreous.report.html import Html, paragraph, table, together
from vitreous.report.words import percent


def few_shot(result: ClassFitted) -> Html:
    if not result.account.few_shot:
        return paragraph("No class has enough pictures.")
    rows = [
        (one.shots, percent(one.mean), f"{100 * one.spread:.1f}", one.short_classes or "\N{EN DASH}")
        for one in result.account.few_shot
    ]
    chance = 1 / len(result.data.classes)
    curve = partial(few_shot_curve, {"features of this model": result.account.few_shot}, chance)
    return together(
        paragraph(
            "What the frozen features know: a linear layer by least squares on a few training pictures per class (the "
            "paper's protocol, section 4.1), measured on the test part. " + _of_what(result)
        ),
        inline(curve, "Few-shot accuracy"),
        table(
            ("pictures per class", "accuracy", "deviation over seeds (points)", "classes with fewer"),
            rows,
            numbers=range(4),
        ),
    )


def _of_what(result: ClassFitted) -> str:
    if any(one.is_kept and one.name in (FIRST_MODEL, ON_PIXELS) for one in result.candidates):
        return "Only the head of this model was trained here: its features are as they were before."
    return (
        "These features were trained on the same classes, so this says how well they separate, not how they transfer."
    )
