"""The certificate of an export: how near the file is to the model, how large, how fast, and made of what."""

import hashlib
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous import __version__, platforms
from vitreous.data.images import Picture
from vitreous.data.kinds import TaskKind
from vitreous.display.words import counted, percent
from vitreous.export.box_agreement import NEAR_PX, box_agreement
from vitreous.export.checks import Checks
from vitreous.export.runtime import open_session, sha256
from vitreous.export.speed import speed_facts, timed
from vitreous.export.usage import FITTED, Input, Precision
from vitreous.nn.half import half_where_native
from vitreous.prediction.outcomes import ManyOutcome, Outcome, Outputs, calibrated, outcomes
from vitreous.prediction.pixel_outcomes import PixelOutcome
from vitreous.prediction.predictor import sizes_of
from vitreous.prediction.reading import Reading
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.terminal import track
from vitreous.weights.trained import Trained

MOST_LOST = 0.01  # of accuracy or AP, before the certificate warns
BY_CHANCE = 1.5  # pictures: a single one is no reason


@dataclass(frozen=True)
class Written:
    """What was written, read back."""

    files: list[Path]  # the one that is named first
    input: Input
    precision: Precision
    run: Callable[..., Outputs]  # a batch of what goes in -> calibrated outputs of pictures, or raw ones


def certify(trained: Trained, eager: TorchPredictor, written: Written, checks: Checks) -> dict[str, Any]:
    with torch.inference_mode():
        return {
            "input": written.input,
            "source": source_facts(trained),
            "result": result_facts(written.files),
            "agreement": agreement(eager, written, checks),
            "speed": speed(eager, written, checks.pictures[0]),
            "versions": versions(),
        }


# ---- how near


def agreement(eager: TorchPredictor, written: Written, checks: Checks) -> dict[str, Any]:
    ours, theirs = [], []
    for picture in track(checks.pictures, "checking"):  # one by one: their sizes may differ
        inputs = seen(eager, picture)
        raw, is_tensor = eager.raw(*inputs), written.input == "tensors"
        ours.append(raw if is_tensor else calibrated(raw, eager.reading))
        theirs.append(written.run(*(one.cpu().numpy() for one in inputs)) if is_tensor else written.run(picture[None]))
    facts = {
        "pictures": len(checks.pictures),
        "origin": checks.origin,
        "compared": ", ".join(ours[0]),
        "largest_difference": max(map(_largest_difference, ours, theirs)),
    }
    if written.input == "pictures":
        facts["largest_input_difference_levels"] = input_difference(eager, written.files[0], checks)
    facts |= AGREEMENTS[eager.reading.kind](ours, theirs, eager.reading, checks)
    told = warning(facts, written.precision)
    return facts if told is None else facts | {"warning": told}


def warning(facts: dict[str, Any], precision: Precision) -> str | None:
    """If the file is not what its user may expect."""
    for name in ("accuracy", "AP"):
        before, after = facts.get(f"{name}_eager"), facts.get(f"{name}_exported")
        if before is not None and after is not None and before - after > max(MOST_LOST, BY_CHANCE / facts["pictures"]):
            advice = "" if precision == "fp32" else "; export without it"
            return f"{precision} costs {100 * (before - after):.1f} points of {name} on these pictures{advice}"
    moved = facts.get("largest_box_difference_px", 0.0)
    if precision == "fp32" and moved > NEAR_PX:
        return f"a box differs by {moved:.1f} px from the model's: report this as a bug"
    if precision != "fp32" and "objects" in facts and facts.get("AP_exported") is None:
        return f"what {precision} costs in AP is not known: these pictures have no known boxes; --check names others"
    return None


def seen(eager: TorchPredictor, picture: Picture) -> list[Tensor]:
    """What the task is given: the picture as the model sees it, and its extent, where the task minds."""
    inputs, fitting = [eager.inputs(picture)], eager.card.preprocessing
    extent = fitting.extents(sizes_of([picture])) if eager.task.looks_at_extent else None
    return inputs if extent is None else [*inputs, extent.to(eager.device)]


def _largest_difference(ours: Outputs, theirs: Outputs) -> float:
    return max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)


def _class_agreement(ours: list[Outputs], theirs: list[Outputs], reading: Reading, checks: Checks) -> dict[str, Any]:
    """How often the likeliest class is the same; and right, where labels are known."""
    expected, found = (
        np.concatenate([next(iter(one.values())) for one in some]).argmax(axis=1) for some in (ours, theirs)
    )
    same = float((expected == found).mean())
    facts: dict[str, Any] = {
        "top1_agreement": same,
        "summary": f"top-1 equal for {percent(same, 2)} of {counted(len(found), 'picture')}",
    }
    if checks.labels is not None:
        facts["accuracy_eager"] = float((expected == checks.labels).mean())
        facts["accuracy_exported"] = float((found == checks.labels).mean())
    return facts


