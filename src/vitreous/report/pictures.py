"""Pictures for the page, from a source."""

from collections.abc import Iterable, Iterator

from vitreous.data.base import Source
from vitreous.data.images import BadPicture, Picture


def readable(source: Source, indices: Iterable[int]) -> Iterator[tuple[int, Picture]]:
    """Those that can be read."""
    for index in indices:
        try:
            yield index, source.read(index)
        except BadPicture:
            continue
