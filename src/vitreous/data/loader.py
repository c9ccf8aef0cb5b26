"""From a source to batches: the batch of a step is a function of (seed, step) alone.

Two ways, one result. Pictures that are in memory and of one size live on the device, and are cut there. Others
are read and cut by worker processes, a step at a time. The rest, batched, runs on the device in both.
"""

import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitreous import keys as K
from vitreous import platforms
from vitreous.batch import Batch
from vitreous.data.base import BadFiles, Source
from vitreous.data.images import BadPicture
from vitreous.data.transforms import Preprocessing, View, as_tensor
from vitreous.errors import ReaderEndedError, UserError

CHUNK = 16  # pictures of any size that a worker holds at once: a batch of photos as they come may not fit
KEEP_BYTES = 2**31  # pictures that are resized alike each time are kept resized up to this size

Inputs = tuple[Tensor, ...]  # (ids, keys), and the cut pictures, one tensor per view, where a worker made them
Reasons = dict[str, str]  # why a picture could not be read, by where it lies


class Order:
    """Which samples a rank sees at a step, and their keys. With labels, every class comes equally often."""

    def __init__(
        self,
        num: int,
        batch_size: int,
        seed: int,
        part: slice,
        device: torch.device,
        *,
        labels: Tensor | None = None,
    ) -> None:
        self.num, self.batch_size, self.seed, self.device, self.labels = num, batch_size, seed, device, labels
        self.part = part  # of the batch; beyond its end it begins anew
        self.steps_per_epoch = num // batch_size
        self.balance = labels is not None
        self._epoch = -1
        self._drawn = torch.empty(0, dtype=torch.int64)

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        epoch, step = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._drawn, self._epoch = self._draw(epoch), epoch
        drawn = self._drawn[step * self.batch_size : (step + 1) * self.batch_size]
        if self.part.stop > self.batch_size:
            drawn = torch.cat([drawn, drawn])
        drawn = drawn[self.part]
        return drawn % self.num, K.sample_keys(self.seed, epoch, drawn)

    def _draw(self, epoch: int) -> Tensor:
        if self.labels is None:
            return K.epoch_order(self.seed, epoch, self.num, self.device)
        return balanced_order(self.seed, epoch, self.labels).to(self.device)


