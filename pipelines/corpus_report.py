"""A corpus as one HTML page: lineage, counts, lengths, rejects with examples, sources and rewrites side by side."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from derivedata.corpus.stream import is_output, open_stream
from derivedata.errors import UserError
from derivedata.pipelines.draw import Drawn, draw_from, find_sources
from derivedata.pipelines.output_page import (
    MOST_ROWS,
    SHOWN,
    base,
    filled,
    length_picture,
    output_page,
    rejects_section,
    said,
    short,
)
from derivedata.report.overlap import Span, overlap
from derivedata.report.page import Page
from derivedata.store.faults import explain
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import RunRecord, current_run

if TYPE_CHECKING:
    from derivedata.corpus.stream import DocumentStream

DRAWN = 400  # documents drawn for what no manifest says


def write_report(place: str | Sequence[str], output: str, *, examples: int = 3, seed: int = 0) -> str:
    """Write the page of a corpus to a file; where it is.

    Raises:
        UserError: nothing is there, or the file can't be written.
    """
    path = Path(output)
    if not path.resolve().parent.is_dir():
        raise UserError("no such folder", where=path.resolve().parent)
    text = build_page(place, examples=examples, seed=seed).render()
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, "utf-8")
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise explain(error, output) or error from error
    return output


def build_page(place: str | Sequence[str], *, examples: int = 3, seed: int = 0) -> Page:
    """The page, in the making."""
    stream = open_stream(place)
    if not stream.documents:
        raise UserError("holds no document", where=place)
    folder = Folder(place) if isinstance(place, str) and is_output(place) else None
    record = current_run(folder) if folder is not None else None
    name = place if isinstance(place, str) else ", ".join(place)
    tables = filled(folder) if folder is not None else set()
    if "documents" in tables:
        page = output_page(folder, record, name)
    else:
        page = _of_stream(stream, record, name, seed)
    _examples(page, place, folder, stream, examples, seed)
    if "rejected" in tables:
        page.section("What was rejected")
        rejects_section(page, folder)
    return page


# Anything else: what the stream says, and documents drawn from it.


def _of_stream(stream: DocumentStream, record: RunRecord | None, name: str, seed: int) -> Page:
    drawn = draw_from(stream, DRAWN, seed=seed)
    told = f"{len(drawn):,} drawn documents" if len(drawn) < stream.documents else "all documents"
    page = Page(
        title=f"Corpus {base(name)}",
        summary=f"{stream.documents:,} documents in {stream.windows:,} windows of about 16 MB of text.",
        footer=f"Made by derivedata report; shares and lengths are those of {told}. Nothing on this page is fetched.",
    )
    page.section("What is in it")
    kinds: dict[tuple, list[int]] = {}
    for document, origin in drawn:
        key = (origin.source or "-", document.source or "-", origin.strategy, origin.style or "-", origin.epoch)
        kinds.setdefault(key, []).append(len(document.text))
    rows = [
        {
            **dict(zip(("of the mix", "source", "strategy", "style", "epoch"), key, strict=True)),
            "documents": f"{len(sizes) / len(drawn):.1%}",
            "characters": f"{sum(sizes) / sum(sum(one) for one in kinds.values()):.1%}",
            "mean characters": f"{sum(sizes) / len(sizes):,.0f}",
        }
        for key, sizes in sorted(kinds.items(), key=lambda item: -len(item[1]))[:MOST_ROWS]
    ]
    if all(row["of the mix"] == "-" for row in rows):
        rows = [{key: value for key, value in row.items() if key != "of the mix"} for row in rows]
    page.table(rows, caption=f"Of {told}")
    if record is not None:
        page.section("Where it comes from")
        settings = {**record.identity, **record.config.extent}
        page.table([{"setting": key, "value": said(value)} for key, value in settings.items() if value is not None])
    page.section("Lengths")
    counts: dict[tuple[str, int], int] = {}
    for document, origin in drawn:
        key = (origin.style or origin.strategy, int(np.floor(4 * np.log2(max(1, len(document.text))))))
        counts[key] = counts.get(key, 0) + 1
    page.picture(length_picture([{"name": name, "bin": at, "n": n} for (name, at), n in counts.items()], "characters"))
    return page


# What both have.


def _examples(
    page: Page,
    place: str | Sequence[str],
    folder: Folder | None,
    stream: DocumentStream,
    count: int,
    seed: int,
) -> None:
    """Documents of each style, beside the ones they were derived from where those are found."""
    if not count:
        return
    styles = [None]
    if folder is not None and "documents" in filled(folder):
        styles = sorted({row["style"] for row in Manifest(folder).summary().styles.to_dicts()}, key=lambda s: s or "")
    page.section("Documents beside their sources" if styles != [None] else "Documents")
    notes = set()
    marked = False
    for style in styles:
        chosen = draw_from(open_stream(place, style=style) if style else stream, count, seed=seed)
        sources, note = find_sources(place, [document for document, _ in chosen])
        notes |= {note} - {None}
        for document, origin in chosen:
            marked |= _example(page, Drawn(document, origin, sources.get(document.uid)))
    if marked:
        page.prose("Marked: four or more words in a row that both texts have.")
    for note in sorted(notes):
        page.note(note, warning=True)


def _example(page: Page, one: Drawn) -> bool:
    """Show a document; whether it stands beside its source."""
    origin = one.origin
    kind = ", ".join(part for part in (origin.strategy, origin.style) if part)
    here = f"{kind}: {one.document.path} row {one.document.row:,}"
    if one.source is None:
        page.note(here)
        page.quote(short(one.document.text))
        return False
    both = overlap(one.source.text, one.document.text)
    left = (f"source: {one.source.path} row {one.source.row:,}", _cut(both.first))
    page.pair(left, (f"{here} ({both.share:.0%} of its words marked)", _cut(both.second)))
    return True


def _cut(spans: Sequence[Span]) -> list[Span]:
    """The first SHOWN characters."""
    kept, left = [], SHOWN
    for text, marked in spans:
        if left <= 0:
            break
        kept.append((text[:left], marked))
        left -= len(text)
    rest = sum(len(text) for text, _ in spans) - SHOWN
    return [*kept, (f" ... ({rest:,} characters more)", False)] if rest > 0 else kept
