"""Reading many things by threads: decoders let go of Python's lock."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from vitreous.data.images import BadPicture
from vitreous.terminal import track

T = TypeVar("T")

CHUNK = 64  # pictures a thread takes at a time: tiny pictures cost less than handing them over


def in_threads(num: int, job: Callable[[int], T], what: str) -> Iterator[T | BadPicture]:
    """What `job` makes of each number below `num`, in order; a BadPicture where it raised one."""

    def chunk_of(start: int) -> list[T | BadPicture]:
        results: list[T | BadPicture] = []
        for index in range(start, min(start + CHUNK, num)):
            try:
                results.append(job(index))
            except BadPicture as error:
                results.append(error)
        return results

    def results() -> Iterator[T | BadPicture]:
        num_threads = min(os.cpu_count() or 1, 16)
        window = CHUNK * num_threads * 4  # so that finished pictures do not pile up before they are stored
        with ThreadPoolExecutor(num_threads) as threads:
            for first in range(0, num, window):
                for chunk in threads.map(chunk_of, range(first, min(first + window, num), CHUNK)):
                    yield from chunk

    yield from track(results(), what, total=num)
