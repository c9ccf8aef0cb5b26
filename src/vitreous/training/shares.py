"""What each rank saves of a checkpoint, and how these shares are joined again.

torch.distributed.checkpoint plans both; its own files would be pickles. Here:

    objective-00002-of-00004.safetensors   the second rank's parts of tensors
    shards-00002-of-00004.json             where in its tensor each part begins
    shards.json                            the number of ranks, and the shapes of the whole tensors
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitreous.errors import UserError
from vitreous.nn import shards
from vitreous.nn.shards import Piece, Pieces
from vitreous.training.devices import World
from vitreous.weights import own

if TYPE_CHECKING:  # importing it takes a second, and most runs do not need it
    from torch.distributed.checkpoint.planner import SavePlan, WriteItem

State = Mapping[str, Mapping[str, Tensor]]  # file -> name -> tensor
SHARDS = "shards"


def shard_name(stem: str, rank: int, size: int) -> str:
    return f"{stem}-{rank + 1:05}-of-{size:05}"


# ---- saving


class Shares:
    """The shares of one rank, with a plan that is kept between checkpoints."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._shapes: dict[str, torch.Size] = {}
        self._plan: dict[str, list[int]] = {}

    def of(self, tensors: State, state: Mapping[str, Any]) -> tuple[State, dict[str, Any]]:
        """The files of tensors and the documents that this rank writes."""
        rank, size = self._world.rank, self._world.size
        documents: dict[str, Any] = {"state": dict(state)} if rank == 0 else {}
        flat = {f"{stem}/{name}": tensor for stem, named in tensors.items() for name, tensor in named.items()}
        if size == 1 or not any(map(shards.is_sharded, flat.values())):
            return (_local(tensors) if rank == 0 else {}), documents
        files, begins = defaultdict[str, dict[str, Tensor]](dict), defaultdict[str, dict[str, list[int]]](dict)
        for path, begin in self._planned(flat).items():
            stem, name = path.split("/", 1)
            files[shard_name(stem, rank, size)][name] = shards.local(flat[path])
            begins[stem][name] = begin
        documents[shard_name(SHARDS, rank, size)] = begins
        if rank == 0:
            shapes = {stem: {name: list(one.shape) for name, one in named.items()} for stem, named in tensors.items()}
            documents[SHARDS] = {"ranks": size, "tensors": shapes}
        return files, documents

    def _planned(self, flat: Mapping[str, Tensor]) -> dict[str, list[int]]:
        """A new plan if names or shapes have changed, which happens on all ranks at once."""
        shapes = {name: tensor.shape for name, tensor in flat.items()}
        if shapes != self._shapes:
            self._shapes, self._plan = shapes, plan(flat, self._world)
        return self._plan


def _local(tensors: State) -> State:
    return {stem: {name: shards.local(tensor) for name, tensor in named.items()} for stem, named in tensors.items()}


def plan(tensors: Mapping[str, Tensor], world: World) -> dict[str, list[int]]:
    """The tensors of which this rank saves a part, and where in the tensor the part begins. Tensors that all ranks have
    whole are saved by the first. All ranks must call this together."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    planner = DefaultSavePlanner(flatten_state_dict=False, dedup_save_to_lowest_rank=True)
    planner.set_up_planner(dict(tensors), is_coordinator=world.is_first)
    mine = planner.create_local_plan()
    said = world.collect(json.dumps([_box(item) for item in mine.items]))
    plans, _ = planner.create_global_plan([_plan_of(mine, json.loads(boxes)) for boxes in said])
    return {item.index.fqn: _box(item)[0] for item in planner.finish_plan(plans[world.rank]).items}


Box = list[list[int]]  # where a part of a tensor begins, and how long it is, along each axis


def _box(item: "WriteItem") -> Box:
    assert item.tensor_data is not None  # there are only tensors
    return [list(item.tensor_data.chunk.offsets), list(item.tensor_data.chunk.sizes)]


def _plan_of(mine: "SavePlan", boxes: list[Box]) -> "SavePlan":
    """Another rank's plan: other parts of the same tensors, in the same order."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

    items = []
    for item, (begin, lengths) in zip(mine.items, boxes, strict=True):
        assert item.tensor_data is not None
        data = replace(item.tensor_data, chunk=ChunkStorageMetadata(torch.Size(begin), torch.Size(lengths)))
        items.append(replace(item, index=MetadataIndex(item.index.fqn, begin), tensor_data=data))
    return replace(mine, items=items)


# ---- reading


def joined(found: own.Folder, path: Path) -> dict[str, Mapping[str, Tensor]]:
    """The tensors that several ranks saved, each as one."""
    if SHARDS not in found.documents:
        return dict(found.tensors)
    size, whole = int(found.documents[SHARDS]["ranks"]), {}
    for stem, shapes in found.documents[SHARDS]["tensors"].items():
        pieces = defaultdict[str, list[Piece]](list)
        for rank in range(size):
            begins = found.documents.get(shard_name(SHARDS, rank, size), {}).get(stem, {})
            for name, tensor in found.tensors.get(shard_name(stem, rank, size), {}).items():
                pieces[name].append(Piece(begins.get(name) or _next(pieces[name], tensor), tensor))
        whole[stem] = Pieces(pieces)
        for name, shape in shapes.items():
            if name not in pieces or not whole[stem].fills(name, torch.Size(shape)):
                raise UserError(f"{path}: damaged (some rows are missing from {name!r} of {stem})")
    return dict(whole)


def _next(before: list[Piece], tensor: Tensor) -> list[int]:
    """Where a part begins if no document says so: earlier versions saved consecutive rows."""
    return [sum(len(piece.tensor) for piece in before), *[0] * (tensor.ndim - 1)] if tensor.ndim else []
