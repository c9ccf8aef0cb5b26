"""Outcomes as the JSON that the service sends. A new kind of outcome is one function here."""

import base64
from functools import singledispatch
from typing import Any

from vitreous.display.palette import palette
from vitreous.prediction.box_outcomes import BoxOutcome
from vitreous.prediction.outcomes import ClassOutcome, ManyOutcome, Outcome
from vitreous.prediction.pixel_outcomes import PixelOutcome

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
    """All labels of the picture, even if there are more than `top`; `abstain` leaves out the less likely ones."""
    least = options["abstain"] or 0.0
    labels = [one for one in outcome.labels if one[1] >= least]
    listed = [*labels, *(one for one in outcome.top(len(outcome.classes)) if one not in labels)]
    return {
        "labels": [_with_threshold(outcome, *one) for one in labels],
        "top": [_with_threshold(outcome, *one) for one in listed[: max(options["top"], len(labels))]],
    }


def _with_threshold(outcome: ManyOutcome, name: str, probability: float) -> dict[str, Any]:
    return {"label": name, "probability": probability, "threshold": outcome.threshold(name)}


@as_json.register
def _(outcome: BoxOutcome, options: Options) -> dict[str, Any]:
    colours, listed = palette(len(outcome.classes)), outcome.objects(options.get("score"))
    found: dict[str, Any] = {
        "width": outcome.size[1],
        "height": outcome.size[0],
        "threshold": outcome.threshold,
        "objects": [
            {
                "label": one.label,
                "score": one.score,
                "box": list(one.box),
                "query": one.query,
                "colour": colours[one.number],
            }
            | ({} if one.shape is None else {"mask": one.shape.as_coco()})
            for one in listed
        ],
    }
    if options.get("looks") and outcome.looks is not None:
        maps = outcome.looks.maps
        found["looks"] = {"rows": maps.shape[1], "columns": maps.shape[2], "box": list(outcome.looks.box)}
        for each, one in zip(found["objects"], listed, strict=True):
            each["looks"] = base64.b64encode(maps[one.query].tobytes()).decode()
    return found


@as_json.register
def _(outcome: PixelOutcome, options: Options) -> dict[str, Any]:
    """The mask is a PNG of class numbers with a palette, in which every class has a colour of its own."""
    height, width = outcome.labels.shape
    colours = dict(zip(outcome.classes, palette(len(outcome.classes)), strict=True))
    found: dict[str, Any] = {
        "width": width,
        "height": height,
        "classes": [{"label": name, "share": share, "colour": colours[name]} for name, share in outcome.shares],
        "confidence": float(outcome.confidence.mean()),
        "mask": f"data:image/png;base64,{base64.b64encode(outcome.mask_png()).decode()}",
    }
    if options.get("polygons"):
        found["polygons"] = outcome.polygons()["polygons"]
    return found
