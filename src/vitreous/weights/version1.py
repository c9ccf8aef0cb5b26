"""What earlier versions wrote, read as today's: the only place that knows how it was. Knows no torch.

Version 1 had the calibration's numbers at the top of a card, whatever the task, and the settings of a ViT and of an
augmentation had no parts.
"""

from typing import Any

VIT_PARTS = {
    "block": ("mlp", "mlp_width", "gelu", "attention_bias", "layer_scale", "norm_epsilon"),
    "ends": ("patch_bias", "positions_where", "resizing", "pre_norm", "pool_norm", "projection"),
}
OBJECTIVES = {  # kind -> old name -> new name
    "MAE": {"drop": "mask_ratio"},
    "Masked": {"corrupt": "mask_ratio"},
    "BEiT": {"share": "mask_ratio"},
    "Distill": {"answers": "stored"},
}
MEMORY = {"accumulate": "accumulate", "checkpointing": "recompute"}
LAYOUT = ("label_column", "path_column", "label_pattern")
AUGMENTATION_PARTS = {
    **{name: ("crop", name) for name in ("scale", "ratio", "pad_px", "padding")},
    **{f"randaugment_{name}": ("warp", name) for name in ("ops", "magnitude", "spread", "fill")},
    **{
        name: ("colour", name)
        for name in ("brightness", "contrast", "saturation", "hue", "grey", "blur", "blur_sigma", "solarize")
    },
    **{f"erase_{name}": ("erase", name) for name in ("scale", "ratio", "fill")},
    **{name: ("mix", name) for name in ("mixup", "cutmix")},
    "crop": ("crop", "method"),
    "jitter": ("colour", "probability"),
    "erase": ("erase", "probability"),
    "mix_probability": ("mix", "probability"),
    "switch_probability": ("mix", "switch"),
}


def card(document: Any) -> Any:
    """A model.json of version 1 as one of version 2; of version 2, with a Swin's `small_maps`."""
    if not _is_first(document):
        return with_small_maps(document)
    new = {name: value for name, value in document.items() if name not in ("temperature", "sets", "format")}
    task = document.get("task")
    loss = task.get("loss") if isinstance(task, dict) else None
    return {"format": 2, **new, "model": model(document.get("model")), **_calibration(document, loss)}


def model(document: Any) -> Any:
    """The settings of a model; those of families other than the ViT as they are."""
    if not isinstance(document, dict) or document.get("kind", "ViT") not in ("ViT", "ViTSettings"):
        return document
    moved = [name for names in VIT_PARTS.values() for name in names]
    parts = {part: {name: document[name] for name in names if name in document} for part, names in VIT_PARTS.items()}
    return {name: value for name, value in document.items() if name not in moved} | parts


def recipe(document: Any) -> Any:
    """A recipe.json of version 1 as one of version 2; of version 2, with what it did not say at first: the version of
    its order, and a Swin's `small_maps`."""
    if not _is_first(document):
        return with_small_maps(with_first_order(document))
    new = document | {"format": 2}
    if isinstance(document.get("data"), dict):
        new["data"] = data(document["data"])
    if "model" in document:
        new["model"] = model(document["model"])
    if isinstance(document.get("objective"), dict):
        new["objective"] = objective(document["objective"])
    if isinstance(document.get("training"), dict):
        new["training"] = training(document["training"])
    if isinstance(document.get("augmentation"), dict):
        new["augmentation"] = augmentation(document["augmentation"])
    if isinstance(document.get("more_views"), list):
        views = [view for view in document["more_views"] if isinstance(view, dict)]
        new["more_views"] = [view | {"augmentation": augmentation(view.get("augmentation", {}))} for view in views]
    return with_first_order(new)


def with_first_order(document: Any) -> Any:
    """Samples were always sorted, however many, before a recipe said by which algorithm they are ordered."""
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, dict) or "order" in data:
        return document
    return document | {"data": data | {"order": {"version": 1}}}


def with_small_maps(document: Any) -> Any:
    """Swin said `fixed_windows` before it knew more than two rules for maps no larger than a window."""
    model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, dict) or "fixed_windows" not in model:
        return document
    rest = {name: value for name, value in model.items() if name != "fixed_windows"}
    return document | {"model": rest | {"small_maps": "shift" if model["fixed_windows"] else "shrink"}}


def data(document: dict[str, Any]) -> dict[str, Any]:
    layout = {name: document[name] for name in LAYOUT if name in document}
    return {name: value for name, value in document.items() if name not in LAYOUT} | {"layout": layout}


def objective(document: dict[str, Any]) -> dict[str, Any]:
    names = OBJECTIVES.get(str(document.get("kind")).removesuffix("Settings"), {})
    return {names.get(name, name): value for name, value in document.items()}


def training(document: dict[str, Any]) -> dict[str, Any]:
    memory = {new: document[old] for old, new in MEMORY.items() if old in document}
    return {name: value for name, value in document.items() if name not in MEMORY} | {"memory": memory}


def augmentation(document: dict[str, Any]) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name, value in document.items():
        part, field = AUGMENTATION_PARTS.get(name, (None, name))
        (parts if part is None else parts.setdefault(part, {}))[field] = value
    return parts


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
