"""Verify a foreign file: compare it with the library it belongs to, and with what we would write back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vitreous.conversion.outputs import distance, outputs, random_images, read_pictures
from vitreous.errors import UserError
from vitreous.weights import formats
from vitreous.weights.describe import describe
from vitreous.weights.files import open_weights
from vitreous.weights.google import GoogleBiT, GoogleViT
from vitreous.weights.peers import Peer, build_peer, taken_by
from vitreous.weights.trained import Trained, fetched

# Of max|ours - theirs| / max|theirs|. float64 shows whether it is the same model, float32 the effect of rounding.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was compared, and the largest distances."""

    where: str
    model: str  # in words
    format: str
    peer: str | None  # None: there is none, or it is not available
    distances: Mapping[str, Mapping[str, float]]  # features, logits, pooled -> float64, float32 -> the largest
    num_pictures: tuple[int, int]  # random ones, and the user's
    num_tensors: int  # that were written back bit for bit
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"verified {self.where}: {self.model} ({self.format})"]
        if self.peer:
            made, real = self.num_pictures
            pictures = f"{made} random pictures" + (f" and {real} of yours" if real else "")
            lines += [f"against {self.peer}, on {pictures}, max|a-b| / max|b|:"]
            for name, found in self.distances.items():
                lines += [f"  {name:8}  " + "   ".join(f"{dtype} {value:.1e}" for dtype, value in found.items())]
        loaded = ", in the file and in the peer's model" if self.peer else ""
        lines += [f"written back: all {self.num_tensors} tensors are the same, bit for bit{loaded}"]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def verify(
    where: str | Path,
    pictures: Sequence[str | Path] = (),
    picture_px: int | tuple[int, int] | None = None,
    *,
    heads: int | None = None,
) -> Verification:
    """Compares our outputs for the weights at `where` with those of the library they belong to, in float64 and float32,
    on random pictures and on `pictures`; then all tensors with those that we write back.

    A difference, or a missing library, is a UserError.
    """
    trained = Trained.load(where, picture_px=picture_px, heads=heads)
    if trained.format == "vitreous":
        raise UserError(f"{where}: no other library reads our own format; its checksums are compared on loading")
    given = replace(open_weights(fetched(str(where))), where=str(where), heads=heads)
    chosen = formats.named(trained.format)
    written = replace(formats.write(trained.card, trained.weights, chosen), where=str(where))
    assert trained.report is not None  # every foreign file has one
    notes = tuple(trained.report.assumed)
    batches = _batches(trained, pictures)
    try:
        peer = build_peer(given, chosen, trained.card)
    except UserError as error:
        if not isinstance(chosen, GoogleViT | GoogleBiT):
            raise
        peer, notes = None, (*notes, f"no library owns this format, and timm cannot read it: {error}")
    if peer is None or written.tensors.keys() <= given.tensors.keys():  # else it has the names of another version
        _compare_tensors({name: given.tensors[name] for name in trained.report.used}, written.tensors, str(where))
    distances = {}
    if peer is not None:
        back = build_peer(written, chosen, trained.card)
        _compare_tensors(peer.module.state_dict(), back.module.state_dict(), str(where))
        del back
        distances = _distances(trained, peer, batches)
    return Verification(
        where=str(where),
        model=describe(trained.card),
        format=trained.format,
        peer=None if peer is None else peer.title,
        distances=distances,
        num_pictures=(sum(map(len, batches)) - len(pictures), len(pictures)),
        num_tensors=len(written.tensors),
        notes=notes if peer is None else (*notes, *peer.notes),
    )


def _batches(trained: Trained, pictures: Sequence[str | Path]) -> list[Tensor]:
    """Random pictures at the size of the positions, and at that of the preprocessing if it differs; then the user's.
    (B, C, h, w) float32 each."""
    channels, preprocessing = trained.card.model.channels, trained.card.preprocessing
    sizes = dict.fromkeys((trained.card.model.picture_px, preprocessing.size_px))
    batches = [random_images(channels, size) for size in sizes]
    if pictures and channels != 3:
        raise UserError(f"{trained.where}: takes pictures of {channels} channels; verify it without pictures")
    return batches + [preprocessing.normalised(pixels) for pixels in read_pictures(pictures, preprocessing)]


def _compare_tensors(before: Mapping[str, Tensor], after: Mapping[str, Tensor], where: str) -> None:
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            raise UserError(f"{where}: {name} was {'added' if name in after else 'lost'} when written back")
        first, second = before[name], after[name]
        if (first.dtype, first.shape) != (second.dtype, second.shape) or not torch.equal(first, second):
            raise UserError(f"{where}: {name} is not the same when written back")


@torch.no_grad()
def _distances(trained: Trained, peer: Peer, batches: Sequence[Tensor]) -> dict[str, dict[str, float]]:
    """The largest distance of each output in each precision; an error if one is too large."""
    largest: dict[str, dict[str, float]] = {}
    compared = replace(trained, card=replace(trained.card, model=peer.model))
    for dtype, tolerance in TOLERANCES.items():
        kind = str(dtype).removeprefix("torch.")
        peer.module.to(dtype)
        for images in batches:
            with taken_by(peer.title, trained.where):
                expected = peer.outputs(images.to(dtype))
            for name, found in outputs(compared, images.to(dtype)).items():
                if name not in expected:
                    continue
                apart = distance(found, expected[name])
                if not apart <= tolerance:  # true for NaN too
                    raise UserError(
                        f"{trained.where}: our {name} and those of {peer.title} differ by {apart:.1e} in {kind} (at "
                        f"most {tolerance:g} is allowed): what we read as {describe(trained.card)} is a different model"
                    )
                found_so_far = largest.setdefault(name, {})
                found_so_far[kind] = max(found_so_far.get(kind, 0.0), apart)
    return largest
