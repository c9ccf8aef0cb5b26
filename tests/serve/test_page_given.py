"""The picture as it was given, beside what the model sees of it; and what the colours mean."""

import io
import itertools

import numpy as np
import pytest
from person import visit
from PIL import Image
from running import png

from browser import chromium, chromium_page  # noqa: F401 - fixtures
from vitreous.data.transforms import Preprocessing
from vitreous.settings import to_json


def test_the_colours_have_a_scale(chromium_page, server):  # noqa: F811
    """From 0 to the most of any square, or three times an even share: what is nearly even does not look decisive."""
    person = visit(chromium_page, server)
    found = person.page.evaluate(
        """async () => {
            const { scaleOf, strength } = await import("/patches.js");
            const nearlyEven = Float32Array.from(Array(16).fill(0.92 / 15).with(5, 0.08));
            const peaked = Float32Array.from(Array(16).fill(0.4 / 15).with(5, 0.6));
            return [nearlyEven, peaked].map((looks) => {
                const scale = scaleOf(looks, 0, 1 / looks.length);
                return [scale.even, scale.top, strength(looks[0], scale), strength(looks[5], scale)];
            });
        }"""
    )
    even = 1 / 16
    assert found[0] == pytest.approx([even, 3 * even, 0.92 / 15 / (3 * even), 0.08 / (3 * even)], rel=1e-5)
    assert found[1] == pytest.approx([even, 0.6, 0.4 / 15 / 0.6, 1], rel=1e-5)
    scale = person.part("scale")
    assert "even: 4.8 %" in person.text("scale")  # of 20 squares and a class token
    assert scale.get_attribute("aria-label").startswith("Colours from 0 to ")
    person.part("shown").uncheck()
    assert not scale.is_visible()


def test_the_frame_marks_what_the_model_sees(chromium_page, server):  # noqa: F811
    """As preprocessing does it: one pixel's width more or less, since it rounds."""
    person = visit(chromium_page, server)
    sizes, crops = ((300, 451), (451, 300), (32, 40), (60, 60)), ("centre", "squash", "squash-centre")
    for (height, width), crop in itertools.product(sizes, crops):
        preprocessing = Preprocessing(size_px=(32, 40), crop=crop, crop_fraction=0.8)
        frame = person.page.evaluate(
            "async ([how, width, height]) => (await import('/given.js')).partSeen(how, width, height)",
            [to_json(preprocessing), width, height],
        )
        ramps = (np.indices((height, width)).transpose(1, 2, 0) + 0.5) / (height, width)  # each pixel says where it is
        place = np.concatenate([np.rint(255 * ramps), np.zeros((height, width, 1))], axis=2).astype(np.uint8)
        rows, columns, _ = preprocessing.resized(place).numpy()
        expected = [columns.min() / 255, rows.min() / 255, columns.max() / 255, rows.max() / 255]
        found = [frame["left"], frame["top"], frame["left"] + frame["width"], frame["top"] + frame["height"]]
        np.testing.assert_allclose(found, expected, atol=1 / 32)


def test_the_picture_is_shown_as_it_was_given(chromium_page, server):  # noqa: F811
    person = visit(chromium_page, server)
    person.wait_for_attention(lambda: person.drop("large.png", png(5, (600, 900))))
    assert person.part("given").locator("img").evaluate("one => [one.naturalWidth, one.naturalHeight]") == [900, 600]
    assert person.part("given").locator(".frame").is_visible()
    said = person.text("given-is").replace("\N{MULTIPLICATION SIGN}", "x")
    assert said == "900 x 600 pixels. The model sees the part in the frame, at 40 x 32."
    before = person.part("given").locator("img").get_attribute("src")
    person.wait_for_attention(lambda: person.drop("tiff.tiff", tiff(), "image/tiff"))
    assert "cannot show pictures of this kind" in person.text("given-is")
    assert person.part("given").locator("img").count() == 0
    assert person.page.evaluate("src => fetch(src).then(() => 'there', () => 'gone')", before) == "gone"


def tiff() -> bytes:
    """A picture that the server reads, and Chromium does not."""
    stream = io.BytesIO()
    Image.open(io.BytesIO(png(6))).save(stream, "tiff")
    return stream.getvalue()
