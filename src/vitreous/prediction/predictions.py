"""Predictions: the outcomes of many pictures, in their order."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from vitreous.data.images import BadPicture
from vitreous.display.html import Content, Html, tag, together
from vitreous.display.tables import html_table
from vitreous.display.thumbnails import picture
from vitreous.prediction.outcomes import Outcome
from vitreous.prediction.pictures import AnyPicture, picture_files, pixels_or_why
from vitreous.prediction.predictor import Predictor

SHOWN, SHOWN_PX = 50, 72  # pictures of a notebook's table, and their larger side


class Predictions(Sequence[Outcome | BadPicture]):
    """An outcome for every picture, or why there is none."""

    def __init__(self, pictures: Sequence[AnyPicture], outcomes: Sequence[Outcome | BadPicture]) -> None:
        self.pictures, self._outcomes = tuple(pictures), tuple(outcomes)

    def __len__(self) -> int:
        return len(self._outcomes)

    @overload
    def __getitem__(self, place: int) -> Outcome | BadPicture: ...
    @overload
    def __getitem__(self, place: slice) -> "Predictions": ...
    def __getitem__(self, place: int | slice) -> "Outcome | BadPicture | Predictions":
        if isinstance(place, slice):
            return Predictions(self.pictures[place], self._outcomes[place])
        return self._outcomes[place]

    def __repr__(self) -> str:
        shown = [one.words if isinstance(one, Outcome) else "unreadable" for one in self[:3]]
        return f"Predictions({len(self)}: {', '.join(shown)}{', ...' if len(self) > 3 else ''})"

    def _repr_html_(self) -> str:
        rest = f"The first {SHOWN} of {len(self):,}." if len(self) > SHOWN else None
        return together(html_table(("picture", "prediction", "probability", "next"), self._rows()), rest).markup

    def _rows(self) -> Iterator[tuple[Content, ...]]:
        for given, outcome in zip(self.pictures[:SHOWN], self._outcomes, strict=False):
            if isinstance(outcome, BadPicture):
                yield _named(given), f"unreadable: {outcome}", "", ""
            else:
                yield _shown(given), *outcome.row()


def predict(predictor: Predictor, pictures: Sequence[AnyPicture], batch_size: int = 16) -> Predictions:
    """Folders stand for all pictures in them."""
    listed: list[AnyPicture] = []
    for one in pictures:
        is_folder = isinstance(one, str | Path) and Path(one).is_dir()
        listed += picture_files(Path(str(one))) if is_folder else [one]
    return Predictions(listed, list(predictor.outcomes(listed, batch_size)))


def _named(given: AnyPicture) -> Html:
    return tag.bdi(Path(given).name if isinstance(given, str | Path) else type(given).__name__)


def _shown(given: AnyPicture) -> Html:
    seen = pixels_or_why(given)
    if isinstance(seen, BadPicture):  # it is no longer where it was
        return _named(given)
    name = str(given) if isinstance(given, str | Path) else ""
    return together(picture(seen, name, most_px=SHOWN_PX), tag.div(_named(given)) if name else None)
