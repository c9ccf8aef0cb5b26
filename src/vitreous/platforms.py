"""What differs between operating systems and devices, in one place.

Only Linux and CUDA are tested. macOS, Windows and Apple's mps are experimental: nobody has tried them yet.
"""

import ctypes
import functools
import math
import os
import signal
import socket
import struct
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from vitreous.errors import UserError

if TYPE_CHECKING:
    import torch

WINDOWS = sys.platform == "win32"

# How processes that read pictures are started. A fork shares a source of any kind and size as it is, and a script needs
# no main guard; but only on Linux do the libraries around torch survive a fork.
READERS_START: Literal["fork", "spawn"] = "fork" if sys.platform == "linux" else "spawn"

# Flags to open a file for reading: do not wait for a pipe, do not inherit it, do not change line ends.
READING = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))

CHILD_ENDED: signal.Signals | None = getattr(signal, "SIGCHLD", None)

READER_TIMEOUT_S = 600.0  # how long to wait for pictures, unless VITREOUS_READER_TIMEOUT_S says otherwise

CPU_INFO = Path("/proc/cpuinfo")

WITHOUT_FLOAT64 = {"mps"}  # types of devices


def reader_timeout_s() -> float:
    """The seconds without a picture after which the processes that read them count as lost."""
    text = os.environ.get("VITREOUS_READER_TIMEOUT_S", str(READER_TIMEOUT_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UserError(f"VITREOUS_READER_TIMEOUT_S is {text!r}: it must be a number of seconds above 0")
    return seconds


def widest(device: "torch.device") -> "torch.dtype":
    """The widest float of a device: float64, with which devices round to the same pixel, else float32."""
    import torch

    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def device_named(name: "str | torch.device") -> "torch.device":
    """cpu, cuda or mps; auto is cuda if there is a GPU, else cpu."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device is {name!r}, and there is none of that name; give cpu, cuda or auto") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device is cuda, but this torch finds no GPU here; give cpu or auto")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device is mps, but this torch finds no Apple GPU here; give cpu or auto")
    return device


def moved(tensor: "torch.Tensor", device: "torch.device") -> "torch.Tensor":
    """To another device. The host runs ahead of the copy only with CUDA, where copies from ordinary memory are safe."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def full_precision(device: "torch.device") -> "AbstractContextManager[object]":
    """Switches autocast off. There is no autocast for meta tensors, which have no precision."""
    import torch

    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def has_bfloat16(device: "torch.device") -> bool:
    """Whether a device has instructions for bfloat16. A CPU without them is many times slower than in float32."""
    return device.type == "cuda" or (device.type == "cpu" and cpu_has_bfloat16())


@functools.cache
def cpu_has_bfloat16() -> bool:
    """By the flags in /proc/cpuinfo (Linux on x86); elsewhere untested, so False. VITREOUS_CPU_BFLOAT16=0 says no."""
    if os.environ.get("VITREOUS_CPU_BFLOAT16") == "0":
        return False
    try:
        words = set(CPU_INFO.read_text(encoding="utf-8").split())
    except OSError:
        return False
    return bool(words & {"avx512_bf16", "amx_bf16"})


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Up to `size` bytes of an open file; fewer at its end."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, size)


def read_into(descriptor: int, room: memoryview, offset: int) -> int:
    """Fill `room` from an open file; returns how many bytes there were."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [room], offset)
    found = read_at(descriptor, len(room), offset)
    room[: len(found)] = found
    return len(found)


# glibc's numbers for two thresholds of malloc, and their values in bytes. Where they are not set, it gives most of what
# a batch of pictures takes back to the system, and asks for it again with the next batch.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT, _LARGE = 256 * 2**20, 32 * 2**20


def keep_freed_memory() -> bool:
    """From now on this process uses memory that it has freed again, up to 256 MB and but for parts above 32 MB: of the
    time that reading a photograph takes, a tenth or more goes into memory that is new to a process. False if the system
    has another allocator than glibc's."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # TypeError: on Windows
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))


def peak_memory() -> int | None:
    """The most memory that this process ever used, in bytes; None if the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def device_memory(device: "torch.device") -> int | None:
    """The memory of a GPU, in bytes; None for other devices, whose memory all processes share."""
    import torch

    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def lock(file: IO[bytes]) -> bool:
    """Lock an open file without waiting; False if another process holds the lock. It is released when the file is
    closed or the process ends, however it ends."""
    try:
        if WINDOWS:
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            # A record lock: unlike flock's, it is not inherited by reader processes, which may outlive a killed process
            # by some seconds.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def lock_holder(file: IO[bytes]) -> int | None:
    """The process that holds the lock of an open file; None if the system does not say."""
    if sys.platform != "linux":
        return None
    import fcntl

    layout = "hhqqi4x"  # struct flock: kind, from where, start, length, process
    asked = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, process = struct.unpack(layout, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return process if kind != fcntl.F_UNLCK and process > 0 else None  # 0: it is on another machine


def command_line(process: int) -> str:
    """The command line of a process; empty if the system does not say."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return ""
    return " ".join(words.split())


def sync(path: Path) -> None:
    """Sync a file, or a folder's list of names, to disk."""
    if WINDOWS and path.is_dir():
        return  # folders cannot be opened there, and their names are journalled
    handle = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_running(process: int) -> bool:
    """Whether a process with this id exists."""
    if WINDOWS:  # where os.kill ends the process, whatever the signal
        handle = ctypes.windll.kernel32.OpenProcess(0x1000, False, process)  # type: ignore[attr-defined,unused-ignore]
        ctypes.windll.kernel32.CloseHandle(handle)  # type: ignore[attr-defined,unused-ignore]
        return bool(handle)
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True


# A program for Linux's packet filter, as (operation, jump if true, jump if false, operand): drop requests for new
# connections (TCP's flag SYN without ACK), and accept everything else.
_NO_NEWCOMERS = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
_SO_ATTACH_FILTER = 26


def admit_no_more(listening: socket.socket) -> bool:
    """Admits no new connections to the queue of a listening TCP socket. Those in it can still be accepted; closing the
    socket would reset them. False if the system cannot do that."""
    if sys.platform != "linux":
        return False
    steps = b"".join(struct.pack("HBBI", *step) for step in _NO_NEWCOMERS)
    program = ctypes.create_string_buffer(steps, len(steps))
    try:
        about = struct.pack("HP", len(_NO_NEWCOMERS), ctypes.addressof(program))
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, about)
    except OSError:
        return False
    return True


def open_files(wanted: int) -> int:
    """How many files and connections this process may have open, raised to `wanted` if the system allows it."""
    if WINDOWS:
        return wanted  # connections are not counted there
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
