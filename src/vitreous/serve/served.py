"""Served: a model as the service uses it. Prepared pictures in, outcomes out; and an exported one as such."""

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
    max_batch = 16  # what suits it, where the settings leave that open; and so
    queue = 32

    def begin_decoder(self) -> None:
        """Called in every thread that prepares pictures, before it begins."""

    def warm_up(self) -> None:
        """Called before the first question; the first pass is slow."""

    def is_lost(self, error: Exception) -> bool:
        """Whether nothing can be asked any more after such an error: a new process is wanted."""
        return False

    def take_cores(self, lanes: int) -> None:
        """Called in the thread that is about to ask, with the number of those it shares the cores with, itself too."""

    def prepare(self, picture: Picture) -> Any:
        """What is kept of a picture until its batch: little, whatever its size."""
        raise NotImplementedError

    def predict(self, prepared: Sequence[Any], *, looks: bool = False) -> list[Outcome]:
        """`looks`: also where the model looked for objects, if it finds any and can be looked into."""
        raise NotImplementedError

    def embed(self, prepared: Sequence[Any]) -> NDArray[np.float32]:
        """(B, D)"""
        raise UserError("this model has no features to give")

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, D), of length 1"""
        raise UserError("this model has no text tower")

    def zero_shot(self, prepared: Sequence[Any], options: Sequence[Options]) -> list[dict[str, Any]]:
        """Of each picture how likely its `classes` are, which are given by their names."""
        raise UserError("this model has no text tower")

    def search(self, vector: NDArray[np.float32], num: int) -> list[dict[str, Any]]:
        """The pictures of an index that are most like this embedding (D,)."""
        raise UserError("there is no index to search")

    def examples(self, num: int) -> list[tuple[str, str]]:
        """Names and data URLs of pictures to try, where it has some of its own."""
        return []

    def attention(self, prepared: Any, options: Options) -> bytes:
        """The prediction, and what every token looks at in every layer and head."""
        raise UserError("this model cannot be looked into")

    def describe(self) -> dict[str, Any]:
        """What /v1/model says; names of files and folders are not in it."""
        raise NotImplementedError


class ExportedServed(Served):
    """An .onnx file. Each picture is answered as it is read: at its own size there is nothing to batch it with."""

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
            "can": [question(self.predictor.reading)],
            "parameters": None,
            "picture_px": list(usage.fitting.size_px),
            "preprocessing": settings.to_json(usage.fitting),
            "width": None,
            "card": None,
            "tokens": None,
            "positions": None,
            "closed": "an exported file holds no more than what predictions need",
        }


def open_served(where: str, device: str, threads: int | None) -> Served:
    exported = exported_file(where)
    if exported is not None:
        return ExportedServed(exported, threads)
    from vitreous.search.index import Index, is_index
    from vitreous.serve.served_torch import TorchServed

    if is_index(where):
        index = Index.open(where)
        return TorchServed(index.about["model"]["where"], device, threads, index)
    return TorchServed(where, device, threads)


def described(reading: Reading) -> dict[str, Any]:
    """What a client must know of the model's predictions."""
    calibration = reading.calibration
    return {
        "task": reading.kind,
        "classes": list(reading.classes),
        "temperature": reading.temperature,
        "coverages": [coverage for coverage, _ in getattr(calibration, "sets", ())],
    }


QUESTIONS: dict[TaskKind, str] = {"segment": "segment", "detect": "detect", "instances": "detect"}


def question(reading: Reading) -> str:
    """What is asked of such a model: the end of the path under /v1."""
    return QUESTIONS.get(reading.kind, "predict")
