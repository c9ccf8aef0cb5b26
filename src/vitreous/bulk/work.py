"""Work: what to compute for every picture. It travels as JSON, and is opened where it is done."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from vitreous.bulk.columns import COLUMNS, arrays
from vitreous.data.images import Picture
from vitreous.prediction.outcomes import outcomes
from vitreous.prediction.predictor import Predictor, sizes_of
from vitreous.prediction.records import Wanted, records


class Opened(ABC):
    """A model, ready for work."""

    fingerprint: str
    columns: dict[str, pa.DataType]
    about: dict[str, Any]  # for the manifest

    @abstractmethod
    def arrays(self, pictures: Sequence[Picture]) -> list[pa.Array]:
        """One per column, with a row per picture."""


@dataclass(frozen=True, kw_only=True)
class Work(ABC):
    grows: ClassVar[bool] = False  # whether a rerun adds new pictures, rather than refuse them
    model: str  # its path

    @property
    @abstractmethod
    def verb(self) -> str: ...

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Everything that the rows depend on, apart from the model and the pictures."""

    @abstractmethod
    def open(self, device: str) -> Opened: ...


# ---- embeddings


@dataclass(frozen=True, kw_only=True)
class Embed(Work):
    normalise: bool = False  # scale to length 1, so that the dot product of two is their cosine

    verb = "embed"

    @property
    def options(self) -> dict[str, Any]:
        return {"normalise": self.normalise}

    def open(self, device: str) -> Opened:
        return OpenedEmbed(self, device)


@dataclass(frozen=True, kw_only=True)
class Index(Embed):
    """Embeddings to search: of length 1, for a folder that may grow."""

    grows = True
    normalise: bool = True

    verb = "index"


class OpenedEmbed(Opened):
    def __init__(self, work: Embed, device: str) -> None:
        from vitreous.prediction.embedder import Embedder

        self.embedder, self.normalise = Embedder.load(work.model, device), work.normalise
        self.fingerprint = self.embedder.fingerprint
        self.columns = {"embedding": pa.list_(pa.float32(), self.embedder.width)}
        self.about = {
            "width": self.embedder.width,
            "normalisation": "l2" if work.normalise else self.embedder.normalisation,
        }

    def arrays(self, pictures: Sequence[Picture]) -> list[pa.Array]:
        values = self.embedder.embed(pictures)
        if self.normalise:
            values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
        return [pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), self.embedder.width)]


# ---- predictions


@dataclass(frozen=True, kw_only=True)
class Predict(Work):
    wanted: Wanted

    verb = "predict"

    @property
    def options(self) -> dict[str, Any]:
        return asdict(self.wanted)

    def open(self, device: str) -> Opened:
        return OpenedPredict(self, device)


class OpenedPredict(Opened):
    def __init__(self, work: Predict, device: str) -> None:
        self.predictor = Predictor.load(work.model, device)
        self.fingerprint, reading = self.predictor.fingerprint, self.predictor.reading
        self.records = records(reading, work.wanted)
        self.columns = COLUMNS[reading.kind]
        self.about = {"task": reading.kind, "classes": list(reading.classes)}

    def arrays(self, pictures: Sequence[Picture]) -> list[pa.Array]:
        found = outcomes(self.predictor.seen(pictures), self.predictor.reading, sizes_of(pictures)) if pictures else []
        return arrays([self.records.record(one) for one in found], self.columns)
