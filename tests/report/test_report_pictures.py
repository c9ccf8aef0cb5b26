import base64
import io

import numpy as np
from parsed_page import read
from PIL import Image

from scenes import Pictures, scene
from vitreous.display.thumbnails import enlarged, picture
from vitreous.report.pictures import readable


def shown(made) -> tuple[dict[str, str], Image.Image]:
    (one,) = read(made.markup).all("img")
    return one.attributes, Image.open(io.BytesIO(base64.b64decode(one.attributes["src"].partition(",")[2])))


def test_tiny_pictures_are_kept_as_they_are():
    tiny = scene(1, (20, 16))
    attributes, image = shown(picture(tiny, "<a>", most_px=72))
    np.testing.assert_array_equal(np.array(image), tiny)
    assert attributes["alt"] == "<a>" and attributes["class"] == "pixels"


def test_large_pictures_are_shrunk_whole_or_to_their_middle():
    large = np.zeros((300, 400, 3), np.uint8)
    large[:, 50:350] = 200  # the middle square
    attributes, image = shown(picture(large, "", most_px=100))
    assert image.size == (100, 75) == (int(attributes["width"]), int(attributes["height"]))
    assert np.array(image)[40, 2].max() < 20 < np.array(image)[40, 50].min()
    _, square = shown(picture(large, "", most_px=100, square=True))
    assert square.size == (100, 100) and np.array(square).min() > 150


def test_tiny_pictures_are_enlarged_by_whole_pixels():
    tiny = scene(2, (10, 8))
    large = enlarged(tiny, 20)
    assert large.shape == (24, 30, 3)
    np.testing.assert_array_equal(large[1::3, 1::3], tiny)
    assert enlarged(large, 20) is large
    strip = np.zeros((3000, 2, 3), np.uint8)
    assert enlarged(strip, 320) is strip, "it would be 480,000 px long"


def test_what_cannot_be_read_is_passed_over():
    source = Pictures([scene(1), None, scene(2)])
    assert [index for index, _ in readable(source, range(3))] == [0, 2]
