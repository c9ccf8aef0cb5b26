"""Writing foreign files: beside their place, then renamed, so that half a file is never found."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from vitreous import atomic, platforms
from vitreous.errors import UserError
from vitreous.weights.formats import Given


def write_weights(given: Given, target: Path, container: Literal["safetensors", "npz"]) -> None:
    """One file where `target` is called .safetensors or .npz; else a folder with the config beside the weights."""
    if target.suffix in (".safetensors", ".npz") and target.suffix != f".{container}":
        raise UserError(f"{target}: the format {given.where} is written as .{container}, or as a folder")
    try:
        with atomic.placed(target) as new:
            if target.suffix == f".{container}":
                _write_tensors(given, new, container)
            else:
                new.mkdir()
                _write_tensors(given, new / f"model.{container}", container)
                for name, document in given.documents.items():
                    (new / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
                    platforms.sync(new / name)
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror}); free some space or choose another") from None


def _write_tensors(given: Given, path: Path, container: Literal["safetensors", "npz"]) -> None:
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
