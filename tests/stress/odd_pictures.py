"""Odd pictures, as they are and with bytes changed, read in a process of their own: it neither dies nor hangs, and no
picture takes more than two seconds or 512 MB."""

import io
import os
import random
import struct
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from stress.campaign import Campaign, Facts
from stress.warm import CONTEXT, ensure_server

PER_TRIAL = 200
WITHIN_S, WITHIN_MB = 2.0, 512.0
HANGS_S = 60.0  # on a machine with other work, where two seconds of a process's own time may take longer

# ---- pictures


@cache
def odd() -> list[bytes]:
    """Small ones of every format and mode that there is a reader for."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 33, 4)).astype(np.uint8)
    colour, grey, alpha = (Image.fromarray(part) for part in (noise[:, :, :3], noise[:, :, 0], noise))
    deep = Image.fromarray((noise[:, :, 0].astype(np.uint16) << 8) + 7)
    exact = Image.fromarray(noise[:, :, 0].astype(np.float32) / 255)
    found = [_saved(image, "JPEG", quality=70) for image in (colour, grey, colour.convert("CMYK"))]
    found += [_saved(colour, "JPEG", progressive=True), _saved(colour, "JPEG", exif=_turned())]
    found += [_saved(image, "PNG") for image in (colour, grey, alpha, deep, colour.convert("P"), grey.convert("1"))]
    found += [_saved(colour.convert("P"), "GIF", save_all=True, append_images=[grey.convert("P")] * 3)]
    found += [_saved(image, "BMP") for image in (colour, grey, grey.convert("1"))]
    packed = (None, "tiff_lzw", "tiff_deflate", "packbits", "jpeg")
    found += [_saved(colour, "TIFF", compression=one) for one in packed]
    found += [_saved(image, "TIFF") for image in (alpha, deep, exact, grey.convert("1"))]
    found += [_saved(colour, "WEBP"), _saved(alpha, "WEBP", lossless=True), _saved(colour, "AVIF")]
    found += [_saved(image, "PPM") for image in (colour, grey, grey.convert("1"))]
    found += [_saved(image.resize((1, 1)), "PNG") for image in (colour, alpha)]
    found.append(_saved(Image.new("L", (4000, 3000)), "PNG"))  # a few bytes for many pixels
    try:
        import pillow_heif

        pillow_heif.register_heif_opener()
        found.append(_saved(colour, "HEIF"))
    except ImportError:
        pass
    return found


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif.tobytes()


# ---- what is done to them


def _bits(data: bytearray, draws: random.Random) -> bytearray:
    for _ in range(draws.randint(1, 20)):
        data[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
    return data


def _extreme(data: bytearray, draws: random.Random) -> bytearray:
    """A number near the beginning, where sizes and offsets are."""
    value = draws.choice([0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 10_000, 2**31 - 1, 2**31, 2**32 - 1])
    packed = struct.pack(draws.choice("<>") + ("I" if value > 0xFFFF else draws.choice("HI")), value)
    at = draws.randrange(min(len(data), 256))
    data[at : at + len(packed)] = packed
    return data


def _cut(data: bytearray, draws: random.Random) -> bytearray:
    return data[: draws.randrange(len(data))]


def _taken_out(data: bytearray, draws: random.Random) -> bytearray:
    at = draws.randrange(len(data))
    return data[:at] + data[at + draws.randint(1, 64) :]


def _repeated(data: bytearray, draws: random.Random) -> bytearray:
    at = draws.randrange(len(data))
    return data[:at] + data[at : at + draws.randint(1, 500)] * draws.randint(2, 50) + data[at:]


def _grafted(data: bytearray, draws: random.Random) -> bytearray:
    return data[: draws.randrange(len(data))] + draws.choice(odd())[draws.randrange(30) :]


def _as_it_is(data: bytearray, draws: random.Random) -> bytearray:
    return data


CHANGES: list[Callable[[bytearray, random.Random], bytearray]] = [
    *(_bits, _extreme, _extreme, _cut, _taken_out, _repeated, _grafted, _as_it_is)
]


def made(number: int) -> bytes:
    """Changed once, or a few times over."""
    draws = random.Random(number)
    data = bytearray(draws.choice(odd()))
    for _ in range(draws.choice([1, 1, 1, 2, 3])):
        data = draws.choice(CHANGES)(data or bytearray(b"\0"), draws)
    return bytes(data)


# ---- reading


def _read_all(first: int, say: Connection) -> None:
    """In a process of its own: what became of each, how long it took and how much memory more than before."""
    from vitreous.data.images import BadPicture, read_picture, read_shape

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what decoders say
    for number in range(first, first + PER_TRIAL):
        data = made(number)
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
        before, began = _memory_mb("VmRSS"), time.process_time()
        try:
            pixels = read_picture(data)
            assert pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.dtype == np.uint8
            assert read_shape(data)[:2] == pixels.shape[:2]
            became = "read"
        except BadPicture:
            became = "refused"
        except Exception as error:
            became = f"{type(error).__name__}: {error}"
        say.send((number, became, time.process_time() - began, _memory_mb("VmHWM") - before))


def _memory_mb(name: str) -> float:
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) / 1024


def trial(number: int, folder: Path, shared: Path) -> Facts:
    ensure_server()
    hear, say = CONTEXT.Pipe(duplex=False)
    first = number * PER_TRIAL
    child = CONTEXT.Process(target=_read_all, args=(first, say))
    child.start()
    say.close()
    became: Counter[str] = Counter()
    slowest_s = largest_mb = 0.0
    try:
        for picture in range(first, first + PER_TRIAL):
            assert hear.poll(HANGS_S), f"picture {picture}: the process that reads it hangs"
            _, what, seconds, megabytes = hear.recv()
            assert what in ("read", "refused"), f"picture {picture}: {what}"
            assert seconds < WITHIN_S, f"picture {picture}: took {seconds:.1f} s"
            assert megabytes < WITHIN_MB, f"picture {picture}: took {megabytes:.0f} MB"
            became[what] += 1
            slowest_s, largest_mb = max(slowest_s, seconds), max(largest_mb, megabytes)
    except EOFError:
        child.join()
        raise AssertionError(f"picture {first + became.total()}: the process died ({child.exitcode})") from None
    finally:
        child.kill()
        child.join()
    return {**became, "slowest_s": round(slowest_s, 3), "largest_mb": round(largest_mb, 1)}


CAMPAIGN = Campaign(
    name="pictures",
    promise="odd and mutated pictures: the process that reads them neither dies nor hangs; each within 2 s and 512 MB",
    full=20_000,
    trial=trial,
    short=(0,),
    per_trial=PER_TRIAL,
)
