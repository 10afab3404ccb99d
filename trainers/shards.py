"""Token shards of `derivedata tokenize` as a corpus: ids from the shards, origins from the documents they were made of.

Shards hold the stream they were made of in its order, and nothing of where a document comes from; so that corpus must
still be there. Nothing is tokenised again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from derivedata.corpus.stream import DocumentStream, open_stream
from derivedata.corpus.token_files import TokenFile, TokenReader
from derivedata.errors import UserError
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import RunRecord, current_run

_PIECE = 1 << 20  # tokens read at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards:
    """Token shards and the stream they were made of.

    stream: the documents. reader: their ids. tokenizer: what they were made with, its folder, and its sha256.
    end_of_text: the id that ends each document.
    """

    stream: DocumentStream
    reader: TokenReader
    tokenizer: str
    folder: str
    sha256: str
    end_of_text: int

    def ids(self) -> Iterator[np.ndarray]:
        """The ids of each document in order, without its end."""
        rest = np.empty(0, self.reader.dtype)
        for start in range(0, self.reader.tokens, _PIECE):
            piece = np.concatenate([rest, self.reader.read(start, min(start + _PIECE, self.reader.tokens))])
            ends = np.flatnonzero(piece == self.end_of_text)
            begin = 0
            for end in ends:
                yield piece[begin:end]
                begin = end + 1
            rest = piece[begin:]


def open_shards(place: str | Sequence[str]) -> Shards | None:
    """The token shards at a place; None when there is something else.

    Raises:
        UserError: they are not finished, or the corpus they were made of is gone or another by now.
    """
    places = [place] if isinstance(place, str) else list(place)
    if len(places) != 1 or any(character in places[0] for character in "*?["):
        return None
    folder = Folder(places[0])
    record = current_run(folder)
    if record is None or record.identity.get("job") != "tokenize":
        return None
    if record.status != "done":
        raise UserError("the token shards are not finished", where=folder.url, remedy="run derivedata tokenize again")
    rows = Manifest(folder).table("token_shards", ["path", "tokens", "dtype"]).sort_by("path").to_pylist()
    files = [TokenFile(path=row["path"], tokens=row["tokens"]) for row in rows]
    told = record.identity
    return Shards(
        stream=_made_of(folder, record),
        reader=TokenReader(folder, files, np.dtype(rows[0]["dtype"]).newbyteorder("<")),
        tokenizer=told["tokenizer"],
        folder=record.config.execution["tokenizer_folder"],
        sha256=told["tokenizer_sha256"],
        end_of_text=told["eos_id"],
    )


def _made_of(folder: Folder, record: RunRecord) -> DocumentStream:
    of = list(record.config.extent["of"])
    try:
        stream = open_stream(of[0] if len(of) == 1 else of, style=record.config.extent["style"])
    except UserError as error:
        raise UserError(
            f"the corpus that these tokens were made of says what is fresh and what is derived: {error.line}",
            where=folder.url,
        ) from None
    if stream.fingerprint != record.identity["content"]:
        raise UserError(
            "the corpus that these tokens were made of has changed",
            where=folder.url,
            value=", ".join(of),
            remedy="tokenize it again",
        )
    return stream
