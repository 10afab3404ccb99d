"""Checks what only shows over a whole output: doubled keys, rows that belong nowhere, stray files, the books."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from derivedata.errors import UserError
from derivedata.pipelines.source import INPUT
from derivedata.pipelines.verify_manifest import Found, Sound
from derivedata.pipelines.verify_records import Records
from derivedata.pipelines.verify_rejects import ROOM
from derivedata.store.books import Books
from derivedata.store.paths import Folder
from derivedata.store.tables import FRESH, MANIFEST

MOST = 5  # examples of one fault
# The ids of documents that are not derived are whatever people gave them.
DOUBLED = f"""
    SELECT id, count(*) AS n FROM documents WHERE strategy IS DISTINCT FROM '{FRESH}'
    GROUP BY id HAVING n > 1 ORDER BY id
"""
# Copies keep the ids of their sources, which nobody promised to be unique.
COPIED_TWICE = """
    SELECT concat('copy ', epoch, ' of ', source_uid) AS name, count(*) AS n FROM documents
    GROUP BY ALL HAVING n > 1 ORDER BY name
"""
COPIES = ("repeat", "mix")  # jobs that copy documents, and the stages of their books
DRAWN_TWICE = """
    SELECT source_uid, rewrite, piece, count(*) AS n FROM documents
    GROUP BY ALL HAVING n > 1 ORDER BY ALL
"""
NO_SHARD = "SELECT shard, count(*) AS n FROM documents ANTI JOIN shards ON shard = path GROUP BY shard ORDER BY shard"
NO_SOURCE = """
    SELECT any_value(d.id), d.source_path, d.source_row, count(*) AS n FROM documents d
    ANTI JOIN sources s ON d.source_uid = s.uid AND d.source_path = s.path AND d.source_row = s.row
        AND d.source_id IS NOT DISTINCT FROM s.id
    WHERE coalesce(d.source_uid, d.source_path) IS NOT NULL
    GROUP BY d.source_path, d.source_row ORDER BY d.source_path, d.source_row
"""
REASONS = "SELECT stage, reason, count(*) AS n FROM rejected GROUP BY ALL ORDER BY ALL"
RUNS = """
    SELECT DISTINCT run_id, name FROM (
        SELECT run_id, 'documents' AS name FROM documents UNION ALL SELECT run_id, 'rejected' AS name FROM rejected
    ) ORDER BY ALL
"""


def check_whole(folder: Folder, sound: Sound, records: Records, scratch: str) -> Iterator[Found]:
    """What is wrong, of what can be asked in SQL; `scratch` is a folder on this machine for what memory can't hold."""
    import duckdb

    view, root = sound.view, folder.url
    with duckdb.connect(config={"temp_directory": scratch, "autoinstall_known_extensions": False}) as connection:
        for table in ("documents", "shards", "rejected", *({"sources"} & view.tables)):
            connection.register(table, view.dataset(table))

        def ask(sql: str) -> list[tuple]:
            return connection.execute(f"{sql} LIMIT {MOST}").fetchall()

        job = records.current.identity.get("job") if records.current is not None else None
        for name, count in ask(COPIED_TWICE if job in COPIES else DOUBLED):
            yield root, f"document {name} is there {count} times"
        if records.current is not None and records.current.identity.get("style_mix"):
            for uid, rewrite, piece, count in ask(DRAWN_TWICE):
                yield root, f"rewrite {rewrite} of piece {piece} of document {uid} is there {count} times"
        if sound.all_of("shards"):
            for shard, count in ask(NO_SHARD):
                yield folder.url_of(str(shard)), f"is not in the manifest, but {count} documents of the index are in it"
        if "sources" in view.tables and sound.all_of("sources"):
            for name, path, row, count in ask(NO_SOURCE):
                yield (
                    folder.url_of(f"{MANIFEST}/sources"),
                    f"has no document at {path} row {row}, from which {name} was derived ({count} documents so)",
                )
        if records.ids:
            for run_id, name in connection.execute(RUNS).fetchall():
                if run_id not in records.ids:
                    yield folder.url_of(f"{MANIFEST}/{name}"), f"names run {run_id}, of which there is no record"
        reasons = connection.execute(REASONS).fetchall()
    yield from _books(folder, sound, reasons)
    yield from _strays(folder, sound)


def _books(folder: Folder, sound: Sound, reasons: list[tuple[str, str, int]]) -> Iterator[Found]:
    """The books of each stage against the index; files that can't be read leave the index short."""
    books = sound.view.books()
    indexed: dict[str, Counter[str]] = {}
    for stage, reason, count in reasons:
        indexed.setdefault(stage, Counter())[reason] = count
    for stage in sorted(books.keys() | indexed.keys()):
        account = books.get(stage, Books())
        try:
            account.balance(stage)
        except UserError as error:
            yield folder.url, error.line
        told, there = dict(account.rejected), dict(indexed.get(stage, {}))
        if told != there and sound.all_of("rejected"):
            yield folder.url_of(f"{MANIFEST}/rejected"), f"the books of {stage} reject {told}, the index holds {there}"
    import pyarrow.compute as pc

    documents = sound.view.dataset("documents")
    fresh = documents.count_rows(filter=pc.field("strategy") == FRESH)
    whole = documents.count_rows()
    expected = [("generation", whole - fresh), (INPUT, fresh)]
    if copied := [stage for stage in COPIES if stage in books]:
        expected = [(copied[0], whole)]
    for stage, there in expected:
        accepted = books[stage].accepted if stage in books else 0
        # The input that was derived from is no document of the output.
        if accepted != there and sound.all_of("documents") and not (stage == INPUT and not fresh):
            yield folder.url_of(f"{MANIFEST}/documents"), f"the books accept {accepted}, the index holds {there}"


def _strays(folder: Folder, sound: Sound) -> Iterator[Found]:
    """Files that no committed part names; those of a part that can't be read are its own."""
    known = set(sound.view.table("shards", ["path"])["path"].to_pylist())
    known |= {path for path, _ in further_files(sound)}
    # Without the list that names them nobody can tell what is a stray.
    rooms = [room for room, table in (("documents/", "shards"), (ROOM, "units")) if table not in sound.unread]
    for room in rooms:
        for path in folder.names(room):
            name = path.rpartition("/")[2]
            if path not in known and not any(name.startswith(f"{lost}.") for lost in sound.lost):
                yield folder.url_of(path), "is not in the manifest"


def further_files(sound: Sound) -> list[tuple[str, str]]:
    """(path, sha256) of the files that committed parts brought beside their shards (rejects, rollouts)."""
    rows = sound.view.table("units", ["files"])["files"].to_pylist()
    return [(file["path"], file["sha256"]) for files in rows for file in files or ()]
