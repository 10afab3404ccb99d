"""Write a corpus several times, each epoch in another order: `derivedata repeat CORPUS -o OUT --epochs 4`.

`RepeatStage` is the Datatrove step; `derivedata.pipelines.repeat_run` counts the corpus first and drives it. A unit of
commit is a run of windows of one epoch. Rows pass as bytes: what a copy gets beyond its source is spliced in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from datatrove.pipeline.base import PipelineStep

from derivedata.corpus.blocks import Blocks
from derivedata.corpus.blocks_lines import block_data
from derivedata.corpus.document import without_compression
from derivedata.corpus.stream import BlockStream
from derivedata.corpus.windows import WINDOW_BYTES
from derivedata.corpus.writer import ShardWriter
from derivedata.pipelines.repeat_rows import Indexed
from derivedata.pipelines.repeat_splice import Splicer
from derivedata.store.books import Books
from derivedata.store.ledger import Ledger
from derivedata.store.paths import Folder
from derivedata.store.tables import DOCUMENTS, Part
from derivedata.store.units import Unit, missing

STRATEGY, FIRST = "repeat", "fresh"  # the first epoch is the corpus itself
STAGE = "repeat"  # whose books
DONE = "progress/repeat"
AT_ONCE = 256  # rows: what passes the caches of a processor together
KNOWN = ("row", "uid", "id", "source", "tokens", "chars", "text_sha256")  # of the index, what the manifest gets


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatConfig:
    """What determines a repeated corpus, and how much of it is wanted."""

    seed: int = 0
    epochs: int = 1  # whole ones
    extra: int = 0  # documents of one more
    tokenizer_name: str | None = None
    format: str = "jsonl.zst"
    windows_per_shard: int = 8
    window_bytes: int = WINDOW_BYTES
    run_id: str = ""  # of the first run: every run writes the same bytes


class Chunks:
    """The runs of windows that are committed together, over all epochs."""

    def __init__(self, stream: BlockStream, per_shard: int):
        self.stream, self.per_shard = stream, per_shard
        self.in_epoch = -(-stream.epoch_windows // per_shard)

    def __len__(self) -> int:
        return -(-self.stream.windows // self.stream.epoch_windows) * self.in_epoch

    def windows(self, chunk: int) -> range:
        """The windows of a chunk, numbered as in the stream; none where the last epoch ends before."""
        epoch, place = divmod(chunk, self.in_epoch)
        first = epoch * self.stream.epoch_windows
        stop = min(first + self.stream.epoch_windows, first + (place + 1) * self.per_shard, self.stream.windows)
        return range(first + place * self.per_shard, stop)

    def documents(self, chunk: int) -> int:
        """Documents of a chunk."""
        return sum(self.stream.count(window) for window in self.windows(chunk))


class RepeatStage(PipelineStep):
    """Write the chunks that are missing, as tasks share them."""

    name = "🔁 Repeat"
    type = "🧬 - DERIVE"

    def __init__(self, *, config: RepeatConfig, blocks: Blocks, output: str):
        super().__init__()
        self.config, self.blocks, self.output = config, blocks, output

    @cached_property
    def folder(self) -> Folder:
        return Folder(self.output)

    @cached_property
    def stream(self) -> BlockStream:
        config = self.config
        return BlockStream(
            self.blocks, seed=config.seed, epochs=config.epochs, extra=config.extra, window_bytes=config.window_bytes
        )

    @cached_property
    def chunks(self) -> Chunks:
        return Chunks(self.stream, self.config.windows_per_shard)

    def missing(self, ledger: Ledger) -> list[Unit]:
        """The units that are still to be written, by all ranks together."""
        committed: dict[int, list[Unit]] = {}
        for unit in ledger.committed():
            committed.setdefault(unit.chunk, []).append(unit)
        found = []
        for chunk in range(len(self.chunks)):
            wanted = self.chunks.documents(chunk)
            found += missing(committed.get(chunk, []), chunk=chunk, documents=wanted, kinds=(STRATEGY,), rewrites=1)
        return found

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        ledger, indexed, done = Ledger(self.folder), Indexed(self.folder, self.blocks), 0
        for unit in self.missing(ledger):
            if unit.chunk % world_size != rank:
                continue
            with self.track_time("unit"), self.folder.scratch() as scratch:
                ledger.commit(unit, self.part(indexed, unit, scratch))
            done += unit.documents
            self.stat_update("documents", value=unit.documents)
            self.folder.replace(f"{DONE}/{rank:05d}", str(done).encode())

    def part(self, indexed: Indexed, unit: Unit, scratch: Path) -> Part:
        """What a unit puts into the output; the same bytes whoever makes it."""
        config, windows = self.config, self.chunks.windows(unit.chunk)
        epoch = self.stream.place(windows[0])[0]
        strategy = STRATEGY if epoch > 1 else FIRST
        path = f"documents/epoch={epoch:04d}/{unit.name}.{config.format}"
        tail = orjson.dumps({"strategy": strategy, "epoch": epoch, "run_id": config.run_id})
        rows: list[pa.Table] = []
        with ShardWriter(scratch / f"shard.{config.format}", format=config.format, ahead=True) as writer:
            place = 0
            for window in windows:
                count = self.stream.count(window)
                first, stop = max(unit.first - place, 0), min(unit.stop - place, count)
                if first < stop:
                    rows.append(self._window(indexed, window, first, stop, writer.write_rows, b"," + tail[1:]))
                place += count
            made = writer.close()
        table = pa.concat_tables(rows)
        tokens = None if config.tokenizer_name is None else int(np.sum(table["tokens"].to_numpy(), dtype=np.int64))
        entry = made.entry(
            path,
            tokens=tokens,
            tokenizer=config.tokenizer_name,
            strategy=strategy,
            run_id=config.run_id,
            format=config.format,
        )
        index = _index(table, path, strategy, epoch, config.run_id)
        books = Books(planned=unit.documents, accepted=made.documents)
        return Part(books=books, stage=STAGE, shards=[entry], tables={"documents": index})

    def _window(self, indexed: Indexed, window: int, first: int, stop: int, write, tail: bytes) -> pa.Table:
        """Write documents [first, stop) of a window; what the index knows of them, in their order."""
        epoch, number = self.stream.place(window)
        blocks = np.sort(self.stream.order(epoch).blocks(number)).tolist()
        known = [indexed.rows(block) for block in blocks]
        data = [block_data(indexed.blocks, block) for block in blocks]
        held = [batch.num_rows for batch in known]
        table = pa.Table.from_batches(known)
        files = np.repeat(indexed.blocks.table["file"][blocks], held)
        before = np.repeat(np.cumsum([0, *map(len, data[:-1])]), held)
        starts = pa.array(table["start"].to_numpy() + before)
        table = table.set_column(table.schema.get_field_index("start"), "start", starts)
        order = self.stream.shuffled(epoch, files, table["row"].to_numpy())[first:stop]
        splicer = Splicer(b"".join(data), table, tail)
        for at in range(0, len(order), AT_ONCE):
            write(*splicer.lines(order[at : at + AT_ONCE]))
        paths = pa.array([file.path for file in self.blocks.files])
        return table.select(KNOWN).take(pa.array(order)).append_column("path", paths.take(pa.array(files[order])))


def _index(table: pa.Table, shard: str, strategy: str, epoch: int, run_id: str) -> pa.Table:
    """The rows of the manifest's index of documents."""
    place = f"{without_compression(shard.removeprefix('documents/'))}\n".encode()
    sha256, fromhex = hashlib.sha256, bytes.fromhex
    texts = table["text_sha256"].to_pylist()
    # document_uid, with the text's hash already there.
    uids = [sha256(b"%s%d\n%s" % (place, row, fromhex(text))).hexdigest()[:32] for row, text in enumerate(texts)]
    size = table.num_rows
    columns = {
        "uid": pa.array(uids),
        "id": table["id"],
        "source": table["source"],
        "strategy": pa.repeat(strategy, size),
        "shard": pa.repeat(shard, size),
        "row": pa.array(np.arange(size)),
        "tokens": table["tokens"],
        "chars": table["chars"],
        "text_sha256": table["text_sha256"],
        "source_uid": table["uid"],
        "source_id": table["id"],
        "source_path": table["path"],
        "source_row": table["row"],
        "epoch": pa.repeat(pa.scalar(epoch, pa.int32()), size),
        "run_id": pa.repeat(run_id, size),
    }
    return pa.table(
        [columns.get(field.name, pa.nulls(size, field.type)) for field in DOCUMENTS], schema=DOCUMENTS
    ).combine_chunks()


def documents_done(folder: Folder, place: str = DONE) -> int:
    """Documents that the ranks of a run under way have written."""
    return sum(int(folder.read(path) or 0) for path in folder.names(f"{place}/"))


__all__: Sequence[str] = ("Chunks", "RepeatConfig", "RepeatStage", "documents_done")
