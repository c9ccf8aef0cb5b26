"""Retrieval: finding a picture's texts among all texts, and a text's picture among all pictures, by similarity."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from vitreous.batch import Batch
from vitreous.objectives.contrast import products
from vitreous.tasks.predictions import Embeddings, Prediction

DEPTHS = (1, 5, 10)  # numbers of best results to consider
ROWS = 1024  # to compare at a time
TEXTS = 512  # to embed at a time


class Ranks(NamedTuple):
    """How many others come before the right one. Others that are equally similar come before it: a model with the same
    output for everything finds nothing."""

    of_pictures: Tensor  # (N,) the best of a picture's own texts, among all texts
    of_texts: Tensor  # (T,) a text's own picture, among all pictures


def ranks(pictures: Tensor, texts: Tensor, owner: Tensor) -> Ranks:
    """pictures (N, D), texts (T, D), both of length 1; owner (T,): the picture that each text is about."""
    of_pictures, of_texts = [], []
    places = torch.arange(len(pictures), device=pictures.device)
    for rows in torch.split(places, ROWS):
        similar = products(pictures[rows], texts)  # (n, T)
        is_own = owner == rows[:, None]
        best = similar.masked_fill(~is_own, float("-inf")).amax(dim=1, keepdim=True)
        of_pictures.append(((similar >= best) & ~is_own).sum(dim=1))
    for some, owners in zip(torch.split(texts, ROWS), torch.split(owner, ROWS), strict=True):
        similar = products(some, pictures)  # (n, N)
        own = similar.gather(1, owners[:, None])
        of_texts.append(((similar >= own) & (places != owners[:, None])).sum(dim=1))
    return Ranks(torch.cat(of_pictures), torch.cat(of_texts))


class RetrievalMetric:
    headline: ClassVar[str] = "recall@1"  # the mean of both directions

    def __init__(self, embed_texts: Callable[[Tensor], Tensor]) -> None:
        self.embed_texts = embed_texts
        self.pictures: list[Tensor] = []
        self.texts: list[Tensor] = []
        self.owner: list[Tensor] = []
        self.num = 0

    def update(self, prediction: Prediction, batch: Batch) -> None:
        assert isinstance(prediction, Embeddings)
        captions, num = batch.targets["captions"], batch.targets["num_captions"]
        is_there = torch.arange(captions.shape[1], device=num.device) < num[:, None]  # (B, M)
        owner, place = is_there.nonzero(as_tuple=True)
        self.pictures.append(prediction.embedding)
        self.texts += [self.embed_texts(some) for some in torch.split(captions[owner, place], TEXTS)]
        self.owner.append(self.num + owner)
        self.num += len(batch)

    def ranks(self) -> Ranks:
        return ranks(torch.cat(self.pictures), torch.cat(self.texts), torch.cat(self.owner))

    def compute(self) -> dict[str, float]:
        found = self.ranks()
        ways = {"text": found.of_pictures, "picture": found.of_texts}  # by what is to be found
        recalls = {
            f"{what}@{depth}": float((of < depth).float().mean()) for what, of in ways.items() for depth in DEPTHS
        }
        mean = {f"recall@{depth}": (recalls[f"text@{depth}"] + recalls[f"picture@{depth}"]) / 2 for depth in DEPTHS}
        return {**mean, **recalls, "pictures": float(self.num)}