def _label_agreement(ours: list[Outputs], theirs: list[Outputs], reading: Reading, checks: Checks) -> dict[str, Any]:
    """How often a label is given by both or by neither; and to which pictures all are the same."""
    expected, found = (
        np.array([_labelled(outcomes(one, reading, [(1, 1)])[0]) for one in some]) for some in (ours, theirs)
    )
    same = expected == found
    all_same = float(same.all(axis=1).mean())
    return {
        "label_agreement": float(same.mean()),
        "picture_agreement": all_same,
        "summary": f"all labels equal for {percent(all_same, 2)} of {counted(len(found), 'picture')}",
    }


def _pixel_agreement(ours: list[Outputs], theirs: list[Outputs], reading: Reading, checks: Checks) -> dict[str, Any]:
    """How many pixels have the same class, of the pictures at their own sizes."""
    whole = replace(reading, windows=None)  # what was compared saw every picture at once
    same = []
    for one, other, size in zip(ours, theirs, sizes_of(checks.pictures), strict=True):
        expected, found = (outcomes(outputs, whole, [size])[0] for outputs in (one, other))
        assert isinstance(expected, PixelOutcome) and isinstance(found, PixelOutcome)
        same.append(float((expected.labels == found.labels).mean()))
    share = float(np.mean(same))
    return {
        "pixel_agreement": share,
        "least_pixel_agreement": min(same),
        "summary": f"the same class for {percent(share, 3)} of the pixels of {counted(len(same), 'picture')}",
    }


def _labelled(outcome: Outcome) -> NDArray[np.bool_]:
    assert isinstance(outcome, ManyOutcome)
    return outcome.probabilities >= outcome.thresholds


AGREEMENTS: dict[TaskKind, Callable[[list[Outputs], list[Outputs], Reading, Checks], dict[str, Any]]] = {
    "classify": _class_agreement,
    "label": _label_agreement,
    "segment": _pixel_agreement,
    "detect": box_agreement,
    "instances": box_agreement,
}


def input_difference(eager: TorchPredictor, path: Path, checks: Checks) -> float:
    """What the model sees by the file's own preprocessing and by ours: the largest difference, in levels of 255."""
    import onnx

    inside = path.with_name("inside.onnx")  # up to what the model sees
    onnx.utils.extract_model(str(path), str(inside), ["pictures"], [FITTED], check_model=False)
    session = open_session(inside)
    std = np.array(eager.card.preprocessing.std, np.float32).reshape(1, 3, 1, 1)
    largest = 0.0
    for picture in checks.pictures:
        (found,) = session.run([FITTED], {"pictures": picture[None]})
        largest = max(largest, float((np.abs(found - eager.inputs(picture).cpu().numpy()) * std).max()) * 255)
    inside.unlink()
    return largest


# ---- how fast


def speed(eager: TorchPredictor, written: Written, picture: Picture) -> dict[str, Any]:
    """One picture at a time, in this process; by torch as `vitreous predict` does it on this machine."""
    half = half_where_native(eager.device)
    runs: tuple[Callable[[], Any], Callable[[], Any]]
    if written.input == "tensors":
        inputs = seen(eager, picture)
        arrays = [one.cpu().numpy() for one in inputs]
        runs = (half(lambda: eager.task.predict(*inputs)), lambda: written.run(*arrays))
    else:
        runs = (lambda: eager(picture), lambda: written.run(picture[None]))
    about = {"eager_precision": "bf16" if platforms.has_bfloat16(eager.device) else "fp32", "batch": 1}
    return {**speed_facts(*timed(runs)), **about, "threads": torch.get_num_threads()}


# ---- made of what


def source_facts(trained: Trained) -> dict[str, Any]:
    """The hash of the file that holds the weights, or of the weights where no single one does."""
    where = Path(trained.where).expanduser()
    for path in (where, where / "model" / "model.safetensors", where / "model.safetensors"):
        if path.is_file():
            return {"where": trained.where, "sha256": sha256(path), "of": path.name}
    digest = hashlib.sha256()
    for name in sorted(trained.weights):
        tensor = trained.weights[name].detach().cpu().contiguous()
        digest.update(name.encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return {"where": trained.where, "sha256": digest.hexdigest(), "of": "names and bytes of all tensors"}


def result_facts(files: Sequence[Path]) -> dict[str, Any]:
    first, *others = files
    facts: dict[str, Any] = {"file": first.name, "bytes": sum(file.stat().st_size for file in files)}
    facts["sha256"] = sha256(first)
    return facts | ({"beside": {file.name: sha256(file) for file in others}} if others else {})


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__, "vitreous": __version__}
    for name in ("onnx", "onnxruntime", "onnxscript"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
