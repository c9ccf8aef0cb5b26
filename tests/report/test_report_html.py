import pytest
from parsed_page import read

from vitreous.report.html import Html, command, facts, name, path, table, tag, together

NASTY = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "&amp;", "' onload='x", "]]>", "<!--")


@pytest.mark.parametrize("text", NASTY)
def test_whatever_is_a_str_is_text(text):
    made = together(
        text,
        tag.p(text, title=text),
        name(text),
        path(text),
        command(text),
        facts([(text, text)]),
        table([text], [[text]]),
    )
    page = read(made.markup)
    made_of = {"p", "bdi", "code", "pre", "dl", "div", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td"}
    assert {one.kind for one in page.all()} == {"document"} | made_of
    assert page.text.count(text) == 9
    assert page.all("p")[0].attributes == {"title": text}


def test_markup_is_not_escaped_twice():
    assert tag.p(tag.b("a & b"), None, ["c", Html("<br>")], 4).markup == "<p><b>a &amp; b</b>c<br>4</p>"


def test_markup_put_into_a_string_becomes_text():
    assert tag.p(f"bold: {tag.b('x')}").markup == "<p>bold: &lt;b&gt;x&lt;/b&gt;</p>"


def test_attributes():
    made = tag.meta(http_equiv="x", class_="a", name="n", hidden=True, title=None, lang=False)
    assert made.markup == '<meta http-equiv="x" class="a" name="n" hidden>'


def test_columns_of_numbers_stand_at_the_right():
    cells = read(table(("a", "b"), [(1, 2)], numbers=(1,)).markup).all("td")
    assert [cell.attributes.get("class") for cell in cells] == [None, "number"]
