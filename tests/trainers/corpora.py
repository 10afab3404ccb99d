"""Small corpora for tests of the trainer: fresh documents of the built-in sample and rewrites of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from derivedata.corpus.sample import sample_documents
from derivedata.corpus.stream import open_stream
from derivedata.trainers.ladder import Size

TINY = Size(name="tiny", nominal=2e4, width=32, layers=1, heads=2, mlp=32, sequence_length=64)


def write_documents(folder: Path, rows: Iterable[dict], name: str = "part-00") -> Path:
    """A Dolma folder with one shard."""
    shard = folder / "documents" / f"{name}.jsonl"
    shard.parent.mkdir(parents=True, exist_ok=True)
    shard.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def fresh_rows(count: int = 40) -> list[dict]:
    """The first documents of the built-in sample, from two sources."""
    rows = sample_documents()[:count]
    return [{**row, "source": ("books", "web")[i % 2]} for i, row in enumerate(rows)]


def write_fresh(folder: Path, count: int = 40) -> Path:
    """A corpus of fresh documents."""
    return write_documents(folder, fresh_rows(count))


def rewrites(fresh: Path, times: int, style: str = "plain") -> Iterator[dict]:
    """Rewrites of each document as a model might have made them: its sentences in another order, some left out."""
    stream = open_stream(str(fresh))
    documents = [document for window in range(stream.windows) for document in stream.read(window)]
    for rewrite in range(times):
        for document in documents:
            sentences = document.text.split(". ")
            kept = [sentence for i, sentence in enumerate(sentences) if (i + rewrite) % 4]
            derivation = {
                "strategy": "paraphrase",
                "style": style,
                "source_uid": document.uid,
                "rewrite": rewrite,
            }
            yield {
                "id": f"{document.id}-{rewrite}",
                "text": ". ".join(kept[::-1]) or document.text,
                "source": f"{document.source}/derived/{style}",
                "metadata": {"derivedata": derivation},
            }


def write_rewrites(folder: Path, fresh: Path, times: int = 1) -> Path:
    """A derived corpus: `times` rewrites of each document of another."""
    return write_documents(folder, rewrites(fresh, times), "derived-00")
