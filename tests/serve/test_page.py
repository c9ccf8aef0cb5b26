"""The page, in a real browser, before a real server."""

import base64
import io
import re
import shutil
from contextlib import nullcontext

import numpy as np
import pytest
from person import ALL_SHOWN, WAIT_MS, Person, visit
from PIL import Image
from running import CLASSES, Running, png, unpacked

from browser import FLAGS, chromium, chromium_page  # noqa: F401 - fixtures
from vitreous.export.job import export
from vitreous.prediction.torch_predictor import TorchPredictor


@pytest.fixture(scope="module", autouse=True)
def ready(request, chromium):  # noqa: F811 - without a browser nothing else need start
    return chromium


# ---- pictures come in


def test_the_first_example_is_there_at_once(chromium_page, server):  # noqa: F811
    person = visit(chromium_page, server)
    examples = person.page.locator("#examples button")
    assert examples.count() == 3 * 2
    assert examples.first.get_attribute("aria-current") == "true"
    assert person.text("verdict") in (*CLASSES, "Not sure")
    assert person.part("bars").locator("li").count() == 4
    person.part("neighbours").locator("li").first.wait_for()
    before = person.canvas("stage"), person.canvas("sentence")
    person.wait_for_attention(examples.nth(1).click)
    assert before[0] != person.canvas("stage")
    assert before[1] != person.canvas("sentence")
    assert examples.nth(1).get_attribute("aria-current") == "true"


def test_choose_drop_and_paste_show_the_models_answer(chromium_page, server, run, tmp_path):  # noqa: F811
    person = visit(chromium_page, server, permissions=["clipboard-read", "clipboard-write"])
    predictor = TorchPredictor.load(run)

    def choose(data: bytes) -> None:
        (tmp_path / "chosen.png").write_bytes(data)
        with person.page.expect_file_chooser() as chooser:
            person.page.get_by_role("button", name="Choose a picture").click()
        chooser.value.set_files(tmp_path / "chosen.png")

    def paste(data: bytes) -> None:
        person.page.evaluate(
            """bytes => navigator.clipboard.write([new ClipboardItem(
                {"image/png": new Blob([new Uint8Array(bytes)], {type: "image/png"})})])""",
            list(data),
        )
        person.page.keyboard.press("Control+V")

    for seed, way in ((21, choose), (22, lambda data: person.drop("dropped.png", data)), (23, paste)):
        person.wait_for_attention(lambda way=way, seed=seed: way(png(seed)))
        rows = person.part("bars").locator("li")
        shares = rows.locator("i").evaluate_all("all => all.map(one => one.style.getPropertyValue('--share'))")
        expected = predictor(png(seed)).top(4)  # calibrated by the temperature
        assert rows.locator(".name").all_text_contents() == [label for label, _ in expected]
        assert list(map(float, shares)) == pytest.approx([share for _, share in expected], abs=1e-5)
    assert person.opened.problems == []


def test_the_camera(chromium, server):  # noqa: F811
    fake = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    with chromium.browser_type.launch(
        executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=[*FLAGS, *fake]
    ) as browser:
        page = browser.new_page(reduced_motion="reduce")
        page.goto(server.url)
        page.wait_for_function(ALL_SHOWN, timeout=WAIT_MS)
        page.get_by_role("button", name="Use the camera").click()
        page.wait_for_function("() => document.getElementById('view').videoWidth > 0", timeout=WAIT_MS)
        with page.expect_response("**/v1/predict?**", timeout=WAIT_MS) as answered:
            page.get_by_role("button", name="Take the picture").click()
        assert answered.value.status == 200
        assert not page.locator("#camera").is_visible()
        assert page.evaluate("document.getElementById('view').srcObject === null")


# ---- looking around


def test_pointing_and_keys_show_where_a_patch_looks(chromium_page, server):  # noqa: F811
    person = visit(chromium_page, server)
    stage, whole = person.part("stage"), [person.canvas(name) for name in ("stage", "sentence", "map")]
    assert "class token" in person.text("readout")
    stage.hover(position={"x": 5, "y": 5})
    pointed = [person.canvas(name) for name in ("stage", "sentence", "map")]
    assert all(one != other for one, other in zip(whole, pointed, strict=True))
    assert "row 1, column 1 looks" in person.text("readout")
    other = Person(person.opened, panel=1)  # the other model looks at the same place
    assert "row 1, column 1 looks" in other.text("readout")
    person.page.mouse.move(0, 0)
    assert whole == [person.canvas(name) for name in ("stage", "sentence", "map")]

    stage.focus()
    seen = {person.canvas("stage")}
    for key, place in (
        ("ArrowRight", "row 1, column 1"),
        ("ArrowRight", "row 1, column 2"),
        ("ArrowDown", "row 2, column 2"),
        ("ArrowLeft", "row 2, column 1"),
        ("ArrowLeft", "row 2, column 1"),
        ("ArrowUp", "row 1, column 1"),
    ):
        person.page.keyboard.press(key)
        assert f"{place} looks" in person.text("readout")
        assert f"{place} looks" in person.page.locator("#spoken").text_content()
        seen.add(person.canvas("stage"))
    assert len(seen) == 5
    person.page.keyboard.press("Escape")
    assert "class token" in person.text("readout")
    assert whole[0] == person.canvas("stage")


