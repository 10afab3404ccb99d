"""Nested subsets of a corpus, without copying it: `derivedata subset CORPUS --tokens .1B,.6B,2.4B -o DIR`.

Every document has a place in one seeded order of all documents (a hash of seed, shard and row). A subset is the
shortest prefix of that order with so many tokens, so a larger one contains the smaller; what is held out is the other
end.
`CountKeys` is the Datatrove step: it counts the tokens of the documents that may be needed, and no others.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from datatrove.pipeline.base import PipelineStep

from derivedata.corpus.blocks import Blocks
from derivedata.corpus.document import Document
from derivedata.corpus.files import CorpusFile
from derivedata.corpus.reader import read_rows
from derivedata.corpus.windows import Selection, global_keys
from derivedata.errors import UserError
from derivedata.pipelines.repeat_tokens import Listed, TokenCounts
from derivedata.store.paths import Folder

KEYS = "plan/keys"
KEY_SPACE = 1 << 64
COUNTED = np.dtype([("key", "u8"), ("row", "i8"), ("tokens", "i8")])
BUCKETS = 1 << 16
AT_ONCE = 512


class CountKeys(PipelineStep):
    """For each file, keep key, row and tokens of its documents with a key in [low, high)."""

    name = "Keys"
    type = "🔎 - SOURCE"

    def __init__(self, files: Sequence[CorpusFile], output: str, tokens: TokenCounts, selection: Selection):
        super().__init__()
        self.files, self.output, self.tokens, self.selection = list(files), output, tokens, selection

    @cached_property
    def folder(self) -> Folder:
        return Folder(self.output)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        for file in self.files[rank::world_size]:
            name = keys_name(file, self.selection)
            if not self.folder.exists(name):
                with self.track_time("file"):
                    counted = self._count(file)
                self.stat_update("documents", value=len(counted))
                sink = io.BytesIO()
                np.save(sink, counted)
                self.folder.create(name, sink.getvalue())

    def _count(self, file: CorpusFile) -> np.ndarray:
        if isinstance(self.tokens, Listed):  # its rows are documents, all of them
            counts = self.tokens.of_file(file)
            rows = np.arange(len(counts))
            rows = rows[self.selection.holds(file.path, rows)]
            return _rows(self.selection.seed, file, rows, counts[rows])
        found, waiting = [], []

        def count() -> None:
            rows = np.array([document.row for document in waiting], np.int64)
            counts = np.array(self.tokens.count(file, waiting), np.int64)
            found.append(_rows(self.selection.seed, file, rows, counts))
            waiting.clear()

        for row in read_rows(replace(file, selection=self.selection)):
            if row.__class__ is Document:
                waiting.append(row)
                if len(waiting) == AT_ONCE:
                    count()
        if waiting:
            count()
        return np.concatenate(found) if found else np.empty(0, COUNTED)


def _rows(seed: int, file: CorpusFile, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    table = np.empty(len(rows), COUNTED)
    table["key"], table["row"], table["tokens"] = global_keys(seed, file.path, rows), rows, tokens
    return table


def keys_name(file: CorpusFile, selection: Selection) -> str:
    """Where the keys of a file and an interval are kept."""
    told = f"{file.path}\n{selection}".encode("utf-8", "surrogatepass")
    return f"{KEYS}/{hashlib.sha256(told).hexdigest()[:32]}.npy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A subset: the documents with a key in [low, high), how many, and their tokens."""

    low: int
    high: int
    documents: int
    tokens: int


