"""The blocks of a corpus: runs of rows of about a megabyte that can be read alone, found without reading text twice.

    blocks = open_blocks("corpus")           # a plain corpus is counted once, an output of ours has its frames listed
    blocks.read(0, blocks.count)             # the documents of the first blocks

A block is a compressed frame that the manifest lists, or a span of rows between two positions of the inventory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from derivedata.corpus.document import Document, without_compression
from derivedata.corpus.files import CorpusFile, corpus_files
from derivedata.corpus.frames import Position
from derivedata.corpus.inventory import ShardInventory, take_inventory
from derivedata.corpus.reader import read_rows
from derivedata.errors import UserError
from derivedata.store.paths import Folder

BLOCK_BYTES = 1 << 20  # of text, about
CODECS = (None, "plain", "gzip", "zstd", "bz2", "xz", "parquet")
FRAME_CODECS = {"jsonl.zst": "zstd", "jsonl.gz": "gzip", "parquet": "parquet"}
BLOCK = np.dtype(
    [
        ("file", "i4"),
        ("codec", "i1"),
        ("first", "i8"),  # rows [first, stop) of the file
        ("stop", "i8"),
        ("documents", "i8"),
        ("bytes", "i8"),  # of text, about: for frames of the manifest worked out from their compressed length
        ("offset", "i8"),  # where to start reading: see Position
        ("skip", "i8"),
        ("line", "i8"),
        ("length", "i8"),  # compressed bytes of a frame that is a block by itself; 0 otherwise
    ]
)


@dataclass(frozen=True, slots=True)
class Blocks:
    """All blocks of a corpus, in the order of its files and rows.

    Attributes:
        files: the shards.
        table: a row a block (dtype BLOCK).
        shas: sha256 of each file's bytes.
        styles, strategies: of each file, where a manifest says so.
        rejected: rows that are no documents, by reason.
    """

    files: tuple[CorpusFile, ...]
    table: np.ndarray
    shas: tuple[str, ...]
    styles: tuple[str | None, ...]
    strategies: tuple[str | None, ...]
    rejected: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def documents(self) -> int:
        return int(self.table["documents"].sum())

    @property
    def fingerprint(self) -> str:
        """sha256 over what the documents are and how they are cut into blocks."""
        digest = hashlib.sha256()
        for file, sha256 in zip(self.files, self.shas, strict=True):
            if file.selection is not None:
                digest.update(repr(file.selection).encode())
            digest.update(f"{without_compression(file.path)}\n{sha256}\n".encode("utf-8", "surrogatepass"))
        for name in ("file", "first", "stop", "documents", "bytes"):
            digest.update(np.ascontiguousarray(self.table[name]).tobytes())
        return digest.hexdigest()

    def position(self, block: int) -> Position:
        """Where the block's first row stands."""
        row = self.table[block]
        return Position(
            row=int(row["first"]),
            line=int(row["line"]),
            offset=int(row["offset"]),
            skip=int(row["skip"]),
            codec=CODECS[row["codec"]],
        )

    def read(self, block: int, stop: int | None = None) -> list[Document]:
        """The documents of blocks [block, stop), which must lie in one file one after the other; default: of one block.

        Raises:
            UserError: the file no longer holds what was counted in it.
        """
        stop = block + 1 if stop is None else stop
        file = self.files[self.table["file"][block]]
        rows = read_rows(
            file,
            first_row=int(self.table["first"][block]),
            stop_row=int(self.table["stop"][stop - 1]),
            at=self.position(block),
        )
        documents = [row for row in rows if row.__class__ is Document]
        self.check(block, stop, len(documents))
        return documents

    def check(self, block: int, stop: int, found: int) -> None:
        """Raise UserError unless blocks [block, stop) hold as many documents as were `found` in them."""
        if found != int(self.table["documents"][block:stop].sum()):
            raise changed(self.files[self.table["file"][block]])

    def runs(self, blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Ascending block numbers as runs [block, stop) that can be read in one go."""
        files = self.table["file"]
        first = last = None
        for block in blocks:
            if last is not None and (block != last + 1 or files[block] != files[last]):
                yield first, last + 1
                first = None
            first, last = block if first is None else first, block
        if first is not None:
            yield first, last + 1


def changed(file: CorpusFile) -> UserError:
    """The error for a file that no longer holds what was counted in it."""
    return UserError(
        "the shard is not what it was when its documents were counted",
        where=file.url,
        remedy="put it back as it was, or start over from the corpus as it is now",
    )


def open_blocks(
    place: str | Sequence[str],
    *,
    style: str | None = None,
    strategy: str | None = None,
    plan: Folder | None = None,
) -> Blocks:
    """The blocks of a corpus.

    Args:
        place: a plain corpus (anything `corpus_files` takes), or one output of ours.
        style, strategy: of an output of ours, only these documents.
        plan: a folder of ours that keeps the counts of plain files (under plan/files); default the user's cache.

    Raises:
        UserError: nothing is found, a style that isn't there, a shard that changed since its manifest.
    """
    from derivedata.corpus.stream_virtual import read_virtual, subset_blocks

    places = [os.fspath(place)] if isinstance(place, (str, os.PathLike)) else list(place)
    told = read_virtual(places[0]) if len(places) == 1 else None
    if told is not None and told["kind"] != "subset":
        raise UserError(
            f"a virtual {told['kind']} is an order already, not a corpus to put in order",
            where=places[0],
            remedy="name what it was made from",
        )
    if told is not None and not style and not strategy:
        return subset_blocks(places[0], told)
    if len(places) == 1 and is_output(places[0]):
        return _listed(places[0], style, strategy)
    if style or strategy:
        name, value = ("style", style) if style else ("strategy", strategy)
        raise UserError(f"a plain corpus has no documents of one {name}", where=", ".join(places), value=value)
    files = corpus_files(places)
    return counted_blocks(files, [count_file(file, plan) for file in files])


def is_output(place: str) -> bool:
    """Whether a place is a folder that a command of ours wrote, with a manifest."""
    from derivedata.corpus.source import is_local

    if is_local(place):
        root = Path(place.removeprefix("file://")).expanduser()
        return (root / "run.json").is_file() and (root / "manifest").is_dir()
    folder = Folder(place)
    return folder.exists("run.json") and bool(folder.names("manifest/units/") or folder.names("manifest/snapshots/"))


# Outputs of ours.


def _listed(place: str, style: str | None, strategy: str | None) -> Blocks:
    from derivedata.store.manifest import Manifest

    columns = ["path", "sha256", "bytes", "documents", "strategy", "style", "format", "frames"]
    rows = Manifest(Folder(place)).table("shards", columns).sort_by("path").to_pylist()
    for name, wanted in (("style", style), ("strategy", strategy)):
        there = sorted({str(row[name]) for row in rows if row[name]})
        if wanted is not None and wanted not in there:
            known = f"there are {', '.join(there)}" if there else "it has none"
            raise UserError(f"no such {name} in this output", where=place, value=wanted, remedy=known)
        rows = [row for row in rows if wanted is None or row[name] == wanted]
    if not rows:
        raise UserError("the output holds no documents", where=place, remedy="is it finished? Run its command again")
    found = {file.path: file for file in corpus_files([place])}
    files, table = [], []
    for number, row in enumerate(rows):
        file = found.get(row["path"].removeprefix("documents/"))
        where = Folder(place).url_of(row["path"])
        if file is None:
            raise UserError("is in the manifest and not in the folder", where=where, remedy=_VERIFY)
        if file.bytes != row["bytes"]:
            told = f"{file.bytes} bytes instead of {row['bytes']}"
            raise UserError("has changed since its manifest was written", where=where, value=told, remedy=_VERIFY)
        files.append(file)
        table += _frames(number, row)
    return Blocks(
        files=tuple(files),
        table=np.array(table, BLOCK),
        shas=tuple(row["sha256"] for row in rows),
        styles=tuple(row["style"] for row in rows),
        strategies=tuple(row["strategy"] for row in rows),
    )


_VERIFY = "put it back, or see what else is wrong with `derivedata verify`"


def _frames(number: int, row: dict) -> Iterator[tuple]:
    """Blocks of a shard of ours: our writer ends a frame with the row that brings it to a megabyte."""
    codec = CODECS.index(FRAME_CODECS[row["format"]])
    for place, frame in enumerate(row["frames"]):
        if not frame["rows"]:
            continue
        length, last = frame["length"], place == len(row["frames"]) - 1
        size = min(BLOCK_BYTES, 4 * length) if last else max(BLOCK_BYTES, 3 * length)
        first, parquet = frame["first_row"], row["format"] == "parquet"
        yield (number, codec, first, first + frame["rows"], frame["rows"], size,
               place if parquet else frame["offset"], 0, first + 1, 0 if parquet else length)  # fmt: skip


# Plain corpora.


def count_file(file: CorpusFile, plan: Folder | None = None) -> ShardInventory:
    """What a file holds and where its blocks begin; counted once, then kept in `plan` or the user's cache."""
    folder, name = plan or _cache(), f"plan/files/{_name(file, plan)}.json"
    if folder.exists(name):
        try:
            kept = ShardInventory.from_dict(json.loads(folder.read(name)))
        except (ValueError, TypeError, KeyError):
            kept = None
        if kept is not None and (kept.version, kept.bytes) == (file.version, file.bytes):
            return replace(kept, path=file.path, url=file.url)
        if kept is not None and plan is not None and content_sha256(file) == kept.sha256:
            return replace(kept, path=file.path, url=file.url)
        if kept is not None and plan is not None:
            raise changed(file)
    inventory = take_inventory(file, chunk_bytes=BLOCK_BYTES)
    folder.replace(name, json.dumps(inventory.to_dict(), sort_keys=True).encode())
    return inventory


def _name(file: CorpusFile, plan: Folder | None) -> str:
    place = file.path if plan else file.url
    return _sha(place if file.selection is None else f"{place}\n{file.selection}")[:32]


def counted_blocks(files: Sequence[CorpusFile], inventories: Sequence[ShardInventory]) -> Blocks:
    """Blocks of files that were counted."""
    table, rejected = [], Counter()
    for number, inventory in enumerate(inventories):
        rejected.update(inventory.rejected)
        for span in inventory.chunks:
            at = span.position
            table.append((number, CODECS.index(at.codec), span.first_row, span.stop_row, span.documents,
                          span.text_bytes, at.offset, at.skip, at.line, 0))  # fmt: skip
    nothing = (None,) * len(files)
    return Blocks(
        files=tuple(files),
        table=np.array(table, BLOCK),
        shas=tuple(inventory.sha256 for inventory in inventories),
        styles=nothing,
        strategies=nothing,
        rejected=dict(sorted(rejected.items())),
    )


def _cache() -> Folder:
    named = os.environ.get("DERIVEDATA_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(named).expanduser() if named else (Path(base) if base else Path.home() / ".cache") / "derivedata"
    return Folder(root / "counted")


def content_sha256(file: CorpusFile) -> str:
    """Hash of a file as it is now."""
    from derivedata.corpus.source import Source

    digest = hashlib.sha256()
    with Source(file.url, digest=digest) as stream:
        stream.drain()
    return digest.hexdigest()


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
