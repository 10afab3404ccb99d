"""Checks lineage: the source documents that an output used are still where the index says, and the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from derivedata.corpus.document import without_compression
from derivedata.corpus.files import CorpusFile
from derivedata.corpus.reader import RejectedRow, read_rows
from derivedata.pipelines.verify_manifest import Found, Sound
from derivedata.store.manifest import View


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A source file, and under which paths which table of the index names it."""

    file: CorpusFile
    paths: tuple[str, ...]
    table: str


# Columns of path, row, uid and id, by table: units also name sources of which no document was kept.
COLUMNS = {
    "sources": ("path", "row", "uid", "id"),
    "documents": ("source_path", "source_row", "source_uid", "source_id"),
}


def wanted_sources(sound: Sound, files: Sequence[CorpusFile]) -> tuple[list[Wanted], list[Found]]:
    """The source files to look into, and those that are gone. Compression may have changed, as uids don't show it."""
    import pyarrow.compute as pc

    view = sound.view
    table = "sources" if "sources" in view.tables and sound.all_of("sources") else "documents"
    named: dict[str, list[str]] = {}
    paths: set[str] = set()
    derived = pc.field(COLUMNS[table][2]).is_valid()  # others name where they were taken in from
    for batch in view.dataset(table).to_batches(columns=[COLUMNS[table][0]], filter=derived):
        paths.update(pc.unique(batch.column(0)).to_pylist())
    for path in sorted(str(path) for path in paths):
        named.setdefault(without_compression(path), []).append(path)
    by_path = {without_compression(file.path): file for file in files}
    gone = [(path, "is no longer in the source") for name in named if name not in by_path for path in named[name]]
    wanted = [
        Wanted(file=by_path[name], paths=tuple(its), table=table) for name, its in named.items() if name in by_path
    ]
    return wanted, gone


def check_source(view: View, wanted: Wanted) -> Iterator[str]:
    """Documents that the index names and that the source file no longer holds."""
    import pyarrow.compute as pc

    path, row, uid, name = COLUMNS[wanted.table]
    wanted_rows = pc.field(path).isin(wanted.paths) & pc.field(uid).is_valid()
    rows = view.dataset(wanted.table).to_table(columns=[row, uid, name], filter=wanted_rows)
    named = dict(
        zip(rows[row].to_pylist(), zip(rows[uid].to_pylist(), rows[name].to_pylist(), strict=True), strict=True)
    )
    for document in read_rows(wanted.file):
        if isinstance(document, RejectedRow) or document.row not in named:
            continue
        its_uid, its_id = named.pop(document.row)
        if its_uid != document.uid:
            yield f"row {document.row} is not the document that was derived from"
        elif isinstance(document.id, str) and document.id.isascii() and document.id != its_id:
            yield f"row {document.row} has id {document.id!r}, the index says {its_id!r}"
    if named:
        yield f"rows {sorted(named, key=str)[:5]} that were derived from are gone"
