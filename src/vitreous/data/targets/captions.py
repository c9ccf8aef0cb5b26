"""Captions: texts that belong to a picture, one or several.

A source knows texts. Whoever trains on them brings a tokenizer (`encoded`); from then on the token ids live on the
device, a row per caption, and which of a picture's captions is seen is drawn in the step by the sample's key.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.kinds import TaskKind
from vitreous.data.targets.base import Digest, Indices, Targets

Encode = Callable[[Sequence[str]], NDArray[np.int32]]  # texts -> (N, L) token ids


class TextList(Sequence[str]):
    """Many texts in two arrays: millions of Python strings would be copied into every forked worker."""

    def __init__(self, texts: Iterable[str]) -> None:
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        self._ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        self._bytes = np.frombuffer(b"".join(encoded), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        start = int(self._ends[index - 1]) if index else 0
        return self._bytes[start : int(self._ends[index])].tobytes().decode("utf-8", "surrogatepass")


class Captions(Targets):
    """Of N pictures, each with at least one."""

    task: ClassVar[TaskKind] = "match"
    least_classes: ClassVar[int] = 0
    may_miss_classes: ClassVar[bool] = True

    def __init__(
        self, texts: Sequence[str], places: Indices, starts: Indices, ids: NDArray[np.int32] | None = None
    ) -> None:
        """The captions of picture i are texts[places[starts[i]]] up to texts[places[starts[i + 1] - 1]]. `ids`: the
        tokens of all texts, once they are known."""
        self.texts, self.places, self.starts, self.ids = texts, places, starts, ids

    @classmethod
    def of(cls, captions: Sequence[Sequence[str]]) -> "Captions":
        """The captions of every picture."""
        counts = np.array([len(some) for some in captions], dtype=np.int64)
        texts = TextList(text for some in captions for text in some)
        return cls(texts, np.arange(len(texts)), np.concatenate([[0], np.cumsum(counts)]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of_picture(self, index: int) -> list[str]:
        return [self.texts[int(place)] for place in self.places[self.starts[index] : self.starts[index + 1]]]

    @property
    def counts_per_picture(self) -> Indices:
        return np.diff(self.starts)

    def all_texts(self) -> list[str]:
        """Those of these pictures, in their order."""
        return [self.texts[int(place)] for place in self.places]

    def encoded(self, encode: Encode, padding: int | None = None) -> "Captions":
        """With token ids. What is padding in every row is cut off at the end, where `padding` says what that is."""
        ids = encode(self.all_texts())
        if padding is not None and len(ids):
            # One more than all that is not padding: the token that ends a text may be what pads.
            length = int((ids != padding).any(axis=0).nonzero()[0].max(initial=0)) + 2
            ids = ids[:, : min(ids.shape[1], -(-length // 8) * 8)]  # in eights: products of odd sizes are slow
        return Captions(TextList(self.all_texts()), np.arange(len(self.places)), self.starts, ids)

    def take(self, indices: Indices) -> "Captions":
        indices = np.asarray(indices, dtype=np.int64)
        counts = self.counts_per_picture[indices]
        first = self.starts[indices]
        rows = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        return Captions(self.texts, self.places[rows], np.concatenate([[0], np.cumsum(counts)]), self.ids)

    def relabelled(self, numbers: Indices, num_classes: int) -> "Captions":
        return self

    def update(self, digest: Digest) -> None:
        digest.update(np.ascontiguousarray(self.starts).data)
        for text in self.all_texts():
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")

    def described(self, index: int, classes: Sequence[str]) -> str:
        return " / ".join(self.of_picture(index))

    def counts(self, num_classes: int) -> Indices:
        return np.zeros(num_classes, dtype=np.int64)

    def small(self) -> dict[str, Tensor]:
        """captions (N, M, L) int32, rows of zeros beyond those of a picture, and num_captions (N,) int64; M being the
        most that a picture has. Nothing, as long as there is no tokenizer."""
        if self.ids is None:
            return {}
        counts = self.counts_per_picture
        ids = np.zeros((len(self), max(1, int(counts.max(initial=0))), self.ids.shape[1]), dtype=np.int32)
        owner = np.repeat(np.arange(len(self)), counts)
        ids[owner, np.arange(len(owner)) - np.repeat(self.starts[:-1], counts)] = self.ids[self.places]
        return {"captions": torch.from_numpy(ids), "num_captions": torch.tensor(counts)}