def test_sliders_and_switches_change_the_overlay(chromium_page, server):  # noqa: F811
    person = visit(chromium_page, server)
    person.part("stage").click(position={"x": 30, "y": 30})  # a click stays
    person.page.mouse.move(0, 0)
    seen = [person.canvas("stage")]
    person.part("layer").focus()
    person.page.keyboard.press("ArrowLeft")
    seen.append(person.canvas("stage"))
    assert person.text("layer-is") == "1 of 2"
    person.part("head").focus()
    for head in ("1 of 2", "2 of 2"):
        person.page.keyboard.press("ArrowRight")
        assert person.text("head-is") == head
        seen.append(person.canvas("stage"))
    person.panel.get_by_text("all layers (rollout)").click()
    assert person.part("layer").is_disabled()
    seen.append(person.canvas("stage"))
    person.part("shown").uncheck()
    seen.append(person.canvas("stage"))
    assert len(set(seen)) == len(seen) == 6


def colours(person, name: str, columns: int, rows: int, box=(0, 0, 1, 1)) -> np.ndarray:
    """(rows, columns, 3): what a canvas shows at the centres of so many cells of a box, given in shares of it."""
    script = """(canvas, places) => places.map(([x, y]) => [...canvas.getContext("2d").getImageData(
        Math.floor(x * canvas.width), Math.floor(y * canvas.height), 1, 1).data.slice(0, 3)])"""
    x, y, wide, high = box
    places = [
        (x + wide * (column + 0.5) / columns, y + high * (row + 0.5) / rows)
        for row in range(rows)
        for column in range(columns)
    ]
    return np.array(person.part(name).evaluate(script, places), np.float64).reshape(rows, columns, 3)


def test_the_squares_are_the_patches_in_reading_order(chromium_page, server):  # noqa: F811
    person = visit(chromium_page, server)
    painted = np.random.default_rng(5).integers(0, 256, (4, 5, 3), dtype=np.uint8)  # one colour a patch
    stream = io.BytesIO()
    Image.fromarray(painted.repeat(8, axis=0).repeat(8, axis=1)).save(stream, "png")
    person.wait_for_attention(lambda: person.drop("painted.png", stream.getvalue()))
    person.part("shown").uncheck()
    np.testing.assert_allclose(colours(person, "stage", 5, 4), painted, atol=2)
    assert "20 squares" in person.part("sentence").get_attribute("aria-label")
    met = person.part("sentence").evaluate("""canvas => {
        const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, met = new Set();
        for (let at = 0; at < all.length; at += 4) met.add(all.slice(at, at + 3).join());
        return [...met];
    }""")  # colours line by line, as they are first met
    words = [",".join(map(str, each)) for each in painted.reshape(20, 3).tolist()]
    assert [colour for colour in met if colour in words] == words


def test_where_it_looks_is_what_the_server_says(chromium_page, server):  # noqa: F811
    """The largest weight in words, for one patch in one head and through all layers; and in the canvas, where all
    squares are alike but for their colour, the more it looks at one, the more coloured it is."""
    person = visit(chromium_page, server)
    stream = io.BytesIO()
    Image.new("RGB", (40, 32), (120, 120, 120)).save(stream, "png")
    person.wait_for_attention(lambda: person.drop("grey.png", stream.getvalue()))
    asked = server.client.post("/v1/attention", content=stream.getvalue(), headers={"content-type": "image/png"})
    _, arrays = unpacked(asked.content)
    person.part("stage").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        person.page.keyboard.press(key)
    person.part("head").focus()
    person.page.keyboard.press("ArrowRight")
    row = 1 + 1 * 5 + 1  # behind the class token: row 2, column 2

    def compare(looks: np.ndarray) -> None:
        most = int(looks.argmax())
        name = f"row {(most - 1) // 5 + 1}, column {(most - 1) % 5 + 1}"
        name = "itself" if most == row else "the class token" if most == 0 else name
        assert f"row 2, column 2 looks most at {name} (" in person.text("readout")
        assert f"({round(100 * float(looks[most]))} %;" in person.text("readout")
        others = [token for token in range(1, 21) if token != row]  # its own square is shown as it is, ringed
        red = colours(person, "stage", 5, 4).reshape(20, 3)[:, 0][[token - 1 for token in others]]
        slope, start = np.polyfit(looks[others], red, 1)  # the colour of attention has little red
        assert slope * np.ptp(looks[others]) < -5
        np.testing.assert_allclose(red, start + slope * looks[others], atol=1.5)

    compare(arrays["weights_2"][0, 0, row] / 255 * arrays["scale_2"][0, 0, row])
    person.panel.get_by_text("all layers (rollout)").click()
    compare(arrays["rollout"][row] / 255 * arrays["rollout_scale"][row])


