"""What the service sends of an outcome, by its kind. A new kind is one function here."""

from functools import singledispatch
from typing import Any

from vitreous.prediction.outcomes import ClassOutcome, ManyOutcome, Outcome

Options = dict[str, Any]  # top, coverage, abstain


@singledispatch
def as_json(outcome: Outcome, options: Options) -> dict[str, Any]:
    raise NotImplementedError(type(outcome).__name__)


@as_json.register
def _(outcome: ClassOutcome, options: Options) -> dict[str, Any]:
    best = [{"label": label, "probability": probability} for label, probability in outcome.top(options["top"])]
    found: dict[str, Any] = {"label": best[0]["label"], "top": best}
    if options["abstain"] is not None and not outcome.is_sure(options["abstain"]):
        found["label"] = None
    if options["coverage"] is not None:
        found["set"] = list(outcome.prediction_set(options["coverage"]))
    return found


@as_json.register
def _(outcome: ManyOutcome, options: Options) -> dict[str, Any]:
    """`top` names all labels of the picture even where they are more; `abstain` leaves out what is less likely."""
    least = options["abstain"] or 0.0
    labels = [one for one in outcome.labels if one[1] >= least]
    listed = [*labels, *(one for one in outcome.top(len(outcome.classes)) if one not in labels)]
    return {
        "labels": [_with_threshold(outcome, *one) for one in labels],
        "top": [_with_threshold(outcome, *one) for one in listed[: max(options["top"], len(labels))]],
    }


def _with_threshold(outcome: ManyOutcome, name: str, probability: float) -> dict[str, Any]:
    return {"label": name, "probability": probability, "threshold": outcome.threshold(name)}
