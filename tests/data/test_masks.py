import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from vitreous.data.images import BadPicture
from vitreous.data.masks import ColouredMask, Legend, parsed_colour, read_values

NUMBERS = np.array([[0, 1, 2], [3, 1, 0]], dtype=np.uint8)
TEN = Legend(tuple("abcdefghij"), tuple((number,) for number in range(10)), ignored=(255,))


def saved(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def grey_png(values, bits):
    """By hand: Pillow writes no grey of 2 and 4 bits."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b""
    for row in values:
        bitstring = "".join(f"{value:0{bits}b}" for value in row)
        bitstring += "0" * (-len(bitstring) % 8)
        rows += b"\0" + int(bitstring, 2).to_bytes(len(bitstring) // 8, "big")
    header = struct.pack(">IIBBBBB", len(values[0]), len(values), bits, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_grey_of_any_depth_is_numbers(bits):
    values = np.minimum(NUMBERS.astype(int), 2**bits - 1)
    assert (read_values(grey_png(values.tolist(), bits), coloured=False) == values).all()


@pytest.mark.parametrize("colours", [2, 4, 16, 256])  # of 1, 2, 4 and 8 bits in the file
def test_a_palette_is_numbers_or_colours(colours):
    values = np.minimum(NUMBERS, colours - 1).astype(np.uint8)
    image = Image.fromarray(values)
    image.putpalette([level for number in range(colours) for level in (number * 3 % 256, 128, 64)])
    assert image.mode == "P"
    data = saved(image)
    assert (read_values(data, coloured=False) == values).all()
    assert (read_values(data, coloured=True) == (values.astype(np.int32) * 3 << 16 | 128 << 8 | 64)).all()


def test_sixteen_bits_are_not_scaled():
    values = np.array([[0, 300], [65535, 7]], dtype=np.uint16)
    assert (read_values(saved(Image.fromarray(values)), coloured=False) == values).all()
    legend = Legend(("a", "b", "c"), ((0, 7), (300,), (1000,)), ignored=(65535,))
    assert legend.read(saved(Image.fromarray(values))).tolist() == [[0, 1], [-1, 0]]


@pytest.mark.parametrize("value", [-1, 70_000, 2**31 - 1])
def test_numbers_that_are_no_classes(value):
    wide = saved(Image.fromarray(np.array([[0, value]], dtype=np.int32)), "TIFF")
    with pytest.raises(BadPicture, match=r"values from .* but classes go from 0 to 65535"):
        read_values(wide, coloured=False)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "PPM"])
def test_every_exact_format(kind):
    assert (read_values(saved(Image.fromarray(NUMBERS), kind), coloured=False) == NUMBERS).all()


def test_lossless_webp_is_read_and_lossy_is_not():
    grey = Image.fromarray(NUMBERS).convert("RGB")
    assert (read_values(saved(grey, "WEBP", lossless=True), coloured=False) == NUMBERS).all()
    with pytest.raises(BadPicture, match="WEBP, which changes the values of pixels: use PNG"):
        read_values(saved(grey, "WEBP", lossless=False), coloured=False)
    with pytest.raises(BadPicture, match="JPEG, which changes"):
        read_values(saved(grey, "JPEG"), coloured=False)


def test_colours_where_numbers_are_expected():
    grey = np.repeat(NUMBERS[..., None], 3, axis=2)
    assert (read_values(saved(Image.fromarray(grey)), coloured=False) == NUMBERS).all()  # numbers saved as RGB
    grey[1, 2] = (128, 64, 128)
    with pytest.raises(ColouredMask, match=r"^in colours such as #804080, but classes are given by number"):
        read_values(saved(Image.fromarray(grey)), coloured=False)


def test_alpha_is_not_a_class():
    values = np.dstack([NUMBERS, NUMBERS, NUMBERS, np.full_like(NUMBERS, 9)])
    assert (read_values(saved(Image.fromarray(values)), coloured=False) == NUMBERS).all()
    assert (read_values(saved(Image.fromarray(values[..., [0, 3]].copy())), coloured=False) == NUMBERS).all()


def test_a_mask_is_turned_by_its_own_exif():
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = read_values(saved(Image.fromarray(NUMBERS), exif=exif), coloured=False)
    assert (turned == np.rot90(NUMBERS, -1)).all()


def test_unknown_values_are_named():
    values = NUMBERS.copy()
    values[0, 0], values[0, 1], values[1, 1] = 37, 255, 200
    with pytest.raises(BadPicture, match=r"^the value 37 \(and 1 more\), which is neither a class nor ignored"):
        TEN.read(saved(Image.fromarray(values)))
    colours = Legend(("road",), ((0x804080,),), ignored=(0,), coloured=True)
    picture = np.array([[[128, 64, 128], [0, 0, 0], [1, 2, 3]]], dtype=np.uint8)
    assert colours.read(saved(Image.fromarray(picture[:, :2]))).tolist() == [[0, -1]]
    with pytest.raises(BadPicture, match="the colour #010203, which is neither a class nor ignored"):
        colours.read(saved(Image.fromarray(picture)))
    big = np.array([[0, 40000]], dtype=np.uint16)
    with pytest.raises(BadPicture, match="the value 40000, which"):
        TEN.read(saved(Image.fromarray(big)))


def test_a_legend_travels_to_workers():
    import pickle

    legend = Legend(("a",), ((0xFFFFFF,),), coloured=True)
    white = saved(Image.new("RGB", (2, 1), "white"))
    assert legend.read(white).tolist() == [[0, 0]]
    pickled = pickle.dumps(legend)
    assert len(pickled) < 1000
    assert pickle.loads(pickled).read(white).tolist() == [[0, 0]]


def test_hostile_masks_pass_the_same_door(tmp_path):
    bomb = saved(Image.new("L", (4000, 3000)))
    with pytest.raises(BadPicture, match="4000 x 3000 pixels, more than the 1,000,000 allowed"):
        TEN.read(bomb, max_pixels=1_000_000)
    whole = saved(Image.fromarray(np.random.default_rng(0).integers(0, 9, (64, 64)).astype(np.uint8)))
    for end in range(0, len(whole) - 12, 97):  # what follows the pixels may be missing
        with pytest.raises(BadPicture):
            TEN.read(whole[:end])
    with pytest.raises(BadPicture, match="such file"):
        TEN.read(tmp_path / "missing.png")
    for mode in ("F", "CMYK"):
        with pytest.raises(BadPicture, match=f"colour mode {mode}"):
            TEN.read(saved(Image.new(mode, (2, 2)), "TIFF"))


@pytest.mark.parametrize(
    ("text", "colour"),
    [
        ("#804080", 0x804080),
        ("128,64,128", 0x804080),
        ("[128, 64, 128]", 0x804080),
        ("(128 64 128)", 0x804080),
        ("7", None),
        ("#8040", None),
        ("#80408g", None),
        ("300,0,0", None),
        ("road", None),
    ],
)
def test_colours_as_people_write_them(text, colour):
    assert parsed_colour(text) == colour
