import io
import os
import socket
import struct
import tarfile
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from vitreous.data import images
from vitreous.data.images import BadPicture, exif_orientation, read_orientation, read_picture, read_shape


def picture(height=40, width=56, channels=3, seed=0):
    """Smooth colours with an edge: JPEG keeps them, and every turn of them differs."""
    y, x = np.mgrid[:height, :width]
    planes = [(3 * x + 2 * y * (c + 1) + 40 * ((x > 20) & (y < 12)) + 31 * seed) % 256 for c in range(channels)]
    return np.stack(planes, axis=2).astype(np.uint8)


def saved(image, format, **options):
    file = io.BytesIO()
    if format == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, format, **options)
    return file.getvalue()


FORMATS = ["JPEG", "PNG", "WEBP", "AVIF", "HEIF", "GIF", "BMP", "TIFF", "PPM"]


@pytest.fixture(params=["simplejpeg", "pillow"])
def decoder(request, monkeypatch):
    if request.param == "pillow":
        monkeypatch.setattr(images, "simplejpeg", None)
    elif images.simplejpeg is None:
        pytest.skip("simplejpeg is not installed")


@pytest.mark.parametrize("format", ["PNG", "WEBP", "BMP", "TIFF", "PPM"])
def test_lossless_formats_come_back_exactly(format, tmp_path):
    pixels = picture()
    data = saved(pixels, format, **({"lossless": True} if format == "WEBP" else {}))
    assert np.array_equal(read_picture(data), pixels)
    (tmp_path / "a.txt").write_bytes(data)  # the name says nothing
    answer = read_picture(tmp_path / "a.txt")
    assert np.array_equal(answer, pixels)
    assert answer.dtype == np.uint8 and answer.flags.writeable and answer.flags.c_contiguous


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("size", [(40, 56), (37, 51), (1, 1), (8, 1)])
def test_jpeg_decoders_agree(subsampling, progressive, size, decoder):
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    for pixels in (picture(*size), noise):
        data = saved(pixels, "JPEG", quality=80, subsampling=subsampling, progressive=progressive)
        expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
        assert np.abs(read_picture(data).astype(int) - expected).max() <= 1


def test_jpeg_decoders_agree_on_photos(shared_data, decoder):
    with tarfile.open(shared_data / "imagenette224" / "train.tar") as tar:
        members = [tar.next() for _ in range(60)]
        files = [tar.extractfile(member).read() for member in members]
    for data in files:
        expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
        assert np.abs(read_picture(data).astype(int) - expected).max() <= 1


@pytest.mark.parametrize(("format", "name"), [("AVIF", "x.avif"), ("HEIF", "x.HEIC")])
def test_pictures_of_phones(format, name, tmp_path):
    data = saved(picture(), format, quality=90)
    (tmp_path / name).write_bytes(data)
    pixels = read_picture(tmp_path / name)
    assert np.array_equal(pixels, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
    assert np.abs(pixels.astype(int) - picture()).mean() < 5
    assert name.lower().endswith(images.SUFFIXES)
    clear = np.dstack([picture(), np.zeros((40, 56), np.uint8)])
    assert (read_picture(saved(clear, format)) == 255).all(), "transparency lies on white"


def test_a_brand_may_stand_among_the_compatible_ones():
    heic = saved(picture(), "HEIF")
    general = heic[:8] + b"mif1" + heic[12:]
    assert np.array_equal(read_picture(general), read_picture(heic))
    avif = saved(picture(), "AVIF")
    general = avif[:8] + b"mif1" + avif[12:]
    assert np.array_equal(read_picture(general), read_picture(avif))
    with pytest.raises(BadPicture, match="known format"):
        read_picture(heic[:8] + b"isom" * 6 + heic[32:])


def test_heic_without_its_extra_says_what_to_install(monkeypatch):
    monkeypatch.setattr(images, "HAS_HEIC", False)
    with pytest.raises(BadPicture, match=r"needs pip install 'vitreous\[heic\]'"):
        read_picture(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 40)


def test_grey_and_cmyk_jpeg(decoder):
    grey = picture(channels=1)[:, :, 0]
    data = saved(grey, "JPEG", quality=95)
    expected = np.asarray(Image.open(io.BytesIO(data)))
    assert np.array_equal(read_picture(data), np.repeat(expected[:, :, None], 3, axis=2))
    data = saved(Image.fromarray(picture()).convert("CMYK"), "JPEG", quality=95)
    assert np.abs(read_picture(data).astype(int) - picture()).mean() < 4


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "HEIF"])
def test_exif_turn(orientation, format, decoder):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(picture(), format, exif=exif.tobytes())
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    answer = read_picture(data)
    assert answer.shape == ((56, 40, 3) if orientation >= 5 else (40, 56, 3))
    assert np.abs(answer.astype(int) - expected).max() <= 1
    assert answer.flags.c_contiguous


