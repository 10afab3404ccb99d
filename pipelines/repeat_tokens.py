"""Tokens of the documents of a corpus: as its manifest has them, or counted with a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from derivedata.corpus.document import Document
from derivedata.corpus.files import CorpusFile
from derivedata.errors import UserError

if TYPE_CHECKING:
    from derivedata.corpus.blocks import Blocks
    from derivedata.generation.tokenizer import Tokenizer
    from derivedata.store.manifest import View

AT_ONCE = 256  # documents in one call of a tokenizer


class TokenCounts:
    """Counts tokens with one tokenizer.

    Attributes:
        name: what the tokenizer is called in manifests.
    """

    name: str

    def count(self, file: CorpusFile, documents: Sequence[Document]) -> list[int]:
        """Tokens of documents of a file."""
        raise NotImplementedError


class Counted(TokenCounts):
    """Counts anew."""

    def __init__(self, folder: str, name: str):
        self.tokenizer_folder, self.name = folder, name

    @cached_property
    def tokenizer(self) -> Tokenizer:
        from derivedata.generation.tokenizer import load_tokenizer

        return load_tokenizer(self.tokenizer_folder, self.name)

    def count(self, file: CorpusFile, documents: Sequence[Document]) -> list[int]:
        found: list[int] = []
        for at in range(0, len(documents), AT_ONCE):
            found += self.tokenizer.count([document.text for document in documents[at : at + AT_ONCE]])
        return found

    def __getstate__(self) -> dict:
        return {"tokenizer_folder": self.tokenizer_folder, "name": self.name}


class Listed(TokenCounts):
    """Takes them from the manifest of an output of ours."""

    def __init__(self, output: str, name: str):
        self.output, self.name = output, name
        self._of_shard = lru_cache(4)(self._read)

    def count(self, file: CorpusFile, documents: Sequence[Document]) -> list[int]:
        counts = self._of_shard(f"documents/{file.path}")
        rows = [document.row for document in documents]
        if rows and (max(rows) >= len(counts) or (found := counts[rows]).min() < 0):
            raise UserError("the index has no tokens for some of its rows", where=file.url)
        return found.tolist() if rows else []

    def of_file(self, file: CorpusFile) -> np.ndarray:
        """Tokens of each row of a shard."""
        return self._of_shard(f"documents/{file.path}")

    def of_blocks(self, blocks: Blocks) -> np.ndarray:
        """Tokens of each block of the output."""
        found = []
        for file, first, stop in blocks.table[["file", "first", "stop"]].tolist():
            found.append(int(self._of_shard(f"documents/{blocks.files[file].path}")[first:stop].sum()))
        return np.array(found, np.int64)

    @cached_property
    def _view(self) -> View:
        from derivedata.store.manifest import Manifest

        return Manifest(self.output).view()

    def _read(self, shard: str) -> np.ndarray:
        import pyarrow.compute as pc

        table = self._view.dataset("documents").to_table(columns=["row", "tokens"], filter=pc.field("shard") == shard)
        rows = table["row"].to_numpy()
        counts = np.full(int(rows.max(initial=-1)) + 1, -1, np.int64)
        counts[rows] = table["tokens"].fill_null(-1).to_numpy()
        return counts

    def __getstate__(self) -> dict:
        return {"output": self.output, "name": self.name}

    def __setstate__(self, state: dict) -> None:
        self.__init__(**state)


def listed_tokenizer(place: str) -> str | None:
    """The tokenizer that every shard of an output of ours was counted with; None when there is none such."""
    from derivedata.store.manifest import Manifest

    shards = Manifest(place).table("shards", ["tokenizer", "tokens"])
    names = set(shards["tokenizer"].to_pylist())
    return names.pop() if len(names) == 1 and not shards["tokens"].null_count else None


def tokenizer_folder(counts: TokenCounts | None) -> str | None:
    """Where the tokenizer is, for the run record: `derivedata verify` counts with it again. None: nobody knows."""
    from derivedata.store.paths import Folder
    from derivedata.store.runs import current_run

    if isinstance(counts, Counted):
        return counts.tokenizer_folder
    record = current_run(Folder(counts.output)) if isinstance(counts, Listed) else None
    return record.config.execution.get("tokenizer_folder") if record else None
