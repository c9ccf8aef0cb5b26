"""Pictures that occur more than once: equal in every pixel, or re-encoded, resized, slightly brightened.

Equal ones share the sha256 of their decoded pixels. For the others a picture is shrunk to 32 x 32 and turned into
cosine frequencies. Their signs make a hash in the manner of pHash (Zauner 2010), by which candidates find each other
without comparing all with all; the middle frequencies, which look-alikes do not share and copies do, decide. How equal
is equal enough is measured on the set itself: two photos of cats are far apart, two photos of T-shirts are not.
Turned, mirrored and strongly cropped copies are not found, nor are pictures of one colour, unless equal.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.base import Source
from vitreous.data.images import Picture
from vitreous.data.memory import worked
from vitreous.data.resample import resize

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]

SIDE = 32  # of the shrunken picture
COLOUR_SIDE = 4  # of the one that is kept in colour
FLAT = 3.0  # levels: below this standard deviation a picture shows nothing to compare
HASH_BELOW = 12  # frequencies (u, v) with 0 < u + v < 12 make the 77 bits of the hash
DETAIL = (6, 16)  # and those with u + v >= 6, u < 16, v < 16 the comparison
BANDS, BAND_BITS = 16, 22  # candidates agree in one of so many choices of so many bits
WINDOW = 8  # neighbours compared within a band; look-alikes that crowd a band must not cost the square
NEAR = 0.07  # of the distance at which half of all pictures have their nearest neighbour
STRICT, LOOSE = 0.99, 0.95  # bounds of the correlation that this asks for
COLOUR = 10.0  # levels that the colours of copies differ by on average, brightness apart, at most


class Fingerprint(NamedTuple):
    digest: bytes
    grey: NDArray[np.uint8]  # (32, 32)
    colour: NDArray[np.uint8]  # (4, 4, 3)


@dataclass(frozen=True)
class Fingerprints:
    """Of many pictures: 1 kB each."""

    digests: NDArray[np.uint64]  # (N, 4)
    grey: NDArray[np.uint8]  # (N, 32, 32)
    colour: NDArray[np.uint8]  # (N, 4, 4, 3)

    def __len__(self) -> int:
        return len(self.digests)

    @classmethod
    def of(cls, prints: Sequence[Fingerprint]) -> "Fingerprints":
        digests = np.frombuffer(b"".join(one.digest for one in prints), dtype=np.uint64).reshape(-1, 4)
        grey = np.array([one.grey for one in prints], dtype=np.uint8).reshape(-1, SIDE, SIDE)
        colour = np.array([one.colour for one in prints], dtype=np.uint8).reshape(-1, COLOUR_SIDE, COLOUR_SIDE, 3)
        return cls(digests, grey, colour)

    def __getitem__(self, chosen: Numbers) -> "Fingerprints":
        return Fingerprints(self.digests[chosen], self.grey[chosen], self.colour[chosen])


def fingerprint(picture: Picture) -> Fingerprint:
    pixels = np.ascontiguousarray(picture)
    digest = hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).digest()
    small = _shrunk(pixels, SIDE)
    grey = (small @ np.array([0.299, 0.587, 0.114], dtype=np.float32)).round().astype(np.uint8)
    cells = small.reshape(COLOUR_SIDE, SIDE // COLOUR_SIDE, COLOUR_SIDE, SIDE // COLOUR_SIDE, 3)
    return Fingerprint(digest, grey, cells.mean(axis=(1, 3)).round().astype(np.uint8))


def _shrunk(pixels: Picture, side: int) -> Floats:
    """(side, side, 3)."""
    writable = pixels if pixels.flags.writeable else pixels.copy()  # torch warns of the others
    batch = torch.from_numpy(writable)[None].permute(0, 3, 1, 2)
    return resize(batch, (side, side), "bilinear")[0].permute(1, 2, 0).numpy().astype(np.float32)


def fingerprints(source: Source) -> tuple[Fingerprints, Numbers]:
    """Of every picture that can be read, and which those are."""
    found = list(worked(source, lambda sample: fingerprint(sample.picture), f"looking for duplicates in {source.name}"))
    return Fingerprints.of([one for _, one in found]), np.array([index for index, _ in found], dtype=np.int64)


def overlaps(train: Source, tests: Sequence[Source]) -> list[Numbers]:
    """For each of `tests`, the pictures of `train`, by index, that occur in it too, as they are or nearly so."""
    ours, kept = fingerprints(train)
    found = []
    for test in tests:
        theirs, _ = fingerprints(test)
        together = Fingerprints(
            np.concatenate([ours.digests, theirs.digests]),
            np.concatenate([ours.grey, theirs.grey]),
            np.concatenate([ours.colour, theirs.colour]),
        )
        groups = near_groups(together)
        found.append(kept[np.isin(groups[: len(ours)], groups[len(ours) :])])
    return found


# ---- Groups: pictures with the same number are the same picture


def exact_groups(prints: Fingerprints) -> Numbers:
    """(N,) equal where the pixels are."""
    if not len(prints):
        return np.empty(0, dtype=np.int64)
    return np.unique(prints.digests, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def near_groups(prints: Fingerprints) -> Numbers:
    """(N,) equal where pictures are equal, or linked by near duplicates."""
    exact = exact_groups(prints)
    _, first = np.unique(exact, return_index=True)  # one of each: many equal ones would crowd each other out
    return _linked(len(first), near_pairs(prints[first]))[exact]


def _linked(num: int, pairs: Numbers) -> Numbers:
    """(num,) the smallest number that each is linked with, directly or through others."""
    groups = np.arange(num)
    while True:
        before = groups.copy()
        lowest = np.minimum(groups[pairs[:, 0]], groups[pairs[:, 1]])
        np.minimum.at(groups, pairs[:, 0], lowest)
        np.minimum.at(groups, pairs[:, 1], lowest)
        groups = groups[groups]
        if np.array_equal(groups, before):
            return groups


# ---- Near duplicates


def near_pairs(prints: Fingerprints) -> Numbers:
    """(P, 2) pairs of near duplicates, the smaller number first."""
    levels = prints.grey.astype(np.float32)
    levels -= levels.mean(axis=(1, 2), keepdims=True)
    deviation = np.sqrt(np.square(levels).mean(axis=(1, 2)))
    shown = np.flatnonzero(deviation >= FLAT)
    if len(shown) < 2:
        return np.empty((0, 2), dtype=np.int64)
    hashed, detail = _frequencies(levels[shown] / deviation[shown, None, None])
    enough = _enough(detail)
    found = [
        pairs[(detail[pairs[:, 0]] * detail[pairs[:, 1]]).sum(axis=1) >= enough]
        for pairs in np.array_split(_candidates(hashed), 1 + len(hashed) // 1000)
    ]
    pairs: Numbers = shown[np.concatenate(found)]
    hue = prints.colour.astype(np.float32)
    hue -= hue.mean(axis=3, keepdims=True)  # without brightness
    apart = np.abs(hue[pairs[:, 0]] - hue[pairs[:, 1]]).mean(axis=(1, 2, 3))
    alike: Numbers = pairs[apart <= COLOUR]
    return alike


def _frequencies(levels: Floats) -> tuple[NDArray[np.bool_], Floats]:
    """(N, 77) bits and (N, 235) details of length 1, of grey pictures without mean and contrast."""
    # The cosine transform, as two products with its matrix: rows are frequencies.
    row, column = np.arange(SIDE)[:, None], np.arange(SIDE)[None]
    cosines = (np.cos(np.pi * row * (column + 0.5) / SIDE) * np.sqrt(2 / SIDE)).astype(np.float32)
    waves = cosines @ levels @ cosines.T  # (N, u, v)
    height = row + column
    low = waves[:, (height > 0) & (height < HASH_BELOW)]
    least, most = DETAIL
    detail = waves[:, (height >= least) & (row < most) & (column < most)]
    length = np.linalg.norm(detail, axis=1, keepdims=True)
    # Against the median of the set: every bit says something, even where all pictures look alike.
    return low > np.median(low, axis=0), detail / np.maximum(length, 1e-6)


def _enough(detail: Floats) -> float:
    """The correlation that a near duplicate must have in a set like this."""
    pick = np.random.default_rng(0).permutation(len(detail))
    some, others = pick[:256], pick[:8192]
    nearest = np.sort(detail[some] @ detail[others].T, axis=1)[:, -2]  # the last is the picture itself
    return float(np.clip(1 - NEAR * (1 - np.median(nearest)), LOOSE, STRICT))


def _candidates(hashed: NDArray[np.bool_]) -> Numbers:
    """(P, 2) pairs that share one of many random choices of bits (locality-sensitive hashing, Indyk and Motwani)."""
    generator, num_bits = np.random.default_rng(0), hashed.shape[1]
    found = []
    for _ in range(BANDS):
        chosen = generator.choice(num_bits, BAND_BITS, replace=False)
        key = hashed[:, chosen] @ (1 << np.arange(BAND_BITS, dtype=np.int64))
        order = key.argsort(kind="stable")
        for shift in range(1, min(WINDOW, len(order) - 1) + 1):
            same = key[order[:-shift]] == key[order[shift:]]
            found.append(np.sort(np.stack([order[:-shift][same], order[shift:][same]], axis=1), axis=1))
    return np.unique(np.concatenate(found), axis=0)
