"""Run as a program of its own: a PyTorch file in, the tensors in it out as safetensors.

    python -P unpickle.py SIZE OUTPUT_FILE SECONDS < INPUT_FILE

Whatever a hostile file does happens here, under limits of memory, time and file size, and with PyTorch's restricted
unpickler, after a walk through the pickle that makes nothing of it. The result is the exit status: 0, or REFUSED with
one line on standard output.
"""

import argparse
import io
import json
import os
import pickle
import pickletools
import re
import signal
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

REFUSED = 3
SLACK = 48 << 20  # bytes of memory beyond twice the file
MAX_STEPS = 2_000_000  # of a pickle: some 60,000 tensors
MAX_PARTS = 100_000  # entries of all dicts together; parts of a tuple and of the tuples in it
MAX_DEPTH = 16
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class RefusalError(Exception):
    """The file is readable, but not what may be taken from it."""


def limit(size: int, seconds: int) -> None:
    """From here on; what PyTorch itself takes is counted already. Where a system has no such limits (Windows), the
    restricted unpickler and the walk stand alone."""
    try:
        import resource
    except ImportError:
        return
    pages = (
        int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
        if Path("/proc/self/statm").exists()
        else None
    )
    if pages is not None:
        memory = pages * resource.getpagesize() + 2 * size + SLACK
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds += int(used.ru_utime + used.ru_stime)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * size + (1 << 20),) * 2)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing too much is then an error like any other


# ---- The walk: what would take long to unpickle is refused by its shape

# What lies on the pickle's stack, as far as it matters here: the number of parts of a tuple, or one of these.
KEY, OTHER = 0, -1
KEYS = {"NONE", "NEWTRUE", "NEWFALSE"}
TUPLES = {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}


def check_pickles(file: IO[bytes]) -> None:
    """Of a PyTorch file: the one in a zip, or those that stand at the beginning of an older file."""
    if file.read(2) == b"PK":
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                if name.endswith("data.pkl"):
                    check_pickle(pickletools.genops(archive.read(name)))
        return
    file.seek(0)
    for _ in range(5):  # magic number, version, system, the contents, the names of storages
        check_pickle(pickletools.genops(file))


def check_pickle(steps: Iterator[tuple[pickletools.OpcodeInfo, Any, int | None]]) -> None:
    """Limits the steps and the keys. A key must be a name or a small number: large numbers and tuples can be made to
    collide, and a tuple of tuples of tuples can take for ever to hash."""
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[int, int] = {}
    num_keys = 0
    for number, (step, argument, _) in enumerate(steps):
        if number > MAX_STEPS:
            raise RefusalError(f"is a pickle of more than {MAX_STEPS:,} steps, which no model needs")
        if step.name == "MARK":
            marks.append(len(stack))
        elif "PUT" in step.name or step.name == "MEMOIZE":
            memo[len(memo) if argument is None else int(argument)] = stack[-1]
        elif "GET" in step.name:
            stack.append(memo[int(argument)])
        else:
            taken = _taken(step, stack, marks)
            if step.name in ("SETITEM", "SETITEMS", "DICT"):
                keys = taken[step.name != "DICT" :: 2]
                num_keys += len(keys)
                _check_keys(keys, num_keys)
            stack += [_kind(step, argument, taken)] * len(step.stack_after)


def _taken(step: pickletools.OpcodeInfo, stack: list[int], marks: list[int]) -> list[int]:
    """What a step takes from the stack: this many, or all above the last mark and what stands before that."""
    num = len(step.stack_before)
    if pickletools.markobject in step.stack_before:
        num = len(stack) - marks.pop() + step.stack_before.index(pickletools.markobject)
    if num > len(stack):
        raise RefusalError("is a damaged pickle")
    taken = stack[len(stack) - num :]
    del stack[len(stack) - num :]
    return taken


def _kind(step: pickletools.OpcodeInfo, argument: Any, taken: list[int]) -> int:
    if step.name in TUPLES:
        parts = 1 + sum(max(part, 1) for part in taken)
        if parts > MAX_PARTS:
            raise RefusalError(f"holds a tuple of tuples with more than {MAX_PARTS:,} parts, which no model needs")
        return parts
    is_key = isinstance(argument, str) or (isinstance(argument, int) and abs(argument) < 1 << 60)
    return KEY if step.name in KEYS or (is_key and not step.stack_before) else OTHER


def _check_keys(keys: list[int], num_keys: int) -> None:
    if num_keys > MAX_PARTS:
        raise RefusalError(f"has dicts of more than {MAX_PARTS:,} entries, which no model needs")
    if any(key != KEY for key in keys):
        raise RefusalError("has dicts whose keys are neither names nor plain numbers; save model.state_dict()")


# ---- TorchScript: the modules of an archive as plain bags, whose code stays unread

STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class Bag:
    """A module of an archive: its attributes, and nothing that it could do."""


