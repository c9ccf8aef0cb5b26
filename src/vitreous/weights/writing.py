"""Writing foreign files: beside their place, then renamed, so that what is not whole or not right is never found."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vitreous import platforms
from vitreous.errors import UserError
from vitreous.storage import atomic
from vitreous.weights.formats import Given

Container = Literal["safetensors", "npz"]
FILES = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt")  # endings that people expect files under


def refuse_name(target: Path, format: str, container: Container | None) -> None:
    """A folder must not be called like a file, nor a file like another kind of file. Ours (None) are folders."""
    ending = target.suffix.lower()
    if ending not in FILES or ending == f".{container}":
        return
    kinds = "a folder" if container is None else f".{container}, or as a folder"
    raise UserError(f"{target}: the format {format} is written as {kinds}; choose a name without {target.suffix}")


@contextlib.contextmanager
def put_in_place(target: Path) -> Iterator[Path]:
    """A path to write to, in a folder of its own beside `target`. At the end all in that folder goes where `target` is;
    if anything fails, nothing of it is left, nor the folders that were made for it."""
    beside = atomic.temporary(target)
    missing = [folder for folder in target.parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        atomic.clear(target)
        beside.mkdir()
        yield beside / target.name
        _move(beside, target)
    except UserError as error:  # the temporary name does not matter to the user
        raise UserError(str(error).replace(str(beside / target.name), str(target))) from None
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UserError(f"{target}: cannot be written ({reason}); free some space or choose another place") from None
    finally:
        atomic.remove(beside)
        for folder in missing:  # the innermost first; one that is in use by now stays
            with contextlib.suppress(OSError):
                folder.rmdir()


def _move(beside: Path, target: Path) -> None:
    if target.exists():
        raise UserError(f"{target}: somebody else wrote it meanwhile; choose another place")
    # The target last: where it is, all of it is.
    for path in sorted(beside.iterdir(), key=lambda path: path.name == target.name):
        platforms.sync(path)
        path.rename(target.parent / path.name)
    platforms.sync(target.parent)


def write_weights(given: Given, target: Path, container: Container) -> None:
    """One file where `target` is called .safetensors or .npz; else a folder with the config beside the weights."""
    if target.suffix == f".{container}":
        _write_tensors(given, target, container)
        return
    target.mkdir()
    _write_tensors(given, target / f"model.{container}", container)
    for name, document in given.documents.items():
        (target / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        platforms.sync(target / name)


def notes_path(target: Path) -> Path:
    """NOTES.txt in a folder, or beside a file."""
    return target / "NOTES.txt" if target.suffix.lower() not in FILES else target.with_name(f"{target.name}.NOTES.txt")


def _write_tensors(given: Given, path: Path, container: Container) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in given.tensors.items()}
    if container == "safetensors":
        # Other tools look for this note before they open a file.
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})
    else:
        with path.open("wb") as file:
            np.savez(file, **{name: _array(tensor) for name, tensor in tensors.items()})  # type: ignore[arg-type]
    platforms.sync(path)


def _array(tensor: Tensor) -> np.ndarray:
    # numpy has no bfloat16; JAX stores it as two bytes without a meaning, and so do we
    return tensor.view(torch.uint16).numpy().view("V2") if tensor.dtype == torch.bfloat16 else tensor.numpy()
