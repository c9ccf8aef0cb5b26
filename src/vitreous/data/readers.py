"""Worker processes that read: what a step needs of pictures which are not in memory, or not of one size."""

import atexit
import math
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from multiprocessing.process import BaseProcess
from types import FrameType, TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitreous import platforms, signals
from vitreous.data.augmentation import View
from vitreous.data.base import BadFiles, Sample, Source
from vitreous.data.geometry import Geometry
from vitreous.data.images import BadPicture
from vitreous.data.order import Order
from vitreous.data.targets.base import Large
from vitreous.data.transforms import Preprocessing, as_tensor
from vitreous.errors import ReaderEndedError, ReaderStalledError, UserError

CHUNK = 16  # pictures of any size that a worker holds at once: a batch of photos as they come may not fit

Reasons = dict[str, str]  # why a picture could not be read, by where it lies


class TrainSteps(Dataset[Any]):
    """By step: ids, keys, the pictures' sizes, their geometry where it is asked for, the cut pictures (one tensor per
    view), the large targets, and what could not be read. A UserError is handed over as a value, since one raised in a
    worker arrives with a traceback for its message."""

    def __init__(self, source: Source, views: list[View], order: Order, needs_geometry: bool) -> None:
        self.source, self.views, self.order, self.needs_geometry = source, views, order, needs_geometry

    def __getitem__(self, step: int) -> tuple[Tensor | Reasons, ...] | UserError:
        drawn, keys = self.order(step)
        ids, size = drawn.clone(), torch.empty(len(drawn), 2, dtype=torch.int64)
        cut = [room_for(len(ids), view.preprocessing) for view in self.views]
        geometries: list[Tensor] = []
        large: list[dict[str, Tensor]] = []
        reasons: Reasons = {}
        try:
            for start in range(0, len(ids), CHUNK):
                part = slice(start, start + CHUNK)
                read = [
                    _read_next(self.source, index, self.order.epochs.is_balanced, reasons)
                    for index in drawn[part].tolist()
                ]
                ids[part] = torch.tensor([index for index, _ in read])
                pictures = [sample.picture for _, sample in read]
                size[part] = torch.tensor([picture.shape[:2] for picture in pictures])
                for view, out in zip(self.views, cut, strict=True):
                    view.cut_pictures(pictures, keys[part], out[part])
                if self.needs_geometry:
                    found = self.views[0].geometries(keys[part], [picture.shape[:2] for picture in pictures])
                    geometries.append(found.packed())
                    large += [
                        self._moved(sample.large, Geometry.unpacked(row, found.canvas))
                        for (_, sample), row in zip(read, geometries[-1][:, None], strict=True)
                    ]
        except UserError as error:
            return error
        geometry = [torch.cat(geometries)] if self.needs_geometry else []
        moved = [torch.cat([one[name] for one in large]) for name in self.source.targets.large]
        return ids, keys, size, *geometry, *cut, *moved, reasons

    def _moved(self, large: Large, geometry: Geometry) -> dict[str, Tensor]:
        tensors = {name: as_tensor(target)[None] for name, target in large.items()}
        return self.source.targets.moved(tensors, geometry)


class EvalSteps(Dataset[Any]):
    """By batch: the ids, sizes, resized pictures and large targets of those that can be read, and why the others
    cannot."""

    def __init__(self, source: Source, preprocessing: Preprocessing, batch_size: int) -> None:
        self.source, self.preprocessing, self.batch_size = source, preprocessing, batch_size

    def __getitem__(self, step: int) -> tuple[Tensor | Reasons, ...] | UserError:
        ids: list[int] = []
        sizes: list[tuple[int, ...]] = []
        large: list[Large] = []
        reasons: Reasons = {}
        start = step * self.batch_size
        candidates = range(start, min(start + self.batch_size, len(self.source)))
        images = room_for(len(candidates), self.preprocessing)
        for index in candidates:
            try:
                sample = self.source.sample(index)
                images[len(ids)] = self.preprocessing.resized(sample.picture)
                ids.append(index)
                sizes.append(sample.picture.shape[:2])
                large.append(sample.large)
            except BadPicture as error:
                reasons[self.source.where(index)] = str(error)
            except UserError as error:
                return error
        beyond = self.source.targets.beyond
        padded = [_padded([one[name] for one in large], beyond) for name in self.source.targets.large]
        found, size = (torch.tensor(one, dtype=torch.int64) for one in (ids, sizes))
        return found, size.view(-1, 2), images[: len(ids)], *padded, reasons


def room_for(num: int, preprocessing: Preprocessing) -> Tensor:
    """(B, 3, h, w) uint8, laid out as pictures come out of files and resizing, a pixel's levels side by side: copying
    to any other layout takes half as long as resizing. The loader does that once, on the device."""
    return torch.empty(num, *preprocessing.size_px, 3, dtype=torch.uint8).permute(0, 3, 1, 2)


def _padded(targets: list[np.ndarray], beyond: int) -> Tensor:
    """(B, H, W, ...) of the largest sizes; `beyond` where a picture's own are smaller."""
    if not targets:
        return torch.empty(0)
    shape = np.max([target.shape for target in targets], axis=0)
    out = np.full((len(targets), *shape), beyond, dtype=targets[0].dtype)
    for slot, target in zip(out, targets, strict=True):
        slot[tuple(slice(side) for side in target.shape)] = target
    return torch.from_numpy(out)


def _read_next(source: Source, index: int, balance: bool, reasons: Reasons) -> tuple[int, Sample]:
    """The sample, or the next in the source that can be read: the same for any number of workers."""
    for other in _in_its_place(source, index, balance):
        try:
            return other, source.sample(other)
        except BadPicture as error:
            reasons[source.where(other)] = str(error)
            note(source.bad, reasons)
    raise UserError(f"{source.name}: none of its pictures can be read.")