class ScriptUnpickler(pickle.Unpickler):
    """Knows tensors, lists and modules. Whatever else a pickle asks for is refused."""

    def __init__(self, archive: zipfile.ZipFile, top: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{top}/data.pkl")))
        self._archive, self._top = archive, top

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return Bag
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module == "torch.jit._pickle":  # lists of numbers and tensors, and marks of their types
            return _first
        raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")

    def persistent_load(self, pid: Any) -> Tensor:
        match pid:
            case ("storage", torch.dtype() as dtype, str(key), _, int(num)) if re.fullmatch(r"\w+", key):
                data = self._archive.read(f"{self._top}/data/{key}")
                if len(data) == num * dtype.itemsize:
                    return torch.frombuffer(bytearray(data), dtype=dtype) if num else torch.empty(0, dtype=dtype)
        raise RefusalError("has a storage that does not agree with its name")


def _tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    return storage.as_strided(size, stride, offset)  # which refuses to reach beyond the storage


def _first(value: Any = None, *_: Any) -> Any:
    return value


def script_top(file: IO[bytes]) -> str | None:
    """The folder of a TorchScript archive in which all lies; None where the file is something else."""
    if file.read(2) != b"PK":
        return None
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.endswith("/constants.pkl")]
    return names[0].rpartition("/")[0] if len(names) == 1 and names[0].count("/") == 1 else None


def script_tensors(file: IO[bytes], top: str) -> dict[str, Any]:
    with zipfile.ZipFile(file) as archive:
        found = ScriptUnpickler(archive, top).load()
    return _bare(found, 0)


def _bare(part: Any, depth: int) -> dict[str, Any]:
    """Modules in modules as dicts in dicts."""
    if not isinstance(part, Bag) or depth > MAX_DEPTH:
        raise RefusalError("holds no module, or is nested too deep")
    return {name: _bare(one, depth + 1) if isinstance(one, Bag) else one for name, one in vars(part).items()}


# ---- The contents


def flattened(found: Any) -> dict[str, Tensor]:
    """Tensors of nested dicts, names joined by dots. What is no tensor is left behind."""
    if not isinstance(found, dict):
        raise RefusalError("holds no dict of tensors; save model.state_dict()")
    tensors: dict[str, Tensor] = {}
    left = MAX_PARTS

    def visit(part: dict[Any, Any], path: str, depth: int) -> None:
        nonlocal left
        for key, value in part.items():
            left -= 1
            if left < 0 or depth > MAX_DEPTH:
                raise RefusalError("has too many parts, or is nested too deep")
            name = f"{path}{key}" if isinstance(key, str | int) else ""
            if isinstance(value, Tensor):
                if not name or name in tensors:
                    raise RefusalError("has tensors without a name of their own")
                tensors[name] = checked(name[:80], value.detach())
            elif isinstance(value, dict):
                visit(value, f"{name}.", depth + 1)

    visit(found, "", 0)
    if not tensors:
        raise RefusalError("holds no tensors")
    return tensors


def checked(name: str, tensor: Tensor) -> Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise RefusalError(f"{name!a} is sparse or quantized; save it dense")
    if tensor.dtype not in DTYPES:
        raise RefusalError(f"{name!a} has an unsupported number type: {tensor.dtype}")
    if tensor.device.type != "cpu":
        raise RefusalError(f"{name!a} has no values")
    return tensor


def write(tensors: dict[str, Tensor], target: Path, size: int) -> None:
    """As safetensors, without a second copy of everything."""
    header, reached = {}, 0
    for name, tensor in tensors.items():
        end = reached + tensor.numel() * tensor.itemsize
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [reached, end],
        }
        reached = end
    if reached > 2 * size:
        raise RefusalError("holds tensors that are larger than the file")
    text = json.dumps(header).encode()
    with target.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            if tensor.numel():
                plain = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
                file.write(plain.view(torch.uint8).numpy().data)


def reason(error: Exception) -> str:
    if isinstance(error, RefusalError):
        return str(error)
    if isinstance(error, MemoryError) or "not enough memory" in str(error) or "alloc" in str(error):
        return "needs more memory than twice the file"
    if isinstance(error, pickle.UnpicklingError):
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f" ({found[1][:80]})" if found else ""
        return f"holds more than tensors{what}, which could run code; save model.state_dict() as safetensors"
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"a damaged or unknown PyTorch file ({line[:120]!a})"


def main(size: int, target: Path, seconds: int) -> int:
    torch.set_num_threads(1)
    limit(size, seconds)
    # Training scripts keep their arguments beside the weights. A namespace is a plain bag of values.
    torch.serialization.add_safe_globals([argparse.Namespace])
    try:
        with os.fdopen(0, "rb") as file:
            file.seek(0)
            check_pickles(file)
            file.seek(0)
            top = script_top(file)
            file.seek(0)
            if top is None:
                found = torch.load(file, map_location="cpu", weights_only=True)
            else:
                found = script_tensors(file, top)
            write(flattened(found), target, size)
    except Exception as error:  # of whatever kind: the file is refused
        print(reason(error))
        return REFUSED
    return 0


if __name__ == "__main__":
    status = main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.flush()
    os._exit(status)  # no destructor of anything loaded runs
