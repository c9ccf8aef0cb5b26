"""From a source to batches: the batch of a step is a function of (seed, step) alone.

Two ways, one result. Pictures that are in memory and of one size live on the device, and are cut there. Others
are read and cut by worker processes, a step at a time. The rest, batched, runs on the device in both. Large targets go
the way of their pictures; small ones always live on the device, and are found there by id.
"""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from vitreous import keys as K
from vitreous import platforms
from vitreous.batch import Batch
from vitreous.data.arriving import Arriving
from vitreous.data.augmentation import View
from vitreous.data.base import Source
from vitreous.data.geometry import Geometry, together
from vitreous.data.order import OrderSettings
from vitreous.data.readers import EvalSteps, TrainSteps, checked, note, running, workers
from vitreous.data.transforms import Preprocessing, as_tensor
from vitreous.data.views import check_places
from vitreous.errors import UserError

PLAIN = OrderSettings()
KEEP_BYTES = 2**31  # pictures that are resized alike each time are kept resized up to this size

# ids and keys; and of pictures that are read, what TrainSteps tells of them
Inputs = tuple[Tensor, ...]


class TrainLoader:
    def __init__(
        self,
        source: Source,
        views: Sequence[View],  # of every picture, in the order in which a batch holds them
        *,
        batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        order: OrderSettings = PLAIN,
    ) -> None:
        if not 1 <= batch_size <= len(source):
            raise UserError(
                f"batch_size is {batch_size:,}, but {source.name} has {len(source):,} pictures to train on; "
                "give a batch size from 1 to that number"
            )
        if batch_size % world:
            raise UserError(
                f"training.batch_size is {batch_size:,}, which {world} processes cannot share evenly: make it a "
                f"multiple of {world}"
            )
        self.device, self.workers, self.world = torch.device(device), workers, world
        self.views = list(views)
        if source.targets.has_places:
            check_places(self.views, source.name)
        self.mixer = self.views[0].augmentation.mix.build(self.device)
        share, stacked = batch_size // world, source.targets.stacked()
        in_memory = source.pictures is not None and stacked is not None
        # Mixing needs one sample beyond the rank's own share.
        part = slice(rank * share, (rank + 1) * share + int(self.mixer.active and world > 1))
        order_device = self.device if in_memory else torch.device("cpu")  # where the ids are looked up
        shares = source.targets.shares if order.balance else None
        if order.balance and shares is None:
            raise UserError(
                f"{source.name}: only one label per picture can be balanced; set --data.order.balance false"
            )
        whole = order.build(len(source), batch_size, seed, world, shares)
        self.order = whole.narrowed(part, order_device)
        if order.streams:
            own = order.streams // world
            source.hold(own * order.window, own * (order.window // order.run + 2))  # a window may cut one at both ends
        self.steps_per_epoch = self.order.steps_per_epoch
        self.bad = source.bad
        self.waited_s = 0.0  # time spent until the inputs of steps were there
        self._source, self._targets = source, source.targets
        self._needs_geometry = source.targets.has_places or self.views[0].leaves_room
        self._small = _on(self.device, source.targets.small())
        self._pictures: Tensor | None = None
        if source.pictures is not None and stacked is not None:
            self._sides = source.pictures.shape[1:3]
            self._size = torch.tensor([self._sides], device=self.device)
            self._large = _on(self.device, stacked)
            self._pictures = self._kept(as_tensor(source.pictures))

    def _kept(self, pictures: Tensor) -> Tensor:
        """(N, H, W, 3) on the device; already cut to size where every epoch would cut them alike."""
        kept, view = pictures.to(self.device), self.views[0]
        height, width = view.preprocessing.size_px
        if len(self.views) > 1 or not view.cuts_alike or len(kept) * 3 * height * width > KEEP_BYTES:
            return kept
        parts = (part.permute(0, 3, 1, 2).contiguous() for part in torch.split(kept, 512))
        return torch.cat([view.cut(part, keys=part[:, 0, 0, 0]).permute(0, 2, 3, 1) for part in parts]).contiguous()

    def batches(self, start: int, stop: int) -> Generator[Batch, None, None]:
        """The batches of the steps in [start, stop)."""
        with closing(self.inputs(start, stop)) as found:
            for inputs in found:
                yield self.prepare(*inputs)

    def inputs(self, start: int, stop: int) -> Generator[Inputs, None, None]:
        """What `prepare` makes the batches of the steps in [start, stop) of, on the device."""
        arriving = Arriving(self.device)
        with closing(self._found(start, stop)) as found:
            while True:
                began = time.perf_counter()
                inputs = next(found, None)
                if inputs is None:
                    return
                arrived = arriving.begin(inputs).arrived()
                self.waited_s += time.perf_counter() - began
                yield arrived
                arriving.keep_pace()

    def _found(self, start: int, stop: int) -> Generator[Inputs, None, None]:
        yield from self.order.steps(start, stop) if self._pictures is not None else self._read(start, stop)

    def _read(self, start: int, stop: int) -> Generator[Inputs, None, None]:
        steps = TrainSteps(self._source, self.views, self.order, self._needs_geometry)
        with closing(running(workers(steps, range(start, stop), self.workers, self.device))) as items:
            for item in items:
                *inputs, reasons = checked(item)
                note(self.bad, reasons)
                yield tuple(inputs)

    @torch.no_grad()
    def prepare(self, *inputs: Tensor) -> Batch:
        """Tensors in, tensors out, on the device, with fixed shapes: for torch.compile and CUDA graphs."""
        ids, keys, *read = inputs
        seen = self._cut(ids, keys) if self._pictures is not None else self._unpacked(read)
        views = tuple(view.augment(part, keys, seen.extent) for view, part in zip(self.views, seen.cut, strict=True))
        targets = self._targets.learned(self._targets_of(ids, seen.geometry), seen.large)
        size, extent = seen.size, seen.extent
        if self.mixer.active:
            (images,) = views
            partners, partner_targets = _next(images, self.world), self._targets_of(_next(ids, self.world), None)
            if self.world > 1:
                images, ids, keys, size = images[:-1], ids[:-1], keys[:-1], size[:-1]
                targets = {name: target[:-1] for name, target in targets.items()}
            mix = self.mixer.draw(keys, self.views[0].preprocessing.size_px)
            views = (self.mixer.images(mix, images, partners),)
            targets = self.mixer.targets(mix, targets, partner_targets)
        return Batch(views=views, targets=targets, ids=ids, keys=keys, size=size, extent=extent)

    def _cut(self, ids: Tensor, keys: Tensor) -> "_Seen":
        """Of pictures that live on the device."""
        assert self._pictures is not None
        pictures = self._pictures[ids].permute(0, 3, 1, 2).contiguous()
        cut = [view.cut(pictures, keys) for view in self.views]
        size = self._size.expand(len(ids), 2)
        if not self._needs_geometry:
            return _Seen(size, None, None, cut, {})
        geometry = self.views[0].geometry(keys, *self._sides)
        large = self._targets.moved(_chosen(self._large, ids), geometry)
        return _Seen(size, geometry, self.views[0].extent(geometry), cut, large)

    def _unpacked(self, read: Sequence[Tensor]) -> "_Seen":
        """Of pictures that workers have read and cut."""
        size, *rest = read
        geometry = None
        if self._needs_geometry:
            packed, *rest = rest
            geometry = Geometry.unpacked(packed, self.views[0].preprocessing.size_px)
        cut, large = [part.contiguous() for part in rest[: len(self.views)]], rest[len(self.views) :]
        extent = None if geometry is None else self.views[0].extent(geometry)
        return _Seen(size, geometry, extent, cut, dict(zip(self._targets.large, large, strict=True)))

    def _targets_of(self, ids: Tensor, geometry: Geometry | None) -> dict[str, Tensor]:
        """The small ones."""
        found = _chosen(self._small, ids)
        return found if geometry is None else self._targets.moved(found, geometry)


class _Seen(NamedTuple):
    """What is known of a batch before its pictures are augmented."""

    size: Tensor
    geometry: Geometry | None  # where something depends on it
    extent: Tensor | None  # where the view may have padding
    cut: Sequence[Tensor]  # one per view
    large: dict[str, Tensor]


def _next(x: Tensor, world: int) -> Tensor:
    """The partner of each sample: the next in the global batch, whose last one's partner is its first."""
    return x.roll(-1, 0) if world == 1 else x[1:]


class EvalLoader:
    """Every readable sample once, in order; the last batch may be smaller."""

    def __init__(
        self,
        source: Source,
        preprocessing: Preprocessing,
        batch_size: int,
        device: torch.device | str = "cpu",
        workers: int = 0,
    ) -> None:
        self.preprocessing, self.batch_size, self.device = preprocessing, batch_size, torch.device(device)
        self.bad = source.bad
        self._source, self._workers = source, workers
        self._small = _on(self.device, source.targets.small())
        self._resized: Tensor | None = None
        self._loader: DataLoader[Any] | None = None

    def __len__(self) -> int:
        """How many batches, where every picture can be read."""
        return (len(self._source) + self.batch_size - 1) // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        source, stacked = self._source, self._source.targets.stacked()
        is_held = source.pictures is not None and stacked is not None
        on_their_way = Arriving(self.device).one_ahead(self._cut_in_memory() if is_held else self._read())
        for (_, sides, *_), (ids, size, images, *large) in on_their_way:
            extent = self.preprocessing.extents(sides.tolist())
            yield Batch(
                views=(self.preprocessing.normalised(images.contiguous()),),
                targets=source.targets.judged(
                    self._targets_of(ids, sides), dict(zip(source.targets.large, large, strict=True))
                ),
                ids=ids,
                keys=K.sample_keys(0, 0, ids),
                size=size,
                extent=None if extent is None else platforms.moved(extent, self.device),
            )

    def _targets_of(self, ids: Tensor, size: Tensor) -> dict[str, Tensor]:
        """The small ones."""
        found = _chosen(self._small, ids)
        if not found or not self._source.targets.has_places:
            return found
        one = torch.zeros(1, dtype=torch.int64)
        geometry = together([self.preprocessing.geometry(one, *sides) for sides in size.tolist()])
        packed = platforms.moved(geometry.packed(), self.device)
        return self._source.targets.shown(found, Geometry.unpacked(packed, geometry.canvas))

    def _cut_in_memory(self) -> Iterator[tuple[Tensor, ...]]:
        pictures, large = self._source.pictures, self._source.targets.stacked()
        assert pictures is not None and large is not None
        num, (height, width) = len(pictures), self.preprocessing.size_px
        starts, size = range(0, num, self.batch_size), torch.tensor([pictures.shape[1:3]])
        if self._resized is None and num * 3 * height * width <= KEEP_BYTES:
            kept = [self.preprocessing.resized(pictures[start : start + self.batch_size]) for start in starts]
            self._resized = torch.cat(kept).to(self.device) if kept else None
        for start in starts:
            chosen = slice(start, min(start + self.batch_size, num))
            images = self.preprocessing.resized(pictures[chosen]) if self._resized is None else self._resized[chosen]
            ids = torch.arange(chosen.start, chosen.stop)
            yield ids, size.expand(len(ids), 2), images, *(target[chosen] for target in large.values())

    def _read(self) -> Iterator[tuple[Tensor, ...]]:
        if self._loader is None:
            steps = EvalSteps(self._source, self.preprocessing, self.batch_size)
            num_steps = -(-len(self._source) // self.batch_size)
            self._loader = workers(steps, range(num_steps), self._workers, self.device, stay=True)
        for item in running(self._loader):
            *found, reasons = checked(item)
            note(self.bad, reasons)
            if len(found[0]):
                yield tuple(found)


# ---- Targets


def _on(device: torch.device, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _chosen(tensors: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
    return {name: tensor[ids] for name, tensor in tensors.items()}