def _in_its_place(source: Source, index: int, balance: bool) -> Iterator[int]:
    """The picture itself, then those after it, around the source. Where classes are balanced, those of its class come
    first: the draws of a small class with an unreadable picture must not go to its neighbour."""
    num = len(source)
    around = [range(index, num), range(index)]
    if not balance:
        yield from chain(*around)
        return
    labels = source.labels
    for same in (True, False):
        yield from (other for other in chain(*around) if (labels[other] == labels[index]) == same)


def _unchanged(item: Any) -> Any:
    return item


def _begin_reading(number: int) -> None:
    platforms.keep_freed_memory()
    sys.excepthook = _unless_broken_off


def _unless_broken_off(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A reader's thread is handing a batch over when the process that takes it ends, which says itself why."""
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)


def workers(
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
        worker_init_fn=_begin_reading,
        generator=torch.Generator(),  # its own: the global one must not be drawn from, or a resumed run would differ
    )


def running(loader: DataLoader[Any]) -> Generator[Any, None, None]:
    items: Iterator[Any] = iter(())
    watch = _Watch()
    try:
        items = _begun(loader, watch)
        while True:
            with watch, _ENDS.awaited():
                item = next(items, _END)
            if item is _END:
                return
            yield item
    except (ConnectionError, EOFError, FileNotFoundError, RuntimeError) as error:
        if watch.gave_up:
            watch.see_them_end()
        _ENDS.forget()
        if watch.gave_up:
            raise ReaderStalledError(watch.patience_s) from error
        # So breaks off what a reader was handing over when it was ended. What a reader itself raised says where.
        if isinstance(error, RuntimeError) or loader.num_workers == 0 or "in DataLoader worker" in str(error):
            raise
        raise ReaderEndedError from error
    finally:
        watch.end()
        del items  # which ends the workers at once, wherever the consumer stopped


_END = object()


def _begun(loader: DataLoader[Any], watch: "_Watch") -> Iterator[Any]:
    stayed = getattr(loader, "_iterator", None)
    if stayed is not None:  # all its readers must say that they begin anew
        with watch.over(stayed._workers), _ENDS.awaited():
            return iter(loader)
    with warnings.catch_warnings():
        # Python 3.12 warns of every fork in a process with threads, as torch's always is.
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
        # Schedulers and terminals signal them too. Who reads for a step that others wait for must not end before it.
        with signals.unheard():
            items = iter(loader)
            if loader.num_workers:
                watch.over(getattr(items, "_workers", ()))
                _ENDS.take_over()
    return items


class _Ends:
    """The ends of readers. torch raises them in whatever line the main thread is at: in the midst of a step, or in a
    hook of `fork` while other readers are started, where Python prints the error and drops it. Here they are raised
    where readers are waited for, and nowhere else."""

    def __init__(self) -> None:
        self._theirs: Callable[[int, FrameType | None], Any] | None = None
        self._is_awaited = False  # by the main thread, in which Python handles signals

    def take_over(self) -> None:
        """From torch, which has a handler once it has readers."""
        number = platforms.CHILD_ENDED
        if number is None or threading.current_thread() is not threading.main_thread():
            return
        found = signal.getsignal(number)
        if callable(found) and found != self._handle:
            self._theirs = found
            signal.signal(number, self._handle)

    @contextmanager
    def awaited(self) -> Iterator[None]:
        is_main = threading.current_thread() is threading.main_thread()
        self._is_awaited |= is_main
        try:
            self._raise()  # what ended since the last time
            yield
        finally:
            self._is_awaited &= not is_main

    def forget(self) -> None:
        """What has been said: torch keeps it until it has raised it."""
        with suppress(RuntimeError):
            self._raise()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_awaited:
            self._raise()

    def _raise(self) -> None:
        if self._theirs is not None and platforms.CHILD_ENDED is not None:
            self._theirs(platforms.CHILD_ENDED, None)


_ENDS = _Ends()


class _Watch:
    """Ends readers that are silent for too long while they are waited for (`with watch`). torch's own timeout does not
    see one that is stopped while it hands a batch over; and one that is stopped heeds SIGKILL alone."""

    def __init__(self) -> None:
        self.patience_s, self.gave_up = platforms.reader_timeout_s(), False
        self._readers: Sequence[BaseProcess] = ()
        self._since, self._is_over = math.inf, threading.Event()

    def over(self, readers: Sequence[BaseProcess]) -> Self:
        self._readers = readers
        _STARTED.update(readers)
        threading.Thread(target=self._look, daemon=True).start()
        return self

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self._since = math.inf

    def _look(self) -> None:
        while not self._is_over.wait(self.patience_s / 8):
            if time.monotonic() - self._since > self.patience_s:
                self.gave_up = True
                for reader in self._readers:
                    reader.kill()
                return

    def see_them_end(self) -> None:
        for reader in self._readers:
            reader.join()

    def end(self) -> None:
        self._is_over.set()


_STARTED: weakref.WeakSet[BaseProcess] = weakref.WeakSet()


@atexit.register
def _end_readers() -> None:
    """Python asks those that are left to end, and waits for them: one that is stopped does not hear it."""
    for reader in _STARTED:
        if reader.is_alive():
            reader.kill()


def checked(item: Any) -> Any:
    if isinstance(item, UserError):
        raise item
    return item


def note(bad: BadFiles, reasons: Reasons) -> None:
    for where, reason in reasons.items():
        bad.add(where, reason)
    bad.check()
