"""How training went, from metrics.jsonl."""

from functools import partial
from typing import Any

from vitreous.fitting.fitted import Fitted
from vitreous.report.figures import headline_curve, inline, loss_curve, rate_curve
from vitreous.report.html import Html, paragraph, tag, together
from vitreous.tasks.classify import ClassifySettings
from vitreous.training.run import RunDirectory


def section(result: Fitted[Any]) -> Html:
    rows, recipe = RunDirectory(result.out).rows(), result.plan.recipe
    if not rows:
        return paragraph("Nothing was trained, or too briefly to be logged: the model is the first one.")
    notes = []
    smoothed = isinstance(recipe.objective, ClassifySettings) and recipe.objective.label_smoothing
    if smoothed or recipe.augmentation.mix.is_on:
        notes.append(
            "Training loss is measured on softened labels and augmented pictures, so it lies above validation loss."
        )
    headline = result.evaluation.headline_name
    if any(f"val_average/{headline}" in row for row in rows):
        notes.append("The trained model has the averaged weights.")
    curves = [inline(partial(loss_curve, rows), "Loss by epoch", caption="Loss")]
    if any(f"val/{headline}" in row for row in rows):
        title = headline.capitalize() if headline.islower() else headline
        curves.append(inline(partial(headline_curve, rows, headline), f"Validation {headline} by epoch", caption=title))
    if any("rate_factor" in row for row in rows):
        peak = recipe.optimizer.lr
        curves.append(inline(partial(rate_curve, rows, peak), "Learning rate by epoch", caption="Learning rate"))
    return together(tag.div(curves, class_="figures"), paragraph(" ".join(notes), class_="note") if notes else None)
