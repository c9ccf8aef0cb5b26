"""Served: a model as the service uses it, from prepared pictures to outcomes; ExportedServed: an exported model."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous import settings
from vitreous.data.images import Picture
from vitreous.data.kinds import TaskKind
from vitreous.errors import UserError
from vitreous.prediction.outcomes import Outcome
from vitreous.prediction.predictor import exported_file
from vitreous.prediction.reading import Reading
from vitreous.serve.answers import Options


class Served:
    lanes = 1  # batches that may run side by side
    max_batch, queue = 16, 32  # defaults that suit this kind of model

    def begin_decoder(self) -> None:
        """Called in every thread that prepares pictures, before its first picture."""

    def warm_up(self) -> None:
        """Called before the first request; the first pass is slow."""

    def is_lost(self, error: Exception) -> bool:
        """Whether the model cannot be used any more after this error, so that a new process is needed."""
        return False

    def take_cores(self, lanes: int) -> None:
        """Called in the thread that is about to run a batch, with the number of lanes that share the cores."""

    def prepare(self, picture: Picture) -> Any:
        """What is kept of a picture until it is in a batch: little memory, whatever the picture's size."""
        raise NotImplementedError

    def predict(self, prepared: Sequence[Any], *, looks: bool = False) -> list[Outcome]:
        """`looks`: also where the model looked for each object, if it finds objects and can be looked into."""
        raise NotImplementedError

    def embed(self, prepared: Sequence[Any]) -> NDArray[np.float32]:
        """(B, D)"""
        raise UserError("this model has no features to return")

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, D), normalised to length 1"""
        raise UserError("this model has no text tower")

    def zero_shot(self, prepared: Sequence[Any], options: Sequence[Options]) -> list[dict[str, Any]]:
        """For each picture, the probabilities of the classes that are named in its options."""
        raise UserError("this model has no text tower")

    def search(self, vector: NDArray[np.float32], num: int) -> list[dict[str, Any]]:
        """The pictures of an index that are most similar to this embedding (D,)."""
        raise UserError("there is no index to search")

    def examples(self, num: int) -> list[tuple[str, str]]:
        """Names and data URLs of pictures to try, if it has some of its own."""
        return []

    def attention(self, prepared: Any, options: Options) -> bytes:
        """The prediction, and the attention of every layer and head."""
        raise UserError("this model cannot be looked into")

    def describe(self) -> dict[str, Any]:
        """What /v1/model returns, without names of files and folders."""
        raise NotImplementedError


class ExportedServed(Served):
    """An .onnx file. Each picture runs through it as soon as it is decoded: pictures of different sizes cannot be
    batched."""

    queue = 6

    def __init__(self, path: Path, threads: int | None) -> None:
        from vitreous.export.runtime import ExportedPredictor

        self.predictor = ExportedPredictor(path, threads or 0)
        self.turn = threading.Lock()  # it uses all cores by itself

    def prepare(self, picture: Picture) -> Outcome:
        with self.turn:
            return self.predictor(picture)

    def predict(self, prepared: Sequence[Any], *, looks: bool = False) -> list[Outcome]:
        return list(prepared)

    def describe(self) -> dict[str, Any]:
        usage = self.predictor.usage
        return {
            "what": "an exported model",
            **described(self.predictor.reading),
            "can": [endpoint(self.predictor.reading)],
            "parameters": None,
            "picture_px": list(usage.fitting.size_px),
            "preprocessing": settings.to_json(usage.fitting),
            "width": None,
            "card": None,
            "tokens": None,
            "positions": None,
            "closed": "an exported file contains only what predictions need",
        }


def open_served(where: str, device: str, threads: int | None) -> Served:
    exported = exported_file(where)
    if exported is not None:
        return ExportedServed(exported, threads)
    from vitreous.search.index import Index, is_index
    from vitreous.serve.served_torch import TorchServed

    if is_index(where):
        index = Index.open(where)
        moved = "; run the same `vitreous index` command with its new path as --model"
        return TorchServed(index.model(moved), device, threads, index)
    return TorchServed(where, device, threads)


def described(reading: Reading) -> dict[str, Any]:
    """What a client must know about the model's predictions."""
    calibration = reading.calibration
    return {
        "task": reading.kind,
        "classes": list(reading.classes),
        "temperature": reading.temperature,
        "calibrated": calibration is not None,
        "coverages": [coverage for coverage, _ in getattr(calibration, "sets", ())],
    }


ENDPOINTS: dict[TaskKind, str] = {"segment": "segment", "detect": "detect", "instances": "detect"}


def endpoint(reading: Reading) -> str:
    """The endpoint for the model's predictions: the end of the path under /v1."""
    return ENDPOINTS.get(reading.kind, "predict")
