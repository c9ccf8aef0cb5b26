"""The page where something is wrong: files, names, the server. In a real browser, before a real server."""

import json
import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from person import TOKEN, visit
from PIL import Image
from running import Running, png, save_model

from browser import chromium, chromium_page  # noqa: F401 - fixtures
from vitreous.prediction.torch_predictor import TorchPredictor
from vitreous.serve.guard import SECURITY_HEADERS
from vitreous.weights.trained import Trained

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
QUEUE = 4


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


def test_long_names_need_no_scrolling_sideways(chromium_page, hostile):  # noqa: F811
    person = visit(chromium_page, hostile, width=360, height=740, dark=True)
    assert not person.opened.scrolls_sideways


def test_nothing_inline_and_nothing_from_outside():
    from vitreous.serve.files import page_files

    files = page_files()
    assert {"/", "/index.html", "/style.css", "/main.js", "/icon.svg"} <= files.keys()
    assert "'unsafe" not in SECURITY_HEADERS["content-security-policy"]
    for path, file in files.items():
        if file.type.startswith("image/jpeg"):
            continue
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
