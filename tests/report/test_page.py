"""A page is one file: nothing is fetched, every text is escaped, figures are inline."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from derivedata.errors import UserError
from derivedata.report.charts import Axis, Curve, Points, Words, lines
from derivedata.report.page import Page
from derivedata.report.style import INK, compact, label


class Reader(HTMLParser):
    """Collects tags, ids and addresses; complains about tags that are not closed."""

    VOID = ("meta", "br", "img", "link", "hr")

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.ids, self.addresses, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for key, value in attrs if key == "id"]
        self.addresses += [value for key, value in attrs if key in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def picture(name: str = "a", title: str = "A title"):
    x = np.linspace(1, 10, 5)
    return lines(
        Words(name=name, title=title, caption="What is to be seen."),
        Axis(label="x", log=True),
        Axis(label="y"),
        curves=[Curve(name="law", x=x, y=x, low=x - 1, high=x + 1)],
        points=[Points(name="runs", x=x, y=x, error=x / 10)],
    )


def test_a_page_is_well_formed_and_fetches_nothing():
    page = Page(title="A report", summary="In short.", footer="The end.")
    page.section("One")
    page.prose("First.", "Second.")
    page.table([{"N": "14M", "loss": 3.1}], caption="A table.")
    page.section("Two")
    page.picture(picture("a"))
    page.picture(picture("b"))
    page.note("Look out.", warning=True)
    page.code("derivedata eta report")
    text = page.render()
    reader = Reader(text)
    assert reader.open == []
    assert "script" not in reader.tags
    assert all(address.startswith(("#", "data:")) for address in reader.addresses)
    outside = set(re.findall(r"https?://[^\"' <]+", text))
    assert all(address.startswith("http://www.w3.org/") for address in outside), "only names of SVG namespaces"
    assert "url(http" not in text
    assert "@import" not in text


def test_figures_of_one_page_do_not_share_ids():
    page = Page(title="A report")
    page.picture(picture("a"))
    page.picture(picture("b"))
    reader = Reader(page.render())
    assert len(reader.ids) == len(set(reader.ids))
    referred = {address[1:] for address in reader.addresses if address.startswith("#")}
    assert referred <= set(reader.ids)


def test_every_text_is_escaped():
    evil = "<script>alert(1)</script>\x1b[31m"
    page = Page(title=evil, summary=evil, footer=evil)
    page.section(evil)
    page.prose(evil)
    page.points(evil)
    page.note(evil)
    page.code(evil)
    page.table([{evil: evil}], caption=evil)
    page.picture(picture(title=evil))
    text = page.render()
    assert "<script" not in text
    assert "\x1b" not in text
    assert text.count("&lt;script&gt;") >= 9


def test_ink_of_figures_is_the_text_colour_of_the_page():
    svg = picture().inline_svg()
    assert INK not in svg
    assert "currentColor" in svg
    assert re.search(r"<svg[^>]*viewBox", svg)
    assert not re.search(r"<svg[^>]* width=", svg), "a figure is as wide as its column"


def test_the_same_figure_is_the_same_text():
    assert picture().inline_svg() == picture().inline_svg()


def test_figures_are_saved_as_png_and_svg_that_carry_the_title(tmp_path):
    first = picture()
    png, svg = first.save(tmp_path / "figures")
    assert Path(png).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "<svg" in Path(svg).read_text()
    assert first.figure._suptitle is None, "a page shows the title itself"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="no folder for figures"):
        picture().save(tmp_path / "file" / "figures")


@pytest.mark.parametrize("name", ["$x_1$", r"\frac{1}{2}", "_hidden", "a" * 200, "e\u0301\u4e2d", "%s {0}"])
def test_names_from_users_can_be_drawn(name):
    x = np.linspace(1, 10, 5)
    words = Words(name="n", title=name, caption=name)
    drawn = lines(words, Axis(label=name), Axis(label="y"), curves=[Curve(name=name, x=x, y=x)], legend_title=name)
    assert "<svg" in drawn.inline_svg()
    assert len(label(name)) <= 70


@pytest.mark.parametrize(
    ("value", "text"), [(14e6, "14M"), (1.2e9, "1.2B"), (1e20, "1e20"), (0.5, "0.5"), (300, "300"), (1e9, "1B")]
)
def test_ticks_are_short(value, text):
    assert compact(value) == text


def test_numbers_stand_to_the_right_and_words_to_the_left():
    page = Page(title="t")
    page.table([{"strategy": "repeat", "R*": "7.9 [6.1, 10.2]", "N": "1.2B", "loss": "2.39 [2.3, 2.4] *"}])
    text = page.render()
    assert '<td class="number">7.9 [6.1, 10.2]</td>' in text
    assert '<td class="number">1.2B</td>' in text
    assert '<td class="number">2.39 [2.3, 2.4] *</td>' in text
    assert "<td>repeat</td>" in text


def test_two_texts_stand_side_by_side_with_what_is_marked():
    page = Page(title="t")
    page.pair(("<source>", [("a ", False), ("<b>", True)]), ("derived", [("c\nd", False)]))
    page.quote("<i>\nnext line")
    text = page.render()
    assert Reader(text).open == []
    assert "<mark>&lt;b&gt;</mark>" in text and "&lt;source&gt;" in text
    assert "<blockquote>&lt;i&gt;\nnext line</blockquote>" in text
