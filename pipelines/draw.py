"""Documents drawn at random from a corpus, and the sources of those that are derived: `derivedata sample CORPUS`."""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from derivedata.corpus.document import Document
from derivedata.corpus.files import corpus_files
from derivedata.corpus.frames import START, Position
from derivedata.corpus.reader import RejectedRow, read_rows
from derivedata.corpus.stream import DocumentStream, Origin, is_output, open_stream
from derivedata.corpus.stream_virtual import read_virtual
from derivedata.errors import UserError
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder, Missing
from derivedata.store.runs import current_run

INVENTORY = "plan/inventory.json"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A document, how it came into the corpus, and the document it was derived from (None: it is not, or not found)."""

    document: Document
    origin: Origin
    source: Document | None = None


@dataclass(frozen=True, slots=True)
class Drawing:
    """What was drawn, in the order of the corpus; of how many; and why sources are missing, if they are."""

    drawn: list[Drawn]
    documents: int
    note: str | None = None


def draw(place: str | Sequence[str], count: int, *, seed: int = 0, style: str | None = None) -> Drawing:
    """Draw documents, every one with the same chance, and look up the sources of derived ones.

    Only the windows of the stream that hold a drawn document are read.

    Raises:
        UserError: nothing is there, or not that style.
    """
    stream = open_stream(place, style=style)
    if not stream.documents:
        raise UserError("holds no document", where=place if isinstance(place, str) else ", ".join(place))
    drawn = draw_from(stream, count, seed=seed)
    sources, note = find_sources(place, [document for document, _ in drawn])
    return Drawing([Drawn(*one, sources.get(one[0].uid)) for one in drawn], stream.documents, note)


def draw_from(stream: DocumentStream, count: int, *, seed: int = 0) -> list[tuple[Document, Origin]]:
    """Documents of a stream, drawn without putting back, in its order."""
    ends = list(accumulate(stream.count(window) for window in range(stream.windows)))
    chosen = sorted(random.Random(seed).sample(range(stream.documents), min(count, stream.documents)))
    wanted: dict[int, list[int]] = {}
    for place in chosen:
        window = bisect_right(ends, place)
        wanted.setdefault(window, []).append(place - (ends[window - 1] if window else 0))
    found = []
    for window, offsets in wanted.items():
        documents = stream.read_with_origin(window)
        found += [documents[offset] for offset in offsets]
    return found


def find_sources(place: str | Sequence[str], documents: Sequence[Document]) -> tuple[dict[str, Document], str | None]:
    """The source of each derived document by the uid of the derived one, and why some are not found (None: all are).

    An output of ours knows where its sources are; they are looked for where its run record says the corpus is. A
    corpus that is only an order is as good as the outputs it is made of.
    """
    derived = [one for one in documents if isinstance((one.metadata or {}).get("derivedata"), dict)]
    if not derived:
        return {}, None
    found: dict[str, Document] = {}
    notes: list[str] = []
    for home in _homes(place):
        try:
            found |= _sources_of(Folder(home), [one.uid for one in derived if one.uid not in found])
        except UserError as error:
            notes.append(f"the sources are not shown: {error.line}")
    missing = len(derived) - len(found)
    if not missing:
        return found, None
    notes.append(f"{missing:,} of {len(derived):,} sources are not found: no run record here says where they are")
    return found, notes[0]


def _homes(place: str | Sequence[str]) -> list[str]:
    """The outputs of ours that the documents of a place stand in."""
    if not isinstance(place, str) or any(character in place for character in "*?["):
        return []
    told = read_virtual(place)
    if told is None:
        return [place] if is_output(place) else []
    sources = told.get("sources", [told])
    return [home for one in sources for corpus in one["corpus"] for home in _homes(corpus)]


def _sources_of(folder: Folder, uids: Sequence[str]) -> dict[str, Document]:
    """The sources of some documents of an output, by the documents' uids. Raises UserError where they are gone."""
    record = current_run(folder)
    places = record.config.extent.get("corpus") if record else None
    rows = _index_rows(folder, uids) if places else []
    if not rows:
        return {}
    files, positions = {file.path: file for file in corpus_files(places)}, _positions(folder)
    found: dict[str, Document] = {}
    for row in rows:
        file = files.get(row["source_path"])
        if file is None:
            continue
        at = _nearest(positions.get(file.path, ()), row["source_row"])
        reading = read_rows(file, first_row=row["source_row"], stop_row=row["source_row"] + 1, at=at)
        source = next(iter(reading), None)
        if source is not None and not isinstance(source, RejectedRow) and source.uid == row["source_uid"]:
            found[row["uid"]] = source
    return found


def _index_rows(folder: Folder, uids: Sequence[str]) -> list[dict]:
    import pyarrow.compute as pc

    columns = ["uid", "source_uid", "source_path", "source_row"]
    wanted = pc.field("uid").isin(list(uids))
    rows = Manifest(folder).consistently(
        lambda view: view.dataset("documents").to_table(columns=columns, filter=wanted)
    )
    return [row for row in rows.to_pylist() if row["source_path"] is not None]


def _positions(folder: Folder) -> dict[str, list[Position]]:
    """Where reading can begin in each source file, as the inventory of the output has it."""
    try:
        files = json.loads(folder.read(INVENTORY))
    except Missing:
        return {}
    return {file["path"]: [Position.from_dict(chunk["position"]) for chunk in file["chunks"]] for file in files}


def _nearest(positions: Sequence[Position], row: int) -> Position:
    """The last position at or before a row."""
    return max((at for at in positions if at.row <= row), key=lambda at: at.row, default=START)
