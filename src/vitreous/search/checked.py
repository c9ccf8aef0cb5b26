"""Memory-mapped vectors, none of which is used before it is compared with what was written.

Every part of the file has its own sha256. Parts are compared when they are first read, on all cores, since a hash takes
longer than the product that follows. To read a few rows, only a few parts are compared.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from vitreous.errors import UserError
from vitreous.search.nearest import Floats, Rows

PART = 1 << 20  # bytes
DIGEST = 32  # bytes of a sha256
REWRITES = "run the same `vitreous index` command again to rewrite it"


def digests(path: Path) -> bytes:
    """The sha256 of every part, concatenated."""
    with path.open("rb") as file:
        return b"".join(hashlib.sha256(part).digest() for part in iter(partial(file.read, PART), b""))


class CheckedVectors:
    """(N, D) float32, read like an array."""

    def __init__(self, path: Path, expected: bytes) -> None:
        """`expected`: the `digests` of the file as it was written."""
        self.path = path
        self._expected = [expected[start : start + DIGEST] for start in range(0, len(expected), DIGEST)]
        self._compared = np.zeros(len(self._expected), bool)
        if not path.is_file():
            raise UserError(f"{path}: missing; {REWRITES}")
        if -(-path.stat().st_size // PART) != len(self._expected):
            raise self._damaged()
        self._bytes = np.memmap(path, np.uint8, "r")
        self._compare(np.arange(1))  # the header
        self._rows = np.load(path, mmap_mode="r", allow_pickle=False)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: int | slice | Rows) -> Floats:
        found: Floats = self._rows[rows]
        self._compare(self._parts(rows))
        return found

    def compare_all(self) -> None:
        self._compare(np.arange(len(self._expected)))

    def _parts(self, rows: int | slice | Rows) -> Rows:
        """The parts that contain these rows."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            first, last = self._begins(np.array([start, stop])) - np.array([0, 1])
            return np.arange(first // PART, last // PART + 1)
        begins = self._begins(np.atleast_1d(rows) % len(self))
        ends = begins + self._rows.strides[0] - 1
        return np.unique(np.concatenate([begins, ends]) // PART)

    def _begins(self, rows: Rows) -> Rows:
        """The offsets in the file at which rows begin."""
        return self._rows.offset + rows * self._rows.strides[0]  # type: ignore[no-any-return]

    def _compare(self, parts: Rows) -> None:
        new = parts[~self._compared[parts]]
        if not len(new):
            return
        with ThreadPoolExecutor(min(len(new), os.cpu_count() or 1)) as pool:
            if not all(pool.map(self._is_right, new.tolist())):
                raise self._damaged()
        self._compared[new] = True

    def _is_right(self, part: int) -> bool:
        return hashlib.sha256(self._bytes[part * PART : (part + 1) * PART].tobytes()).digest() == self._expected[part]

    def _damaged(self) -> UserError:
        return UserError(f"{self.path}: damaged (its sha256 is not the one it was written with); {REWRITES}")
