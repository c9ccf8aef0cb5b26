"""Predictions: the answers about many pictures, in their order."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from vitreous.data.images import BadPicture
from vitreous.display.html import Content, Html, tag, together
from vitreous.display.tables import html_table
from vitreous.display.thumbnails import picture
from vitreous.prediction.pictures import AnyPicture, picture_files, pixels_or_why
from vitreous.prediction.predictor import Answer, Predictor

SHOWN, SHOWN_PX = 50, 72  # pictures of a notebook's table, and their larger side


class Predictions(Sequence[Answer | BadPicture]):
    """An answer for every picture, or why there is none."""

    def __init__(self, pictures: Sequence[AnyPicture], answers: Sequence[Answer | BadPicture]) -> None:
        self.pictures, self._answers = tuple(pictures), tuple(answers)

    def __len__(self) -> int:
        return len(self._answers)

    @overload
    def __getitem__(self, place: int) -> Answer | BadPicture: ...
    @overload
    def __getitem__(self, place: slice) -> "Predictions": ...
    def __getitem__(self, place: int | slice) -> "Answer | BadPicture | Predictions":
        if isinstance(place, slice):
            return Predictions(self.pictures[place], self._answers[place])
        return self._answers[place]

    def __repr__(self) -> str:
        shown = [one.best if isinstance(one, Answer) else "unreadable" for one in self[:3]]
        return f"Predictions({len(self)}: {', '.join(shown)}{', ...' if len(self) > 3 else ''})"

    def _repr_html_(self) -> str:
        rest = f"The first {SHOWN} of {len(self):,}." if len(self) > SHOWN else None
        return together(html_table(("picture", "answer", "probability", "next"), self._rows()), rest).markup

    def _rows(self) -> Iterator[tuple[Content, ...]]:
        for given, answer in zip(self.pictures[:SHOWN], self._answers, strict=False):
            if isinstance(answer, BadPicture):
                yield _named(given), f"unreadable: {answer}", "", ""
                continue
            others = ", ".join(f"{name} {100 * value:.1f} %" for name, value in answer.top(3)[1:])
            yield _shown(given), tag.b(tag.bdi(answer.best)), f"{100 * answer.confidence:.1f} %", others


def predict(predictor: Predictor, pictures: Sequence[AnyPicture], batch_size: int = 16) -> Predictions:
    """Folders stand for all pictures in them."""
    listed: list[AnyPicture] = []
    for one in pictures:
        is_folder = isinstance(one, str | Path) and Path(one).is_dir()
        listed += picture_files(Path(str(one))) if is_folder else [one]
    return Predictions(listed, list(predictor.answers(listed, batch_size)))


def _named(given: AnyPicture) -> Html:
    return tag.bdi(Path(given).name if isinstance(given, str | Path) else type(given).__name__)


def _shown(given: AnyPicture) -> Html:
    seen = pixels_or_why(given)
    if isinstance(seen, BadPicture):  # it is no longer where it was
        return _named(given)
    name = str(given) if isinstance(given, str | Path) else ""
    return together(picture(seen, name, most_px=SHOWN_PX), tag.div(_named(given)) if name else None)
