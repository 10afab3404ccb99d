"""What a mix must know of the documents of its sources: tokens, identity, and what each was derived from.

`CountDocuments` is the Datatrove step: one pass over what no manifest lists, none over outputs of ours.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from datatrove.pipeline.base import PipelineStep

from derivedata.corpus.blocks import Blocks, open_blocks
from derivedata.corpus.document import Document
from derivedata.corpus.files import CorpusFile
from derivedata.corpus.reader import read_rows
from derivedata.corpus.stream import BlockStream
from derivedata.corpus.stream_mix import rows_name
from derivedata.errors import UserError
from derivedata.pipelines.repeat_tokens import TokenCounts
from derivedata.store.paths import Folder

# uid and source: 64 bits of the uids, enough to tell a billion documents apart; source 0: derived from nothing.
DOCUMENT = np.dtype([("row", "i8"), ("tokens", "i8"), ("uid", "u8"), ("source", "u8")])
FRESH = (None, "fresh")
AT_ONCE = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A source as it is to be counted.

    Attributes:
        place: the folder of the mix that keeps what is known of it.
        corpus, style, strategy: what to open.
        repeated: a virtual repeat: its documents count as derived from themselves.
        counts: tokens of documents that no manifest counts with the tokenizer of the mix.
        listed: take tokens from the manifest.
    """

    place: str
    corpus: tuple[str, ...]
    style: str | None
    strategy: str | None
    repeated: bool
    counts: TokenCounts | None
    listed: bool


def share(wanted: Sequence[Wanted], rank: int, world_size: int) -> Iterator[tuple[Wanted, Folder, Blocks, int]]:
    """A task's share of the files of all sources: the source, the folder of what is found, its files, which of them."""
    for one in wanted:
        place = Folder(one.place)
        blocks = open_blocks(one.corpus, style=one.style, strategy=one.strategy, plan=place)
        for number in range(rank, len(blocks.files), world_size):
            yield one, place, blocks, number


class CountDocuments(PipelineStep):
    """Count the documents of every source; files are shared among tasks."""

    name = "Documents"
    type = "🔎 - SOURCE"

    def __init__(self, wanted: Sequence[Wanted]):
        super().__init__()
        self.wanted = list(wanted)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        for one, place, blocks, number in share(self.wanted, rank, world_size):
            name = documents_name(blocks.files[number])
            if not place.exists(name):
                with self.track_time("file"):
                    found = self._listed(one, blocks, number) if one.listed else self._read(one, blocks, number)
                if one.repeated:
                    found["source"] = found["uid"]
                self.stat_update("documents", value=len(found))
                place.create(name, _saved(found))

    def _listed(self, one: Wanted, blocks: Blocks, number: int) -> np.ndarray:
        import pyarrow.compute as pc

        from derivedata.store.manifest import Manifest

        shard = f"documents/{blocks.files[number].path}"
        columns = ["row", "tokens", "uid", "source_uid"]
        table = Manifest(one.corpus[0]).view().dataset("documents").to_table(columns, filter=pc.field("shard") == shard)
        found = np.empty(table.num_rows, DOCUMENT)
        found["row"], found["tokens"] = table["row"].to_numpy(), table["tokens"].to_numpy()
        found["uid"] = [short(uid) for uid in table["uid"].to_pylist()]
        found["source"] = [short(uid) for uid in table["source_uid"].to_pylist()]
        return np.sort(found, order="row")

    def _read(self, one: Wanted, blocks: Blocks, number: int) -> np.ndarray:
        file, found = blocks.files[number], []
        waiting: list[Document] = []

        def count() -> None:
            for document, tokens in zip(waiting, one.counts.count(file, waiting), strict=True):
                derivation = (document.metadata or {}).get("derivedata")
                source = derivation.get("source_uid") if isinstance(derivation, dict) else None
                found.append((document.row, tokens, short(document.uid), short(source)))
            waiting.clear()

        for row in read_rows(file):
            if row.__class__ is Document:
                waiting.append(row)
                if len(waiting) == AT_ONCE:
                    count()
        count()
        return np.array(found, DOCUMENT)


def short(uid: str | None) -> int:
    """64 bits of a uid; 0 for none."""
    return int(uid[:16], 16) if uid else 0


def documents_name(file: CorpusFile) -> str:
    """Where the counts of a shard are kept."""
    return rows_name(file.path).replace("rows/", "documents/")


