from html.parser import HTMLParser

import pytest

from vitreous.data.base import Subset
from vitreous.data.check import check
from vitreous.data.splits import Splits
from vitreous.report import masked_data


class Counted(HTMLParser):
    def __init__(self, markup):
        super().__init__()
        self.tags = []
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def scenes():
    from vitreous.data.sources import open_sources

    found = open_sources("rendered:segment")
    return Splits(Subset(found["train"], range(20)), None, Subset(found["test"], range(2)))


def test_a_bar_for_every_class_and_what_is_missing(scenes):
    data = check(scenes)
    markup = masked_data.balance(data, scenes.train).markup
    bars = [attrs for tag, attrs in Counted(markup).tags if "background: rgb" in attrs.get("style", "")]
    assert len(bars) == 7
    assert markup.index("background") < markup.index("disc")  # most pixels are background
    missing = [name for name, count in zip(data.classes, data.parts[1].counts, strict=True) if not count]
    assert missing
    assert f"No pixel of test is of: <bdi>{', '.join(missing)}" in markup.replace('<bdi dir="auto">', "<bdi>")


def test_pictures_beside_themselves_under_their_masks(scenes):
    tags = Counted(masked_data.sheet(scenes.train).markup).tags
    assert sum(attrs.get("class") == "pair" for _, attrs in tags) == 12
    pictures = [attrs["src"] for tag, attrs in tags if tag == "img"]
    assert len(pictures) == 24
    assert all(one != other for one, other in zip(pictures[::2], pictures[1::2], strict=True))
