from vitreous.display.html import tag, together
from vitreous.evaluation.metrics import Estimate
from vitreous.report.words import caption, cell, large, seconds, share, short


def test_numbers_as_words():
    assert share(Estimate(0.846, 0.8295, 0.86124)) == "84.6\u202f% (83.0\xa0to\xa086.1\u202f%)"
    between = tag.span(" (83.0\N{EN DASH}86.1)", class_="interval")
    assert cell(Estimate(0.846, 0.8295, 0.86124)) == together("84.6", between)
    assert share(None) == str(cell(None)) == "\N{EN DASH}"
    assert [seconds(5), seconds(75), seconds(3725)] == ["5.0 s", "1:15 min", "1:02:05 h"]
    assert [large(950), large(8.49e6), large(1.92e12)] == ["950 ", "8.49 M", "1.92 T"]
    assert [short("/a/b/"), short("/a/b.csv"), short("fashion"), short("/")] == ["b", "b.csv", "fashion", "/"]


def test_captions_say_where_below_the_data_a_picture_lies():
    assert caption("photos/cat/1.jpg", "photos") == caption("/a/photos/cat/1.jpg", "/a/photos/") == "cat/1.jpg"
    assert caption("/a/b/set.tar:cat/1.jpg", "set.tar") == "set.tar:cat/1.jpg"
    assert caption("fashion", "photos") == "fashion"
