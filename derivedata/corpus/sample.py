"""The built-in sample corpus: documents written for this package, as a Dolma folder.

    write_sample_corpus("sample")        # sample/documents/sample-00.jsonl.gz and two more

Short articles, notices, recipes and a story, most in English, five in German, French, Spanish, Chinese and Japanese;
many with numbers. They are free of other people's rights: like the rest of the package, Apache-2.0.
"""

from __future__ import annotations

import gzip
import io
import json
from importlib import resources
from pathlib import Path
from typing import Any

from derivedata.errors import UserError

SHARDS = 3


def sample_documents() -> list[dict[str, Any]]:
    """The documents as Dolma rows (id, text, source, added, created, metadata with title, language and topic)."""
    lines = resources.files("derivedata.corpus").joinpath("sample", "sample.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def write_sample_corpus(folder: str) -> list[str]:
    """Write the sample corpus under `folder` as `documents/sample-*.jsonl.gz`; the same bytes every time.

    Shards that are there already with these bytes are left alone, so that writing it twice changes nothing.

    Args:
        folder: a local folder; made where needed.

    Returns:
        The paths of the shards.

    Raises:
        UserError: a shard is there with another content, or can't be written.
    """
    documents = sample_documents()
    paths = []
    try:
        for shard in range(SHARDS):
            # Dealt out like cards, so that each shard holds several kinds and languages.
            data = _gzipped(documents[shard::SHARDS])
            path = Path(folder) / "documents" / f"sample-{shard:02d}.jsonl.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                if path.read_bytes() != data:
                    raise UserError("holds something else already", where=path, remedy="choose another folder")
            else:
                path.write_bytes(data)
            paths.append(str(path))
    except OSError as error:
        raise UserError(f"can't be written: {error.strerror}", where=error.filename or folder) from None
    return paths


def _gzipped(rows: list[dict[str, Any]]) -> bytes:
    packed = io.BytesIO()
    # No time and no name in the header: they would make the bytes differ from one day to the next.
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=6, mtime=0) as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    return packed.getvalue()