def test_the_map_of_places_is_what_the_server_says(chromium_page, server):  # noqa: F811
    person = visit(chromium_page, server)
    sent = server.client.get("/v1/model").json()["models"][0]["positions"]["similarity"]
    alike = np.frombuffer(base64.b64decode(sent), np.uint8).reshape(4, 5, 4, 5)
    assert "Each little map is one place" in person.text("map-is")
    person.part("stage").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        person.page.keyboard.press(key)
    assert "like that of row 2, column 2" in person.text("map-is")
    red = colours(person, "map", 5, 4)[..., 0]
    assert np.corrcoef(alike[1, 1].ravel(), red.ravel())[0, 1] < -0.99
    assert red.argmin() == 1 * 5 + 1  # most like itself


def test_the_nearest_training_pictures(chromium_page, server, run):  # noqa: F811
    """Of a training picture: itself, then others, as the server says."""
    person = visit(chromium_page, server)
    data = next(
        path for path in sorted((run / "data").rglob("*.png")) if is_nearest_to_itself(server, path)
    ).read_bytes()
    person.wait_for_attention(lambda: person.drop("known.png", data))
    rows = person.part("neighbours").locator("li")
    person.part("near-is").get_by_text("The most alike to the model, among").wait_for()
    person.part("neighbours").get_by_text("100 % alike").first.wait_for()
    asked = server.client.post("/v1/neighbours?num=6", content=data, headers={"content-type": "image/png"}).json()
    assert rows.locator("span:not(.share)").all_text_contents() == [each["label"] for each in asked["neighbours"]]
    assert rows.locator("img").evaluate_all("all => all.map(one => one.src)") == [
        each["picture"] for each in asked["neighbours"]
    ]


def is_nearest_to_itself(server, path) -> bool:
    """Not so for those of the test part."""
    asked = server.client.post("/v1/neighbours?num=1", content=path.read_bytes(), headers={"content-type": "image/png"})
    return asked.json()["neighbours"][0]["similarity"] > 0.9999


def test_models_without_training_pictures_are_not_asked_for_them(chromium_page, server):  # noqa: F811
    """They may not know at once; the page asks about them again, and nothing goes wrong on the way."""
    opened, said = chromium_page("about:blank", reduced_motion="reduce"), []

    def about(route) -> None:
        answer = route.fetch().json()
        said.append(None if len(said) < 2 else {"total": 0, "why": "there are none here"})
        for each in answer["models"]:
            each["neighbours"] = said[-1]
        route.fulfill(json=answer)

    opened.page.route(re.compile(r"/v1/model\b"), about)
    opened.page.goto(server.url)
    opened.page.wait_for_function(ALL_SHOWN, timeout=WAIT_MS)
    for panel in (0, 1):
        Person(opened, panel).part("near-is").get_by_text("There are none here.").wait_for()
    assert len(said) > 2
    assert not [request for request in opened.requests if "/v1/neighbours" in request]
    assert opened.problems == []


def test_lists_of_classes_for_every_coverage(chromium_page, server, run):  # noqa: F811
    person = visit(chromium_page, server)
    data = png(41)
    person.wait_for_attention(lambda: person.drop("a.png", data))
    expected = TorchPredictor.load(run)(data)
    other = Person(person.opened, panel=1).text("set")
    coverage = person.part("coverage")
    assert [each.replace("\N{NO-BREAK SPACE}", " ") for each in coverage.locator("option").all_text_contents()] == [
        "90 of 100",
        "99 of 100",
    ]
    lists = []
    for choice in (0.9, 0.99):
        with person.page.expect_response(f"**/v1/predict?*coverage={choice}*") if choice != 0.9 else nullcontext():
            coverage.select_option(str(choice))
        names = expected.prediction_set(choice)
        person.page.wait_for_function(
            "([part, num]) => part.querySelectorAll('b').length === num",
            arg=[person.part("set").element_handle(), len(names)],
        )
        assert tuple(person.part("set").locator("b").all_text_contents()) == names
        assert coverage.input_value() == str(choice)
        lists.append(names)
    assert lists[0] != lists[1]
    assert other == Person(person.opened, panel=1).text("set")  # each model has its own


