"""A model that finds objects: its endpoint, and what the page shows of it, in a real browser."""

import base64

import pytest
from person import visit
from running import Running, png

from browser import chromium, chromium_page  # noqa: F401 - fixtures
from detections import save_detector
from vitreous.prediction.predictor import Predictor

CLASSES = ("cell", "<img src=x onerror=alert(1)>")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_detector(tmp_path_factory.mktemp("detectors") / "detector", CLASSES)


@pytest.fixture(scope="module")
def detector(model):
    running = Running(model)
    yield running
    assert running.stop() == 0
    assert running.errors == ""


def test_the_same_as_python_at_any_size(detector, model):
    predictor, pictures = Predictor.load(model), [png(1, (40, 48)), png(2, (90, 33))]
    files = [("pictures", (f"{number}.png", data)) for number, data in enumerate(pictures)]
    for score in (None, 0.05, 1.0):
        params = {} if score is None else {"score": score}
        reply = detector.client.post("/v1/detect", files=files, params=params)
        assert reply.status_code == 200
        for data, result in zip(pictures, reply.json()["results"], strict=True):
            expected = predictor(data)
            objects = expected.objects(score)
            assert [one["label"] for one in result["objects"]] == [one.label for one in objects]
            for ours, theirs in zip(objects, result["objects"], strict=True):
                assert theirs["box"] == pytest.approx(ours.box, abs=0.01)
                assert theirs["score"] == pytest.approx(ours.score, abs=1e-5)
            assert (result["height"], result["width"]) == expected.size and result["threshold"] == 0.4
    assert predictor(pictures[0]).objects(0.05)  # something was compared


def test_where_the_model_looked_for_each_object(detector, model):
    asked = {"content": png(2, (90, 33)), "headers": {"content-type": "image/png"}}
    plain = detector.client.post("/v1/detect", params={"score": 0.05}, **asked).json()["results"][0]
    result = detector.client.post("/v1/detect", params={"score": 0.05, "looks": True}, **asked).json()["results"][0]
    place = result.pop("looks")
    # The letterbox is wider than the picture, whose left upper corner is its own.
    assert place["box"][:2] == [0, 0] and place["box"][3] == pytest.approx(90)
    assert place["box"][2] == pytest.approx(48 * 33 / 12) and (place["rows"], place["columns"]) == (21, 32)
    for one in result["objects"]:
        looks = base64.b64decode(one.pop("looks"))
        assert len(looks) == place["rows"] * place["columns"] and max(looks) == 255
    assert result == plain


def test_what_cannot_be_asked(detector):
    assert detector.predict(png(1)).status_code == 404  # it detects
    broken = detector.client.post("/v1/detect", content=b"no picture", headers={"content-type": "image/png"})
    assert broken.status_code == 422
    wrong = detector.client.post(
        "/v1/detect", content=png(1), params={"score": 2}, headers={"content-type": "image/png"}
    )
    assert wrong.status_code == 422 and "score" in wrong.json()["error"]


def test_the_page_shows_boxes_from_a_score_on(chromium_page, detector, model):  # noqa: F811
    person = visit(chromium_page, detector)
    expected = Predictor.load(model)(png(7, (60, 80)))
    person.wait_for_attention(lambda: person.drop("scene.png", png(7, (60, 80))))
    listed = person.part("objects").locator("li")

    def at(score):
        person.part("score").fill(str(score))
        assert listed.locator(".name").all_text_contents() == [one.label for one in expected.objects(score / 100)]
        return person.canvas("boxed")

    assert person.part("score").input_value() == "40" and not person.part("prediction").is_visible()
    assert "how often an object like this is right" in person.text("score-means")
    assert len({at(score) for score in (5, 40, 99)}) > 1 and person.text("score-is") == "99 %"
    at(5)
    surest = expected.objects(0.05)[0]
    listed.first.locator("button").click()
    assert listed.first.locator("button").get_attribute("aria-pressed") == "true"
    assert person.text("box-is").startswith(f"{surest.label}, ")
    kept = person.canvas("boxed")
    listed.first.locator("button").click()
    person.page.mouse.move(0, 0)
    assert person.canvas("boxed") != kept and person.part("box-looks").is_visible()

    # Pointing at the picture names the smallest box under the pointer.
    frame, (x0, y0, x1, y1) = person.part("boxed").bounding_box(), surest.box
    x, y = (x0 + x1) / 2, (y0 + y1) / 2
    under = [one for one in expected.objects(0.05) if one.box[0] <= x <= one.box[2] and one.box[1] <= y <= one.box[3]]
    smallest = min(under, key=lambda one: (one.box[2] - one.box[0]) * (one.box[3] - one.box[1]))
    person.part("boxed").hover(position={"x": x / 80 * frame["width"], "y": y / 60 * frame["height"]})
    size = f"{round(smallest.box[2] - smallest.box[0])} x {round(smallest.box[3] - smallest.box[1])} px"
    assert person.text("box-is").startswith(f"{smallest.label}, ") and size in person.text("box-is")
    assert person.opened.problems == []
