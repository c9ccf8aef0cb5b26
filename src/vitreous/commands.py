"""The everyday commands as functions: fit, predict, attention, and a report written again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitreous.errors import UserError
from vitreous.fitting import fit as fitting
from vitreous.fitting.fitted import Fitted
from vitreous.fitting.stages import say
from vitreous.fitting.stored import keep, stored
from vitreous.fitting.wishes import Balance
from vitreous.inspection.findings import Look
from vitreous.prediction.attended import Attended, attend
from vitreous.prediction.pictures import AnyPicture
from vitreous.prediction.predictions import Predictions
from vitreous.prediction.predictions import predict as predicted
from vitreous.prediction.predictor import Predictor
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.prediction.zero_shot import zero_shot
from vitreous.report import write_report
from vitreous.settings import typed
from vitreous.training.devices import World
from vitreous.training.run import says_what_is_kept
from vitreous.weights.trained import Trained

REPORT = "report.html"


def fit(
    data: str | Path,
    out: str | Path | None = None,
    *,
    start: str | Path | None = None,
    minutes: float | None = None,
    unlabelled: str | Path | None = None,
    balance: Balance = "auto",
    changes: Mapping[str, Any] | None = None,
    began: float | None = None,
) -> Fitted[Any]:
    """From pictures to a trained, calibrated, tested model and its report, like `vitreous fit`. The same call again
    resumes where it stopped.

    `start` is a run, or any weights that can be read. `unlabelled` pictures are used too, if that helps. `changes`
    overrides choices by their dotted names: {"model.width": 96, "training.epochs": 5}. `minutes` count from `began`, a
    reading of `time.monotonic()`.
    """
    result = fitting.fit(
        str(data),
        out,
        start=None if start is None else str(start),
        minutes=minutes,
        unlabelled=None if unlabelled is None else str(unlabelled),
        balance=balance,
        changes={name: typed(value) for name, value in (changes or {}).items()},
        began=began,
    )
    with says_what_is_kept(result.out):
        say("report", "Writing the report")
        account_for(result)
    return result


def predict(
    model: str | Path | Predictor,
    *pictures: AnyPicture,
    classes: Sequence[str] = (),
    device: str = "auto",
    batch_size: int = 16,
) -> Predictions:
    """Predictions for pictures, with calibrated probabilities, like `vitreous predict`. `classes`: names of classes,
    for a model of pictures and words.

    `model` is a run, weights, an exported .onnx file, or a Predictor that is already loaded. A picture is a file, a
    folder of them, bytes, a Pillow image, an array (H, W, 3) of uint8, or a tensor (3, H, W).
    """
    if classes:
        if isinstance(model, Predictor):
            raise UserError("classes are for a model of pictures and words by its path; a loaded Predictor has its own")
        model = TorchPredictor(zero_shot(Trained.load(model), classes), device)
    return predicted(_predictor(model, device), pictures, batch_size)


def attention(
    model: str | Path | Predictor, picture: AnyPicture, look: Look | None = None, *, device: str = "auto"
) -> Attended:
    """Where a model looks in a picture: by default from what it pools, through all layers; for a model whose layers
    look inside windows or at fewer places, in the last layer."""
    predictor = _predictor(model, device)
    if not isinstance(predictor, TorchPredictor):
        raise UserError(f"{model}: an exported model shows no attention; give the run or weights it was exported from")
    return attend(predictor, picture, look)


def _predictor(model: str | Path | Predictor, device: str) -> Predictor:
    return model if isinstance(model, Predictor) else Predictor.load(model, device)


def account_for(result: Fitted[Any]) -> Path:
    """Save what the report is made of in the run, and write the report."""
    keep(result)
    return write_report(result, result.out / REPORT)


def redraw(run: str | Path, path: str | Path | None = None, *, device: str = "auto") -> Path:
    """Write the report of a fit again, from what is stored in its run, like `vitreous report`."""
    result = stored(run, World.join(device).device)
    return write_report(result, result.out / REPORT if path is None else Path(path))