def test_not_sure_below_the_slider(chromium_page, server):  # noqa: F811
    person = visit(chromium_page, server)
    for percent, is_sure in ((0, True), (100, False)):
        person.part("least").fill(str(percent))
        assert (person.text("verdict") != "Not sure") == is_sure
        assert person.part("guess").is_visible() != is_sure


def test_two_models_stand_side_by_side(chromium_page, server):  # noqa: F811
    first = visit(chromium_page, server)
    second = Person(first.opened, panel=1)
    assert (first.text("name"), second.text("name")) == ("coloured", "tiny")
    boxes = [person.panel.bounding_box() for person in (first, second)]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]
    assert first.text("bars") != second.text("bars")
    second.part("near-is").get_by_text("does not say").wait_for()


def test_models_of_different_kinds_share_the_space(chromium_page, run, tmp_path):  # noqa: F811
    """An exported one predicts and says that it cannot be looked into: so the other gets more room."""
    path = export(run, num_checks=1, out=tmp_path / "small.onnx").path
    running = Running(run, path)
    try:
        first = visit(chromium_page, running)
        person = Person(first.opened, panel=1)
        person.wait_for_attention(lambda: person.drop("a.png", png(3)))
        assert person.part("bars").locator(".name").all_text_contents() == [
            label for label, _ in TorchPredictor.load(run)(png(3)).top(4)
        ]
        assert person.text("how").startswith(
            "This model predicts, but cannot be looked into: an exported file contains only"
        )
        for absent in ("stage", "readout", "controls", "words", "places", "near"):
            assert not person.part(absent).is_visible()
        assert person.part("sets").is_visible()
        assert not first.part("how").is_visible()
        open_box, closed_box = (each.panel.bounding_box() for each in (first, person))
        assert open_box["y"] == closed_box["y"]
        assert open_box["width"] > 2 * closed_box["width"] > 600
        assert first.part("stage").bounding_box()["width"] > 350
        assert person.opened.problems == []
    finally:
        assert running.stop() == 0


# ---- for everybody


@pytest.mark.parametrize("dark", [False, True])
def test_phones_need_not_scroll_sideways(chromium_page, server, dark):  # noqa: F811
    person = visit(chromium_page, server, width=360, height=740, dark=dark)
    assert not person.opened.scrolls_sideways
    assert person.part("stage").bounding_box()["width"] > 280
    person.page.locator("summary").click()
    assert not person.opened.scrolls_sideways


def test_every_control_has_a_name_and_is_reached_by_keys(chromium_page, server):  # noqa: F811
    person = visit(chromium_page, server)
    page = person.page
    shown = page.locator("button, input, select, canvas, summary, [role=group]").locator("visible=true")
    names = shown.evaluate_all(
        """all => all.map(one => [one.outerHTML.slice(0, 80), one.getAttribute("aria-label")
            || one.closest("label")?.textContent.trim() || one.textContent.trim()
            || one.getAttribute("aria-hidden")])"""
    )
    assert len(names) > 20
    assert [html for html, name in names if not name] == []
    snapshot = page.locator("body").aria_snapshot()
    for nameless in (
        "- button\n",
        "- slider\n",
        "- checkbox\n",
        "- application\n",
        "- img\n",
        "- radio\n",
        "- combobox\n",
    ):
        assert nameless not in snapshot
    wanted = (
        page.locator("button, summary, select, canvas[tabindex], input:not([type=radio])")
        .locator("visible=true")
        .count()
    )
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(wanted + 12):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                """() => {
                    const all = [...document.querySelectorAll("button, summary, select, canvas, input")];
                    const style = getComputedStyle(document.activeElement);
                    return [all.indexOf(document.activeElement), style.outlineStyle];
                }"""
            ).__str__()
        )
    assert sum("none" not in each and "-1" not in each for each in reached) >= wanted


def test_the_squares_fly_once_unless_motion_is_unwanted(chromium_page, server):  # noqa: F811
    person = visit(chromium_page, server, width=480, reduced_motion="no-preference")
    person.wait_for_landing()
    person.page.evaluate(
        """() => {
            const flight = document.querySelector(".flight");
            globalThis.flown = 0;
            new MutationObserver(() => globalThis.flown += !flight.hidden).observe(flight, {attributes: true});
        }"""
    )
    person.part("replay").click()
    person.wait_for_landing()
    assert person.page.evaluate("globalThis.flown") > 0
    person.page.emulate_media(reduced_motion="reduce")
    person.page.evaluate("globalThis.flown = 0")
    person.part("replay").click()
    person.wait_for_attention(lambda: person.drop("a.png", png(1)))
    assert person.page.evaluate("globalThis.flown") == 0
