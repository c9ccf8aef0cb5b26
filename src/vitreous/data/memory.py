"""Pictures decoded once and kept as uint8, where they fit."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from vitreous.data.base import BadFiles, Source
from vitreous.data.images import BadPicture, Picture
from vitreous.terminal import track

CHUNK = 64  # pictures a thread takes at a time: tiny pictures cost less than handing them over


class InMemory(Source):
    """A source decoded by threads. Bad pictures are left out: later indices, labels and names move up."""

    def __init__(self, parent: Source) -> None:
        self.bad = BadFiles(parent)
        self.name, self.classes, self._parent = parent.name, parent.classes, parent
        kept: list[int] = []
        block: Picture | None = None  # all pictures in one array, as long as they are of one size
        loose: list[Picture] = []
        for index, picture in _decoded(parent, self.bad):
            if not kept:
                block = np.empty((len(parent), *picture.shape), dtype=np.uint8)
            if block is not None and picture.shape == block.shape[1:]:
                block[len(kept)] = picture
            else:
                if block is not None:
                    loose, block = list(block[: len(kept)]), None
                loose.append(picture)
            kept.append(index)
        self.bad.check()
        self._kept = np.array(kept, dtype=np.int64)
        self.labels = parent.labels[self._kept]
        self.pictures = None if block is None else block[: len(kept)]
        self._pictures: Sequence[Picture] | Picture = loose if block is None else block

    def read(self, index: int) -> Picture:
        return self._pictures[index]

    def where(self, index: int) -> str:
        return self._parent.where(int(self._kept[index]))


def _decoded(source: Source, bad: BadFiles) -> Iterator[tuple[int, Picture]]:
    """All readable pictures, in order."""

    def read_chunk(start: int) -> list[tuple[int, Picture | str]]:
        results: list[tuple[int, Picture | str]] = []
        for index in range(start, min(start + CHUNK, len(source))):
            try:
                results.append((index, source.read(index)))
            except BadPicture as error:
                results.append((index, str(error)))
        return results

    def results() -> Iterator[tuple[int, Picture | str]]:
        num_threads = min(os.cpu_count() or 1, 16)
        window = CHUNK * num_threads * 4  # so that finished pictures do not pile up before they are stored
        with ThreadPoolExecutor(num_threads) as threads:
            for first in range(0, len(source), window):
                for chunk in threads.map(read_chunk, range(first, min(first + window, len(source)), CHUNK)):
                    yield from chunk

    for index, result in track(results(), f"decoding {source.name}", total=len(source)):
        if isinstance(result, str):
            bad.add(index, result)
        else:
            yield index, result


def estimated_bytes(source: Source, num_probes: int = 24) -> float:
    """What a source would take when decoded, judged by pictures spread evenly over it."""
    sizes = []
    for index in np.unique(np.linspace(0, len(source) - 1, num_probes).astype(int)):
        try:
            sizes.append(source.read(int(index)).nbytes)
        except BadPicture:
            continue
    return float(np.mean(sizes)) * len(source) if sizes else 0.0
