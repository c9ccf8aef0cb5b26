"""The one place that opens files of weights. Contents decide what a file is, never its name.

safetensors, npz and JSON are read in this process. A PyTorch file is read by a process of its own, under limits and
with the restricted unpickler, which hands back safetensors. Whatever would run code is refused.
"""

import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous import platforms
from vitreous.errors import UserError, first_line
from vitreous.weights.containers import NpzFile, SafetensorsFile, Tensors, parse_json, zip_members
from vitreous.weights.formats import Given
from vitreous.weights.names import DOCUMENTS, ENDINGS, INDICES, WHOLE

MAX_DOCUMENT = 3_000_000  # bytes: the names of 21,843 classes, twice
UNPICKLE = Path(__file__).with_name("unpickle.py")
REFUSED = 3  # its exit status

SAFE_WAY = "load it where you trust it and save model.state_dict() as safetensors"
LEGACY_TORCH = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"
STRANGERS = {
    b"\x89HDF\r\n\x1a\n": "a Keras or HDF5 file",
    b"\x93NUMPY": "a single array",
    b"\x1f\x8b": "a gzip file (joblib packs pickles so)",
    b"\x78\x01": "a zlib file (joblib packs pickles so)",
    b"\x78\x5e": "a zlib file (joblib packs pickles so)",
    b"\x78\x9c": "a zlib file (joblib packs pickles so)",
    b"\x78\xda": "a zlib file (joblib packs pickles so)",
    b"BZh": "a bzip2 file (joblib packs pickles so)",
    b"\xfd7zXZ": "an xz file (joblib packs pickles so)",
    b"\x04\x22\x4d\x18": "an lz4 file (joblib packs pickles so)",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"7z\xbc\xaf": "a 7-zip file",
    b"Rar!": "a RAR file",
    b"\x7fELF": "a program",
    b"GGUF": "a GGUF file",
}
Kind = Literal["safetensors", "zip", "legacy"]


def open_weights(where: Path | str, any_value: bool = False) -> Given:
    """The tensors at a place, and the documents beside them. Tensors are read when asked for."""
    path = Path(where)
    try:
        if path.is_dir():
            return _open_folder(path, any_value)
        documents = _documents(path.parent) if path.name in WHOLE else {}
        return Given(_open_file(path, any_value), documents, _shown(path))
    except OSError as error:
        raise UserError(f"{_shown(path)}: cannot be read ({error.strerror or first_line(error)})") from None


