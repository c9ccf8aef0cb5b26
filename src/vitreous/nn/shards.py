"""Tensors of which every rank holds some rows, and all ranks together the whole: torch's DTensor, split along its first
axis (see training/ranks). A plain tensor, which every rank has whole, passes through all of these as it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # asked so, DTensor need not be imported, which takes a while


def local(tensor: Tensor) -> Tensor:
    """The rows that lie on this rank, in the same memory and without gradient."""
    return tensor.detach().to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def rows(tensor: Tensor) -> tuple[int, int]:
    """Which rows lie on this rank: from the first to before the second. torch cuts evenly, rounded up, so that the last
    ranks may have fewer than the others, or none."""
    if not is_sharded(tensor):
        return 0, len(tensor) if tensor.ndim else 1
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
    each = -(-len(tensor) // mesh.size())
    first = min(mesh.get_local_rank() * each, len(tensor))
    return first, first + len(local(tensor))


def beside(part: Tensor, tensor: Tensor) -> Tensor:
    """Some rows on every rank as one tensor that lies over the ranks as another does."""
    if not is_sharded(tensor):
        return part
    from torch.distributed.tensor import DTensor

    sharded: Any = tensor
    return DTensor.from_local(
        part, sharded.device_mesh, sharded.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All rows on every rank, which must all ask for them together."""
    return {name: _gathered(tensor) for name, tensor in tensors.items()}


def _gathered(tensor: Tensor) -> Tensor:
    return tensor.detach().full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Of all tensors together, on every rank, in one exchange."""
    sharded = [tensor for tensor in tensors if is_sharded(tensor)]
    if not sharded:
        return torch.nn.utils.get_total_norm(tensors)
    square = torch.nn.utils.get_total_norm([local(tensor) for tensor in sharded]).square()
    dist.all_reduce(square, group=sharded[0].device_mesh.get_group())  # type: ignore[attr-defined]
    plain = [tensor for tensor in tensors if not is_sharded(tensor)]
    return (square + torch.nn.utils.get_total_norm(plain).square()).sqrt()


# ---- tensors that were saved


class Pieces(Mapping[str, Tensor]):
    """Tensors by name, each in pieces: rows after rows, as the ranks that saved them had them, which may have been more
    or fewer than there are now. Nothing is read that is not asked for."""

    def __init__(self, parts: Sequence[Mapping[str, Tensor]]) -> None:
        names = dict.fromkeys(name for part in parts for name in part)
        self._pieces = {name: [part[name] for part in parts if name in part] for name in names}

    def __getitem__(self, name: str) -> Tensor:
        pieces = self._pieces[name]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def shape(self, name: str) -> torch.Size:
        first, *others = self._pieces[name]
        return torch.Size([len(first) + sum(map(len, others)), *first.shape[1:]]) if first.ndim else first.shape

    def rows(self, name: str, first: int, end: int) -> Tensor:
        """From the first to before the end."""
        found, start = [], 0
        for piece in self._pieces[name]:
            found.append(piece[max(first - start, 0) : max(end - start, 0)])
            start += len(piece)
        return torch.cat(found)


def fitted(saved: Mapping[str, Tensor], live: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Saved tensors, each lying over the ranks as the live one of its name does. What has no such namesake, or one of
    another shape, stays whole: whoever takes them in will say so."""
    pieces, found = saved if isinstance(saved, Pieces) else Pieces([saved]), {}
    for name in pieces:
        place = live.get(name)
        if place is None or not is_sharded(place) or place.shape != pieces.shape(name):
            found[name] = pieces[name]
        else:
            found[name] = beside(pieces.rows(name, *rows(place)).to(place.device), place)
    return found
