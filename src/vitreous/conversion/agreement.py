"""Agreement: the result of a conversion, opened like its users open it, compared with the source model."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vitreous.conversion.outputs import distance, outputs, random_images, random_pictures, read_pictures
from vitreous.errors import UserError
from vitreous.weights.carrying import Carried
from vitreous.weights.formats import Format
from vitreous.weights.opening import open_as_users_do
from vitreous.weights.peers import Outputs, Peer, taken_by
from vitreous.weights.trained import Trained

ROUNDING = 1e-5  # max|a - b| / max|b| between two ways to compute the same model in float32


@dataclass(frozen=True)
class Agreement:
    reader: str  # what opened the result
    distances: Mapping[str, Mapping[str, float]]  # features, logits, pooled -> float32, float64 -> the largest
    num_pictures: tuple[int, int]  # generated ones, and the user's

    @property
    def largest(self) -> float:
        """The largest distance in the most exact comparison; NaN if anything is not finite."""
        found = [values.get("float64", values["float32"]) for values in self.distances.values()]
        return max(found, key=lambda value: math.inf if math.isnan(value) else value)

    @property
    def is_rounding(self) -> bool:
        return self.largest <= ROUNDING  # false for NaN

    def __str__(self) -> str:
        made, real = self.num_pictures
        pictures = f"{made} generated pictures" + (f" and {real} of yours" if real else "")
        lines = [f"source against target, as computed by {self.reader}, on {pictures}, max|a-b| / max|b|:"]
        for name, found in self.distances.items():
            lines += [f"  {name:8}  " + "   ".join(f"{dtype} {value:.1e}" for dtype, value in found.items())]
        return "\n".join(lines)


def agree(
    source: Trained,
    carried: Carried,
    again: Trained,
    path: Path,
    *,
    pictures: Sequence[str | Path] = (),
    exact: bool = False,
) -> Agreement:
    """Compares the source's outputs with those of the result at `path` (read by us as `again`), in float32; in float64
    too if float32 does not distinguish rounding from a difference, or if `exact`."""
    seen = _images(source, carried, pictures)
    peer = open_as_users_do(path, carried.format, carried.card)
    reader, theirs = "our own model", _by_ours(again, carried.format)
    if peer is not None:
        reader, theirs = peer.title, _by_peer(peer, path)
    distances = _distances(source, theirs, seen, torch.float32)
    found = Agreement(reader, {name: {"float32": value} for name, value in distances.items()}, (2, len(pictures)))
    if exact or not found.is_rounding:
        further = _distances(source, theirs, seen, torch.float64)
        both = {name: {"float64": further[name], **values} for name, values in found.distances.items()}
        found = replace(found, distances=both)
    return found


def _images(source: Trained, carried: Carried, pictures: Sequence[str | Path]) -> tuple[Tensor, Tensor]:
    """The same pictures, preprocessed for the source and for the result: (B, C, h, w) float32 each."""
    channels, preprocessing = source.card.model.channels, source.card.preprocessing
    if channels != len(preprocessing.mean):
        if pictures:
            raise UserError(f"{source.where}: takes pictures of {channels} channels; convert it without pictures")
        images = random_images(channels, preprocessing.size_px)
        return images, images
    pixels = torch.cat([random_pictures(preprocessing.size_px), *read_pictures(pictures, preprocessing)])
    return preprocessing.normalised(pixels), carried.card.preprocessing.normalised(pixels)


def _by_ours(again: Trained, format: Format) -> Callable[[Tensor], Outputs]:
    """With the constants of the format's own code, whatever a config of ours beside the file may say."""
    run = replace(again, card=replace(format.run_as(again.card), task=again.card.task))
    return lambda images: outputs(run, images)


def _by_peer(peer: Peer, path: Path) -> Callable[[Tensor], Outputs]:
    @torch.no_grad()
    def outputs(images: Tensor) -> Outputs:
        peer.module.to(images.dtype)
        with taken_by(peer.title, str(path)):
            return peer.outputs(images)

    return outputs


def _distances(
    source: Trained, read: Callable[[Tensor], Outputs], seen: tuple[Tensor, Tensor], dtype: torch.dtype
) -> dict[str, float]:
    ours, theirs = outputs(source, seen[0].to(dtype)), read(seen[1].to(dtype))
    # With a head, what it says decides: tokens before a norm may have been folded differently.
    names = (
        ("logits", "boxes", "masks") if "logits" in ours else ("features", "pooled", "pictures", "texts", "similarity")
    )
    return {name: distance(theirs[name], ours[name]) for name in names if name in theirs}
