"""Tensors of which every rank holds some rows: torch's DTensor, split along its first axis (see training/ranks). A
plain tensor, which every rank has whole, passes through all of these functions unchanged."""

from collections.abc import Iterator, Mapping, Sequence
from operator import add
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # avoids importing DTensor, which takes a while


def local(tensor: Tensor) -> Tensor:
    """The rows on this rank, in the same memory and without gradient."""
    return tensor.detach().to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def beside(part: Tensor, tensor: Tensor) -> Tensor:
    """The parts of all ranks as one tensor, distributed like `tensor`."""
    if not is_sharded(tensor):
        return part
    from torch.distributed.tensor import DTensor

    sharded: Any = tensor
    return DTensor.from_local(
        part, sharded.device_mesh, sharded.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All rows, on every rank. All ranks must call this together."""
    return {name: _gathered(tensor) for name, tensor in tensors.items()}


def _gathered(tensor: Tensor) -> Tensor:
    return tensor.detach().full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of all tensors together, on every rank, with one exchange."""
    sharded = [tensor for tensor in tensors if is_sharded(tensor)]
    if not sharded:
        return torch.nn.utils.get_total_norm(tensors)
    square = torch.nn.utils.get_total_norm([local(tensor) for tensor in sharded]).square()
    dist.all_reduce(square, group=sharded[0].device_mesh.get_group())  # type: ignore[attr-defined]
    plain = [tensor for tensor in tensors if not is_sharded(tensor)]
    return (square + torch.nn.utils.get_total_norm(plain).square()).sqrt()


# ---- saved tensors


class Piece(NamedTuple):
    """The part of a tensor that one rank saved."""

    begins: Sequence[int]  # in the whole, along each axis
    tensor: Tensor


class Pieces(Mapping[str, Tensor]):
    """Tensors by name, each in the pieces that ranks saved; there may have been more or fewer ranks than now.
    torch.distributed.checkpoint plans which parts of the pieces to read."""

    def __init__(self, pieces: Mapping[str, Sequence[Piece]]) -> None:
        self._pieces = pieces

    def __getitem__(self, name: str) -> Tensor:
        first, *others = self._pieces[name]
        return self.part(name, torch.empty(self.shape(name), device="meta")) if others else first.tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def shape(self, name: str) -> torch.Size:
        ends = [map(add, piece.begins, piece.tensor.shape) for piece in self._pieces[name]]
        return torch.Size(map(max, zip(*ends, strict=True)))

    def fills(self, name: str, shape: torch.Size) -> bool:
        """Whether the pieces make up a whole tensor of this shape."""
        held = sum(piece.tensor.numel() for piece in self._pieces[name])
        return self.shape(name) == shape and held == shape.numel()

    def part(self, name: str, place: Tensor) -> Tensor:
        """This rank's part of it, if it is distributed like `place`."""
        from torch.distributed.checkpoint.default_planner import create_default_local_load_plan
        from torch.distributed.checkpoint.metadata import (
            ChunkStorageMetadata,
            Metadata,
            TensorProperties,
            TensorStorageMetadata,
        )

        pieces = self._pieces[name]
        found = torch.empty(local(place).shape, dtype=pieces[0].tensor.dtype)
        chunks = [ChunkStorageMetadata(torch.Size(piece.begins), piece.tensor.shape) for piece in pieces]
        about = TensorStorageMetadata(TensorProperties(found.dtype), self.shape(name), chunks)
        for item in create_default_local_load_plan({name: place}, Metadata({name: about})).items:
            assert item.storage_index.index is not None
            saved = pieces[item.storage_index.index].tensor
            found[_box(item.dest_offsets, item.lengths)] = saved[_box(item.storage_offsets, item.lengths)]
        return found


def _box(begins: Sequence[int], lengths: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(begin, begin + length) for begin, length in zip(begins, lengths, strict=True))


def fitted(saved: Mapping[str, Tensor], live: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Saved tensors, each distributed over the ranks like the live one of its name. Those without a live one, or with
    one of another shape, stay whole: whatever loads them reports that."""
    if not isinstance(saved, Pieces):
        saved = Pieces({name: [Piece([0] * tensor.ndim, tensor)] for name, tensor in saved.items()})
    found = {}
    for name in saved:
        place = live.get(name)
        if place is None or not is_sharded(place) or place.shape != saved.shape(name):
            found[name] = saved[name]
        else:
            found[name] = beside(saved.part(name, place).to(place.device), place)
    return found
