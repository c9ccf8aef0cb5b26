"""The one way to read a picture: for training, evaluation and serving alike.

Header check (format, number of pixels), decode, EXIF turn, colour. Whatever the file holds, the result is RGB in 8
bits: transparency is laid on white, 16-bit grey is scaled and not clipped, of an animation the first frame is taken.
"""

import importlib.util
import io
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from vitreous.data.files import open_regular, read_regular

try:
    import simplejpeg
except ImportError:  # an optional extra: 1.5 times as fast as Pillow, and equal to it
    simplejpeg = None

Picture = NDArray[np.uint8]  # (H, W, 3)
Values = NDArray[Any]  # (H, W, ...)
Convert = Callable[[Image.Image], Values]

MAX_PIXELS = 100_000_000
MAX_BYTES = 3 * MAX_PIXELS + 2**20  # of a file: so many pixels without compression, and a header
HEAD_BYTES = 2**17  # of a file, which hold nearly every header
HEIC_SUFFIXES = (".heic", ".heif", ".hif")
HEIC_NEEDS = "pip install 'vitreous[heic]'"
HAS_HEIC = importlib.util.find_spec("pillow_heif") is not None  # imported with the first such picture
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".avif"),
    *(".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"),
    *(HEIC_SUFFIXES if HAS_HEIC else ()),
)

# A format is recognised by its first bytes, never by the file's name. Pillow's classes are called directly: Image.open
# would try its many other formats too, and warns about large pictures instead of refusing them.
_READERS: dict[bytes, type[ImageFile]] = {
    b"\xff\xd8\xff": JpegImageFile,
    b"\x89PNG\r\n\x1a\n": PngImageFile,
    b"GIF8": GifImageFile,
    b"BM": BmpImageFile,
    b"II*\0": TiffImageFile,
    b"MM\0*": TiffImageFile,
    **{b"P%d" % kind: PpmImageFile for kind in range(1, 7)},
}
# Formats that keep pixels as they are; WebP does in one of its two ways.
_EXACT = (PngImageFile, GifImageFile, BmpImageFile, TiffImageFile, PpmImageFile, WebPImageFile)
_MAYBE_RAW = (BmpImageFile, TiffImageFile, PpmImageFile)
_AVIF = {b"avif", b"avis"}
_HEIC = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_QUIET = threading.Lock()


class BadPicture(Exception):  # noqa: N818 - it is the picture that is bad, not the program
    """A file that is no readable picture; the message is a short reason."""


def read_picture(source: bytes | Path, max_pixels: int = MAX_PIXELS) -> Picture:
    """(H, W, 3) uint8 RGB, upright. Raises BadPicture, and nothing else, for whatever cannot be read."""
    with _bad_pictures_only():
        data, reader = _recognised(source)
        if reader is JpegImageFile:
            return _read_jpeg(data, max_pixels)
        return _read_other(data, reader, max_pixels, _to_rgb)


def read_exactly(source: bytes | Path, convert: Convert, max_pixels: int = MAX_PIXELS) -> Values:
    """What `convert` takes from a picture opened by Pillow, upright: for pixels that are numbers and not colours. The
    same door as for pictures, but for those formats alone that bring back every value as it was."""
    with _bad_pictures_only():
        data, reader = _recognised(source)
        if reader not in _EXACT or (reader is WebPImageFile and data[12:16] == b"VP8 "):
            raise BadPicture(f"{reader.format}, which changes the values of pixels: use PNG")
        return _read_other(data, reader, max_pixels, convert)


def read_orientation(source: bytes | Path) -> int:
    """1 to 8: how a picture was turned to be upright (see `exif_orientation`). Of formats that Pillow turns, 1."""
    with _bad_pictures_only():
        data, reader = _recognised(source)
        if reader is JpegImageFile:
            return _jpeg_header(data).orientation
        return 1 if reader is TiffImageFile else exif_orientation(reader(io.BytesIO(data)).info.get("exif"))


class Shape(NamedTuple):
    """Of a picture, by its header."""

    height: int  # upright
    width: int
    orientation: int  # 1 to 8: how it was turned to be upright


def read_shape(source: bytes | Path) -> Shape:
    """Decodes no pixel, and reads no more of a large file than it must. Raises BadPicture."""
    with _bad_pictures_only():
        if isinstance(source, Path):
            head = _head(source)
            if head.startswith((b"\xff\xd8\xff", b"\x89PNG")):
                try:
                    return _shape(head)
                except (BadPicture, SyntaxError, OSError, ValueError, struct.error):
                    pass  # a header that is longer than that
            source = read_regular(source, MAX_BYTES)
        return _shape(source)


