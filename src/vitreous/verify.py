"""Verify: a foreign file held against the library it belongs to, and against what we would write back of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from vitreous.data.images import BadPicture, read_picture
from vitreous.errors import UserError
from vitreous.models.base import Encoder, Features, TokenEncoder
from vitreous.tasks.base import Task
from vitreous.trained import Trained, fetched
from vitreous.weights import formats
from vitreous.weights.describe import describe
from vitreous.weights.files import open_weights
from vitreous.weights.google import GoogleBiT, GoogleViT
from vitreous.weights.peers import Answers, Peer, build_peer, taken_by

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5}  # of max|ours - theirs| / max|theirs|


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was compared, and how far apart it is at most."""

    where: str
    model: str  # in words
    format: str
    peer: str | None  # None: there is none, or it cannot be had
    distances: Mapping[str, Mapping[str, float]]  # features, logits, pooled -> float64, float32 -> the largest
    num_pictures: tuple[int, int]  # random ones, and the user's
    num_tensors: int  # that came back bit by bit
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
        lines += [f"written back: all {self.num_tensors} tensors are the same, bit by bit{loaded}"]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def verify(
    where: str | Path, pictures: Sequence[str | Path] = (), picture_px: int | tuple[int, int] | None = None
) -> Verification:
    """Our answers for the weights at `where` against those of the library they belong to, in float64 and float32, on
    random pictures and on `pictures`; then all of its tensors against those that we write back.

    A difference, and a library that is not there, are UserErrors.
    """
    trained = Trained.load(where, picture_px=picture_px)
    if trained.format == "vitreous":
        raise UserError(f"{where}: our own format belongs to no other library; its checksums are compared on loading")
    given = replace(open_weights(fetched(str(where))), where=str(where))
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
        peer, notes = None, (*notes, f"no library owns this format, and timm did not read it: {error}")
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
    """Random pictures at the size of the positions, and at that of the preprocessing where it is another; then the
    user's. (B, C, h, w) float32 each."""
    channels, preprocessing = trained.card.model.channels, trained.card.preprocessing
    sizes = dict.fromkeys((trained.card.model.picture_px, preprocessing.size_px))
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(2, channels, *size, generator=generator) for size in sizes]
    if pictures and channels != 3:
        raise UserError(f"{trained.where}: takes pictures of {channels} channels; verify it without pictures")
    for picture in pictures:
        try:
            pixels = read_picture(Path(picture))
        except BadPicture as error:
            raise UserError(f"{picture}: {error}") from None
        batches.append(preprocessing.normalised(preprocessing.resized(pixels)[None]))
    return batches


def _compare_tensors(before: Mapping[str, Tensor], after: Mapping[str, Tensor], where: str) -> None:
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            raise UserError(f"{where}: {name} was {'added' if name in after else 'lost'} in writing it back")
        first, second = before[name], after[name]
        if (first.dtype, first.shape) != (second.dtype, second.shape) or not torch.equal(first, second):
            raise UserError(f"{where}: {name} is not the same when it is written back")


@torch.no_grad()
def _distances(trained: Trained, peer: Peer, batches: Sequence[Tensor]) -> dict[str, dict[str, float]]:
    """The largest of each answer in each precision; an error where one is too large."""
    largest: dict[str, dict[str, float]] = {}
    compared = replace(trained, card=replace(trained.card, model=peer.model))
    for dtype, tolerance in TOLERANCES.items():
        kind = str(dtype).removeprefix("torch.")
        peer.module.to(dtype)
        for images in batches:
            ours = _prepared(compared, (images.shape[-2], images.shape[-1])).to(dtype)
            with taken_by(peer.title, trained.where):
                expected = peer.answers(images.to(dtype))
            for name, found in _answers(ours, images.to(dtype)).items():
                if name not in expected:
                    continue
                distance = _distance(found, expected[name])
                if not distance <= tolerance:  # true for NaN too
                    raise UserError(
                        f"{trained.where}: our {name} and those of {peer.title} differ by {distance:.1e} in {kind} "
                        f"(at most {tolerance:g} is allowed): what we read as {describe(trained.card)} is another model"
                    )
                found_so_far = largest.setdefault(name, {})
                found_so_far[kind] = max(found_so_far.get(kind, 0.0), distance)
    return largest


def _prepared(trained: Trained, size_px: tuple[int, int]) -> nn.Module:
    fitted = trained.resized(size_px)
    return fitted.encoder().eval() if fitted.card.task is None else fitted.task()


def _answers(model: nn.Module, images: Tensor) -> Answers:
    encoder = model if isinstance(model, Encoder) else model.encoder
    assert isinstance(encoder, Encoder)
    features = encoder(images)
    answer = {"logits": model.predict(images)} if isinstance(model, Task) else {"pooled": features.pooled}
    return {"features": _tokens(features) if isinstance(encoder, TokenEncoder) else features.maps[-1], **answer}


def _tokens(features: Features) -> Tensor:
    """(B, P + h*w, D), as the peers have them."""
    patches = features.maps[0].flatten(2).transpose(1, 2)
    return patches if features.prefix is None else torch.cat([features.prefix, patches], dim=1)


def _distance(ours: Tensor, theirs: Tensor) -> float:
    """max|a - b| / max|b|; infinite where they are not of one shape."""
    if ours.shape != theirs.shape:
        return float("inf")
    return float((ours - theirs).abs().max() / theirs.abs().max())
