"""The source side of a derivation: what is in the input, in which chunks, in which order.

One pass over the input (`TakeInventory`, a Datatrove step, parallel over files) counts rows, keeps every rejected row,
and cuts the documents into chunks. The chunks are then ordered by a seeded permutation, and so are the documents within
each, so that any prefix of the whole is an unbiased sample, and a place in that order means the same document whatever
the number of tasks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from datatrove.pipeline.base import PipelineStep

from derivedata.corpus.files import CorpusFile
from derivedata.corpus.inventory import ChunkSpan, ShardInventory, take_inventory
from derivedata.corpus.reader import RejectedRow, read_rows
from derivedata.corpus.source import Source as ByteSource
from derivedata.errors import UserError
from derivedata.store.books import Books
from derivedata.store.ledger import Ledger
from derivedata.store.paths import Folder
from derivedata.store.tables import REJECTED, Part, rows_to_table

if TYPE_CHECKING:
    from derivedata.corpus.document import Document

INVENTORY = "plan/inventory.json"
INPUT = "input"  # stage and place of what the input rows became


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A run of source documents of one file, the unit of commit."""

    index: int  # place in the seeded order
    before: int  # documents in the chunks before it
    file: CorpusFile
    span: ChunkSpan

    @property
    def documents(self) -> int:
        return self.span.documents


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """All of the input, counted and put in order."""

    chunks: Sequence[Chunk]
    rows: int
    documents: int
    text_bytes: int
    rejected: dict[str, int]  # reason -> rows
    sha256: str  # over the files' paths and hashes: what the input is
    seed: int

    def read(self, chunk: Chunk) -> list[Document]:
        """The documents of a chunk in its seeded order.

        Raises:
            UserError: the file no longer holds what was counted in it.
        """
        span = chunk.span
        rows = read_rows(chunk.file, first_row=span.first_row, stop_row=span.stop_row, at=span.position)
        documents = [row for row in rows if not isinstance(row, RejectedRow)]
        if len(documents) != span.documents or sum(len(d.text.encode()) for d in documents) != span.text_bytes:
            raise UserError(
                f"rows {span.first_row}-{span.stop_row} are not what they were when the input was counted",
                where=chunk.file.url,
                remedy="put the file back as it was, or start over with --restart",
            )
        return sorted(documents, key=lambda document: keyed(self.seed, document.uid))


class TakeInventory(PipelineStep):
    """Count each input file once and keep its rejected rows; a file counted before is passed over."""

    name = "Inventory"
    type = "🔎 - SOURCE"

    def __init__(self, files: Sequence[CorpusFile], output: str, *, chunk_bytes: int, run_id: str):
        super().__init__()
        self.files, self.output, self.chunk_bytes, self.run_id = list(files), output, chunk_bytes, run_id

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        folder = Folder(self.output)
        done = {entry.path for entry in folder.list("plan/files")}
        ledger = Ledger(folder)
        for number in range(rank, len(self.files), world_size):
            name = f"plan/files/{_sha(self.files[number].path)[:32]}.json"
            if name not in done:
                with self.track_time("file"):
                    self._count(folder, ledger, self.files[number], name)

    def _count(self, folder: Folder, ledger: Ledger, file: CorpusFile, name: str) -> None:
        with folder.scratch() as scratch:
            keeper = _RejectKeeper(scratch / "rejected.jsonl.zst")
            inventory = take_inventory(file, chunk_bytes=self.chunk_bytes, on_rejected=keeper.add)
            self.stat_update("rows", value=inventory.rows)
            self.stat_update("rejected", value=sum(inventory.rejected.values()))
            books = Books(planned=inventory.rows, accepted=inventory.documents, rejected=inventory.rejected)
            kept = keeper.close()
            files = {f"rejected/{INPUT}-{_sha(file.path)[:32]}.jsonl.zst": kept.path} if kept else {}
            tables = {"rejected": rows_to_table([self._index(row) for row in keeper.rows], REJECTED)} if kept else {}
            # Named by the file, not by its place in the listing, which another file can change.
            ledger.publish(
                f"{INPUT}-{_sha(file.path)[:32]}", Part(books=books, stage=INPUT, files=files, tables=tables)
            )
        folder.create(name, json.dumps(inventory.to_dict(), sort_keys=True).encode())

    def _index(self, row: RejectedRow) -> dict[str, Any]:
        return {
            "stage": INPUT,
            "reason": row.reason,
            "detail": row.detail,
            "path": row.path,
            "line": row.line,
            "run_id": self.run_id,
        }


