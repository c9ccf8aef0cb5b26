"""The page, in a real browser, before a real server."""

import json
import os
import shutil
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from running import CLASSES, Running, png, save_model

from browser import FLAGS, chromium, chromium_page  # noqa: F401 - fixtures
from vitreous.predict_torch import TorchPredictor
from vitreous.serve.guard import SECURITY_HEADERS
from vitreous.trained import Trained

PAYLOADS = (
    "<img src=x onerror=alert({n})>",
    "<script>alert({n})</script>",
    "<svg onload=alert({n})>",
    "\"><img src=x onerror='alert({n})'>",
    "javascript:alert({n})",
    "<iframe srcdoc='<script>parent.alert({n})</script>'>",
    "{{{{constructor.constructor('alert({n})')()}}}}",
    "</title><script>alert({n})</script>",
    "' onmouseover='alert({n})",
    "&lt;img src=x onerror=alert({n})&gt;",
)
HOSTILE = tuple(payload.format(n=number) for number in range(4) for payload in PAYLOADS)
WAIT_MS = 30_000
ALL_SHOWN = """() => {
    const panels = [...document.querySelectorAll(".panel")];
    return panels.length && panels.every(panel => !panel.hidden && !panel.classList.contains("stale"));
}"""
QUEUE = 4
TOKEN = "a-token-of-many-letters"


class Person:
    """What somebody does on the page, and what they see of one model."""

    def __init__(self, opened, panel: int = 0) -> None:
        self.opened, self.page = opened, opened.page
        self.page.set_default_timeout(WAIT_MS)
        self.panel = self.page.locator(".panel").nth(panel)

    def part(self, name: str):
        return self.panel.locator(f'[data-at="{name}"]')

    def canvas(self, name: str) -> str:
        return self.part(name).evaluate("canvas => canvas.toDataURL()")

    def text(self, name: str) -> str:
        return self.part(name).text_content().replace("\N{NO-BREAK SPACE}", " ")

    def problem(self) -> str:
        self.page.locator("#problem").wait_for()
        return self.page.locator("#problem-text").text_content()

    def wait_for_attention(self, doing=lambda: None) -> None:
        """After something was done: until another answer, its attention and the end of the flight are there."""
        self.page.evaluate("document.querySelectorAll('.panel').forEach(panel => panel.classList.add('stale'))")
        doing()
        self.page.wait_for_function(ALL_SHOWN)
        self.wait_for_landing()

    def wait_for_landing(self) -> None:
        self.page.wait_for_function("() => [...document.querySelectorAll('.flight')].every(canvas => canvas.hidden)")

    def drop(self, name: str, data: bytes, kind: str = "image/png") -> None:
        self.page.evaluate(
            """([name, bytes, type]) => {
                const held = new DataTransfer();
                held.items.add(new File([new Uint8Array(bytes)], name, {type}));
                const how = {dataTransfer: held, bubbles: true, cancelable: true};
                document.body.dispatchEvent(new DragEvent("drop", how));
            }""",
            [name, list(data), kind],
        )


def visit(chromium_page, server, **options) -> Person:  # noqa: F811
    """At the page, once the first example is shown; without motion, but where it is looked at."""
    options.setdefault("reduced_motion", "reduce")
    person = Person(chromium_page(server.url, **options))
    if "authorization" in server.client.headers:
        person.page.get_by_label("This server asks for a token").fill(TOKEN)
        person.page.get_by_role("button", name="Enter").click()
        person.page.locator("#token").wait_for(state="hidden")
        assert [problem for problem in person.opened.problems if "401" not in problem] == []
        person.opened.problems.clear()
    person.page.wait_for_function(ALL_SHOWN)
    return person