class SourceDocuments:
    """The counted documents of a source, and which of them may be used.

    Args:
        place: the folder of the mix for this source.
        blocks: all of the source.
        name: of the source, for errors.
        check: compare with the counts of the blocks (not where these are of usable documents only).
    """

    def __init__(self, place: Folder, blocks: Blocks, name: str, *, check: bool = True):
        self.place, self.blocks, self.name, self._check = place, blocks, name, check
        self.of_file = lru_cache(16)(self._load)
        self.allowed: list[np.ndarray | None] = [None] * len(blocks.files)  # None: all

    def _load(self, number: int) -> np.ndarray:
        found = np.load(io.BytesIO(self.place.read(documents_name(self.blocks.files[number]))))
        if self._check and len(found) != int(self.blocks.table["documents"][self.blocks.table["file"] == number].sum()):
            raise UserError("is not what it was when it was counted", where=self.blocks.files[number].url)
        return found

    def usable(self, number: int) -> np.ndarray:
        """Those documents of a file that may be used."""
        allowed = self.allowed[number]
        return self.of_file(number) if allowed is None else self.of_file(number)[allowed]

    @cached_property
    def is_derived(self) -> bool:
        """Whether its documents were derived from others.

        Raises:
            UserError: some were and some were not.
        """
        strategies = set(self.blocks.strategies) if len(self.blocks) else set()
        if strategies - set(FRESH):
            derived = {strategy not in FRESH for strategy in strategies}
        else:
            derived = set()
            for number in range(len(self.blocks.files)):
                # What an output of ours calls fresh names itself as its source, if anything.
                sources = self.of_file(number)["source"] if not strategies & {"fresh"} else np.zeros(1, np.uint64)
                derived |= set((sources > 0).tolist())
        if len(derived) > 1:
            raise UserError(
                "holds fresh and derived documents",
                where=f"source {self.name}",
                remedy="give it a strategy (fresh, repeat, paraphrase), and the others a source of their own",
            )
        return derived == {True}

    def limit(self, allowed: list[np.ndarray]) -> None:
        """Use only these documents: a mask for each file, of what may be used so far."""
        self.allowed = allowed

    def keep(self) -> None:
        """Keep which rows may be used, where not all may, for what reads the mix."""
        if all(mask is None for mask in self.allowed):
            return
        for number, file in enumerate(self.blocks.files):
            self.place.replace(rows_name(file.path), _saved(self.usable(number)["row"]))
        self.place.replace("blocks.npy", _saved(self.by_block(self.blocks)[0]))

    def totals(self) -> tuple[int, int]:
        """Documents and tokens that may be used."""
        tables = [self.usable(number) for number in range(len(self.blocks.files))]
        return sum(map(len, tables)), int(sum(table["tokens"].sum() for table in tables))

    def by_block(self, blocks: Blocks) -> tuple[np.ndarray, np.ndarray]:
        """Usable documents, and their tokens, in each of some blocks of the source."""
        documents, tokens = np.zeros(len(blocks), np.int64), np.zeros(len(blocks), np.int64)
        for number in range(len(blocks.files)):
            own = np.flatnonzero(blocks.table["file"] == number)
            table = self.usable(number)
            edges = [np.searchsorted(table["row"], blocks.table[name][own]) for name in ("first", "stop")]
            before = np.concatenate([[0], np.cumsum(table["tokens"])])
            documents[own], tokens[own] = edges[1] - edges[0], before[edges[1]] - before[edges[0]]
        return documents, tokens

    def prefix(self, stream: BlockStream, epoch: int, wanted: int) -> int:
        """Documents in the shortest prefix of an epoch of `stream` (over usable blocks) that has `wanted` tokens."""
        order, (_, tokens) = stream.order(epoch), self.by_block(stream.blocks)
        ahead = np.concatenate([[0], np.cumsum(tokens[order.order])])[order.starts]
        number = int(np.searchsorted(ahead[1:], wanted))
        table = self.in_window(stream, epoch, number)
        return (
            int(order.documents_before[number] + np.searchsorted(ahead[number] + np.cumsum(table["tokens"]), wanted))
            + 1
        )

    def in_window(self, stream: BlockStream, epoch: int, number: int) -> np.ndarray:
        """The documents of window `number` of an epoch, in their order."""
        found, files = [np.empty(0, DOCUMENT)], [np.empty(0, np.int64)]
        for block in np.sort(stream.order(epoch).blocks(number)).tolist():
            file = int(stream.blocks.table["file"][block])
            table = self.usable(file)
            edges = np.searchsorted(table["row"], [stream.blocks.table[name][block] for name in ("first", "stop")])
            found.append(table[edges[0] : edges[1]])
            files.append(np.full(len(found[-1]), file))
        table = np.concatenate(found)
        return table[stream.shuffled(epoch, np.concatenate(files), table["row"])]

    def uids(self, stream: BlockStream) -> np.ndarray:
        """Uids of the documents in a stream of this source (64 bits each), sorted; with what fresh copies were copied
        from."""
        if stream.epochs:
            tables = [self.usable(number) for number in range(len(self.blocks.files))]
        else:
            tables = []
            for window in range(stream.windows):
                epoch, number = stream.place(window)
                tables.append(self.in_window(stream, epoch, number)[: stream.count(window)])
        both = np.concatenate([table[name] for table in tables for name in ("uid", "source")])
        return np.unique(both[both > 0])


def _saved(array: np.ndarray) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()