def _shown(path: Path) -> str:
    """A path in one line, whatever it is called."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


# ---- Folders


class Shards(Mapping[str, Tensor]):
    """Several files as one."""

    def __init__(self, parts: list[Tensors], where: str) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self._home: dict[str, Tensors] = {}
        for part in parts:
            for name, shape in part.shapes.items():
                if name in self._home:
                    raise UserError(f"{where}: {name} stands in two of its files")
                self._home[name], self.shapes[name], self.dtypes[name] = part, shape, part.dtypes[name]

    def __getitem__(self, name: str) -> Tensor:
        return self._home[name][name]

    def __contains__(self, name: object) -> bool:
        return name in self._home

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def __len__(self) -> int:
        return len(self._home)


def _open_folder(folder: Path, any_value: bool) -> Given:
    where = _shown(folder)
    names = sorted(entry.name for entry in folder.iterdir())
    if ".metadata" in names:
        raise UserError(f"{where}: a distributed checkpoint, whose .metadata would run code; {SAFE_WAY}")
    if "saved_model.pb" in names or "keras_metadata.pb" in names:
        raise UserError(f"{where}: a TensorFlow model, which would run code; {SAFE_WAY}")
    documents = _documents(folder)
    # A whole file before an index, safetensors before PyTorch.
    for name in (WHOLE[0], INDICES[0], WHOLE[1], INDICES[1], WHOLE[2]):
        if name in names:
            if name in INDICES:
                return Given(_open_shards(folder, name, any_value), documents, where)
            return Given(_open_file(folder / name, any_value), documents, where)
    for ending in ENDINGS:
        found = [name for name in names if name.endswith(ending)]
        if len(found) > 1:
            raise UserError(f"{where}: holds {len(found)} files of weights; name one of them, such as {found[0]!a}")
        if found:
            return Given(_open_file(folder / found[0], any_value), documents, where)
    raise UserError(f"{where}: a folder without weights (no {WHOLE[0]}, {INDICES[0]}, or one file {' '.join(ENDINGS)})")


def _open_shards(folder: Path, index: str, any_value: bool) -> Shards:
    where = _shown(folder / index)
    document = _document(folder / index)
    table = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise UserError(f"{where}: has no weight_map from tensors to files")
    files = sorted(set(table.values()))
    for name in files:
        if not re.fullmatch(r"[\w-][\w.-]*", name) or len(files) > 1000:
            raise UserError(f"{where}: names {name[:60]!a}, which is not a file beside it")
    shards = Shards([_open_file(folder / name, any_value) for name in files], where)
    if shards.shapes.keys() != table.keys():
        odd = sorted(shards.shapes.keys() ^ table.keys())[0]
        raise UserError(f"{where}: does not agree with its files about {odd[:80]!a}")
    return shards


def _documents(folder: Path) -> dict[str, Any]:
    return {name: _document(folder / name) for name in DOCUMENTS if (folder / name).is_file()}


def _document(path: Path) -> Any:
    descriptor = _open(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > MAX_DOCUMENT:
            raise UserError(f"{_shown(path)}: {size:,} bytes of JSON; at most {MAX_DOCUMENT:,} are read")
        return parse_json(platforms.read_at(descriptor, size, 0), _shown(path))
    finally:
        os.close(descriptor)


# ---- Files


def _open(path: Path) -> int:
    """A descriptor of a plain file; a pipe or device is refused, and does not make us wait."""
    descriptor = os.open(path, platforms.READING)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{_shown(path)}: not a file")
    return descriptor


def _open_file(path: Path, any_value: bool) -> Tensors:
    where, descriptor = _shown(path), _open(path)
    kept = False  # whether a reader has taken over the descriptor
    try:
        kind = _kind(descriptor, where)
        if kind == "safetensors":
            kept = True
            return _filled(SafetensorsFile(descriptor, where, any_value))
        if kind == "zip":
            with os.fdopen(os.dup(descriptor), "rb") as file:
                members = [member.filename for member in zip_members(file, where)]
            if _is_npz(members, where):
                kept = True
                return _filled(NpzFile(descriptor, where, any_value))
        return _filled(_converted(descriptor, where, any_value))
    finally:
        if not kept:
            os.close(descriptor)


def _filled(tensors: Tensors) -> Tensors:
    if not tensors.shapes:
        raise UserError(f"{tensors.where}: holds no tensors")
    return tensors


def _kind(descriptor: int, where: str) -> Kind:
    head = platforms.read_at(descriptor, 512, 0)
    if not head:
        raise UserError(f"{where}: empty; fetch the file again")
    if head.startswith(b"version https://git-lfs"):
        raise UserError(f"{where}: a pointer of Git LFS, not the file itself; run git lfs pull")
    if head.startswith((b"PK\3\4", b"PK\5\6")):
        return "zip"
    if head.startswith(LEGACY_TORCH):
        return "legacy"
    for magic, what in STRANGERS.items():
        if head.startswith(magic):
            raise UserError(f"{where}: {what}, which is not read; {SAFE_WAY}")
    if head[257:262] == b"ustar":
        raise UserError(f"{where}: a tar archive (or a PyTorch file of before 2018), not read; {SAFE_WAY}")
    if head[8:9] == b"{" and head[6:8] == b"\0\0":  # the length of the header, then the header
        return "safetensors"
    if head[0] == 0x80 and head[1:2] <= b"\5":
        raise UserError(f"{where}: a plain pickle (joblib writes them too), which would run code; {SAFE_WAY}")
    if str(where).endswith(".onnx"):
        raise UserError(f"{where}: an exported file, for predict and serve alone; give the run that it was made from")
    raise UserError(f"{where}: not a file of weights that is read (safetensors, npz, PyTorch's .pth); {SAFE_WAY}")


def _is_npz(members: list[str], where: str) -> bool:
    """Whether a zip is numpy's; else it is PyTorch's. Everything else that comes as a zip is refused."""
    last = {name.rsplit("/", 1)[-1] for name in members}
    if members and all(name.endswith(".npy") for name in members):
        return True
    top = {name.split("/", 1)[0] for name in members}
    if {"constants.pkl", "data.pkl"} <= last and len(top) == 1 and "model.json" not in last:
        return False  # TorchScript, as OpenAI publishes CLIP: its tensors are read, and its code is not
    if "model.json" in last or any("/code/" in f"/{name}" for name in members):
        raise UserError(f"{where}: an exported program, which would run code; {SAFE_WAY}")
    if last & {"archive_format", "archive_version", "serialized_exported_program.json"}:
        raise UserError(f"{where}: an exported program (.pt2), which would run code; {SAFE_WAY}")
    if any(name.endswith((".h5", ".keras")) for name in members):
        raise UserError(f"{where}: a Keras model, which would run code; {SAFE_WAY}")
    plain = re.compile(
        r"[^/]+/(data\.pkl|byteorder|version|data/\d+|\.format_version|\.storage_alignment|\.data/serialization_id)"
    )
    if len(top) == 1 and "data.pkl" in last and all(plain.fullmatch(name) for name in members):
        return False
    raise UserError(f"{where}: a zip, but neither numpy's .npz nor PyTorch's .pth; {SAFE_WAY}")


def _converted(descriptor: int, where: str, any_value: bool) -> SafetensorsFile:
    """What a PyTorch file holds, by way of a process of its own and a file that is gone when this returns."""
    size = os.fstat(descriptor).st_size
    seconds = 10 + size // 20_000_000  # of processor time, beyond what importing PyTorch takes
    # None of the switches that loosen PyTorch's unpickler is passed on.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "PYTHONWARNINGS": "ignore"}
    environment |= {"PYTHONHASHSEED": "random"}  # or names could be made to collide
    with tempfile.TemporaryDirectory(prefix="vitreous-") as folder:
        target = Path(folder) / "weights.safetensors"
        # -P: the folder of the program, with files called timm.py and so on, is no place to import from.
        command = [sys.executable, "-P", str(UNPICKLE), str(size), str(target), str(seconds)]
        try:
            ended = subprocess.run(
                command,
                stdin=descriptor,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd=folder,
                timeout=60 + 4 * seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"{where}: reading it takes too long; {SAFE_WAY}") from None
        if ended.returncode == REFUSED:
            lines = ended.stdout.decode(errors="replace").splitlines()
            raise UserError(f"{where}: {lines[0] if lines else 'refused'}")
        if ended.returncode:
            raise UserError(f"{where}: {_ending(ended.returncode, seconds)}; {SAFE_WAY}")
        return SafetensorsFile(_open(target), where, any_value)


def _ending(code: int, seconds: int) -> str:
    """What happened to the process that read a file, in words."""
    known = {each.value: each.name for each in signal.Signals}
    name = known.get(-code, f"exit status {code}")
    if name == "SIGXCPU":
        return f"reading it took more than {seconds} s of CPU time, far more than a file of its size needs"
    if name == "SIGKILL":
        return "the system ended the process that read it (SIGKILL), most likely because memory ran out"
    return f"the process that read it failed ({name})"
