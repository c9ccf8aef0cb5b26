"""Our own format: a folder of safetensors and JSON, whole or not there at all.

A folder is written beside its place, every file is brought to the disk, the manifest (sizes and sha256 of all files)
last, and then the folder is renamed into place. So a crash, a full disk or a kill at any moment leaves the old folder
or the new one, and a flipped bit is noticed. Nothing is ever pickled.
"""

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitreous import __version__, platforms
from vitreous.errors import UserError, first_line, shown
from vitreous.storage import atomic

FORMAT = 1  # of the folder and its manifest; what the documents mean has versions of its own (see settings)
MANIFEST = "manifest.json"


class Folder(NamedTuple):
    """What a folder holds, by file name without its ending."""

    tensors: dict[str, dict[str, Tensor]]
    documents: dict[str, Any]
    about: dict[str, Any]  # what the writer put into the manifest


# ---- a model


def save_model(folder: Path | str, state_dict: Mapping[str, Tensor], card: Any, **others: Any) -> None:
    """Weights, and whatever JSON the caller needs to use them again; others by their names."""
    write_folder(folder, {"model": state_dict}, {"model": card, **others})


def load_model(folder: Path | str) -> tuple[dict[str, Tensor], Any]:
    weights, card, _ = load_model_and_others(folder)
    return weights, card


def load_model_and_others(folder: Path | str) -> tuple[dict[str, Tensor], Any, dict[str, Any]]:
    """With the other documents, by name."""
    found = read_folder(folder)
    if "model" not in found.tensors or "model" not in found.documents:
        raise UserError(f"{folder}: not a model (it has no model.safetensors and model.json)")
    return found.tensors["model"], found.documents.pop("model"), found.documents


# ---- writing


Files = dict[str, dict[str, Any]]  # name -> size, sha256


