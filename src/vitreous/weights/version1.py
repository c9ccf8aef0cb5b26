"""Version 1 of what we write, read as today's: the only place that knows how it was. Knows no torch.

It had the calibration's numbers at the top of a card, whatever the task.
"""

from typing import Any


def card(document: Any) -> Any:
    """A model.json of version 1 as one of version 2; any other as it is."""
    if not _is_first(document):
        return document
    new = {name: value for name, value in document.items() if name not in ("temperature", "sets", "format")}
    task = document.get("task")
    loss = task.get("loss") if isinstance(task, dict) else None
    return {"format": 2, **new, **_calibration(document, loss)}


def usage(document: Any) -> Any:
    """What an exported file of version 1 says about its use, as version 2 says it; any other as it is."""
    if not _is_first(document):
        return document
    kind = "label" if document.get("loss") == "sigmoid" else "classify"
    reading = {
        "kind": kind,
        "classes": document.get("classes"),
        "fitting": document.get("fitting"),
        **_calibration(document, document.get("loss")),
    }
    return {"format": 2, "input": document.get("input"), "precision": document.get("precision"), "reading": reading}


def _is_first(document: Any) -> bool:
    return isinstance(document, dict) and document.get("format", 1) == 1


def _calibration(document: dict[str, Any], loss: Any) -> dict[str, Any]:
    temperature, sets = document.get("temperature", 1.0), document.get("sets", [])
    if temperature == 1 and not sets:
        return {"calibration": None}
    if loss == "sigmoid":
        return {"calibration": {"kind": "ManyCalibration", "temperature": temperature}}
    return {"calibration": {"kind": "ClassCalibration", "temperature": temperature, "sets": sets}}
