"""Pictures to try, and training pictures that are searched for nearest neighbours, from a run's own data."""

import base64
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
from PIL import Image

from vitreous import settings
from vitreous.data.base import Source
from vitreous.data.images import BadPicture, Picture, read_picture
from vitreous.data.sources import DataSettings
from vitreous.data.splits import Splits, limited, strata
from vitreous.weights import version1

EXAMPLE_PX, THUMBNAIL_PX = 448, 96  # of the longer side
PLAIN_PX = 64  # pictures up to this size are sent as they are, without loss


@dataclass(frozen=True)
class Shown:
    number: int  # among the chosen pictures
    label: str
    picture: Picture


def own_data(where: str) -> Splits | None:
    """The data of the run that a model belongs to, read lazily; None if the model has no recipe."""
    path = Path(where).expanduser()
    for folder in (path, path.parent):
        try:
            recipe = json.loads((folder / "recipe.json").read_text())
        except (OSError, ValueError):
            continue
        data = settings.from_json(DataSettings, version1.recipe(recipe)["data"], where=str(folder / "recipe.json"))
        return replace(data, keep_gb=0).build()
    return None


def examples(own: Splits | None, num: int) -> Iterator[Shown]:
    """Test pictures of several classes from the run's own data, or else some free photographs."""
    return photographs() if own is None or own.test is None else chosen(own.test, num)


def photographs() -> Iterator[Shown]:
    """All but the rocket and the astronaut, which are in the public domain, are CC0; they come with scikit-image."""
    for number, name in enumerate(("cat", "coffee", "rocket", "astronaut")):
        data = (files("vitreous.serve") / "page" / f"example-{name}.jpg").read_bytes()
        yield Shown(number, name, read_picture(data))


def chosen(source: Source, num: int, start: int = 0) -> Iterator[Shown]:
    """`num` pictures, with all classes in proportion, from number `start` on. Unreadable ones are skipped."""
    picks = limited(strata(source), num, seed=0) if len(source) > num else np.arange(len(source))
    for number, index in enumerate(picks.tolist()[start:], start):
        try:
            yield Shown(number, source.described(index), source.read(index))
        except BadPicture:
            continue


def as_data_url(picture: Picture, longest_px: int) -> str:
    image, stream = Image.fromarray(picture), io.BytesIO()
    if max(image.size) <= PLAIN_PX:
        kind = "png"
        image.save(stream, kind)
    else:
        kind = "jpeg"
        image.thumbnail((longest_px, longest_px), Image.Resampling.BICUBIC)
        image.save(stream, kind, quality=88)
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"
