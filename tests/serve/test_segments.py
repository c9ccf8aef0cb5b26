"""A model that classifies pixels: its endpoint, and what the page shows of it, in a real browser."""

import base64
import io

import numpy as np
import pytest
import torch
from person import visit
from PIL import Image
from running import Running, png

from browser import chromium, chromium_page  # noqa: F401 - fixtures
from vitreous.data.transforms import Preprocessing
from vitreous.export.job import export
from vitreous.models import ViTSettings
from vitreous.prediction.pictures import pixels
from vitreous.prediction.predictor import Predictor
from vitreous.tasks.segment import SegmentSettings
from vitreous.weights.calibration import PixelCalibration
from vitreous.weights.card import Card
from vitreous.weights.trained import Trained

CLASSES = ("road", "sky", "<img src=x onerror=alert(1)>")


def save_segmenter(folder, **changes):
    torch.manual_seed(3)
    model = ViTSettings.of(picture_px=(32, 40), patch=8, width=32, depth=1, heads=2)
    settings = SegmentSettings(decoder="linear", **changes)
    task = settings.build(model.build(), CLASSES)
    torch.nn.init.normal_(task.head.levels[0].weight)
    card = Card(
        model=model,
        task=settings,
        classes=CLASSES,
        preprocessing=Preprocessing(size_px=(32, 40), crop="squash"),
        calibration=PixelCalibration(temperature=1.3),
    )
    Trained(card, task.state_dict(), "here").save(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One in torch that looks through windows, and an exported one that sees pictures at once."""
    top = tmp_path_factory.mktemp("segmenters")
    whole, windows = save_segmenter(top / "whole"), save_segmenter(top / "windows", inference="windows")
    return windows, export(str(whole), "onnx", out=str(top / "exported.onnx"), num_checks=2).path


@pytest.fixture(scope="module")
def segmenters(models):
    running = Running(*models)
    yield running
    assert running.stop() == 0
    assert running.errors == ""


def labels_of(result):
    """From the PNG, whose pixels are numbers of classes."""
    with Image.open(io.BytesIO(base64.b64decode(result["mask"].partition(",")[2]))) as mask:
        return np.asarray(mask)


def test_every_way_of_running_it_says_the_same_as_python(segmenters, models):
    names = [one["name"] for one in segmenters.client.get("/v1/model").json()["models"]]
    pictures = [png(1, (40, 48)), png(2, (90, 33))]
    for name, where in zip(names, models, strict=True):
        files = [("pictures", (f"{number}.png", data)) for number, data in enumerate(pictures)]
        reply = segmenters.client.post("/v1/segment", files=files, params={"model": name, "polygons": True})
        assert reply.status_code == 200
        predictor = Predictor.load(where)
        for data, result in zip(pictures, reply.json()["results"], strict=True):
            expected = predictor(data)
            assert (labels_of(result) == expected.labels).mean() > 0.999
            assert (result["height"], result["width"]) == pixels(data).shape[:2]
            assert [one["label"] for one in result["classes"]] == [label for label, _ in expected.shares]
            assert sum(one["area"] for one in result["polygons"]) == expected.labels.size


def test_what_cannot_be_asked(segmenters):
    assert segmenters.predict(png(1)).status_code == 404  # it segments
    broken = segmenters.client.post("/v1/segment", content=b"no picture", headers={"content-type": "image/png"})
    assert broken.status_code == 422


def test_the_page_shows_classes_by_colour(chromium_page, segmenters, models):  # noqa: F811
    person = visit(chromium_page, segmenters)
    expected = Predictor.load(models[0])(png(7, (60, 80)))
    person.wait_for_attention(lambda: person.drop("scene.png", png(7, (60, 80))))
    legend = person.part("legend").locator("li")
    assert legend.locator(".name").all_text_contents() == [name for name, _ in expected.shares]
    assert not person.part("prediction").is_visible()
    coloured = person.canvas("segmented")
    person.part("opacity").fill("0")
    plain = person.canvas("segmented")
    assert plain != coloured and person.text("opacity-is") == "0 %"
    person.part("opacity").fill("80")

    # Pointing names the class under the pointer; a click in the legend keeps one.
    box = person.part("segmented").bounding_box()
    for row, column in ((5, 5), (50, 70), (30, 40)):
        x, y = (column + 0.5) / 80 * box["width"], (row + 0.5) / 60 * box["height"]
        person.part("segmented").hover(position={"x": x, "y": y})
        name = CLASSES[expected.labels[row, column]]
        assert person.text("segment-is").startswith(f"{name}: ")
    person.page.mouse.move(0, 0)
    legend.first.locator("button").click()
    assert legend.first.locator("button").get_attribute("aria-pressed") == "true"
    assert person.text("segment-is").startswith(expected.shares[0][0])
    assert person.opened.problems == []
