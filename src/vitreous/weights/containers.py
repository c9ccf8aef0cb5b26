"""safetensors and npz, read in this process: nothing is believed before it is checked, and tensors are read on demand.

A tensor is read into memory of its own when it is asked for, and not kept: whoever goes through a file holds what they
keep and one tensor more. Files are never mapped, so that one which shrinks later cannot take the process with it.
"""

import ast
import json
import math
import os
import struct
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from vitreous import platforms
from vitreous.errors import UserError, first_line

MAX_HEADER = 1_000_000  # bytes: 9,000 tensors. Parsed JSON takes up to 25 times its text.
MAX_DIRECTORY = 2_000_000  # bytes of a zip's list of members
MAX_NAME = 500

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class Tensors(Mapping[str, Tensor]):
    """By name. Values that are not finite are refused when their tensor is asked for, unless `any_value`."""

    def __init__(self, where: str, any_value: bool) -> None:
        self.where, self.any_value = where, any_value
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        tensor = self._read(name)
        if not self.any_value and not is_finite(tensor):
            raise UserError(
                f"{self.where}: {name} holds values that are not finite (NaN or infinity); the file is damaged"
            )
        return tensor

    def _read(self, name: str) -> Tensor:
        raise NotImplementedError

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def outlines(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The same names, shapes and types without values: what tells a format needs no more, and no file is read."""
    shapes, dtypes = getattr(tensors, "shapes", None), getattr(tensors, "dtypes", None)
    if shapes is None or dtypes is None:
        return {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    return {name: torch.empty(shape, dtype=dtypes[name], device="meta") for name, shape in shapes.items()}


def is_finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    wide = tensor.float() if tensor.itemsize == 1 else tensor
    # One pass without a copy. The sum of finite values may overflow too, and only then a closer look is needed.
    if bool(torch.isfinite(wide.sum(dtype=torch.float64 if wide.itemsize > 4 else torch.float32))):
        return True
    flat, step = wide.flatten(), 1 << 20
    return all(bool(torch.isfinite(flat[i : i + step]).all()) for i in range(0, len(flat), step))


# ---- safetensors


class SafetensorsFile(Tensors):
    """Takes over the descriptor."""

    def __init__(self, descriptor: int, where: str, any_value: bool = False) -> None:
        super().__init__(where, any_value)
        weakref.finalize(self, os.close, descriptor)
        self.descriptor = descriptor
        self._places: dict[str, tuple[int, int]] = {}
        size = os.fstat(descriptor).st_size
        length = int.from_bytes(platforms.read_at(descriptor, 8, 0), "little")
        if length > MAX_HEADER:
            raise UserError(f"{where}: a safetensors header of {length:,} bytes; at most {MAX_HEADER:,} are read")
        if 8 + length > size:
            raise UserError(f"{where}: cut off within its header; fetch the file again")
        self._start = 8 + length
        self._enter(parse_json(platforms.read_at(descriptor, length, 8), where), size - self._start)

    def _enter(self, header: Any, size: int) -> None:
        if not isinstance(header, dict):
            raise UserError(f"{self.where}: its safetensors header is not a table")
        header.pop("__metadata__", None)
        spans = []
        for name, entry in header.items():
            dtype, shape, begin, end = self._entry(name, entry)
            if end > size:
                raise UserError(
                    f"{self.where}: {name} ends {end - size:,} bytes beyond the file's end; fetch the file again"
                )
            spans.append((begin, end, name))
            self.shapes[name], self.dtypes[name] = shape, dtype
            self._places[name] = (begin, end - begin)
        reached = 0
        for begin, end, name in sorted(spans):
            if begin != reached:
                raise UserError(f"{self.where}: {name} does not begin where the tensor before it ends")
            reached = end
        if reached != size:
            raise UserError(f"{self.where}: {size - reached:,} bytes belong to no tensor")

    def _entry(self, name: str, entry: Any) -> tuple[torch.dtype, tuple[int, ...], int, int]:
        check_name(name, self.where)
        fields = entry if isinstance(entry, dict) else {}
        dtype, shape, span = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
        if not isinstance(shape, list) or not isinstance(span, list) or len(fields) != 3:
            raise UserError(f"{self.where}: the header's entry for {name} is not one of safetensors")
        if not is_shape(shape) or not all(type(number) is int and number >= 0 for number in span):
            raise UserError(f"{self.where}: {name} has an invalid shape or offset")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise UserError(f"{self.where}: {name} has an unsupported number type: {str(dtype)[:20]!r}")
        if len(span) != 2 or span[1] - span[0] != math.prod(shape) * DTYPES[dtype].itemsize:
            raise UserError(f"{self.where}: the shape of {name} does not match its size in the file")
        return DTYPES[dtype], tuple(shape), span[0], span[1]

    def _read(self, name: str) -> Tensor:
        begin, length = self._places[name]
        tensor = torch.empty(self.shapes[name], dtype=self.dtypes[name])
        if not length:
            return tensor
        room = tensor.reshape(-1).view(torch.uint8).numpy().data
        done = 0
        while done < length:
            got = platforms.read_into(self.descriptor, room[done : done + (1 << 30)], self._start + begin + done)
            if not got:
                raise UserError(f"{self.where}: ends within {name}; it was changed while it was read")
            done += got
        return tensor


def parse_json(text: bytes, where: str) -> Any:
    """Strictly: no repeated names, no NaN."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise ValueError("a name occurs twice")
        return table

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no number")

    try:
        return json.loads(text.decode(), object_pairs_hook=once, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else str(error)[:80]
        raise UserError(f"{where}: JSON that cannot be read ({reason})") from None


def is_shape(shape: Sequence[Any]) -> bool:
    """Of at most 16 axes. Where one of them is 0 the file need not hold what the others say, so they must be small."""
    if len(shape) > 16 or not all(type(number) is int and number >= 0 for number in shape):
        return False
    return bool(math.prod(max(number, 1) for number in shape) < (1 << 20 if 0 in shape else 1 << 62))


def check_name(name: str, where: str) -> None:
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or ".." in name.split("/") or name.startswith("/"):
        raise UserError(f"{where}: a tensor is called {name[:40]!a}, which is not a valid name")


# ---- npz


def zip_members(file: IO[bytes], where: str) -> list[zipfile.ZipInfo]:
    """The members of a zip, after its ends have been checked: the list is small, and nothing follows it."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 98, 0))
    tail = file.read(98)
    end = tail[-22:]
    if len(end) < 22 or end[:4] != b"PK\5\6" or end[20:] != b"\0\0":
        raise UserError(f"{where}: a zip that is cut off or has data after its end; fetch the file again")
    directory = int(struct.unpack("<L", end[12:16])[0])
    if tail[-42:-38] == b"PK\6\7":
        if tail[:4] != b"PK\6\6" or len(tail) != 98:
            raise UserError(f"{where}: a zip whose end is damaged; fetch the file again")
        directory = int(struct.unpack("<Q", tail[40:48])[0])
    if directory > MAX_DIRECTORY:
        raise UserError(f"{where}: a zip with a list of {directory:,} bytes; at most {MAX_DIRECTORY:,} are read")
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, struct.error) as error:
        raise UserError(f"{where}: a damaged zip ({first_line(error)}); fetch the file again") from None
    names = [member.filename for member in members]
    if len(set(names)) != len(names):
        raise UserError(f"{where}: a zip with two members of one name")
    for member in members:
        check_name(member.filename, where)
        if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(f"{where}: {member.filename} is encrypted, or packed in an unsupported way")
    total = sum(member.file_size for member in members)
    if total > 2 * size + (16 << 20):
        raise UserError(f"{where}: {size:,} bytes that claim to unpack to {total:,}; refused")
    return members


class NpzFile(Tensors):
    """Takes over the descriptor."""

    def __init__(self, descriptor: int, where: str, any_value: bool = False) -> None:
        super().__init__(where, any_value)
        file = os.fdopen(descriptor, "rb")
        weakref.finalize(self, file.close)
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in zip_members(file, where):
            if not member.filename.endswith(".npy"):
                raise UserError(
                    f"{where}: holds {member.filename}, which is not an array; an npz holds .npy members only"
                )
            self._members[member.filename.removesuffix(".npy")] = member
        self._archive = zipfile.ZipFile(file)
        for name in self._members:
            with self._reading(name) as stream:
                dtype, self.shapes[name], _ = self._header(stream, name)
            self.dtypes[name] = _as_torch(np.empty(0, dtype)).dtype

    def _reading(self, name: str) -> IO[bytes]:
        try:
            return self._archive.open(self._members[name])
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, struct.error) as error:
            raise UserError(f"{self.where}: {name} is damaged ({first_line(error)}); fetch the file again") from None

    def _header(self, stream: IO[bytes], name: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
        """Type, shape and whether the first axis runs fastest; the size they mean is the member's."""
        where = f"{self.where}: {name}"
        try:
            magic = stream.read(8)
            version = tuple(magic[6:])
            if magic[:6] != b"\x93NUMPY" or version not in ((1, 0), (2, 0)):
                raise UserError(f"{where} is not an array in numpy's format")
            width = 2 if version == (1, 0) else 4
            length = int.from_bytes(stream.read(width), "little")
            if length > 10_000:
                raise UserError(f"{where} has a header of {length:,} bytes; refused")
            fields = ast.literal_eval(stream.read(length).decode("latin1").strip())
            shape, text, is_fortran = fields["shape"], fields["descr"], fields["fortran_order"]
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
            raise UserError(f"{where} is damaged ({first_line(error)}); fetch the file again") from None
        except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
            raise UserError(f"{where} has a header that numpy did not write") from None
        dtype = _number_type(text, where)
        if not isinstance(shape, tuple) or not is_shape(shape):
            raise UserError(f"{where} has an invalid shape")
        if 8 + width + length + math.prod(shape) * dtype.itemsize != self._members[name].file_size:
            raise UserError(f"{where} has the shape {shape}, which does not match its size in the file")
        return dtype, shape, is_fortran is True

    def _read(self, name: str) -> Tensor:
        with self._reading(name) as stream:
            dtype, shape, is_fortran = self._header(stream, name)
            flat = np.empty(math.prod(shape), dtype)
            room = flat.view(np.uint8).data if flat.nbytes else memoryview(b"")
            done = 0
            try:
                while done < flat.nbytes:
                    piece = stream.read(min(flat.nbytes - done, 1 << 20))
                    if not piece:
                        raise EOFError("it ends too early")
                    room[done : done + len(piece)] = piece
                    done += len(piece)
                stream.read(1)  # at the end its checksum is compared
            except (zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
                reason = first_line(error)
                raise UserError(f"{self.where}: {name} is damaged ({reason}); fetch the file again") from None
        tensor = _as_torch(flat)
        return tensor.reshape(shape[::-1]).permute(*range(len(shape))[::-1]) if is_fortran else tensor.reshape(shape)


def _as_torch(flat: np.ndarray[Any, Any]) -> Tensor:
    if flat.dtype.kind == "V":
        return torch.from_numpy(flat.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(flat if flat.dtype.isnative else flat.astype(flat.dtype.newbyteorder("=")))


def _number_type(text: Any, where: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(text) if isinstance(text, str) else None
    except (TypeError, ValueError, SyntaxError):
        dtype = None
    if dtype is not None and dtype.hasobject:
        raise UserError(f"{where} is an array of Python objects, which could run code; save its numbers alone")
    # Two bytes without a type are bfloat16: so numpy stores JAX's.
    if dtype is None or dtype.names or (dtype.kind not in "fiub" and dtype.str[1:] != "V2") or dtype.itemsize > 8:
        raise UserError(f"{where} has an unsupported number type: {str(text)[:40]!a}")
    if dtype.kind == "u" and dtype.itemsize > 1:
        raise UserError(f"{where} has an unsupported number type: {str(text)[:40]!a}")
    return dtype
