"""Predictor: pictures in, outcomes out; for Python, the terminal and the service.

Nothing here knows torch: our own models run in `torch_predictor`, exported ones in `export.runtime`, which needs only
ONNX Runtime.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from vitreous.data.images import BadPicture, Picture
from vitreous.errors import UserError
from vitreous.prediction.outcome import Outcome, Outputs, Sizes
from vitreous.prediction.outcomes import outcomes, views
from vitreous.prediction.pictures import AnyPicture, pixels_of_one, pixels_or_why
from vitreous.prediction.reading import Reading

MOST_VIEWS = 64  # that go through the model at once


class Predictor(ABC):
    """A model with its classes and the preprocessing it was trained with."""

    reading: Reading

    @staticmethod
    def load(where: str | Path, device: str = "cpu") -> "Predictor":
        """From an exported .onnx file or its folder, without torch; or from anything that `vitreous.load` reads.

        `device` is cpu, cuda or auto; exported models run on the CPU.
        """
        exported = exported_file(where)
        if exported is not None:
            from vitreous.export.runtime import ExportedPredictor

            return ExportedPredictor(exported)
        from vitreous.prediction.torch_predictor import TorchPredictor

        return TorchPredictor.load(where, device)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.reading.classes

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Equal for two models that predict the same for every picture, wherever they are stored."""

    @abstractmethod
    def outputs(self, pictures: Sequence[Picture]) -> Outputs:
        """Pictures of any sizes -> the model's outputs, raw or calibrated, by name."""

    def __call__(self, picture: AnyPicture) -> Outcome:
        """Raises BadPicture if the picture cannot be read."""
        return self._outcomes([pixels_of_one(picture)])[0]

    def outcomes(self, pictures: Iterable[AnyPicture], batch_size: int = 16) -> Iterator[Outcome | BadPicture]:
        """One per picture, in order, as pictures arrive; for one that cannot be read, the reason."""
        waiting = iter(pictures)
        while some := list(islice(waiting, batch_size)):
            read = [pixels_or_why(one) for one in some]
            found = iter(self._outcomes([one for one in read if not isinstance(one, BadPicture)]))
            for one in read:
                yield one if isinstance(one, BadPicture) else next(found)

    def _outcomes(self, pictures: list[Picture]) -> list[Outcome]:
        return outcomes(self.seen(pictures), self.reading, sizes_of(pictures)) if pictures else []

    def seen(self, pictures: Sequence[Picture]) -> Outputs:
        """Like `outputs`, with a row for every view that the model is shown of the pictures."""
        shown = [view for picture in pictures for view in views(picture, self.reading)]
        parts = [self.outputs(shown[start : start + MOST_VIEWS]) for start in range(0, len(shown), MOST_VIEWS)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def sizes_of(pictures: Sequence[Picture]) -> Sizes:
    return [(picture.shape[0], picture.shape[1]) for picture in pictures]


def exported_file(where: str | Path) -> Path | None:
    """The .onnx file; None if `where` is something for `vitreous.load`."""
    path = Path(where).expanduser()
    if path.suffix == ".pt2":
        raise UserError(
            f"{where}: loading a torch.export program runs code in it, so it is not read; if you trust it, use "
            "torch.export.load, or export to onnx"
        )
    if path.suffix == ".onnx":
        if not path.is_file():
            raise UserError(f"{where}: no such file")
        return path
    if any((path / name).exists() for name in ("model", "model.json", "recipe.json", "config.json")):
        return None  # weights, whatever else lies beside them
    files = sorted(path.glob("*.onnx"))
    if len(files) > 1:
        raise UserError(f"{where}: {len(files)} exported models ({files[0].name}, {files[1].name} ...); name one")
    return files[0] if files else None
