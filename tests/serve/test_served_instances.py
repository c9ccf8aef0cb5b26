"""A model that finds shapes: its endpoint, and what the page paints and tells of it, in a real browser."""

import base64

import numpy as np
import pytest
from person import visit
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
