"""Attended: a picture, what the model looked at in it, and how decisive that is."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.data.images import Picture
from vitreous.display.html import Content, Html, tag
from vitreous.display.thumbnails import enlarged, picture
from vitreous.inspection.findings import Look, attention_shown
from vitreous.inspection.pictures import Covered, lit, scale
from vitreous.prediction.outcomes import Outcome
from vitreous.prediction.pictures import AnyPicture, pixels_of_one
from vitreous.prediction.torch_predictor import TorchPredictor

SHOWN_PX, LEAST_PX = 320, 160


@dataclass(frozen=True)
class Attended:
    picture: Picture  # (H, W, 3): the part of it that the model sees, at the size that the model sees
    map: Tensor  # (h, w): the share of the attention that falls on each patch
    title: str  # which attention this is
    outcome: Outcome
    covered: Covered  # the share of the picture that the patches cover

    def __str__(self) -> str:
        return f"{self.outcome}; {self.title}: {scale(self.map)}"

    def html(self) -> Html:
        large = enlarged(self.picture, LEAST_PX)
        return tag.div(
            tag.div(
                picture(large, "as the model sees it", most_px=SHOWN_PX),
                " ",
                picture(lit(large, self.map, covered=self.covered), "what the model looks at", most_px=SHOWN_PX),
            ),
            tag.div(*_spaced(self.outcome.row()[:2])),
            tag.div(f"{self.title}: {scale(self.map)}."),
        )

    def _repr_html_(self) -> str:
        return self.html().markup


def _spaced(parts: tuple[Content, ...]) -> list[Content]:
    return [piece for part in parts for piece in (part, " ")][:-1]


@torch.inference_mode()
def attend(predictor: TorchPredictor, given: AnyPicture, look: Look | None = None) -> Attended:
    seen = pixels_of_one(given)
    found = attention_shown(predictor.task.encoder, predictor.inputs(seen), look)
    return Attended(
        picture=predictor.card.preprocessing.resized(seen).permute(1, 2, 0).numpy(),
        map=found.maps[0],
        title=found.title,
        outcome=predictor(seen),
        covered=found.seen.covered,
    )
