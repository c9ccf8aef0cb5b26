"""Stores: a folder on disk or at a URL, in which files are written whole or not at all.

An object store shows an object only when it is complete; on disk, a file is renamed into place when it is complete.
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, cast

from vitreous.bulk.places import filesystem, is_url
from vitreous.errors import UserError, first_line
from vitreous.storage import atomic, locks


class Store(ABC):
    where: str

    @staticmethod
    def of(where: str) -> "Store":
        return RemoteStore(where) if is_url(where) else LocalStore(where)

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """What is in it, in order; nothing if there is no such folder."""

    @abstractmethod
    def writing(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file that appears once all of it is written, and not at all after an error."""

    @abstractmethod
    def reading(self, name: str) -> AbstractContextManager[BinaryIO]: ...

    @abstractmethod
    def read(self, name: str, start: int, end: int) -> bytes:
        """Only these bytes."""

    @abstractmethod
    def has(self, name: str) -> bool: ...

    @abstractmethod
    def remove(self, name: str) -> None: ...

    @abstractmethod
    def claimed(self) -> AbstractContextManager[None]:
        """Inside, the store is ours alone."""


class LocalStore(Store):
    def __init__(self, where: str) -> None:
        self.where, self.path = where, Path(where)

    def names(self, folder: str = "") -> list[str]:
        path = self.path / folder
        return atomic.strangers(path) if path.is_dir() else []

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        try:
            with atomic.placed(self.path / name) as new, new.open("wb") as file:
                yield file
        except OSError as error:
            raise _unwritable(self.where, error) from None

    @contextmanager
    def reading(self, name: str) -> Iterator[BinaryIO]:
        with (self.path / name).open("rb") as file:
            yield file

    def read(self, name: str, start: int, end: int) -> bytes:
        with self.reading(name) as file:
            file.seek(start)
            return file.read(end - start)

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        is_new = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(self.where, error) from None
        lock = locks.take(self.path / "lock")
        if lock is None:
            who = locks.holder(self.path / "lock")
            raise UserError(f"{self.where}: in use by {who}; wait for it to end, or choose another --out")
        with lock:
            for folder in filter(Path.is_dir, (self.path, self.path / "rows", self.path / "begun")):
                atomic.sweep(folder)
            try:
                yield
            except UserError:
                if is_new and self.names() in ([], ["plan.jsonl"]):  # what is refused leaves no folder behind
                    atomic.remove(self.path)
                raise


class RemoteStore(Store):
    """Two commands are not kept apart here: both write the same."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.files, self.path = filesystem(where)

    def names(self, folder: str = "") -> list[str]:
        self.files.invalidate_cache()
        try:
            found = self.files.ls(f"{self.path}/{folder}".rstrip("/"), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in found)

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        with tempfile.TemporaryDirectory() as folder:
            whole, path = Path(folder, "whole"), f"{self.path}/{name}"
            with whole.open("wb") as file:
                yield file
            try:
                self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
                self.files.put_file(str(whole), path)
            except OSError as error:
                raise _unwritable(self.where, error) from None

    def reading(self, name: str) -> AbstractContextManager[BinaryIO]:
        return cast(AbstractContextManager[BinaryIO], self.files.open(f"{self.path}/{name}", "rb"))

    def read(self, name: str, start: int, end: int) -> bytes:
        return cast(bytes, self.files.cat_file(f"{self.path}/{name}", start=start, end=end))

    def has(self, name: str) -> bool:
        return bool(self.files.exists(f"{self.path}/{name}"))

    def remove(self, name: str) -> None:
        self.files.rm_file(f"{self.path}/{name}")

    def claimed(self) -> AbstractContextManager[None]:
        return nullcontext()


def _unwritable(where: str, error: OSError) -> UserError:
    reason = error.strerror or first_line(error)
    return UserError(f"{where}: cannot be written ({reason}); free some space or choose another place")