def balanced_order(seed: int, epoch: int, labels: Tensor) -> Tensor:
    """(N,) int64: an epoch in which every class comes equally often. A large class shows another part of itself in
    every epoch; the pictures of a small one come equally often, give or take one. Copy c of sample i is called i + c N,
    so that copies have keys of their own and are cropped and coloured differently.

    How often a picture may come again has no limit: one would make the rarest classes rare again, for which balancing
    is there. Which classes have too few pictures to learn from is for the data check to say."""
    classes, label, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    # What N samples leave over after equal shares goes to other classes in every epoch.
    rank = K.epoch_order(seed, epoch, len(classes)).argsort()
    shares = len(labels) // len(classes) + (rank < len(labels) % len(classes)).long()
    copies = -(-shares // counts)[label]  # of every sample
    sample = torch.arange(len(labels)).repeat_interleave(copies)
    first = (copies.cumsum(0) - copies).repeat_interleave(copies)
    copy = torch.arange(len(sample)) - first
    drawn, label = sample + copy * len(labels), label[sample]
    keys = K.sample_keys(seed, epoch, drawn)
    order = K.mix(keys ^ K.purpose_code("balance")).argsort()
    for place in (copy, label):  # by class, then by copy, then by chance
        order = order[place[order].argsort(stable=True)]
    sizes = torch.bincount(label)
    within = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[label[order]]
    chosen = order[within < shares[label[order]]]
    shuffled: Tensor = drawn[chosen[keys[chosen].argsort()]]
    return shuffled


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
        balance: bool = False,
    ) -> None:
        if not 1 <= batch_size <= len(source):
            raise UserError(
                f"batch_size is {batch_size:,}, but {source.name} has {len(source):,} pictures to train on; "
                "give a batch size from 1 to that number"
            )
        if batch_size % world:
            raise UserError(f"batch_size is {batch_size:,}, which {world} processes cannot share evenly")
        self.device, self.workers, self.world = torch.device(device), workers, world
        self.views = list(views)
        self.mixer = self.views[0].augmentation.build_mixer(self.device)
        share, in_memory = batch_size // world, source.pictures is not None
        # Mixing needs one sample beyond the rank's own share.
        part = slice(rank * share, (rank + 1) * share + int(self.mixer.active and world > 1))
        order_device = self.device if in_memory else torch.device("cpu")  # where the ids are looked up
        if balance and source.labels.ndim != 1:
            raise UserError(f"{source.name} has several labels per picture: set --data.balance false")
        labels = as_tensor(source.labels) if balance else None
        self.order = Order(len(source), batch_size, seed, part, order_device, labels=labels)
        self.steps_per_epoch = self.order.steps_per_epoch
        self.bad = source.bad
        self.waited_s = 0.0  # time spent until the inputs of steps were there
        self._source = source
        self._labels = _labels(source, self.device)
        self._pictures = None if source.pictures is None else self._kept(as_tensor(source.pictures))

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
        with closing(self._draw(start, stop) if self._pictures is not None else self._read(start, stop)) as found:
            while True:
                began = time.perf_counter()
                inputs = next(found, None)
                if inputs is None:
                    return
                moved = tuple(platforms.moved(tensor, self.device) for tensor in inputs)
                self.waited_s += time.perf_counter() - began
                yield moved

    def _draw(self, start: int, stop: int) -> Generator[Inputs, None, None]:
        for step in range(start, stop):
            yield self.order(step)

    def _read(self, start: int, stop: int) -> Generator[Inputs, None, None]:
        steps = _TrainSteps(self._source, self.views, self.order)
        with closing(_running(_workers(steps, range(start, stop), self.workers, self.device))) as items:
            for item in items:
                *inputs, reasons = _checked(item)
                _note(self.bad, reasons)
                yield tuple(inputs)

    @torch.no_grad()
    def prepare(self, *inputs: Tensor) -> Batch:
        """Tensors in, tensors out, on the device, with fixed shapes: for torch.compile and CUDA graphs."""
        ids, keys, *cut_by_workers = inputs
        if self._pictures is not None:
            pictures = self._pictures[ids].permute(0, 3, 1, 2).contiguous()
            cut = [view.cut(pictures, keys) for view in self.views]
        else:
            cut = cut_by_workers
        views = tuple(view.augment(part, keys) for view, part in zip(self.views, cut, strict=True))
        targets = _targets(self._labels, ids)
        if self.mixer.active:
            (images,) = views
            partners, partner_targets = _next(images, self.world), _targets(self._labels, _next(ids, self.world))
            if self.world > 1:
                images, ids, keys = images[:-1], ids[:-1], keys[:-1]
                targets = {name: target[:-1] for name, target in targets.items()}
            mix = self.mixer.draw(keys, self.views[0].preprocessing.size_px)
            views = (self.mixer.images(mix, images, partners),)
            targets = self.mixer.targets(mix, targets, partner_targets)
        return Batch(views=views, targets=targets, ids=ids, keys=keys)


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
        self._labels = _labels(source, self.device)
        self._resized: Tensor | None = None
        self._loader: DataLoader[Any] | None = None

    def __len__(self) -> int:
        """How many batches, where every picture can be read."""
        return (len(self._source) + self.batch_size - 1) // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        pictures = self._source.pictures
        for found, resized in self._cut() if pictures is None else self._cut_in_memory(pictures):
            ids, images = (platforms.moved(tensor, self.device) for tensor in (found, resized))
            views = (self.preprocessing.normalised(images),)
            yield Batch(views=views, targets=_targets(self._labels, ids), ids=ids, keys=K.sample_keys(0, 0, ids))

    def _cut_in_memory(self, pictures: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        num, (height, width) = len(pictures), self.preprocessing.size_px
        starts = range(0, num, self.batch_size)
        if self._resized is None and num * 3 * height * width <= KEEP_BYTES:
            kept = [self.preprocessing.resized(pictures[start : start + self.batch_size]) for start in starts]
            self._resized = torch.cat(kept).to(self.device) if kept else None
        for start in starts:
            chosen = slice(start, min(start + self.batch_size, num))
            images = self.preprocessing.resized(pictures[chosen]) if self._resized is None else self._resized[chosen]
            yield torch.arange(chosen.start, chosen.stop), images

    def _cut(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self._loader is None:
            steps = _EvalSteps(self._source, self.preprocessing, self.batch_size)
            num_steps = -(-len(self._source) // self.batch_size)
            self._loader = _workers(steps, range(num_steps), self._workers, self.device, stay=True)
        for item in _running(self._loader):
            ids, images, reasons = _checked(item)
            _note(self.bad, reasons)
            if len(ids):
                yield ids, images


# ---- Labels


def _labels(source: Source, device: torch.device) -> Tensor:
    labels = as_tensor(np.asarray(source.labels))
    return labels.to(device) if labels.ndim == 1 else labels.to(device, torch.float32)


def _targets(labels: Tensor, ids: Tensor) -> dict[str, Tensor]:
    return {"label" if labels.ndim == 1 else "labels": labels[ids]}


# ---- Worker processes


def _read_next(source: Source, index: int, balance: bool, reasons: Reasons) -> tuple[int, np.ndarray]:
    """The picture, or the next in the source that can be read: the same for any number of workers."""
    for other in _in_its_place(source, index, balance):
        try:
            return other, source.read(other)
        except BadPicture as error:
            reasons[source.where(other)] = str(error)
            _note(source.bad, reasons)
    raise UserError(f"{source.name}: not one picture can be read.")


def _in_its_place(source: Source, index: int, balance: bool) -> Iterator[int]:
    """The picture itself, then those after it, around the source. Where classes are balanced, those of its class come
    first: the draws of a small class with an unreadable picture must not go to its neighbour."""
    num, labels = len(source), source.labels
    around = [range(index, num), range(index)]
    if not balance:
        yield from chain(*around)
        return
    for same in (True, False):
        yield from (other for other in chain(*around) if (labels[other] == labels[index]) == same)


class _TrainSteps(Dataset[Any]):
    """By step: ids, keys, the cut pictures (one tensor per view), and what could not be read. A UserError is handed
    over as a value, since one raised in a worker arrives with a traceback for its message."""

    def __init__(self, source: Source, views: list[View], order: Order) -> None:
        self.source, self.views, self.order = source, views, order

    def __getitem__(self, step: int) -> tuple[Tensor | Reasons, ...] | UserError:
        drawn, keys = self.order(step)
        ids = drawn.clone()
        cut = [torch.empty(len(ids), 3, *view.preprocessing.size_px, dtype=torch.uint8) for view in self.views]
        reasons: Reasons = {}
        try:
            for start in range(0, len(ids), CHUNK):
                part = slice(start, start + CHUNK)
                read = [_read_next(self.source, index, self.order.balance, reasons) for index in drawn[part].tolist()]
                ids[part] = torch.tensor([index for index, _ in read])
                pictures = [picture for _, picture in read]
                for view, out in zip(self.views, cut, strict=True):
                    view.cut_pictures(pictures, keys[part], out[part])
        except UserError as error:
            return error
        return ids, keys, *cut, reasons


class _EvalSteps(Dataset[Any]):
    """By batch: the ids and resized pictures of those that can be read, and why the others cannot."""

    def __init__(self, source: Source, preprocessing: Preprocessing, batch_size: int) -> None:
        self.source, self.preprocessing, self.batch_size = source, preprocessing, batch_size

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor, Reasons] | UserError:
        ids: list[int] = []
        reasons: Reasons = {}
        start = step * self.batch_size
        candidates = range(start, min(start + self.batch_size, len(self.source)))
        images = torch.empty(len(candidates), 3, *self.preprocessing.size_px, dtype=torch.uint8)
        for index in candidates:
            try:
                images[len(ids)] = self.preprocessing.resized(self.source.read(index))
                ids.append(index)
            except BadPicture as error:
                reasons[self.source.where(index)] = str(error)
            except UserError as error:
                return error
        return torch.tensor(ids, dtype=torch.int64), images[: len(ids)], reasons


def _unchanged(item: Any) -> Any:
    return item


def _workers(
    steps: Dataset[Any], numbers: range, num_workers: int, device: torch.device, stay: bool = False
) -> DataLoader[Any]:
    return DataLoader(
        steps,
        batch_size=None,
        sampler=numbers,
        num_workers=num_workers,
        collate_fn=_unchanged,
        pin_memory=device.type == "cuda",
        # They use neither CUDA nor threads, and leave when their parent is gone, however it went.
        multiprocessing_context=platforms.READERS_START if num_workers else None,
        persistent_workers=stay and num_workers > 0,
        generator=torch.Generator(),  # its own: the global one must not be drawn from, or a resumed run would differ
    )


def _running(loader: DataLoader[Any]) -> Generator[Any, None, None]:
    with warnings.catch_warnings():
        # Python 3.12 warns of every fork in a process with threads, as torch's always is.
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
        items = iter(loader)
    try:
        yield from items
    except (ConnectionError, EOFError, FileNotFoundError) as error:
        # So breaks off what a reader was handing over when it was ended. What a reader itself raised says where.
        if loader.num_workers == 0 or "in DataLoader worker" in str(error):
            raise
        raise ReaderEndedError from error
    finally:
        del items  # which ends the workers at once, wherever the consumer stopped


def _checked(item: Any) -> Any:
    if isinstance(item, UserError):
        raise item
    return item


def _note(bad: BadFiles, reasons: Reasons) -> None:
    for where, reason in reasons.items():
        bad.add(where, reason)
    bad.check()