class Counted:
    """What was counted, file by file, over one or more intervals of keys that lie one after the other."""

    def __init__(self, folder: Folder, files: Sequence[CorpusFile], intervals: Sequence[Selection]):
        self.folder, self.files, self.intervals = folder, files, intervals

    def of_file(self, number: int) -> np.ndarray:
        """The counted documents of a file."""
        names = [keys_name(self.files[number], interval) for interval in self.intervals]
        return np.concatenate([np.load(io.BytesIO(self.folder.read(name))) for name in names])

    @property
    def tokens(self) -> int:
        """Tokens of all that is counted."""
        return sum(int(self.of_file(number)["tokens"].sum()) for number in range(len(self.files)))

    def prefix(self, wanted: int) -> Cut:
        """The shortest prefix of the order with at least `wanted` tokens (which must be counted)."""
        high = self.intervals[-1].high
        width = -(-high // BUCKETS)
        sums = np.zeros(BUCKETS, np.int64)
        for number in range(len(self.files)):
            rows = self.of_file(number)
            np.add.at(sums, (rows["key"] // np.uint64(width)).astype(np.int64), rows["tokens"])
        before = np.cumsum(sums) - sums
        bucket = int(np.searchsorted(np.cumsum(sums), wanted))
        # Only the documents of that bucket are looked at one by one.
        keys, tokens = [], []
        for number in range(len(self.files)):
            rows = self.of_file(number)
            rows = rows[rows["key"] // np.uint64(width) == bucket]
            keys.append(rows["key"])
            tokens.append(rows["tokens"])
        keys, tokens = np.concatenate(keys), np.concatenate(tokens)
        order = np.argsort(keys, kind="stable")
        reached = before[bucket] + np.cumsum(tokens[order])
        return self.cut(0, int(keys[order][np.searchsorted(reached, wanted)]) + 1)

    def cut(self, low: int, high: int) -> Cut:
        """The documents with a key in [low, high), all of them counted."""
        documents = tokens = 0
        for number in range(len(self.files)):
            rows = _between(self.of_file(number), low, high)
            documents, tokens = documents + len(rows), tokens + int(rows["tokens"].sum())
        return Cut(low=low, high=high, documents=documents, tokens=tokens)

    def by_block(self, blocks: Blocks, cut: Cut) -> np.ndarray:
        """How many documents of each block a subset holds."""
        found = np.zeros(len(blocks), np.int64)
        for number in range(len(self.files)):
            own = np.flatnonzero(blocks.table["file"] == number)
            rows = np.sort(_between(self.of_file(number), cut.low, cut.high)["row"])
            first, stop = (np.searchsorted(rows, blocks.table[name][own]) for name in ("first", "stop"))
            found[own] = stop - first
        return found


def _between(rows: np.ndarray, low: int, high: int) -> np.ndarray:
    return rows[(rows["key"] >= np.uint64(low)) & (rows["key"] <= np.uint64(high - 1))]


def count_prefix(
    folder: Folder,
    files: Sequence[CorpusFile],
    *,
    seed: int,
    wanted: int,
    limit: int,
    share: float,
    count: Callable[[Selection], None],
) -> Counted:
    """Count from the beginning of the order until `wanted` tokens are there.

    Args:
        limit: where the held-out documents begin, as a key.
        share: of the order that is thought to hold them.
        count: counts an interval.

    Raises:
        UserError: there are not so many tokens before the held-out documents.
    """
    intervals: list[Selection] = []
    low, high, tokens = 0, 0, 0
    while tokens < wanted:
        if high == limit:
            raise UserError(
                f"the corpus has {tokens:,} tokens beside the held-out documents, {wanted:,} are asked for",
                remedy="ask for fewer, or give a larger corpus",
            )
        low, high = high, min(limit, max(high + 1, int(share * KEY_SPACE)))
        intervals.append(Selection(seed=seed, low=low, high=high))
        count(intervals[-1])
        tokens = Counted(folder, files, intervals).tokens
        share = (high / KEY_SPACE) * min(4.0, 1.1 * wanted / tokens) if tokens else 1.0
    return Counted(folder, files, intervals)


def describe(cut: Cut, **more: Any) -> dict[str, Any]:
    """A subset for its `virtual.json`; keys as text, since JSON's numbers end at 2^53 for some readers."""
    return json.loads(json.dumps({"kind": "subset", "version": 1, **more})) | {
        "low": str(cut.low),
        "high": str(cut.high),
        "documents": cut.documents,
        "tokens": cut.tokens,
    }