def _head(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read(HEAD_BYTES)


def _shape(data: bytes) -> Shape:
    reader = _reader_of(data)
    if reader is JpegImageFile:
        header = _jpeg_header(data)
        width, height, orientation = header.width, header.height, header.orientation
    else:
        with _warnings_ignored():
            image = reader(io.BytesIO(data))
        # Pillow turns TIFF by itself, and says so in its size.
        orientation = 1 if reader is TiffImageFile else exif_orientation(image.info.get("exif"))
        width, height = image.size
    _check_size(width, height, MAX_PIXELS)
    return Shape(width, height, orientation) if orientation >= 5 else Shape(height, width, orientation)


def _recognised(source: bytes | Path) -> tuple[bytes, type[ImageFile]]:
    data = read_regular(source, MAX_BYTES) if isinstance(source, Path) else source
    return data, _reader_of(data)


@contextmanager
def _bad_pictures_only() -> Iterator[None]:
    try:
        yield
    except BadPicture:
        raise
    except OSError as error:
        raise BadPicture(error.strerror or str(error) or "unreadable") from None
    except MemoryError:
        raise
    except Exception as error:  # decoders raise nearly anything when their input is damaged
        raise BadPicture(f"damaged ({str(error) or type(error).__name__})") from None


def _reader_of(data: bytes) -> type[ImageFile]:
    for start, reader in _READERS.items():
        if data.startswith(start):
            return reader
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return WebPImageFile
    brands = _brands(data)
    if brands & _AVIF:  # which may call itself mif1, too
        return AvifImageFile
    if brands & _HEIC:
        if not HAS_HEIC:
            raise BadPicture(f"a HEIC picture, which needs {HEIC_NEEDS}")
        from pillow_heif import HeifImageFile

        return HeifImageFile
    known = "JPEG, PNG, WebP, AVIF, HEIC, GIF, BMP, TIFF, PPM"
    raise BadPicture(f"not a picture in a known format ({known})" if data else "empty file")


def _brands(data: bytes) -> set[bytes]:
    """What an ISO media file says it holds (ISO/IEC 14496-12, 4.3: the box `ftyp`)."""
    if data[4:8] != b"ftyp":
        return set()
    end = min(int.from_bytes(data[:4], "big"), 256)
    return {data[8:12], *(data[at : at + 4] for at in range(16, end, 4))}


# ---- JPEG


class _JpegHeader(NamedTuple):
    width: int
    height: int
    num_channels: int
    orientation: int
    exif_at: slice  # the whole EXIF segment


def _read_jpeg(data: bytes, max_pixels: int) -> Picture:
    header = _jpeg_header(data)
    _check_size(header.width, header.height, max_pixels)
    if simplejpeg is not None and header.num_channels in (1, 3):
        try:
            return turned(simplejpeg.decode_jpeg(data, "RGB"), header.orientation)
        except ValueError as error:
            # Other complaints are left to Pillow, which overlooks harmless oddities such as stray bytes.
            if "remature end" in str(error):
                raise BadPicture("truncated") from None
    # Pillow parses EXIF for the resolution alone, and warns where it is corrupt: it is given the file without.
    plain = data[: header.exif_at.start] + data[header.exif_at.stop :]
    return turned(_to_rgb(JpegImageFile(io.BytesIO(plain))), header.orientation)


def _jpeg_header(data: bytes) -> _JpegHeader:
    """Walks the segments up to the frame header (ITU T.81, B.1.1.4)."""
    at, orientation, exif_at = 2, 1, slice(2, 2)
    while at + 4 <= len(data):
        marker = data[at + 1]
        if data[at] != 0xFF or marker == 0xFF:  # stray or fill bytes before a marker
            at += 1
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a length
            at += 2
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width, num_channels = struct.unpack_from(">HHB", data, at + 5)
            return _JpegHeader(width, height, num_channels, orientation, exif_at)
        if marker in (0xD9, 0xDA):  # the picture's data, or its end, before its size
            break
        if marker == 0xE1 and data[at + 4 : at + 8] == b"Exif" and exif_at.start == exif_at.stop:
            orientation, exif_at = exif_orientation(data[at + 4 : end]), slice(at, end)
        at = end
    raise BadPicture("truncated in its header")


# ---- Other formats


def _read_other(data: bytes, reader: type[ImageFile], max_pixels: int, convert: Convert) -> Values:
    if reader is WebPImageFile:  # its decoder makes room for the pixels as soon as it is opened
        _check_size(*_webp_size(data), max_pixels)
    if reader in (TiffImageFile, GifImageFile):
        with _warnings_ignored():
            return _read_opened(reader, data, max_pixels, convert)
    return _read_opened(reader, data, max_pixels, convert)


def _read_opened(reader: type[ImageFile], data: bytes, max_pixels: int, convert: Convert) -> Values:
    try:
        image = reader(io.BytesIO(data))  # reads the header alone
    except SyntaxError as error:  # Pillow's word for a header it does not understand
        raise BadPicture(f"damaged header ({error})") from None
    _check_size(*image.size, max_pixels)
    # Stored as they are, pixels take a bit each at least. Pillow would make room for all that are claimed.
    is_raw = reader in _MAYBE_RAW and all(tile[0] == "raw" for tile in image.tile)
    if is_raw and image.width * image.height > 8 * len(data):
        raise BadPicture("truncated")
    pixels = convert(image)
    # Pillow turns TIFF by itself.
    return pixels if reader is TiffImageFile else turned(pixels, exif_orientation(image.info.get("exif")))


def _webp_size(data: bytes) -> tuple[int, int]:
    """Width and height from the first chunk (RFC 9649, section 2)."""
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


@contextmanager
def _warnings_ignored() -> Iterator[None]:
    # Python's warning filters belong to all threads; one reader at a time changes them, for the rare formats only.
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise BadPicture(f"{width} x {height} pixels, more than the {max_pixels:,} allowed")
    if width * height == 0:
        raise BadPicture("no pixels")


# ---- What Pillow has opened


def pillow_pixels(image: Image.Image) -> Picture:
    """The same of a picture that somebody else has opened, or made."""
    _check_size(*image.size, MAX_PIXELS)
    pixels = _to_rgb(image)
    return turned(pixels, image.getexif().get(0x0112, 1))  # TIFF, which Pillow turns by itself, has lost the entry


# ---- Turn


def exif_orientation(exif: bytes | None) -> int:
    """1 to 8 (EXIF 2.3, 4.6.4: tag 0x0112); 1, upright, where it is absent or makes no sense."""
    tiff = (exif or b"").removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    try:
        (first,) = struct.unpack_from(order + "I", tiff, 4)
        (num_entries,) = struct.unpack_from(order + "H", tiff, first)
        for entry in range(first + 2, first + 2 + 12 * num_entries, 12):
            tag, _, _, value = struct.unpack_from(order + "HHIH", tiff, entry)
            if tag == 0x0112:
                return value if 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def turned(pixels: Values, orientation: int) -> Values:
    """Upright, of pixels as they are stored."""
    if orientation >= 5:  # 5 to 8 are 1 to 4 after a flip over the diagonal
        pixels, orientation = pixels.swapaxes(0, 1), orientation - 4
    if orientation in (2, 3):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


# ---- Colour


def _to_rgb(image: Image.Image) -> Picture:
    image.load()
    if image.mode.startswith("I;16"):
        return _grey(np.asarray(image), 65535)
    if image.mode == "I":
        return _grey_of_unknown_range(np.asarray(image))
    if image.mode == "F":
        values = np.asarray(image)
        if not (values.min() >= 0 and values.max() <= 1):  # false for NaN too
            raise BadPicture("floating-point pixels outside 0..1")
        return _grey(values, 1)
    if "transparency" in image.info or image.mode in ("LA", "La", "PA", "RGBA", "RGBa"):
        return _on_white(image)
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _grey(values: NDArray[np.generic], white: float) -> Picture:
    grey = np.rint(values.astype(np.float64) * (255 / white)).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _grey_of_unknown_range(values: NDArray[np.int32]) -> Picture:
    """32-bit containers mostly hold 16-bit pictures: white is the smaller of the two ranges which holds the picture."""
    if values.min() < 0:
        raise BadPicture("negative pixels")
    return _grey(values, 65535 if values.max() <= 65535 else 2**31 - 1)


def _on_white(image: Image.Image) -> Picture:
    if image.mode in ("La", "RGBa"):  # colours already multiplied with alpha
        image = image.convert({"La": "LA", "RGBa": "RGBA"}[image.mode])
    pixels = np.asarray(image if image.mode == "RGBA" else image.convert("RGBA")).astype(np.uint16)
    colour, alpha = pixels[:, :, :3], pixels[:, :, 3:]
    return ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
