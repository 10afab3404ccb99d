"""One way to make a report: a self-contained HTML page of prose, tables and figures.

    page = Page(title="Eta of paraphrases", summary="370 runs")
    page.section("Fit"); page.prose("..."); page.table(rows); page.picture(picture)
    Path("report.html").write_text(page.render())

Everything is in the one file (no network, no script), every text is escaped, the page reads on a phone and on a desk,
on light and on dark ground, and prints.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from derivedata.report.overlap import Span
    from derivedata.report.style import Picture

_NUMBER = re.compile(r"[-+−]?[\d.,]+(e[-+]?\d+)?%?[kMBT]?( \[.*\])?( \*)?|-|unbounded|unknown|none", re.I)


@dataclass(kw_only=True)
class Page:
    """A page in the making; render it once.

    Args:
        title: heading and title of the window.
        summary: a sentence or two below it.
        footer: a last line: what the page was made with.
    """

    title: str
    summary: str = ""
    footer: str = ""
    _parts: list[str] = field(default_factory=list)
    _sections: list[tuple[str, str]] = field(default_factory=list)
    _figures: list[str] = field(default_factory=list)

    def section(self, title: str) -> None:
        """Begin a section; the list of sections stands at the top."""
        self._close_figures()
        anchor = f"s{len(self._sections) + 1}"
        self._sections.append((anchor, title))
        self._parts.append(f'<h2 id="{anchor}">{_text(title)}</h2>')

    def prose(self, *paragraphs: str) -> None:
        """Paragraphs of plain text."""
        self._close_figures()
        self._parts += [f"<p>{_text(paragraph)}</p>" for paragraph in paragraphs]

    def points(self, *lines: str) -> None:
        """A list of plain lines."""
        self._close_figures()
        if lines:
            self._parts.append("<ul>" + "".join(f"<li>{_text(line)}</li>" for line in lines) + "</ul>")

    def note(self, text: str, *, warning: bool = False) -> None:
        """A remark set apart, or a warning."""
        self._close_figures()
        self._parts.append(f'<p class="note{" warning" if warning else ""}">{_text(text)}</p>')

    def code(self, text: str) -> None:
        """Commands or other text as it stands."""
        self._close_figures()
        self._parts.append(f"<pre>{_text(text)}</pre>")

    def quote(self, text: str) -> None:
        """A text as somebody wrote it: its line breaks stay, long lines wrap."""
        self._close_figures()
        self._parts.append(f"<blockquote>{_text(text)}</blockquote>")

    def pair(self, left: tuple[str, Sequence[Span]], right: tuple[str, Sequence[Span]]) -> None:
        """Two texts side by side (one above the other where there is no room), each a title and pieces of text with
        whether they are marked."""
        self._close_figures()
        sides = (
            f"<section><h3>{_text(title)}</h3><p>"
            + "".join(f"<mark>{_text(text)}</mark>" if marked else _text(text) for text, marked in spans)
            + "</p></section>"
            for title, spans in (left, right)
        )
        self._parts.append(f'<div class="pair">{"".join(sides)}</div>')

    def table(self, rows: Sequence[Mapping[str, object]], *, caption: str = "") -> None:
        """Rows of equal keys; a column of numbers stands to the right. It scrolls sideways where it is too wide."""
        self._close_figures()
        if not rows:
            return
        columns = list(rows[0])
        cells = [["" if row.get(c) is None else str(row[c]) for c in columns] for row in rows]
        kinds = [_kind([line[i] for line in cells]) for i in range(len(columns))]
        head = "".join(f"<th{kind}>{_text(c)}</th>" for c, kind in zip(columns, kinds, strict=True))
        body = "".join(
            "<tr>" + "".join(f"<td{kind}>{_text(v)}</td>" for v, kind in zip(line, kinds, strict=True)) + "</tr>"
            for line in cells
        )
        # Beside the box and not in it: a caption must not scroll away with a wide table.
        title = f'<p class="caption">{_text(caption)}</p>' if caption else ""
        # The scrolling box is reachable by keyboard.
        self._parts.append(
            f'{title}<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def picture(self, picture: Picture) -> None:
        """A figure; neighbours stand side by side where there is room."""
        self._figures.append(
            f'<figure role="group" aria-label="{_text(picture.title)}"><h3>{_text(picture.title)}</h3>'
            f"{picture.inline_svg()}<figcaption>{_text(picture.caption)}</figcaption></figure>"
        )

    def render(self) -> str:
        """The whole page."""
        self._close_figures()
        links = "".join(f'<a href="#{anchor}">{_text(title)}</a>' for anchor, title in self._sections)
        nav = f"<nav>{links}</nav>" if len(self._sections) > 1 else ""
        summary = f'<p class="summary">{_text(self.summary)}</p>' if self.summary else ""
        footer = f"<footer>{_text(self.footer)}</footer>" if self.footer else ""
        css = (files("derivedata.report") / "templates" / "page.css").read_text()
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            # Nothing may be fetched, whatever a text holds.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline';"
            ' img-src data:">'
            f"<title>{_text(self.title)}</title><style>{css}</style></head>\n<body><main><header>"
            f"<h1>{_text(self.title)}</h1>{summary}{nav}</header>\n"
            + "\n".join(self._parts)
            + f"\n{footer}</main></body></html>\n"
        )

    def _close_figures(self) -> None:
        if self._figures:
            self._parts.append('<div class="figures">' + "\n".join(self._figures) + "</div>")
            self._figures = []


def _text(value: object) -> str:
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(value))
    return html.escape(shown, quote=True)


def _kind(values: Sequence[str]) -> str:
    filled = [value for value in values if value]
    if filled and all(_NUMBER.fullmatch(value) for value in filled):
        return ' class="number"'
    return ' class="text"' if any(len(value) > 40 for value in filled) else ""
