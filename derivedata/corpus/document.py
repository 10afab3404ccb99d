"""Documents in the Dolma layout, rejected rows, and the identity both are known by.

A document is kept as the mapping it was read as, so what nobody looked at goes out as it came in: order of keys,
unknown fields, nulls, and fields that were never there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

COMPRESSION_SUFFIXES = (".gz", ".zst", ".zstd", ".bz2", ".xz")
DOLMA_FIELDS = ("id", "text", "source", "added", "created", "metadata")
REJECTED_TEXT_CHARS = 2_000


class Document:
    """One document of a corpus.

    Made by the reader, or in code by keyword: `Document(text="...", id="a", path="x.jsonl", row=3)`; a field left at
    None is absent from `to_dolma()`.

    Attributes:
        fields: the row as it was read (keys in their order); `to_dolma()` gives a copy.
        path: path of the shard relative to the corpus root, with its suffix.
        row: physical row in the shard, 0-based; blank lines are no rows, rejected rows are.
    """

    __slots__ = ("_uid", "fields", "path", "row")

    def __init__(
        self,
        text: str,
        *,
        id: object = None,
        source: str | None = None,
        added: object = None,
        created: object = None,
        metadata: Mapping | None = None,
        extra: Mapping | None = None,
        path: str = "",
        row: int = 0,
    ):
        known = {"id": id, "text": text, "source": source, "added": added, "created": created, "metadata": metadata}
        self.fields = {key: value for key, value in known.items() if value is not None} | dict(extra or {})
        self.path, self.row, self._uid = path, row, None

    @classmethod
    def from_fields(cls, fields: dict, path: str, row: int) -> Document:
        """The document that a row holds; the mapping is kept, not copied, and must have a string `text`."""
        document = cls.__new__(cls)
        document.fields, document.path, document.row, document._uid = fields, path, row, None
        return document

    @property
    def text(self) -> str:
        return self.fields["text"]

    @property
    def id(self) -> object:
        """The user's id as given (string, number, null): never trusted to be there or to be unique."""
        return self.fields.get("id")

    @property
    def source(self) -> str | None:
        """Where the document comes from; None where it is absent or no string."""
        source = self.fields.get("source")
        return source if isinstance(source, str) else None

    @property
    def added(self) -> object:
        return self.fields.get("added")

    @property
    def created(self) -> object:
        return self.fields.get("created")

    @property
    def metadata(self) -> dict | None:
        """The metadata mapping; None where it is absent or no mapping (`to_dolma()` still has it as it came)."""
        metadata = self.fields.get("metadata")
        return metadata if isinstance(metadata, dict) else None

    @property
    def extra(self) -> dict:
        """Top-level fields outside the Dolma layout."""
        return {key: value for key, value in self.fields.items() if key not in DOLMA_FIELDS}

    @property
    def uid(self) -> str:
        """32 hex digits, see `document_uid`; worked out when first asked for."""
        if self._uid is None:
            self._uid = document_uid(self.path, self.row, self.text)
        return self._uid

    def to_dolma(self) -> dict:
        """The row as it was read: what was absent stays absent, null stays null, unknown fields stay."""
        return dict(self.fields)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Document):
            return NotImplemented
        return (self.path, self.row, self.fields) == (other.path, other.row, other.fields)

    __hash__ = None

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 40 else self.text[:37] + "..."
        return f"Document({self.path!r}, row={self.row}, id={self.id!r}, text={text!r})"

    # __slots__ without a __dict__ needs these to cross process boundaries.
    def __getstate__(self):
        return (self.fields, self.path, self.row)

    def __setstate__(self, state):
        self.fields, self.path, self.row = state
        self._uid = None


@dataclass(slots=True)
class RejectedRow:
    """A row that is no document, and why.

    Attributes:
        path: path of the shard relative to the corpus root.
        line: 1-based line (of a Parquet file: row + 1); 0 means the archive as a whole.
        reason: one of `derivedata.corpus.strict.REASONS`.
        detail: the reason in words, for people.
        text: what the row holds, cut to 2,000 characters.
        row: the row number this reject takes in the shard, 0-based (a reject of the archive takes one too).
    """

    path: str
    line: int
    reason: str
    detail: str
    text: str = ""
    row: int = 0

    def to_dict(self) -> dict:
        return {
            "path": self.path,
            "line": self.line,
            "row": self.row,
            "reason": self.reason,
            "detail": self.detail,
            "text": self.text,
        }


def without_compression(path: str) -> str:
    """The path without its compression suffix: `a/x.jsonl.gz` -> `a/x.jsonl`."""
    for suffix in COMPRESSION_SUFFIXES:
        if path.endswith(suffix):
            return path[: -len(suffix)]
    return path


def document_uid(path: str, row: int, text: str) -> str:
    """Identity of a document: 32 hex digits of SHA-256 over path, row and the SHA-256 of the text.

    The path is relative to the corpus root and loses its compression suffix, so the uid survives moving the corpus and
    compressing it again.
    """
    return uid_of_digest(path, row, hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())


def uid_of_digest(path: str, row: int, digest: bytes) -> str:
    """`document_uid` where the SHA-256 of the text is known."""
    # surrogatepass: file names that are no UTF-8 arrive from the file system as lone surrogates.
    place = f"{without_compression(path)}\n{row}\n".encode("utf-8", "surrogatepass")
    return hashlib.sha256(place + digest).hexdigest()[:32]
