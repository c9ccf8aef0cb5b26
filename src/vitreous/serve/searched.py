"""A served index: the pictures that are found in it, with thumbnails."""

from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.images import BadPicture
from vitreous.errors import UserError
from vitreous.search.index import Index
from vitreous.search.originals import original
from vitreous.serve.gallery import EXAMPLE_PX, as_data_url

THUMBNAIL_PX = 256


class Searched:
    def __init__(self, index: Index, fingerprint: str) -> None:
        if index.about["model"]["fingerprint"] != fingerprint:
            raise UserError(f"{index.where}: its model has changed since it was made; run `vitreous index` again")
        self.index = index

    def __len__(self) -> int:
        return len(self.index.names)

    def nearest(self, vector: NDArray[np.float32], num: int) -> list[dict[str, Any]]:
        """vector: (D,), normalised to length 1. Names are sent without their folders, which are nobody's business."""
        return [
            {"name": PurePath(hit.name).name, "score": hit.score, "picture": shown(hit.name, THUMBNAIL_PX)}
            for hit in self.index.by_vector(vector, num)
        ]

    def examples(self, num: int) -> list[tuple[str, str]]:
        """Pictures to try, evenly spaced over the index."""
        rows = np.linspace(0, len(self) - 1, min(num, len(self)), dtype=np.int64)
        names = [self.index.names[int(row)].as_py() for row in rows]
        found = [(PurePath(name).name, shown(name, EXAMPLE_PX)) for name in names]
        return [(name, picture) for name, picture in found if picture is not None]


def shown(name: str, most_px: int) -> str | None:
    """A data URL, or None if the picture has moved."""
    found = original(name)
    return None if isinstance(found, BadPicture) else as_data_url(found, most_px)