class _RejectKeeper:
    """Writes the rejected rows of one file, and nothing where there are none."""

    def __init__(self, path):
        self.path, self.rows, self._writer = path, [], None

    def add(self, row: RejectedRow) -> None:
        from derivedata.corpus.writer import ShardWriter

        self._writer = self._writer or ShardWriter(self.path)
        self._writer.write(row.to_dict())
        self.rows.append(replace(row, text=""))

    def close(self):
        return self._writer.close() if self._writer else None


def counted_files(folder: Folder) -> int:
    """How many files of an inventory that is under way are counted."""
    return len(folder.list("plan/files"))


def close_inventory(folder: Folder, files: Sequence[CorpusFile]) -> None:
    """Put the counts of all files into one, so that a restart reads one object and not one a file."""
    if folder.exists(INVENTORY):
        return
    by_path = {row["path"]: row for row in (json.loads(folder.read(path)) for path in folder.names("plan/files/"))}
    rows = [by_path[file.path] for file in files]
    folder.create(INVENTORY, json.dumps(rows, sort_keys=True).encode())
    folder.remove_tree("plan/files")


def open_source(folder: Folder, files: Sequence[CorpusFile], *, seed: int) -> Source:
    """The counted input in its seeded order.

    Args:
        folder: the output, which holds the inventory.
        files: the input as it is now.
        seed: the run's seed; another seed is another order.

    Raises:
        UserError: the input is no longer what was counted.
    """
    try:
        inventories = [ShardInventory.from_dict(row) for row in json.loads(folder.read(INVENTORY))]
    except (ValueError, TypeError, KeyError):
        where, remedy = folder.url_of(INVENTORY), "remove the file to have the input counted again"
        raise UserError("is damaged", where=where, remedy=remedy) from None
    by_path = {file.path: file for file in files}
    _refuse_changed(inventories, by_path)
    spans = [(inventory, span) for inventory in inventories for span in inventory.chunks]
    spans.sort(key=lambda pair: keyed(seed, f"{pair[0].path}\n{pair[1].first_row}"))
    chunks, before = [], 0
    for index, (inventory, span) in enumerate(spans):
        chunks.append(Chunk(index=index, before=before, file=by_path[inventory.path], span=span))
        before += span.documents
    rejected: dict[str, int] = {}
    for inventory in inventories:
        for reason, count in inventory.rejected.items():
            rejected[reason] = rejected.get(reason, 0) + count
    return Source(
        chunks=chunks,
        rows=sum(inventory.rows for inventory in inventories),
        documents=before,
        text_bytes=sum(inventory.text_bytes for inventory in inventories),
        rejected=rejected,
        sha256=_sha("\n".join(f"{inventory.path} {inventory.sha256}" for inventory in inventories)),
        seed=seed,
    )


def _refuse_changed(inventories: Iterable[ShardInventory], now: dict[str, CorpusFile]) -> None:
    counted = {inventory.path: inventory for inventory in inventories}
    changed = [f"{path} is gone" for path in counted if path not in now]
    changed += [f"{path} is new" for path in now if path not in counted]
    for path, inventory in counted.items():
        file = now.get(path)
        if file is None or file.version == inventory.version:
            continue
        # A copy has another modification time and the same bytes; only the bytes matter.
        if file.bytes != inventory.bytes or content_sha256(file) != inventory.sha256:
            changed.append(f"{path} has other content")
    if changed:
        shown = "; ".join(changed[:3]) + (f"; and {len(changed) - 3} more" if len(changed) > 3 else "")
        raise UserError(
            f"the input is not what this output was started from: {shown}",
            remedy="put it back, write to another output, or start over with --restart",
        )


def content_sha256(file: CorpusFile) -> str:
    """sha256 of the bytes of a file, as they are stored."""
    digest = hashlib.sha256()
    with ByteSource(file.url, digest=digest) as stream:
        stream.drain()
    return digest.hexdigest()


def keyed(seed: int, name: str) -> bytes:
    """Sorting by this is a permutation that depends on the seed and the names alone."""
    return hashlib.sha256(f"{seed}\n{name}".encode("utf-8", "surrogatepass")).digest()


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