def write_folder(
    path: Path | str,
    tensors: Mapping[str, Mapping[str, Tensor]],
    documents: Mapping[str, Any],
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write or replace a folder; on failure a UserError, and whatever was there before is still there."""
    draft = Draft(path)
    try:
        draft.begin()
        draft.finish(draft.add(tensors, documents), about)
    finally:
        draft.drop()


class Draft:
    """A folder that is being written beside its place: by one process, or by several, of which the one that begins it
    also finishes it, and each of the others (given the number of that one) adds files of its own."""

    def __init__(self, path: Path | str, process: int | None = None) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100  # without following links: the name is what is replaced
        self._new = atomic.temporary(self.path, process)
        self._num_bytes = 0  # of what this process adds

    def begin(self) -> None:
        with self._in_plain_words():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            atomic.clear(self.path)
            self._new.mkdir()

    def add(self, tensors: Mapping[str, Mapping[str, Tensor]], documents: Mapping[str, Any]) -> Files:
        """What the manifest says of these files, which are on the disk when this returns."""
        if "manifest" in documents:
            raise ValueError("the name manifest is taken")
        separate = {stem: _separate(named) for stem, named in tensors.items()}
        self._num_bytes = sum(tensor.nbytes for named in separate.values() for tensor in named.values())
        self._num_bytes += sum(len(_json(document)) for document in documents.values())
        written = []
        with self._in_plain_words():
            for stem, named in separate.items():
                written.append(self._new / f"{stem}.safetensors")
                save_file(named, written[-1])
            for stem, document in documents.items():
                written.append(self._new / f"{stem}.json")
                written[-1].write_text(_json(document), encoding="utf-8")
            return {file.name: _sealed(file) for file in sorted(written)}

    def finish(self, files: Files, about: Mapping[str, Any] | None = None) -> None:
        """The manifest, and then the folder takes its place."""
        with self._in_plain_words():
            manifest = {"format": FORMAT, "versions": versions(), "about": dict(about or {}), "files": files}
            (self._new / MANIFEST).write_text(_json(manifest), encoding="utf-8")
            platforms.sync(self._new / MANIFEST)
            platforms.sync(self._new)
            _put_in_place(self._new, self.path)

    def drop(self) -> None:
        """Whatever was not finished."""
        with contextlib.suppress(OSError):
            atomic.remove(self._new)

    @contextlib.contextmanager
    def _in_plain_words(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError) as error:
            raise atomic.not_written(self.path, error, self._num_bytes) from error


def _put_in_place(new: Path, path: Path) -> None:
    old = atomic.old(path)
    if path.exists():
        # Whatever else somebody keeps under this name is theirs.
        strangers = _strangers(path)
        if strangers:
            raise UserError(f"{path}: not replaced, because {strangers[0]!r} is not ours; choose another place")
        atomic.remove(old)
        path.rename(old)
    # Killed here, there is no `path`; but `old` is whole, and both readers and sweep() know its name.
    try:
        new.rename(path)
    except OSError:
        if old.exists():
            old.rename(path)
        raise
    platforms.sync(path.parent)
    atomic.remove(old)


def _strangers(path: Path) -> list[str]:
    """What keeps `path` from being replaced: all of it where it is no folder of ours, whole or damaged."""
    if not path.is_dir():
        return [path.name]
    names = sorted(file.name for file in path.iterdir())
    return [name for name in names if MANIFEST not in names or not _is_ours(path / name)]


def _is_ours(file: Path) -> bool:
    return file.suffix in (".safetensors", ".json")


def _separate(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, contiguous, and none sharing memory with another, as safetensors demands."""
    separate, seen = {}, set()
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, not a tensor: put it into a JSON document")
        plain = tensor.detach().cpu().contiguous()
        memory = plain.untyped_storage().data_ptr()
        separate[name] = plain.clone() if memory in seen else plain
        seen.add(memory)
    return separate


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _sealed(file: Path) -> dict[str, Any]:
    platforms.sync(file)
    return {"size": file.stat().st_size, "sha256": _sha256(file)}


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def versions() -> dict[str, str]:
    """Of what decides a result."""
    # Ours is what the code says: the metadata of an editable install stay behind it.
    found = {"python": platform.python_version(), "torch": torch.__version__, "vitreous": __version__}
    for name in ("numpy", "safetensors"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


# ---- reading


def read_folder(path: Path | str) -> Folder:
    """Everything in a folder, after its manifest has verified; a UserError names the file that does not."""
    path = _present(Path(path))
    manifest = _verified(path)
    tensors, documents = {}, {}
    for name in manifest["files"]:
        file = path / name
        try:
            if file.suffix == ".safetensors":
                tensors[file.stem] = load_file(file)
            else:
                documents[file.stem] = json.loads(file.read_text())
        except (OSError, ValueError, KeyError, RecursionError, SafetensorError) as error:
            raise UserError(f"{file}: cannot be read ({first_line(error)})") from None
    return Folder(tensors, documents, manifest["about"])


def verify_folder(path: Path | str) -> str | None:
    """What is wrong with a folder, in one line; None where it is whole."""
    try:
        _verified(_present(Path(path)))
    except UserError as error:
        return str(error)
    return None


def _present(path: Path) -> Path:
    return atomic.old(path) if not path.exists() and atomic.old(path).exists() else path


def _verified(path: Path) -> dict[str, Any]:
    manifest = _manifest(path)
    for name, expected in manifest["files"].items():
        file = path / name
        if Path(name).name != name or not _is_ours(file):
            raise UserError(f"{path / MANIFEST}: names {shown(name)}, which is not one of our files")
        try:
            if file.stat().st_size != expected["size"]:
                raise UserError(
                    f"{file}: damaged ({file.stat().st_size} bytes, its manifest says {shown(expected['size'])})"
                )
            if _sha256(file) != expected["sha256"]:
                raise UserError(f"{file}: damaged (its sha256 is not the one in the manifest)")
        except OSError as error:
            raise UserError(f"{file}: missing or unreadable ({error.strerror})") from None
    for file in path.iterdir():
        # Notes and a file manager's leftovers are welcome; a file that could be taken for a part is not.
        if _is_ours(file) and file.name not in {MANIFEST, *manifest["files"]}:
            raise UserError(f"{file}: unknown to the manifest; remove it")
    return manifest


def _manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_text())
        number, about = manifest.get("format", 1), manifest["about"]
        entries = {
            name: {"size": entry["size"], "sha256": entry["sha256"]} for name, entry in manifest["files"].items()
        }
    except FileNotFoundError:
        reason = "no such folder" if not path.exists() else f"not one of our folders, or unfinished (no {MANIFEST})"
        raise UserError(f"{path}: {reason}") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{file}: damaged (not a manifest)") from None
    if number != FORMAT:
        raise UserError(
            f"{file}: written by a later version of vitreous (format {shown(number)}; this one reads {FORMAT}); "
            "install that version or a later one"
        )
    return {"about": about, "files": entries}
