"""A token store: the distinct documents of an ordered corpus as one array of ids, and the order in which they come.

A document that comes again (an epoch of `repeat`) is stored once and named twice in the order. With the store at hand a
trainer knows before it starts how many tokens there are, how many of them are fresh, and resumes by a block number.
It is a cache: a build that was killed starts again, and `store.json`, written last, says that it is whole. While it is
built about 150 bytes a distinct document are held in memory; afterwards all arrays are memory-mapped.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from derivedata.errors import UserError
from derivedata.store.faults import explain
from derivedata.trainers.vocabulary import TextTokenizer

MARK = "store.json"
FRESH, REPEAT = "fresh", "repeat"
_BATCH = 256  # documents tokenised at once


@dataclass(frozen=True, slots=True)
class Label:
    """What a document is: strategy (fresh, paraphrase, ...), style or None, source or None."""

    strategy: str
    style: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A document on its way into a store.

    epoch: how often it comes with this time, from 1. parent: uid of the document it was derived from; empty: its own.
    rewrite: number of the rewrite, from 0. ids: when it is tokenised already.
    """

    uid: str
    text: str
    label: Label
    epoch: int = 1
    parent: str = ""
    rewrite: int = 0
    ids: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenStore:
    """Distinct documents (index d) and positions (index p) in the order of the corpus.

    tokens: ids, each document followed by an end of text. starts: first token of d; one more entry than documents.
    label, bytes, rewrite: of d (bytes: of its text in UTF-8). uids, parents: of d, 32 ASCII bytes each. order, epochs:
    of p, its d and how often d comes with it. labels: what `label` counts into. fingerprint: of content, order and
    tokenizer.
    """

    folder: Path
    tokens: np.ndarray
    starts: np.ndarray
    label: np.ndarray
    bytes: np.ndarray
    rewrite: np.ndarray
    uids: np.ndarray
    parents: np.ndarray
    order: np.ndarray
    epochs: np.ndarray
    labels: tuple[Label, ...]
    tokenizer: str
    tokenizer_sha256: str
    vocabulary_size: int
    end_of_text: int
    fingerprint: str

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each distinct document, its end of text included."""
        return np.diff(self.starts)

    @property
    def total(self) -> int:
        """Tokens in the whole order, repeats included."""
        return int(self.lengths[self.order].sum())


_ARRAYS = {"starts": np.int64, "label": np.int32, "bytes": np.int64, "rewrite": np.int32, "uids": "S32",
           "parents": "S32", "order": np.int64, "epochs": np.int32}  # fmt: skip


def build_store(
    folder: Path | str, entries: Iterable[Entry], tokenizer: TextTokenizer, *, origin: str, need: int | None = None
) -> TokenStore:
    """Tokenise documents in order into a store; a whole one made of the same things is opened instead.

    Args:
        entries: the documents, in order.
        origin: fingerprint of where they come from: with the tokenizer and `need` it identifies the store.
        need: stop once the order has this many tokens.

    Raises:
        UserError: the folder cannot be written (no space left, permissions).
    """
    folder = Path(folder)
    identity = hashlib.sha256(json.dumps([origin, tokenizer.sha256, need]).encode()).hexdigest()
    found = open_store(folder, missing_ok=True)
    if found is not None and found.fingerprint == identity:
        return found
    waiting = folder.with_name(folder.name + ".part")
    try:
        shutil.rmtree(waiting, ignore_errors=True)
        waiting.mkdir(parents=True)
        _write(waiting, entries, tokenizer, need, identity)
        shutil.rmtree(folder, ignore_errors=True)
        waiting.rename(folder)
    except OSError as error:
        told = explain(error, str(folder))
        if told is None:
            raise
        raise told from None
    return open_store(folder)


def _write(folder: Path, entries: Iterable[Entry], tokenizer: TextTokenizer, need: int | None, identity: str) -> None:
    kind = np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32
    columns = {name: bytearray() if kind == "S32" else array(np.dtype(kind).char) for name, kind in _ARRAYS.items()}
    starts, order = columns["starts"], columns["order"]
    starts.append(0)
    known: dict[bytes, int] = {}
    labels: dict[Label, int] = {}
    total, end = 0, np.array([tokenizer.end_of_text], kind).tobytes()
    with (folder / "tokens.bin").open("wb") as file:
        for group in _groups(entries):
            new: dict[bytes, Entry] = {}
            for entry in group:
                if _key(entry) not in known:
                    new.setdefault(_key(entry), entry)
            encoded = iter(tokenizer.encode([entry.text for entry in new.values() if entry.ids is None]))
            for entry in new.values():
                ids = next(encoded) if entry.ids is None else entry.ids
                known[_key(entry)] = len(columns["label"])
                file.write(ids.astype(kind).tobytes() + end)
                starts.append(starts[-1] + len(ids) + 1)
                columns["label"].append(labels.setdefault(entry.label, len(labels)))
                columns["bytes"].append(len(entry.text.encode("utf-8", "replace")))
                columns["rewrite"].append(entry.rewrite)
                columns["uids"] += _fixed(entry.uid)
                columns["parents"] += _fixed(entry.parent or entry.uid)
            for entry in group:
                d = known[_key(entry)]
                order.append(d)
                columns["epochs"].append(entry.epoch)
                total += starts[d + 1] - starts[d]
                if need is not None and total >= need:
                    break
            if need is not None and total >= need:
                break
    for name, dtype in _ARRAYS.items():
        np.save(folder / f"{name}.npy", np.frombuffer(columns[name], dtype))
    mark = {
        "labels": [asdict(label) for label in labels],
        "tokenizer": tokenizer.name,
        "tokenizer_sha256": tokenizer.sha256,
        "vocabulary_size": tokenizer.vocabulary_size,
        "end_of_text": tokenizer.end_of_text,
        "fingerprint": identity,
        "dtype": np.dtype(kind).name,
    }
    (folder / MARK).write_text(json.dumps(mark, indent=1) + "\n")


def _groups(entries: Iterable[Entry]) -> Iterator[Sequence[Entry]]:
    entries = iter(entries)
    while group := list(islice(entries, _BATCH)):
        yield group


def _fixed(uid: str) -> bytes:
    return uid.encode()[:32].ljust(32, b"\0")


def _key(entry: Entry) -> bytes:
    # Half the memory of 32 hex digits as text.
    return hashlib.blake2b(entry.uid.encode(), digest_size=16).digest()


def open_store(folder: Path | str, *, missing_ok: bool = False) -> TokenStore | None:
    """The store in a folder. Raises UserError when there is none (or gives None), or when it is damaged."""
    folder = Path(folder)
    try:
        mark = json.loads((folder / MARK).read_text())
    except FileNotFoundError:
        if missing_ok:
            return None
        raise UserError("no token store", where=folder) from None
    try:
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
        count = int(arrays["starts"][-1])
        dtype = np.dtype(mark.pop("dtype"))
        # An empty file cannot be mapped.
        tokens = np.memmap(folder / "tokens.bin", dtype, "r") if count else np.zeros(0, dtype)
        if len(tokens) != count:
            raise ValueError(f"{len(tokens)} tokens where {count} were written")
        labels = tuple(Label(**label) for label in mark.pop("labels"))
        return TokenStore(folder=folder, tokens=tokens, labels=labels, **arrays, **mark)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError("a damaged token store", where=folder, value=str(error), remedy="remove the folder") from None
