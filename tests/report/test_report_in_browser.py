"""The report in a real browser, opened from disk."""

import io

import pytest
from PIL import Image


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_opens_from_disk_and_fits(reported, chromium_page, width, dark):
    opened = chromium_page(reported.path, width=width, dark=dark)
    assert not opened.problems and not opened.requests
    assert not opened.scrolls_sideways
    assert opened.page.title() == "pictures.csv: fit report"
    with Image.open(io.BytesIO(opened.page.screenshot())) as shot:
        assert shot.width == width
        corner = shot.convert("L").getpixel((0, 100))
    assert corner < 60 if dark else corner > 200


def test_all_of_it_is_open_to_the_reader(reported, chromium_page):
    """Every picture is decoded, every figure has a size, folded parts unfold; still no request and no dialog."""
    opened = chromium_page(reported.path, width=360)
    page = opened.page
    assert page.evaluate("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
    assert page.evaluate("[...document.querySelectorAll('svg')].every(one => one.getBoundingClientRect().width > 200)")
    for summary in page.locator("summary").all():
        summary.click()
    page.mouse.move(100, 300)
    assert not opened.scrolls_sideways, "long names and hashes scroll in boxes of their own"
    assert not opened.problems and not opened.requests


def test_it_needs_no_script(reported, chromium_page):
    opened = chromium_page(reported.path, java_script_enabled=False)
    assert "are classified correctly" in opened.page.inner_text("header")


def test_figures_follow_the_page(reported, chromium_page):
    ink = "getComputedStyle(document.querySelector('#training svg text')).fill"
    light, dark = (chromium_page(reported.path, dark=dark).page.evaluate(ink) for dark in (False, True))
    assert light != dark


def test_contents_stay_in_sight_on_wide_screens(reported, chromium_page):
    page = chromium_page(reported.path, width=1280).page
    page.locator("nav a[href='#provenance']").click()
    assert page.evaluate("scrollY") > 1000
    assert page.locator("nav a[href='#headline']").bounding_box()["y"] >= 0
    assert abs(page.locator("#provenance").bounding_box()["y"]) < 300


def test_it_prints(reported, chromium_page):
    page = chromium_page(reported.path, dark=True).page
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(29, 33, 37)", "dark ink"
    assert page.pdf()[:4] == b"%PDF"


@pytest.mark.parametrize("width", [360, 390])
def test_precision_and_f1_are_in_sight_on_a_phone(reported, chromium_page, width):
    """No table of classes has to be scrolled, however long the names."""
    page = chromium_page(reported.path, width=width).page
    box = page.locator("#results .scroll:has(.interval)").first
    assert box.evaluate("one => one.scrollWidth <= one.clientWidth")
    last = box.locator("tbody tr td").last.bounding_box()
    assert last["x"] + last["width"] <= width


@pytest.mark.parametrize("width", [360, 1280])
def test_no_cell_spills_into_the_next(reported, chromium_page, width):
    page = chromium_page(reported.path, width=width).page
    spilled = page.evaluate("[...document.querySelectorAll('td')].filter(one => one.scrollWidth > one.clientWidth + 1)")
    assert not spilled
