"""What is sound of a damaged unit, as journal records, so that only the rest has to be asked for again.

A document counts as sound when one of two witnesses says so: the hash of its whole file, which the manifest has, or the
hash of its own text, which the index has. Everything else of a record follows from the plan, and is checked against it.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import zstandard

from derivedata.corpus.document import Document
from derivedata.corpus.files import CorpusFile
from derivedata.corpus.reader import RejectedRow, read_rows
from derivedata.errors import UserError
from derivedata.pipelines.verify_manifest import Sound
from derivedata.pipelines.verify_shard import DERIVATION
from derivedata.store.content import size_and_sha256
from derivedata.store.paths import Folder, Missing
from derivedata.store.snapshots import SNAPSHOTS
from derivedata.store.tables import part_path
from derivedata.store.units import Unit


class Witness:
    """What the readable rest of a manifest says of the files and rows of its parts."""

    def __init__(self, folder: Folder, sound: Sound):
        self.folder, self.view = folder, sound.view

    @cached_property
    def hashes(self) -> Mapping[str, str]:
        """sha256 by path, of shards and of the files beside them."""
        shards = self.view.table("shards", ["path", "sha256"])
        found = dict(zip(shards["path"].to_pylist(), shards["sha256"].to_pylist(), strict=True))
        for files in self.view.table("units", ["files"])["files"].to_pylist():
            found.update((file["path"], file["sha256"]) for file in files or ())
        return found

    def is_whole(self, path: str) -> bool | None:
        """Whether a file has the content that was committed; None where nothing says so. Raises Missing."""
        if path not in self.hashes:
            return None
        with self.folder.open(path) as stream:
            return size_and_sha256(stream)[1] == self.hashes[path]

    def rows(self, table: str, name: str, where: Any) -> list[dict[str, Any]] | None:
        """Rows of an index table that may belong to a part; None where they can't be read.

        Args:
            table: the table.
            name: the part.
            where: an Arrow expression that all rows of the part satisfy.
        """
        own, files = part_path(table, name), self.view.files.get(table, ())
        # A part whose units part is lost may still have its index file, though the manifest does not speak of it.
        if name in self.view.fresh or self.folder.exists(own):
            files = (own,)
        else:
            files = tuple(path for path in files if path.startswith(SNAPSHOTS))
        found: list[dict[str, Any]] = []
        for path in files:
            try:
                found += self._read(path).filter(where).to_pylist()
            except (pa.ArrowException, OSError, KeyError, ValueError):  # Missing is an OSError; a flipped byte no UTF-8
                return None
        return found if files else None

    def _read(self, path: str) -> pa.Table:
        import pyarrow.parquet as pq

        with self.folder.open(path) as stream:
            return pq.read_table(stream)


def sound_documents(witness: Witness, unit: Unit, paths: Sequence[str]) -> dict[str, tuple[Document, str | None]]:
    """The sound documents of a unit's shards by id, each with the file's URL where the whole file is sound."""
    import pyarrow.compute as pc

    found: dict[str, tuple[Document, str | None]] = {}
    for path in paths:
        whole = witness.is_whole(path)
        rows = witness.rows("documents", unit.name, pc.field("shard") == path)
        by_row = {row["row"]: row for row in rows or ()}
        form = "parquet" if path.endswith("parquet") else "jsonl"
        file = CorpusFile(witness.folder.url_of(path), path.removeprefix("documents/"), 0, "", form)
        for document in read_rows(file):
            if isinstance(document, RejectedRow) or not isinstance(document.id, str):
                continue
            if whole or _is_indexed(document, by_row.get(document.row)):
                found[document.id] = (document, file.url if whole else None)
    return found


def _is_indexed(document: Document, row: Mapping[str, Any] | None) -> bool:
    """Whether the index has the very document in this row."""
    derivation = (document.metadata or {}).get("derivedata")
    if row is None or not isinstance(derivation, dict):
        return False
    sha256 = hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).hexdigest()
    return (sha256, document.id) == (row["text_sha256"], row["id"]) and all(
        derivation.get(name) == row[name] for name in DERIVATION
    )


def read_lines(folder: Folder, path: str) -> Iterator[dict[str, Any]]:
    """The rows of a file of zstd JSON lines, as far as it can be read (its frames have checksums)."""
    try:
        with folder.open(path) as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as it:
            for line in io.BufferedReader(it):
                row = json.loads(line)
                if isinstance(row, dict):
                    yield row
    except (Missing, zstandard.ZstdError, ValueError):
        return


def refuse_other_making(where: str, what: str, found: Any, expected: Any) -> None:
    """Raise for a whole file whose content the run record can't have made: then it is the record that is wrong."""
    raise UserError(
        f"is as it was committed, and has {what} {found} where the run record makes it {expected}",
        where=where,
        remedy="put run.json back as it was (manifest/runs/ has copies); nothing was changed",
    )