def test_corrupt_exif_is_overlooked(decoder):
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010F] = "a camera with a long name"
    whole = exif.tobytes()
    data = saved(picture(), "JPEG", exif=whole[:-12])  # cut inside a value: Pillow would warn
    assert read_picture(data).shape == (56, 40, 3)
    assert exif_orientation(whole[:12]) == exif_orientation(b"") == exif_orientation(None) == 1
    assert exif_orientation(b"MM\0*" + struct.pack(">IHHHIHH", 8, 1, 0x0112, 3, 1, 8, 0)) == 8
    assert exif_orientation(b"II*\0" + struct.pack("<IHHHIHH", 8, 1, 0x0112, 3, 1, 99, 0)) == 1


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_16_bit_grey_is_scaled(format):
    values = np.linspace(0, 65535, 40 * 56).reshape(40, 56).astype(np.uint16)
    answer = read_picture(saved(values, format))
    assert np.abs(answer[:, :, 0] - values / 257).max() <= 0.51
    assert (answer == answer[:, :, :1]).all()
    dark = read_picture(saved((values // 300).astype(np.uint16), format))
    assert dark.max() <= 1, "a dark 16-bit picture stays dark"


def test_big_endian_and_32_bit_grey():
    values = np.linspace(0, 65535, 40 * 56).reshape(40, 56)
    big = saved(Image.frombytes("I;16B", (56, 40), values.astype(">u2").tobytes()), "TIFF")
    assert np.abs(read_picture(big)[:, :, 1] - values / 257).max() <= 0.51
    small = saved(Image.fromarray(values.astype(np.int32)), "TIFF")
    assert np.abs(read_picture(small)[:, :, 1] - values / 257).max() <= 0.51
    large = saved(Image.fromarray((values * 32767).astype(np.int32)), "TIFF")
    assert np.abs(read_picture(large)[:, :, 1] - values / 257).max() <= 0.6
    with pytest.raises(BadPicture, match="negative"):
        read_picture(saved(Image.fromarray((values - 5).astype(np.int32)), "TIFF"))


def test_float_pixels():
    values = np.linspace(0, 1, 40 * 56).reshape(40, 56).astype(np.float32)
    assert np.abs(read_picture(saved(Image.fromarray(values), "TIFF"))[:, :, 2] - values * 255).max() <= 0.51
    for wrong in (values * 300, values - 0.5, np.where(values > 0.5, np.nan, values)):
        with pytest.raises(BadPicture, match=r"outside 0\.\.1"):
            read_picture(saved(Image.fromarray(wrong.astype(np.float32)), "TIFF"))


def test_16_bit_colour_png():
    """Pillow cannot write it, so it is put together here."""
    values = (picture().astype(np.uint16) * 257).astype(">u2")

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + row.tobytes() for row in values)
    header = struct.pack(">IIBBBBB", 56, 40, 16, 2, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert np.array_equal(read_picture(b"\x89PNG\r\n\x1a\n" + data), picture())


def test_transparency_lies_on_white():
    pixels = np.dstack([picture(), np.full((40, 56), 255, np.uint8)])
    pixels[:10, :, 3] = 0
    pixels[10:20, :, 3] = 128
    for format in ("PNG", "WEBP"):
        answer = read_picture(saved(pixels, format, **({"lossless": True, "exact": True} if format == "WEBP" else {})))
        assert (answer[:10] == 255).all()
        half = pixels[10:20, :, :3] * (128 / 255) + 127
        assert np.abs(answer[10:20] - half).max() <= 1
        assert np.array_equal(answer[20:], pixels[20:, :, :3])
    grey = Image.fromarray(pixels).convert("LA")
    answer = read_picture(saved(grey, "PNG"))
    assert (answer[:10] == 255).all() and np.array_equal(answer[20:, :, 0], np.asarray(grey)[20:, :, 0])


def test_palette_with_and_without_transparency():
    palette = Image.fromarray(picture()).quantize(16)
    plain = np.asarray(palette.convert("RGB"))
    for format in ("PNG", "GIF", "BMP"):
        assert np.array_equal(read_picture(saved(palette, format)), plain)
    for transparency in (3, bytes([255, 255, 255, 0])):
        answer = read_picture(saved(palette, "PNG", transparency=transparency))
        clear = np.asarray(palette) == 3
        assert clear.any() and (answer[clear] == 255).all() and np.array_equal(answer[~clear], plain[~clear])
    key = saved(Image.fromarray(np.full((4, 4, 3), 7, np.uint8)), "PNG", transparency=(7, 7, 7))
    assert (read_picture(key) == 255).all()


def test_one_bit_and_animation():
    bits = Image.fromarray(picture()[:, :, 0]).convert("1")
    for format in ("PNG", "TIFF", "PPM"):
        assert np.array_equal(read_picture(saved(bits, format))[:, :, 0], np.asarray(bits.convert("L")))
    frames = [Image.fromarray(picture(seed=seed)).quantize(64) for seed in range(3)]
    for format in ("GIF", "WEBP"):
        options = {"lossless": True} if format == "WEBP" else {}
        data = saved(frames[0], format, save_all=True, append_images=frames[1:], **options)
        assert np.array_equal(read_picture(data), np.asarray(frames[0].convert("RGB")))


@pytest.mark.parametrize("format", FORMATS)
def test_truncated_files_are_refused(format, decoder):
    data = saved(picture(), format)
    for share in (0.02, 0.3, 0.6, 0.9):
        with pytest.raises(BadPicture):
            read_picture(data[: int(len(data) * share)])


def test_progressive_jpeg_cut_and_closed_is_refused():
    pytest.importorskip("simplejpeg")
    data = saved(picture(200, 200), "JPEG")
    with pytest.raises(BadPicture, match="truncated"):
        read_picture(data[: len(data) // 2] + b"\xff\xd9")


@pytest.mark.parametrize("format", FORMATS)
def test_damaged_files_never_raise_anything_else(format, decoder):
    data = np.frombuffer(saved(picture(), format), np.uint8)
    random = np.random.default_rng(1)
    for _ in range(60):
        damaged = data.copy()
        damaged[random.integers(0, len(data), 6)] = random.integers(0, 256, 6)
        try:
            assert read_picture(damaged.tobytes(), max_pixels=1_000_000).shape[2] == 3
        except BadPicture as error:
            assert str(error)


@pytest.mark.parametrize("format", FORMATS)
def test_pixel_limit_is_checked_before_decoding(format, monkeypatch):
    data = saved(Image.new("RGB" if format in ("WEBP", "AVIF", "HEIF") else "L", (2000, 1000)), format)

    def never(*_):
        raise AssertionError("decoded")

    monkeypatch.setattr(images, "_to_rgb", never)
    monkeypatch.setattr(images.WebPImageFile, "_open", never)  # it makes room for all pixels
    if images.simplejpeg is not None:
        monkeypatch.setattr(images.simplejpeg, "decode_jpeg", never)
    with pytest.raises(BadPicture, match="2000 x 1000 pixels, more than the 1,999,999 allowed"):
        read_picture(data, max_pixels=1_999_999)


@pytest.mark.parametrize("kind", ["TIFF", "BMP", "PPM"])
def test_more_pixels_than_the_file_has_bits_are_refused_before_there_is_room_for_them(kind, monkeypatch):
    file = io.BytesIO()
    Image.new("L", (40, 30)).save(file, kind)
    tall = struct.pack("<I", 2_000_000)
    height = {"TIFF": b"\x01\x01\x04\x00\x01\x00\x00\x00", "BMP": struct.pack("<I", 40), "PPM": b"P5\n40 "}[kind]
    before, _, after = file.getvalue().partition(height)
    data = before + height + (b"2000000" + after[2:] if kind == "PPM" else tall + after[4:])
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was made room for"))
    with pytest.raises(BadPicture, match="truncated"):
        read_picture(data)


def test_bomb_is_refused_without_a_warning():
    bomb = saved(Image.new("1", (12000, 12000)), "PNG")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadPicture, match="12000 x 12000"):
            read_picture(bomb)


def test_what_is_no_picture(tmp_path):
    for data, reason in ((b"", "empty"), (b"hello", "known format"), (b"RIFF1234WAVE", "known format")):
        with pytest.raises(BadPicture, match=reason):
            read_picture(data)
    with pytest.raises(BadPicture, match="No such file"):
        read_picture(tmp_path / "missing.jpg")
    with pytest.raises(BadPicture, match="directory"):
        read_picture(tmp_path)


def test_special_files_are_not_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "x.png")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)  # the path of a socket must be short
        server.bind("s.png")
        for path, kind in (("x.png", "a pipe"), ("s.png", "a socket"), ("/dev/zero", "a device")):
            with pytest.raises(BadPicture, match=f"{kind}, not a regular file"):
                read_picture(Path(path))


def test_a_pipe_in_the_place_of_a_file_that_was_there_does_not_hang(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "x.png")
    monkeypatch.setattr("vitreous.data.files.check_regular", lambda _: None)  # as if exchanged right after
    with pytest.raises(BadPicture, match="a pipe"):
        read_picture(tmp_path / "x.png")


def test_sizes_are_checked_before_reading(tmp_path):
    with (tmp_path / "x.png").open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    with pytest.raises(BadPicture, match=r"1,099,511,627,776 bytes, more than the 301,048,576 allowed"):
        read_picture(tmp_path / "x.png")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no /proc")
def test_a_file_without_a_size_is_empty():
    with pytest.raises(BadPicture, match="empty"):
        read_picture(Path("/proc/self/mem"))


def test_torch_is_not_needed():
    import subprocess
    import sys

    code = "import sys, vitreous.data.images; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_the_shape_in_a_header_is_that_of_the_picture(tmp_path, kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    extra = {} if kind in ("GIF", "BMP", "PPM") else {"exif": exif}
    path = tmp_path / "picture"
    Image.fromarray(np.arange(40 * 70 * 3, dtype=np.uint8).reshape(40, 70, 3)).save(path, kind, **extra)
    shape = read_shape(path)
    assert shape[:2] == read_picture(path).shape[:2] and shape == read_shape(path.read_bytes())
    assert shape.orientation == read_orientation(path)


def test_the_shape_of_a_jpeg_with_a_long_header_and_of_no_picture(tmp_path):
    data = io.BytesIO()
    Image.new("RGB", (30, 20)).save(data, "JPEG")
    comment = b"\xff\xfe" + (65_000).to_bytes(2, "big") + bytes(64_998)
    (tmp_path / "long.jpg").write_bytes(data.getvalue()[:2] + 3 * comment + data.getvalue()[2:])
    assert read_shape(tmp_path / "long.jpg") == (20, 30, 1)
    (tmp_path / "none.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing")
    for name in ("none.jpg", "missing.jpg"):
        with pytest.raises(BadPicture):
            read_shape(tmp_path / name)