def save_hostile(top) -> None:
    """A run whose classes have hostile names; every name is among the five likeliest of one of eight pictures."""
    save_model(top / "model", seed=3)
    trained = Trained.load(top)
    predictor = TorchPredictor(trained)
    with torch.inference_mode():
        features = predictor.task.encoder(predictor.inputs(*(png(number) for number in range(8)))).pooled.double()
        wanted = torch.zeros(8, 40, dtype=torch.float64)
        for number in range(8):
            wanted[number, 5 * number : 5 * number + 5] = torch.tensor([16.0, 14, 13, 12, 11])
        weight = torch.linalg.lstsq(features, wanted).solution.T.float()
    weights = {**trained.weights, "head.weight": weight, "head.bias": torch.zeros(40)}
    card = replace(trained.card, classes=HOSTILE)
    replace(trained, card=card, weights=weights).save(top / "model")
    for number, name in enumerate(name for name in HOSTILE[:10] if "/" not in name):
        (top / "data" / name).mkdir(parents=True)
        for index in range(3):
            (top / "data" / name / f"{index}.png").write_bytes(png(100 * number + index))
    (top / "recipe.json").write_text(json.dumps({"data": {"where": str(top / "data"), "test_fraction": 0.34}}))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """One model, with a token and a short queue; the last test ends it."""
    top = tmp_path_factory.mktemp("hostile") / "<img src=x onerror=alert(0)>"
    save_hostile(top)
    running = Running(top, "--queue", QUEUE, token=TOKEN)
    yield running
    if running.process.poll() is None:
        running.stop()


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
    assert person.text("set").startswith("90 %: ")
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
        shown = person.part("bars").locator("li").evaluate_all("rows => rows.map(row => row.children[0].textContent)")
        assert shown == [label for label, _ in predictor(png(seed)).top(4)]
    assert person.opened.problems == [problem for problem in person.opened.problems if "404" in problem]


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


def test_where_it_looks_is_what_the_server_says(chromium_page, server):  # noqa: F811
    """The largest weight in words, for one patch in one head; and in the canvas, its square is the most coloured."""
    person = visit(chromium_page, server)
    data = png(31)
    person.wait_for_attention(lambda: person.drop("a.png", data))
    body = server.client.post("/v1/attention", content=data, headers={"content-type": "image/png"}).content
    length = int.from_bytes(body[:4], "little")
    places = {each["name"]: each for each in json.loads(body[4 : 4 + length])["arrays"]}
    arrays = {
        name: np.frombuffer(body, each["dtype"], np.prod(each["shape"]), 4 + length + each["offset"]).reshape(
            each["shape"]
        )
        for name, each in places.items()
    }
    person.part("stage").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        person.page.keyboard.press(key)
    person.part("head").focus()
    person.page.keyboard.press("ArrowRight")
    row = 1 + 1 * 5 + 1  # behind the class token: row 2, column 2
    looks = arrays["weights"][1, 0, row] / 255 * arrays["weights_scale"][1, 0, row]
    most = int(looks.argmax())
    name = (
        "itself"
        if most == row
        else "the class token"
        if most == 0
        else f"row {(most - 1) // 5 + 1}, column {(most - 1) % 5 + 1}"
    )
    assert f"row 2, column 2 looks most at {name} (" in person.text("readout")
    assert f"({round(100 * float(looks[most]))} %;" in person.text("readout")


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


# ---- what goes wrong


def test_a_text_file_is_refused_and_nothing_is_lost(chromium_page, server):  # noqa: F811
    person = visit(chromium_page, server)
    before = person.text("bars"), person.canvas("stage")
    person.drop("notes.txt", b"hello", "text/plain")
    assert person.problem() == "notes.txt is no picture, but text/plain. Choose a JPEG, PNG or WebP file."
    person.page.get_by_role("button", name="Hide this message").click()
    assert not person.page.locator("#problem").is_visible()
    person.drop("letter.png", b"hello, this is text")  # one that lies about itself
    assert person.problem().startswith("letter.png: ")
    assert "known format" in person.problem()
    assert not person.page.locator("#again").is_visible()
    assert before == (person.text("bars"), person.canvas("stage"))


