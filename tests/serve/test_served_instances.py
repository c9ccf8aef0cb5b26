"""A model that finds shapes: its endpoint, and what the page paints and tells of it, in a real browser."""

import base64
import io

import numpy as np
import pytest
from person import visit
from PIL import Image
from running import Running, png

from browser import chromium, chromium_page  # noqa: F401 - fixtures
from instances import small_finder
from vitreous.data.outlines import run_mask
from vitreous.prediction.predictor import Predictor

CLASSES = ("cell", "thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finders") / "finder"
    small_finder(CLASSES).save(folder)
    return folder


@pytest.fixture(scope="module")
def finder(model):
    running = Running(model)
    yield running
    assert running.stop() == 0
    assert running.errors == ""


def test_shapes_as_python_has_them_and_where_each_query_looked(finder, model):
    data = png(2, (90, 33))
    asked = {"content": data, "headers": {"content-type": "image/png"}, "params": {"score": 0.05, "looks": True}}
    result = finder.client.post("/v1/detect", **asked).json()["results"][0]
    expected = Predictor.load(model)(data).objects(0.05)
    assert len(expected) > 2
    place = result["looks"]
    for ours, theirs in zip(expected, result["objects"], strict=True):
        assert theirs["label"] == ours.label and theirs["query"] == ours.query
        assert np.array_equal(run_mask(theirs["mask"]), ours.shape.mask())
        looks = base64.b64decode(theirs["looks"])
        assert len(looks) == place["rows"] * place["columns"] and max(looks) == 255
    assert finder.client.post("/v1/segment", content=data, headers=asked["headers"]).status_code == 404


def test_the_page_paints_shapes_and_names_what_is_pointed_at(chromium_page, finder, model):  # noqa: F811
    person = visit(chromium_page, finder)
    expected = Predictor.load(model)(png(7, (60, 80)))
    person.wait_for_attention(lambda: person.drop("scene.png", png(7, (60, 80))))
    person.part("score").fill("5")
    listed, objects = person.part("objects").locator("li"), expected.objects(0.05)
    assert listed.locator(".name").all_text_contents() == [one.label for one in objects]
    # A pixel of one shape, and, of all that have it, the one with the smallest box.
    masks, area = (
        [one.shape.mask() for one in objects],
        lambda one: (one.box[2] - one.box[0]) * (one.box[3] - one.box[1]),
    )
    y, x = np.argwhere(masks[0])[len(np.argwhere(masks[0])) // 2].tolist()
    smallest = min((one for one, mask in zip(objects, masks, strict=True) if mask[y, x]), key=area)
    frame, whole = person.part("boxed").bounding_box(), person.canvas("boxed")
    person.part("boxed").hover(position={"x": (x + 0.5) / 80 * frame["width"], "y": (y + 0.5) / 60 * frame["height"]})
    assert person.text("box-is").endswith(f"found by query {smallest.query}.")
    assert person.canvas("boxed") != whole and person.part("box-looks").is_visible()
    assert person.opened.problems == []


def test_where_a_query_looked_is_not_painted_over(chromium_page, finder, model):  # noqa: F811
    stream = io.BytesIO()
    Image.new("RGB", (80, 60)).save(stream, "png")
    black = stream.getvalue()
    masks = [one.shape.mask() for one in Predictor.load(model)(black).objects(0.05)]
    inner = [_inner(mask) & (sum(masks, np.int64(0)) == 1) for mask in masks]
    y, x = np.argwhere(np.any(inner, axis=0))[-1].tolist()
    person = visit(chromium_page, finder)
    person.wait_for_attention(lambda: person.drop("black.png", black))
    person.part("score").fill("5")
    frame = person.part("boxed").bounding_box()
    person.part("boxed").hover(position={"x": (x + 0.5) / 80 * frame["width"], "y": (y + 0.5) / 60 * frame["height"]})
    seen = person.part("boxed").evaluate(PIXEL, [(x + 0.5) / 80, (y + 0.5) / 60])
    assert "found by query" in person.text("box-is")
    # Nothing but the colour of attention on black, however strong.
    assert np.allclose(np.multiply(seen, max(HEAT)), np.multiply(HEAT, max(seen)), atol=4 * max(HEAT))


HEAT = (11, 160, 178)  # patches.js
PIXEL = """(canvas, [x, y]) => {
    const at = [Math.floor(x * canvas.width), Math.floor(y * canvas.height), 1, 1];
    return [...canvas.getContext("2d").getImageData(...at).data.slice(0, 3)];
}"""


def _inner(mask):
    """All but a border of two pixels."""
    for _ in range(2):
        mask = np.pad(mask, 1)
        mask = mask[1:-1, 1:-1] & mask[:-2, 1:-1] & mask[2:, 1:-1] & mask[1:-1, :-2] & mask[1:-1, 2:]
    return mask