def test_huge_pictures_are_refused(chromium_page, server, tmp_path):  # noqa: F811
    person = visit(chromium_page, server)
    before = person.text("bars")
    noise = np.random.default_rng(0).integers(0, 256, (1100, 1100, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.png")  # more bytes than the server takes
    Image.new("1", (20000, 20000)).save(tmp_path / "bomb.png")  # more pixels
    for name, reason in (("large.png", "larger than the 2 MB"), ("bomb.png", "20000 x 20000 pixels")):
        person.page.locator("#file").set_input_files(tmp_path / name)
        person.page.get_by_text(reason).wait_for()
        assert person.problem().startswith(f"{name}: ")
    assert person.text("bars") == before
    person.wait_for_attention(lambda: person.drop("good.png", png(3)))
    assert not person.page.locator("#problem").is_visible()


# ---- for everybody


def test_phones_need_not_scroll_sideways(chromium_page, server, hostile):  # noqa: F811
    for each, dark in ((server, False), (hostile, True)):
        person = visit(chromium_page, each, width=360, height=740, dark=dark)
        assert not person.opened.scrolls_sideways
        assert person.part("stage").bounding_box()["width"] > 280
        person.page.locator("summary").click()
        assert not person.opened.scrolls_sideways


def test_every_control_has_a_name_and_is_reached_by_keys(chromium_page, server):  # noqa: F811
    person = visit(chromium_page, server)
    page = person.page
    shown = page.locator("button, input, canvas, summary, [role=group]").locator("visible=true")
    names = shown.evaluate_all(
        """all => all.map(one => [one.outerHTML.slice(0, 80), one.getAttribute("aria-label")
            || one.closest("label")?.textContent.trim() || one.textContent.trim()
            || one.getAttribute("aria-hidden")])"""
    )
    assert len(names) > 20
    assert [html for html, name in names if not name] == []
    snapshot = page.locator("body").aria_snapshot()
    for nameless in ("- button\n", "- slider\n", "- checkbox\n", "- application\n", "- img\n", "- radio\n"):
        assert nameless not in snapshot
    wanted = page.locator("button, summary, canvas[tabindex], input:not([type=radio])").locator("visible=true").count()
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(wanted + 12):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                """() => {
                    const all = [...document.querySelectorAll("button, summary, canvas, input")];
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


# ---- names from data are text


def test_forty_hostile_names_of_classes_and_files(chromium_page, hostile):  # noqa: F811
    person = visit(chromium_page, hostile)
    assert person.text("name") == "<img src=x onerror=alert(0)>"
    labels = person.page.locator("#examples button").evaluate_all("all => all.map(one => one.title)")
    assert set(labels) <= set(HOSTILE)
    assert len(set(labels)) > 3
    person.part("neighbours").locator("li").first.wait_for()
    shown = set()
    for number in range(8):
        person.wait_for_attention(lambda number=number: person.drop(HOSTILE[number], png(number)))
        person.part("least").fill("0")
        assert person.text("verdict") == HOSTILE[5 * number]
        shown |= set(person.part("bars").locator(".name").all_text_contents())
    assert shown == set(HOSTILE)
    for name in HOSTILE:
        person.drop(name, b"text", "text/plain")
        assert person.problem().startswith(f"{name} is no picture")
    assert person.page.locator("main script, main iframe, main svg, [onerror], [onload], [onmouseover]").count() == 0
    assert person.opened.problems == []  # no dialog, no error, nothing that the policy had to stop
    assert all(request.startswith((hostile.url, f"blob:{hostile.url}")) for request in person.opened.requests)


def test_nothing_inline_and_nothing_from_outside():
    from vitreous.serve.files import page_files

    files = page_files()
    assert {"/", "/index.html", "/style.css", "/main.js", "/icon.svg"} <= files.keys()
    assert "'unsafe" not in SECURITY_HEADERS["content-security-policy"]
    for path, file in files.items():
        text = file.content.decode()
        assert "innerHTML" not in text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text
        if path.endswith(".html"):
            assert " style=" not in text
            assert " on" + "click" not in text


# ---- last, since it ends the server


def test_busy_restarted_and_gone(chromium_page, hostile):  # noqa: F811
    person = visit(chromium_page, hostile)
    example, busy = person.page.locator("#examples button").nth(1), person.page.locator("#busy")

    settled = person.part("near-is").get_by_text("The most alike")  # the page asks nothing more
    settled.wait_for()
    hostile.signal_workers(signal.SIGSTOP)
    waiting = threading.Thread(target=lambda: hostile.predict(*[png(1)] * QUEUE))
    waiting.start()
    hostile.wait_for(lambda: hostile.metric("vitreous_queue_pictures") == QUEUE)
    person.wait_for_attention(
        lambda: (
            example.click(),
            busy.get_by_text("Many pictures are waiting: trying again in").wait_for(),
            hostile.signal_workers(signal.SIGCONT),
        )
    )
    waiting.join()
    assert not busy.is_visible()
    person.page.wait_for_function("() => !document.querySelector('.stale')")

    for worker in hostile.workers():
        os.kill(worker, signal.SIGKILL)
    person.wait_for_attention(lambda: (example.click(), busy.get_by_text("The model is starting").wait_for()))
    assert not person.page.locator("#problem").is_visible()

    before = person.text("bars"), person.canvas("stage")
    assert hostile.stop() == 0
    example.click()
    assert person.problem().startswith("The server does not answer.")
    assert person.page.get_by_role("button", name="Try again").is_visible()
    assert before == (person.text("bars"), person.canvas("stage"))
    person.page.get_by_role("button", name="Try again").click()
    assert person.problem().startswith("The server does not answer.")
